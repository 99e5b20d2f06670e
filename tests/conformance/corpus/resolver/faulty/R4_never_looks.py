"""A resolver that gives a folder whether it is there or not."""

from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class FolderSource:
    def __init__(self, module_id, folder):
        self.module_id = module_id
        self.folder = folder

    def resolve(self):
        return self.folder


class FolderResolver:
    def __init__(self, root):
        self.root = Path(root)

    def resolve(self, module_id, profile_hint=None):
        if isinstance(profile_hint, str) and profile_hint:
            return FolderSource(module_id, Path(profile_hint))
        return FolderSource(module_id, self.root / module_id)


async def mount(coordinator, config):
    coordinator.mount("module-source-resolver", FolderResolver(config.get("root", "modules")))
