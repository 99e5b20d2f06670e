"""Writes one line per event to a file from a thread of its own, which cleanup ends and waits for.

The thread is stopped only if there is a file.
"""

import json
import logging
import queue
import threading
from pathlib import Path

import anyio
import anyio.to_thread

from amplifier import HookResult

__amplifier_module_type__ = "hook"
log = logging.getLogger("tail")
END = object()


class Writer:
    def __init__(self, path):
        self.path = path
        self.lines = queue.SimpleQueue()
        self.thread = threading.Thread(target=self.run, name="tail-writer", daemon=True)
        self.dropped = 0

    def run(self):
        handle = None
        try:
            while (line := self.lines.get()) is not END:
                if self.path is None:
                    continue
                if handle is None:
                    self.path.parent.mkdir(parents=True, exist_ok=True)
                    handle = self.path.open("a", encoding="utf-8", errors="backslashreplace")
                handle.write(line + "\n")
                handle.flush()
        except OSError:
            self.dropped += 1
        finally:
            if handle is not None:
                handle.close()

    async def handle(self, event, data):
        try:
            line = json.dumps({"event": event, "data": data}, default=str)
        except (TypeError, ValueError, RecursionError):
            line = json.dumps({"event": str(event), "data": "not writable"})
        self.lines.put(line)
        return HookResult(action="continue")


async def mount(coordinator, config):
    path = config.get("path")
    writer = Writer(Path(path) if path else None)
    undo = [
        coordinator.hooks.register(event, writer.handle, priority=90, name="tail")
        for event in config.get("events", ["*"])
    ]
    log.info("tail writes to %s", path)
    writer.thread.start()

    async def cleanup():
        for each in undo:
            each()
        if writer.path is not None:
            writer.lines.put(END)
            await anyio.to_thread.run_sync(writer.thread.join, 5)

    coordinator.register_cleanup(cleanup)
    return None
