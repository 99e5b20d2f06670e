"""The list of built-in modules, from the entry points of the package and the beginnings of their pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from amplifier.cli.core.installed_modules import REQUIRED_PACKAGES

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
    project = tomllib.loads((_DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ids = sorted(project["entry-points"]["amplifier.builtin_modules"])
    return page(
        "Built-in modules",
        "A plan names them by id. They come with the package and see only the contracts, as anyone's modules do. "
        "Some need an extra: `pip install 'amplifier[NAME]'`.",
        *(_kind(prefix, [module for module in ids if module.startswith(f"{prefix}-")]) for prefix in _KINDS),
    )


def _kind(prefix: str, ids: list[str]) -> str:
    title, contract = _KINDS[prefix]
    rows = [(f"[{module}]({_page_of(module)})", _summary(module), REQUIRED_PACKAGES.get(module, ("", ""))[1]) for module in ids]
    kept = f"They keep the [{contract} contract](../contracts/{contract}.md)."
    return joined([f"## {title}", kept, table(("module", "what it does", "extra"), rows)])


def _page_of(module: str) -> str:
    """Its page; one page may describe several modules in its title."""
    own = f"{module}.md"
    return own if (_DOCS / "reference" / "modules" / own).is_file() else f"{module.partition('-')[0]}s.md"


def _summary(module: str) -> str:
    """The first sentence of its page, or what a table of its page says about it."""
    text = (_DOCS / "reference" / "modules" / _page_of(module)).read_text(encoding="utf-8")
    row = re.search(rf"^\| `?{re.escape(module)}`? \| (.+) \|$", text, re.MULTILINE)
    if row:
        return row[1].partition(" | ")[0]
    paragraph = one_line(text.split("\n\n")[1])
    return re.split(r"(?<=\.)\s", paragraph)[0]
