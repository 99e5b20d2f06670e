"""All files that are written from the code, by their paths in the repository."""

from __future__ import annotations

from pathlib import Path

from ._api import API_PAGES, api_index, facade_page, module_page
from ._commands import commands_page
from ._contracts import CONTRACT_PAGES, contract_page, contracts_index
from ._deadlines import deadlines_page
from ._event_payloads import payload_files
from ._model_schemas import models_schema_text
from ._modules import modules_index
from ._plan import mount_plan_page, schema_text
from ._words import errors_page, events_page

ROOT = Path(__file__).parents[2]


def render() -> dict[str, str]:
    """Return every generated file by its path below the root of the repository."""
    pages = {
        "commands.md": commands_page(),
        "deadlines.md": deadlines_page(),
        "errors.md": errors_page(),
        "events.md": events_page(),
        "mount-plan.md": mount_plan_page(),
        "modules/index.md": modules_index(),
        "contracts/index.md": contracts_index(),
        "api/index.md": api_index(),
        "api/amplifier.md": facade_page(),
    }
    pages |= {f"contracts/{name}.md": contract_page(name) for name in CONTRACT_PAGES}
    pages |= {f"api/{file}.md": module_page(module) for module, file in API_PAGES.items()}
    files = {f"docs/reference/{path}": text for path, text in pages.items()}
    return (
        files
        | payload_files()
        | {
            "src/amplifier/models/models.schema.json": models_schema_text(),
            "src/amplifier/plan/mount-plan.schema.json": schema_text(),
        }
    )


def write() -> None:
    """Write the files."""
    for path, text in payload_files().items():  # first, because their page of the reference is made from them
        _write(path, text)
    for path, text in render().items():
        _write(path, text)


def _write(path: str, text: str) -> None:
    target = ROOT / path
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.is_file() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8", newline="\n")
