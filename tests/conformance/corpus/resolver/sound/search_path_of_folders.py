"""Finds modules below a few folders.

Sound.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amplifier import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


class Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def resolve(self) -> Path:
        return self._path


class SearchPathResolver:
    """Asks one folder after another."""

    def __init__(self, roots: list[Path]) -> None:
        self._roots = roots

    def _find(self, module_id: str) -> Path | None:
        if not module_id or "/" in module_id or "\0" in module_id or module_id in (".", ".."):
            return None
        for root in self._roots:
            folder = root / module_id
            if folder.is_dir():
                return folder.resolve()
        return None

    def resolve(self, module_id: str, hint: Any = None) -> Folder:
        if isinstance(hint, str) and hint and "\0" not in hint:
            hinted = Path(hint).expanduser()
            if hinted.is_dir():
                return Folder(hinted.resolve())
        found = self._find(module_id)
        if found is None:
            places = ", ".join(map(str, self._roots))
            raise ModuleNotFoundError(f"no module {module_id!r} in {places}", module_id=module_id)
        return Folder(found)


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    roots = (config or {}).get("roots") or [str(Path.home() / "modules")]
    folders = [Path(root).expanduser() for root in roots]
    await coordinator.mount("module-source-resolver", SearchPathResolver(folders))
