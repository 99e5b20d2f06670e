"""A resolver that answers None for a module it does not know."""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio.to_thread

from amplifier.errors import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


@dataclass(frozen=True)
class Place:
    path: Path

    def resolve(self) -> Path:
        return self.path


class SearchPath:
    def __init__(self, places: list[str]) -> None:
        self._places = [Path(place).expanduser() for place in places]

    def resolve(self, module_id: str, profile_hint: object = None) -> Place:
        for place in self._from_hint(profile_hint) or self._candidates(module_id):
            if place.is_dir() and any(name.endswith(".py") for _, _, files in os.walk(place) for name in files):
                return Place(place)
        return None

    async def async_resolve(self, module_id: str, profile_hint: object = None) -> Place:
        return await anyio.to_thread.run_sync(self.resolve, module_id, profile_hint)

    def _candidates(self, module_id: str) -> list[Path]:
        return [each / name for each in self._places for name in (f"amplifier-module-{module_id}", module_id)]

    def _from_hint(self, hint: object) -> list[Path]:
        if not isinstance(hint, str) or not hint:
            return []
        parts = urlsplit(hint)
        return [Path(unquote(parts.path)) if parts.scheme == "file" else Path(hint)]


async def mount(coordinator, config):
    resolver = SearchPath(config.get("search_paths") or ["~/.amplifier/modules", "plugins"])
    await coordinator.mount("module-source-resolver", resolver)

    def cleanup():
        coordinator.unmount("module-source-resolver")

    return cleanup
