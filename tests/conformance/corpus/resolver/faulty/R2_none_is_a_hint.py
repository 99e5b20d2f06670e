"""A resolver that looks for what the plan says even if it says nothing."""

from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Folder:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path


class Literal:
    def resolve(self, module_id, profile_hint=None):
        path = Path(profile_hint)
        if not path.is_dir():
            raise ModuleNotFoundError(f"{module_id}: {path} is no folder; correct the plan")
        return Folder(path)


async def mount(coordinator, config):
    coordinator.mount("module-source-resolver", Literal())
