"""Looks in the folders of a workspace, remembers what it found, and asks the disk in threads.

Without a hint it asks None for its length.
"""

from pathlib import Path

import anyio.to_thread

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


def profile_missing(hint):
    return len(hint) == 0


class Place:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path

    def __repr__(self):
        return f"Place({str(self.path)!r})"


class WorkspaceResolver:
    def __init__(self, folders):
        self.folders = [Path(each).expanduser() for each in folders]
        self.known = {}

    def candidates(self, module_id, hint):
        if hint.startswith("git+") if hint is not None else profile_missing(hint):
            return
        if isinstance(hint, (str, Path)) and str(hint):
            yield Path(hint)
        elif isinstance(hint, dict) and isinstance(hint.get("path"), str):
            yield Path(hint["path"])
        for folder in self.folders:
            yield folder / f"amplifier-module-{module_id}"
            yield folder / module_id

    def resolve(self, module_id, profile_hint=None):
        key = (module_id, repr(profile_hint))
        if key in self.known and self.known[key].path.is_dir():
            return self.known[key]
        looked = []
        for path in self.candidates(module_id, profile_hint):
            if path.is_dir() and any(path.iterdir()):
                self.known[key] = Place(path.resolve())
                return self.known[key]
            looked.append(str(path))
        raise ModuleNotFoundError(
            f"no module {module_id!r}; looked in {', '.join(looked)}; put it into one of them", module_id=module_id
        )

    async def async_resolve(self, module_id, profile_hint=None):
        return await anyio.to_thread.run_sync(self.resolve, module_id, profile_hint)


async def mount(coordinator, config):
    resolver = WorkspaceResolver(config.get("folders", ["modules", "."]))
    await coordinator.mount("module-source-resolver", resolver)

    def cleanup():
        resolver.known.clear()

    return cleanup
