"""A structured mount: a task writes what handlers send it."""

import json
import logging
from contextlib import asynccontextmanager

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


async def write(lines, path):
    async with await anyio.open_file(path, "a") as file:
        async for line in lines:
            await file.write(line)
            await file.flush()


@asynccontextmanager
async def mount(coordinator, config):
    send, receive = anyio.create_memory_object_stream(1000)

    async def handle(event, data):
        try:
            send.send_nowait(json.dumps({"event": event, "data": data}, default=str) + "\n")
        except anyio.WouldBlock:
            logger.warning("the log is full")
        return HookResult(action="continue")

    async with receive, anyio.create_task_group() as group:
        group.start_soon(write, receive, config.get("log_path", "events.jsonl"))
        undo = [
            coordinator.hooks.register(event, handle, priority=85, name="file-log")
            for event in config.get("events", ["*"])
        ]
        logger.info("logging %d events", len(undo))
        try:
            yield
        finally:
            for each in undo:
                each()
            send.close()
