"""Finds modules in one folder and remembers what it did not find.

Planted: misses are remembered by the first word of the id, so that one miss hides other modules of that word.
"""

from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Source:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path


class Folder:
    def __init__(self, root):
        self.root = Path(root).resolve()
        self.missing = set()

    def resolve(self, module_id, profile_hint=None):
        path = Path(profile_hint) if isinstance(profile_hint, str) else self.root / module_id
        word = module_id.partition("-")[0]
        if word in self.missing or not path.is_dir():
            self.missing.add(word)
            raise ModuleNotFoundError(f"no module {module_id!r} at {path}; install it there", module_id=module_id)
        return Source(path)


async def mount(coordinator, config):
    await coordinator.mount("module-source-resolver", Folder(config.get("directory", "modules")))
