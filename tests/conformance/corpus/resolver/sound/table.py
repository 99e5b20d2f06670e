"""Goes by a table in the plan; a source checks its folder only when it is asked for it."""

import dataclasses
import difflib
import pathlib
from contextlib import asynccontextmanager
from typing import Any

from amplifier import ModuleNotFoundError

__amplifier_module_type__ = "resolver"


@dataclasses.dataclass(frozen=True)
class TableSource:
    module_id: str
    folder: pathlib.Path

    def resolve(self) -> pathlib.Path:
        if not self.folder.exists():
            raise ModuleNotFoundError(f"{self.module_id}: {self.folder} does not exist; install it there")
        inside = [each for each in self.folder.iterdir() if each.suffix == ".py" or (each / "__init__.py").is_file()]
        if not inside:
            raise ModuleNotFoundError(f"{self.module_id}: {self.folder} holds no package; install it there")
        return self.folder


class Table:
    def __init__(self, rows: dict[str, str], base: pathlib.Path) -> None:
        self._rows = dict(rows)
        self._base = base

    def resolve(self, module_id: str, source_hint: Any = None) -> TableSource:
        if isinstance(source_hint, str) and source_hint.startswith("file:"):
            return TableSource(module_id, pathlib.Path(source_hint.removeprefix("file:")))
        if module_id in self._rows:
            return TableSource(module_id, self._base / self._rows[module_id])
        if (self._base / module_id).is_dir():
            return TableSource(module_id, self._base / module_id)
        near = difflib.get_close_matches(module_id, self._rows, 1)
        raise ModuleNotFoundError(
            f"{module_id!r} is not in the table and not in {self._base}; add it"
            + (f"; did you mean {near[0]}?" if near else "")
        )


@asynccontextmanager
async def mount(coordinator, config):
    table = Table(config.get("table") or {}, pathlib.Path(config.get("base", "modules")))
    coordinator.mount("module-source-resolver", table)
    yield table
