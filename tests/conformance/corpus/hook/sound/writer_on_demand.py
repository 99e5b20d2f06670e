"""Writes events to the log from a background task that the first event starts; cleanup waits for it only if it was started."""

import logging

import anyio

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class Writer:
    def __init__(self, coordinator):
        self.coordinator = coordinator
        self.send = None
        self.finished = anyio.Event()

    async def handle(self, event, data):
        if self.send is None:
            self.send, receive = anyio.create_memory_object_stream(1000)
            self.coordinator.start_soon(self.write, receive, name="writer")
        try:
            self.send.send_nowait(event)
        except (anyio.WouldBlock, anyio.ClosedResourceError, anyio.BrokenResourceError):
            logger.debug("event %s was not written", event)
        return HookResult(action="continue")

    async def write(self, receive):
        try:
            async with receive:
                async for event in receive:
                    logger.debug("event %s", event)
        finally:
            self.finished.set()

    async def close(self):
        if self.send is not None:
            self.send.close()
            await self.finished.wait()


async def mount(coordinator, config):
    writer = Writer(coordinator)
    undo = [
        coordinator.hooks.register(event, writer.handle, priority=88, name="writer")
        for event in config.get("events", ["tool:pre", "tool:post"])
    ]
    logger.info("writer registered")

    async def cleanup():
        for each in undo:
            each()
        await writer.close()

    return cleanup
