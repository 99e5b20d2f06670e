"""Finds modules in one folder.

Planted: mount is a plain function.
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
        self.root = Path(root)

    def resolve(self, module_id, profile_hint=None):
        path = Path(profile_hint) if isinstance(profile_hint, str) else self.root / module_id
        if not path.is_dir():
            raise ModuleNotFoundError(f"no module {module_id!r} at {path}; install it there", module_id=module_id)
        return Source(path)


def mount(coordinator, config):
    coordinator.mount("module-source-resolver", Folder(config.get("directory", "modules")))
