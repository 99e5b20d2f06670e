"""Fetches by copying into a store of the session's own: whole or not at all, one copy at a time.

A module counts as fetched before it is.
"""

import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import anyio
import anyio.to_thread

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Fetched:
    def __init__(self, path):
        self._path = path

    def resolve(self):
        return self._path


class Fetcher:
    def __init__(self, origin, store):
        self.origin = Path(origin)
        self.store = Path(store)
        self.lock = anyio.Lock()
        self.done = set()

    def origin_of(self, module_id, hint):
        if isinstance(hint, str) and hint and "://" not in hint:
            return Path(hint)
        return self.origin / f"amplifier-module-{module_id}"

    async def async_resolve(self, module_id, profile_hint=None):
        origin = self.origin_of(module_id, profile_hint)
        name = hashlib.sha1(f"{module_id}\0{origin}".encode("utf-8", "surrogatepass")).hexdigest()
        target = self.store / name
        async with self.lock:
            if name in self.done:
                return Fetched(target)
            self.done.add(name)
            if not await anyio.to_thread.run_sync(target.is_dir):
                await self.copy(module_id, origin, target)
        return Fetched(target)

    async def copy(self, module_id, origin, target):
        def work():
            if not origin.is_dir():
                raise ModuleNotFoundError(
                    f"{module_id!r} was looked for at {origin}; clone it there", module_id=module_id
                )
            place = tempfile.mkdtemp(dir=self.store)
            try:
                shutil.copytree(origin, Path(place) / "copy")
                os.rename(Path(place) / "copy", target)
            finally:
                shutil.rmtree(place, ignore_errors=True)

        await anyio.to_thread.run_sync(work)


async def mount(coordinator, config):
    chosen = config.get("store")
    store = chosen or tempfile.mkdtemp(prefix="fetched-")
    os.makedirs(store, exist_ok=True)

    def cleanup():
        if not chosen:
            shutil.rmtree(store, ignore_errors=True)

    coordinator.register_cleanup(cleanup)
    await coordinator.mount("module-source-resolver", Fetcher(config.get("origin", "modules"), store))
