"""Finds modules in one folder; answers are cached by id and hint, and misses are not cached."""

from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Place:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        if not self.path.is_dir():
            raise ModuleNotFoundError(f"there is no folder {self.path}; install the module there")
        return self.path


class Cached:
    def __init__(self, root):
        self.root = Path(root).resolve()
        self.places = {}

    def resolve(self, module_id, profile_hint=None):
        key = module_id, str(profile_hint)
        if key not in self.places:
            self.places[key] = self.find(module_id, profile_hint)
        return self.places[key]

    def find(self, module_id, hint):
        path = Path(hint) if isinstance(hint, str) and hint else self.root / module_id
        if not path.is_dir():
            message = f"module {module_id!r} was not found at {path}; install it there or give a source"
            raise ModuleNotFoundError(message, module_id=module_id, searched=[str(path)])
        return Place(path)


async def mount(coordinator, config):
    await coordinator.mount("module-source-resolver", Cached(config.get("directory") or "modules"))
