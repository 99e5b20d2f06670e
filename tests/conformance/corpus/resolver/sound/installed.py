"""A sound resolver that knows installed modules by their entry points, and passes the rest on to a fallback."""

from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

__amplifier_module_type__ = "resolver"


class ModuleNotFoundError(Exception):  # a framework's own class of that name
    pass


class Installed:
    def __init__(self, reference):
        self.reference = reference

    def resolve(self):
        spec = find_spec(self.reference.partition(":")[0].split(".")[0])
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(f"{self.reference} is declared and cannot be imported; reinstall it")
        return Path(next(iter(spec.submodule_search_locations)))


class EntryPointResolver:
    def __init__(self, group, fallback=None):
        self.group = group
        self.fallback = fallback

    def resolve(self, module_id, profile_hint=None):
        for point in metadata.entry_points(group=self.group):
            if point.name == module_id:
                return Installed(point.value)
        if self.fallback is not None:
            return self.fallback.resolve(module_id, profile_hint)
        raise ModuleNotFoundError(f"{module_id!r} is not among the entry points of {self.group}; install it")


async def mount(coordinator, config):
    resolver = EntryPointResolver("amplifier.modules", coordinator.get("module-source-resolver"))
    coordinator.mount("module-source-resolver", resolver)
    return lambda: None
