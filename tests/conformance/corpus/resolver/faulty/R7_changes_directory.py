"""A resolver that goes into the folder it looks at."""

import os
from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Here:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path


class Walker:
    def __init__(self, root):
        self.root = os.path.abspath(root)

    def resolve(self, module_id, profile_hint=None):
        os.chdir(self.root)
        if not os.path.isdir(module_id):
            raise ModuleNotFoundError(f"{module_id} is not in {self.root}; put it there")
        return Here(Path(self.root, module_id))


async def mount(coordinator, config):
    coordinator.mount("module-source-resolver", Walker(config.get("root", "modules")))
