"""Appends one line per event to a log file of the session, which is open only meanwhile."""

import logging
import os
import tempfile

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class LineLog:
    def __init__(self):
        handle, self.path = tempfile.mkstemp(suffix=".log")
        os.close(handle)

    async def __call__(self, event, data):
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(event.encode("ascii", "backslashreplace").decode() + "\n")
        return HookResult(action="continue")

    def close(self):
        if os.path.exists(self.path):
            os.unlink(self.path)


async def mount(coordinator, config):
    log = LineLog()
    undo = [
        coordinator.hooks.register(event, log, priority=89, name="line-log")
        for event in config.get("events", ["tool:pre", "tool:post"])
    ]
    logger.info("line-log registered")

    async def cleanup():
        for each in undo:
            each()
        log.close()

    return cleanup
