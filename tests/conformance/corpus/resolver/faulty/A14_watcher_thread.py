"""A resolver whose thread watches the folder after cleanup."""

import threading
import time
from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Source:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path


class Watching:
    def __init__(self, root):
        self.root = Path(root)
        self.thread = threading.Thread(target=self.watch, name="watcher", daemon=True)
        self.thread.start()

    def watch(self):
        while True:
            time.sleep(0.05)

    def resolve(self, module_id, profile_hint=None):
        path = self.root / module_id
        if not path.is_dir():
            raise ModuleNotFoundError(f"{module_id}: nothing at {path}; create it")
        return Source(path)


async def mount(coordinator, config):
    coordinator.mount("module-source-resolver", Watching(config.get("root", "modules")))
    return lambda: None
