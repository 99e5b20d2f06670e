"""A sound resolver that copies modules into a cache of its own, whole or not at all, and gives the copy."""

import os
import shutil
import tempfile
from pathlib import Path

import anyio.to_thread

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Cached:
    def __init__(self, path):
        self._path = path

    def resolve(self):
        return self._path


class CachingResolver:
    def __init__(self, root, cache):
        self._root = Path(root)
        self._cache = Path(cache)

    async def async_resolve(self, module_id, profile_hint=None):
        return await anyio.to_thread.run_sync(self._fetch, module_id)

    def resolve(self, module_id, profile_hint=None):
        return self._fetch(module_id)

    def _fetch(self, module_id):
        target = self._cache / module_id
        if not target.is_dir():
            origin = self._root / f"amplifier-module-{module_id}"
            if not origin.is_dir():
                raise ModuleNotFoundError(f"{module_id}: nothing at {origin} to copy; clone it first")
            self._cache.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._cache) as place:
                shutil.copytree(origin, Path(place, "copy"))
                try:
                    os.replace(Path(place, "copy"), target)
                except OSError:
                    if not target.is_dir():  # somebody else was faster
                        raise
        return Cached(target)


async def mount(coordinator, config):
    resolver = CachingResolver(config.get("root", "modules"), config.get("cache_name", ".module-cache"))
    coordinator.mount("module-source-resolver", resolver)
