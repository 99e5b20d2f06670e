"""A resolver whose error says nothing."""

import json
from pathlib import Path

__amplifier_module_type__ = "resolver"


class Source:
    def __init__(self, path):
        self._path = path

    def resolve(self):
        if not self._path.is_dir():
            raise ModuleNotFoundError(f"{self._path.name}: {self._path} is not there any more; update the index")
        return self._path


class IndexResolver:
    def __init__(self, index):
        self._index = Path(index)
        self._known = None

    def resolve(self, module_id, profile_hint=None):
        if self._known is None:
            self._known = json.loads(self._index.read_text(encoding="utf-8"))
        try:
            return Source(Path(self._known[module_id]))
        except KeyError:
            raise ModuleNotFoundError("not found") from None


async def mount(coordinator, config):
    coordinator.mount("module-source-resolver", IndexResolver(config["index"]))
