"""A resolver that forgets where a module is once it has been asked for."""

from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Source:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path


class Once:
    def __init__(self, root):
        self.known = {folder.name: folder for folder in Path(root).iterdir() if folder.is_dir()}

    def resolve(self, module_id, profile_hint=None):
        try:
            return Source(self.known.pop(module_id))
        except KeyError:
            raise ModuleNotFoundError(f"{module_id} is not in {sorted(self.known)}; look again") from None


async def mount(coordinator, config):
    coordinator.mount("module-source-resolver", Once(config.get("root", "modules")))
