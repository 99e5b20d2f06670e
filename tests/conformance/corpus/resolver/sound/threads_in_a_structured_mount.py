"""Looks in worker threads, one search per question at a time; a structured mount."""

from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.to_thread

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Found:
    def __init__(self, path):
        self._path = path

    def resolve(self):
        return self._path


class Threaded:
    def __init__(self, root):
        self._root = Path(root).resolve()
        self._limit = anyio.CapacityLimiter(4)

    def _look(self, module_id, hint):
        for path in [Path(hint)] if isinstance(hint, str) else [self._root / module_id]:
            if path.is_dir():
                return Found(path)
        raise ModuleNotFoundError(f"no {module_id!r} below {self._root}; copy it there", module_id=module_id)

    async def async_resolve(self, module_id, source_hint=None):
        return await anyio.to_thread.run_sync(self._look, module_id, source_hint, limiter=self._limit)


@asynccontextmanager
async def mount(coordinator, config):
    await coordinator.mount("module-source-resolver", Threaded(config.get("directory") or "modules"))
    yield
