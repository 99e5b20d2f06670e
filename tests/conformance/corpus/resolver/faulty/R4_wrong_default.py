"""A resolver that gives an empty folder of its making for a module that it does not know."""

from pathlib import Path

__amplifier_module_type__ = "resolver"


class Source:
    def __init__(self, path):
        self._path = path

    def resolve(self):
        self._path.mkdir(parents=True, exist_ok=True)
        return self._path


class Generous:
    def __init__(self, root):
        self._root = Path(root)

    def resolve(self, module_id, source_hint=None):
        if source_hint:
            return Source(Path(str(source_hint).removeprefix("file://")))
        return Source(self._root / module_id)


async def mount(coordinator, config):
    coordinator.mount("module-source-resolver", Generous(config.get("root", "modules")))
