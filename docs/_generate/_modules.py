"""The list of built-in modules, from the entry points of the package and the beginnings of their pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from amplifier.loading.loader import REQUIRED_PACKAGES

from ._markdown import joined, one_line, page, table

_DOCS = Path(__file__).parents[1]
_KINDS = {
    "loop": ("Loops", "orchestrator"),
    "context": ("Contexts", "context"),
    "provider": ("Providers", "provider"),
    "tool": ("Tools", "tool"),
    "hooks": ("Hooks", "hook"),
}


def modules_index() -> str:
    """List the built-in modules by kind."""
    project = tomllib.loads((_DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))[
        "project"
    ]
    ids = sorted(project["entry-points"]["amplifier.builtin_modules"])
    return page(
        "Built-in modules",
        "These modules come with the package. A plan names them by id. They use only the contracts, as third-party modules do. "
        "Some need an extra: `pip install 'amplifier[NAME]'`.",
        "The `config` of a module is checked when the module is mounted. A bad value is an error that names the key, what was expected "
        "and what was found; all problems are reported at once. An unknown key is ignored with a warning in the log that names the "
        "nearest known key; a misspelt one also emits a [`MisspellingWarning`](../errors.md#misspellingwarning), which "
        "`python -W error::amplifier.errors.MisspellingWarning` turns into an error. A misspelling of a key that restricts the module "
        "(`allowed_paths`, `read_only`, the rules of `hooks-approval` …) is an error, and so is an unknown key that is named like a "
        "restriction (`allowed_write_paths`, `denied_commands`).",
        *(
            _kind(prefix, [module for module in ids if module.startswith(f"{prefix}-")])
            for prefix in _KINDS
        ),
    )


def _kind(prefix: str, ids: list[str]) -> str:
    title, contract = _KINDS[prefix]
    rows = [
        (
            f"[{module}]({_page_of(module)})",
            _summary(module),
            REQUIRED_PACKAGES.get(module, ("", ""))[1],
        )
        for module in ids
    ]
    kept = f"They keep the [{contract} contract](../contracts/{contract}.md)."
    return joined([f"## {title}", kept, table(("module", "what it does", "extra"), rows)])


def _page_of(module: str) -> str:
    """Its page; one page may describe several modules in its title."""
    own = f"{module}.md"
    return (
        own
        if (_DOCS / "reference" / "modules" / own).is_file()
        else f"{module.partition('-')[0]}s.md"
    )


def _summary(module: str) -> str:
    """The first sentence of its page, or its row in a table of the page."""
    text = (_DOCS / "reference" / "modules" / _page_of(module)).read_text(encoding="utf-8")
    row = re.search(rf"^\| `?{re.escape(module)}`? \| (.+) \|$", text, re.MULTILINE)
    if row:
        return row[1].partition(" | ")[0]
    paragraph = one_line(text.split("\n\n")[1])
    return re.split(r"(?<=\.)\s", paragraph)[0]
