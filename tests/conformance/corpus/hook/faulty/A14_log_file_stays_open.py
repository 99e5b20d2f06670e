"""Planted: the log file is never closed."""

import json
import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)
OPEN = []


async def mount(coordinator, config):
    file = open(config.get("log_path", "events.jsonl"), "a")
    OPEN.append(file)

    async def handle(event, data):
        file.write(json.dumps({"event": event}) + "\n")
        file.flush()
        return HookResult(action="continue")

    undo = [coordinator.hooks.register(e, handle, priority=80, name="log") for e in config.get("events", ["*"])]
    logger.info("logging")

    def cleanup():
        for each in undo:
            each()

    return cleanup
