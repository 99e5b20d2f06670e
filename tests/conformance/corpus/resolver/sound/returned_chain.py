"""Asks several small resolvers in turn; mount returns the chain."""

from pathlib import Path

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Directory:
    def __init__(self, path):
        self.path = path

    def resolve(self):
        return self.path


def by_hint(module_id, hint):
    return Path(hint) if isinstance(hint, str) and hint else None


def in_folder(root):
    return lambda module_id, hint: root / module_id


class Chain:
    def __init__(self, *links):
        self.links = links

    def resolve(self, module_id, profile_hint=None):
        tried = [path for link in self.links if (path := link(module_id, profile_hint)) is not None]
        for path in tried:
            if path.is_dir():
                return Directory(path)
        searched = [str(path) for path in tried]
        message = f"no module {module_id!r}; looked in {', '.join(searched)}; install it in one of them"
        raise ModuleNotFoundError(message, module_id=module_id, searched=searched)


async def mount(coordinator, config):
    roots = config.get("directories") or ["modules", "vendor"]
    return Chain(by_hint, *(in_folder(Path(root).resolve()) for root in roots))
