"""A resolver that chooses one of its mirrors at random."""

import random
from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Mirror:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path


class Mirrors:
    def __init__(self, mirrors):
        self.mirrors = [Path(mirror) for mirror in mirrors]

    def resolve(self, module_id, profile_hint=None):
        found = [mirror / module_id for mirror in self.mirrors if (mirror / module_id).is_dir()]
        if not found:
            raise ModuleNotFoundError(f"{module_id} is on none of {self.mirrors}; add a mirror")
        return Mirror(random.choice(found))


async def mount(coordinator, config):
    resolver = Mirrors(config.get("mirrors", ["modules", "vendor", "plugins"]))
    coordinator.mount("module-source-resolver", resolver)
