"""Finds modules in one folder, in a worker thread."""

from pathlib import Path

import anyio.to_thread

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

    def resolve(self, module_id, profile_hint=None):
        path = Path(profile_hint) if isinstance(profile_hint, str) else self.root / module_id
        if not path.is_dir():
            raise ModuleNotFoundError(f"no module {module_id!r} at {path}; install it there", module_id=module_id)
        return Source(path)

    async def async_resolve(self, module_id, profile_hint=None):
        return await anyio.to_thread.run_sync(self.resolve, module_id, profile_hint)


async def mount(coordinator, config):
    await coordinator.mount("module-source-resolver", Folder(config.get("directory", "modules")))
