"""Finds modules in one folder.

Planted: the source returns the path as a text when it came from a hint.
"""

from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Source:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        if not Path(self.path).is_dir():
            raise ModuleNotFoundError(f"nothing is at {self.path}; install the module there")
        return self.path


class Folder:
    def __init__(self, root):
        self.root = Path(root).resolve()

    def resolve(self, module_id, profile_hint=None):
        if isinstance(profile_hint, str):
            return Source(profile_hint)
        if not (self.root / module_id).is_dir():
            raise ModuleNotFoundError(f"no {module_id!r} in {self.root}; install it there", module_id=module_id)
        return Source(self.root / module_id)


async def mount(coordinator, config):
    await coordinator.mount("module-source-resolver", Folder(config.get("directory", "modules")))
