"""All files that are written from the code, by their paths in the repository. A file's text is made when it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from ._api import API_PAGES, api_index, facade_page, module_page
from ._commands import commands_page
from ._contracts import CONTRACT_PAGES, contract_page, contracts_index
from ._deadlines import deadlines_page
from ._markdown import NOTICE
from ._model_schemas import models_schema_text
from ._modules import modules_index
from ._plan import mount_plan_page
from ._plan_schema import schema_text
from ._protocols import protocols_page
from ._words import errors_page, events_page

ROOT = Path(__file__).parents[2]
_REFERENCE = "docs/reference"

_PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "deadlines.md": deadlines_page,
    "errors.md": errors_page,
    "events.md": events_page,
    "mount-plan.md": mount_plan_page,
    "protocols.md": protocols_page,
    "modules/index.md": modules_index,
    "contracts/index.md": contracts_index,
    "api/index.md": api_index,
    "api/amplifier.md": facade_page,
    **{f"contracts/{name}.md": functools.partial(contract_page, name) for name in CONTRACT_PAGES},
    **{
        f"api/{file}.md": functools.partial(module_page, module)
        for module, file in API_PAGES.items()
    },
}
PAGES = {f"{_REFERENCE}/{path}": make for path, make in _PAGES.items()}
"""Pages of the manual that are written from the code."""

SCHEMAS: dict[str, Callable[[], str]] = {
    "src/amplifier/models/models.schema.json": models_schema_text,
    "src/amplifier/plan/mount-plan.schema.json": schema_text,
}
"""Files of the package."""


@functools.cache
def page_text(path: str) -> str:
    """One page, made once in a process."""
    return PAGES[path]()


def write_pages() -> None:
    """Write the pages and remove those that earlier versions of the code have left."""
    for page in (ROOT / _REFERENCE).rglob("*.md"):
        if page.relative_to(ROOT).as_posix() not in PAGES and NOTICE in page.read_text(
            encoding="utf-8"
        ):
            page.unlink()
    for path in PAGES:
        _write(path, page_text(path))


def write_schemas() -> None:
    """Write the schemas."""
    for path, make in SCHEMAS.items():
        _write(path, make())


def _write(path: str, text: str) -> None:
    target = ROOT / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8", newline="\n")
