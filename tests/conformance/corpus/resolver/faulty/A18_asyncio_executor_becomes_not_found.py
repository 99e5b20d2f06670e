"""Finds modules in one folder, in a thread of the loop's executor.

Planted: run_in_executor needs asyncio; on trio its failure is reported as a module that was not found.
"""

import asyncio
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

    def resolve(self, module_id, profile_hint=None):
        path = Path(profile_hint) if isinstance(profile_hint, str) else self.root / module_id
        if not path.is_dir():
            raise ModuleNotFoundError(f"no module {module_id!r} at {path}; install it there", module_id=module_id)
        return Source(path)

    async def async_resolve(self, module_id, profile_hint=None):
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError as error:
            message = f"cannot look for {module_id!r} in {self.root}: {error}; try again"
            raise ModuleNotFoundError(message, module_id=module_id) from error
        return await loop.run_in_executor(None, self.resolve, module_id, profile_hint)


async def mount(coordinator, config):
    await coordinator.mount("module-source-resolver", Folder(config.get("directory", "modules")))
