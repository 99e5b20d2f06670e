"""Sources of modules, under their published address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pathlib import Path

from amplifier.contracts import ModuleSourceResolver
from amplifier.errors import ModuleLoadError, ModuleNotFoundError

__all__ = [
    "FileSystemModuleSource",
    "ModuleLoadError",
    "ModuleNotFoundError",
    "ModuleSource",
    "ModuleSourceResolver",
]


class ModuleSource(ABC):
    """The source of one module. It is an abstract class, as in the published kernel."""

    @abstractmethod
    def resolve(self) -> Path:
        """Return the directory that holds the importable package."""


class FileSystemModuleSource:
    """Directories in which an application looks for modules."""

    def __init__(self, paths: Iterable[str] | None = None) -> None:
        self._paths = list(paths or ())
        self._bundle_mappings: dict[str, str] = {}

    def get_module_paths(self) -> list[str]:
        """Return a copy of the directories."""
        return list(self._paths)

    def get_mention_mappings(self) -> dict[str, str]:
        """Return a copy of the paths by mention."""
        return dict(self._bundle_mappings)
