"""Finds modules in the folder `modules` of the project, or where the plan says.

Fault: a relative source stays relative to the working directory of whoever calls `resolve` of the source later; after a change of
directory it is another folder, or none.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amplifier import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class ProjectSource:
    """A folder below the project."""

    def __init__(self, module_id: str, folder: Path) -> None:
        self._module_id = module_id
        self._folder = folder

    def resolve(self) -> Path:
        if not self._folder.is_dir():
            raise ModuleNotFoundError(
                f"the folder {self._folder} of {self._module_id!r} is gone", module_id=self._module_id
            )
        return self._folder


class ProjectResolver:
    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def resolve(self, module_id: str, hint: Any = None) -> ProjectSource:
        if isinstance(hint, dict):
            hint = hint.get("path")
        if isinstance(hint, str) and hint and "\0" not in hint:
            candidates = [Path(hint).expanduser(), self._folder / hint]
        elif not module_id or "/" in module_id or "\0" in module_id or module_id in (".", ".."):
            candidates = []
        else:
            candidates = [self._folder / module_id, self._folder / f"amplifier-module-{module_id}"]
        for candidate in candidates:
            if candidate.is_dir():
                return ProjectSource(module_id, candidate)
        raise ModuleNotFoundError(f"{module_id!r} is not in {self._folder}", module_id=module_id)


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("module-source-resolver", ProjectResolver(str((config or {}).get("folder", "modules"))))
