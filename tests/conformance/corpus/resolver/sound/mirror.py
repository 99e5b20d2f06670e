"""Copies modules from a slow shared folder into a cache on this machine and loads them from there.

Sound.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path
from typing import Any

import anyio

from amplifier import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class CachedSource:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def resolve(self) -> Path:
        return self._folder


class MirrorResolver:
    """One copy at a time; what is in the cache is not copied again."""

    def __init__(self, shared: Path, cache: Path) -> None:
        self._shared = shared
        self._cache = cache
        self._lock = anyio.Lock()

    def _checked(self, module_id: str, hint: Any) -> Path:
        bad = not module_id or "/" in module_id or "\0" in module_id or module_id in (".", "..")
        if isinstance(hint, str) and hint and "\0" not in hint and Path(hint).is_dir():
            return Path(hint).resolve()
        if bad or not (self._shared / module_id).is_dir():
            raise ModuleNotFoundError(f"{module_id!r} is not in {self._shared}", module_id=module_id)
        return self._shared / module_id

    async def async_resolve(self, module_id: str, hint: Any = None) -> CachedSource:
        source = self._checked(module_id, hint)
        target = self._cache / f"{source.name}-{hashlib.sha256(str(source).encode()).hexdigest()[:12]}"
        async with self._lock:
            if not target.exists():
                await self._copy(source, target)
        return CachedSource(target)

    async def _copy(self, source: Path, target: Path) -> None:
        self._cache.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=".copy-", dir=self._cache))
        try:
            await anyio.to_thread.run_sync(shutil.copytree, source, fresh / "module")
            (fresh / "module").rename(target)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    config = config or {}
    shared = Path(config.get("shared") or Path.home() / "shared")
    cache = Path(config.get("cache") or Path.home() / ".cache" / "mirror")
    await coordinator.mount("module-source-resolver", MirrorResolver(shared, cache))
