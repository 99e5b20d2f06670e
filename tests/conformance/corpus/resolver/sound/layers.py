"""A sound resolver with layers: what the plan says, overrides, installed packages; only to be awaited."""

import importlib.util
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class FileSource:
    def __init__(self, path):
        self.path = Path(path)

    def resolve(self):
        if not self.path.is_dir():
            raise ModuleNotFoundError(f"the source of {self.path.name!r} is {self.path}, which is no folder")
        return self.path


class PackageSource:
    def __init__(self, module_id):
        self.module_id = module_id

    def resolve(self):
        spec = importlib.util.find_spec("amplifier_module_" + self.module_id.replace("-", "_"))
        if spec is None or spec.origin is None:
            raise ModuleNotFoundError(f"no package for {self.module_id!r} is installed; try pip install")
        return Path(spec.origin).parent.parent


class Layers:
    def __init__(self, overrides):
        self.overrides = overrides
        self.lock = anyio.Lock()

    async def async_resolve(self, module_id, source_hint=None, **options):
        async with self.lock:
            if isinstance(source_hint, dict) and "path" in source_hint:
                return FileSource(source_hint["path"])
            if module_id in self.overrides:
                return FileSource(self.overrides[module_id])
            await anyio.sleep(0)
            return PackageSource(module_id)


@asynccontextmanager
async def mount(coordinator, config):
    resolver = Layers(config.get("overrides", {}))
    coordinator.mount("module-source-resolver", resolver)
    yield resolver
