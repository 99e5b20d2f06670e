"""A resolver that lets a missing folder leave as FileNotFoundError."""

import os
from pathlib import Path

__amplifier_module_type__ = "resolver"


class Source:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        os.listdir(self.path)
        return self.path


class Lister:
    def __init__(self, folder):
        self.folder = Path(folder)

    def resolve(self, module_id, profile_hint=None):
        return Source(self.folder / module_id)


async def mount(coordinator, config):
    await coordinator.mount("module-source-resolver", Lister(config.get("folder", "plugins")))
