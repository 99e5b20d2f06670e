"""Builds an index of a folder at the first question.

Planted: the index is filled in steps with an await between them; a cancelled call leaves it incomplete and marked as built.
"""

from pathlib import Path

import anyio.lowlevel

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Source:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path


class Index:
    def __init__(self, root):
        self.root = Path(root).resolve()
        self.known = None
        self.lock = anyio.Lock()

    async def build(self):
        async with self.lock:
            if self.known is None:
                self.known = {}
                for path in sorted(self.root.iterdir()) if self.root.is_dir() else []:
                    await anyio.lowlevel.checkpoint()
                    self.known[path.name] = path

    async def async_resolve(self, module_id, profile_hint=None):
        await self.build()
        path = Path(profile_hint) if isinstance(profile_hint, str) else self.known.get(module_id)
        if path is None or not path.is_dir():
            message = f"no module {module_id!r} in {self.root}; install it there"
            raise ModuleNotFoundError(message, module_id=module_id)
        return Source(path)


async def mount(coordinator, config):
    await coordinator.mount("module-source-resolver", Index(config.get("directory", "modules")))
