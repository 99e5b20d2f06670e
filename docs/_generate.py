"""Writes the reference pages that have their one source in the code: events, errors and contracts.

Run ``python docs/_generate.py`` after changing a row of the event catalogue, an error class, a Protocol or a clause;
``tests/architecture/test_generated_docs.py`` fails until that has been done.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from amplifier import errors, events
from amplifier.conformance._hints import hint_for
from amplifier.conformance._registry import CHECKS
from amplifier.contracts import Clause
from amplifier.events import Event

REFERENCE = Path(__file__).parent / "reference"
NOTICE = "<!-- Written by docs/_generate.py. Change the source and run it; do not edit this page. -->"

CONTRACT_PAGES = {
    "mount": "Every module",
    "tool": "Tools",
    "provider": "Providers",
    "hook": "Hooks",
    "orchestrator": "Orchestrators",
    "context": "Contexts",
    "source": "Module sources",
    "host": "The host",
    "approval": "Approval",
    "display": "Display",
}
"""Page by file name: ``contracts/_tool.py`` becomes ``contracts/tool.md``."""


# ── docstrings ───────────────────────────────────────────────────────────────────────────────────


@dataclass
class Doc:
    """A docstring in Google style, taken apart."""

    paragraphs: list[str] = field(default_factory=list)
    sections: dict[str, list[str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "\n\n".join(self.paragraphs)


def read_doc(docstring: str | None) -> Doc:
    """Take a docstring apart; what it says about the neighbours in the source tree is left out."""
    doc = Doc()
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring or "")):
        title, _, body = block.partition("\n")
        if title in ("Attributes:", "Args:", "Returns:", "Raises:"):
            doc.sections[title[:-1]] = _entries(textwrap.dedent(body))
            continue
        if block.startswith("    "):  # a drawing
            doc.paragraphs.append(f"```text\n{textwrap.dedent(block)}\n```")
            continue
        prose = re.sub(r"\s*\b(Above( this file)? stands?|This file imports)\b.*", "", _one_line(block))
        if prose:
            doc.paragraphs.append(prose)
    return doc


def _entries(body: str) -> list[str]:
    """Join the continuation lines of a section."""
    entries: list[str] = []
    for line in body.splitlines():
        if line.startswith(" ") and entries:
            entries[-1] += " " + line.strip()
        else:
            entries.append(line.strip())
    return entries


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _named(entries: Iterable[str], indent: str = "") -> Iterator[str]:
    """Show ``name: description`` entries as a list."""
    for entry in entries:
        name, _, description = entry.partition(": ")
        yield f"{indent}- `{name}`: {description}"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTICE, *(part for part in parts if part)]) + "\n"


# ── events ───────────────────────────────────────────────────────────────────────────────────────


def events_page() -> str:
    """Show the catalogue."""
    common = ", ".join(f"`{key}`" for key in events.COMMON_KEYS)
    columns = read_doc(Event.__doc__).sections["Attributes"]
    return _page(
        "Events",
        read_doc(events.__doc__).text,
        f"The kernel puts {common} into every payload. Events marked † are terminal. The columns:",
        "\n".join(_named(columns)),
        "## Canonical events",
        _event_table(events.ALL_EVENTS),
        "## Events of this kernel",
        _event_table(events.OUR_EVENTS),
    )


def _event_table(names: Iterable[str]) -> str:
    rows = ["| name | keys | emitted_by | verdict | summary |", "|---|---|---|---|---|"]
    for name in names:
        event = events.CATALOGUE[name]
        keys = ", ".join(f"`{key}`" for key in event.keys)
        verdict = ", ".join(event.verdict) or "ignored"
        mark = " †" if event.terminal else ""
        rows.append(f"| `{name}`{mark} | {keys} | {event.emitted_by} | {verdict} | {_cell(event.summary)} |")
    return "\n".join(rows)


# ── errors ───────────────────────────────────────────────────────────────────────────────────────


def errors_page() -> str:
    """Show the tree, then every class in the order of the source."""
    classes = [value for name, value in vars(errors).items() if name in errors.__all__ and isinstance(value, type)]
    return _page("Errors", read_doc(errors.__doc__).text, *(_error_entry(error) for error in classes))


def _error_entry(error: type) -> str:
    doc = read_doc(error.__doc__)
    # A private base is a detail of the file; its own public bases are what a caller can catch.
    bases = [
        base for parent in error.__bases__ for base in (parent.__bases__ if parent.__name__[0] == "_" else [parent])
    ]
    shown = ", ".join(f"`{_public_name(base)}`" for base in bases)
    return "\n\n".join(
        part
        for part in (
            f"## `{error.__name__}`",
            f"Bases: {shown}.",
            doc.text,
            "\n".join(_named(doc.sections.get("Attributes", []))),
        )
        if part
    )


def _public_name(cls: type) -> str:
    """Spell out the module only where one of our names hides a builtin."""
    hidden = cls.__module__ != errors.__name__ and cls.__name__ in errors.__all__
    return f"{cls.__module__}.{cls.__name__}" if hidden else cls.__name__


# ── contracts ────────────────────────────────────────────────────────────────────────────────────


def contract_page(name: str) -> str:
    """Show one contract: its Protocols, its types and its clauses."""
    module = importlib.import_module(f"amplifier.contracts._{name}")
    tree = ast.parse(inspect.getsource(module))
    clauses: tuple[Clause, ...] = getattr(module, "CLAUSES", ())
    also = "Every module also keeps [these clauses](mount.md)." if clauses and name not in ("mount", "source") else ""
    return _page(
        CONTRACT_PAGES[name],
        read_doc(module.__doc__).text,
        also,
        *(_protocol_entry(node) for node in tree.body if _is_protocol(node)),
        _types_entry(module, tree),
        _clause_table("Required", clauses),
        _clause_table("Recommended", clauses),
    )


def _is_protocol(node: ast.stmt) -> bool:
    return isinstance(node, ast.ClassDef) and any(isinstance(b, ast.Name) and b.id == "Protocol" for b in node.bases)


def _protocol_entry(node: ast.stmt) -> str:
    assert isinstance(node, ast.ClassDef)
    members = "\n".join(line for member in _members(node) for line in member)
    return "\n\n".join([f"## `{node.name}`", read_doc(ast.get_docstring(node)).text, members])


def _members(node: ast.ClassDef) -> Iterator[list[str]]:
    for position, member in enumerate(node.body):
        if isinstance(member, ast.AnnAssign):
            summary = read_doc(_string_after(node.body, position)).text
            yield [f"- `{ast.unparse(member.target)}: {ast.unparse(member.annotation)}`: {summary}"]
        elif isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef):
            doc = read_doc(ast.get_docstring(member))
            lines = [f"- `{_signature(member)}`: {_one_line(doc.text)}"]
            lines += _named(doc.sections.get("Args", []), indent="    ")
            lines += (
                [f"    - returns: {_one_line(' '.join(doc.sections['Returns']))}"] if "Returns" in doc.sections else []
            )
            lines += [f"    - raises {entry.lstrip('- ')}" for entry in _named(doc.sections.get("Raises", []))]
            yield lines


def _signature(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    returns = ast.unparse(function.returns) if function.returns else "None"
    if any(isinstance(mark, ast.Name) and mark.id == "property" for mark in function.decorator_list):
        return f"{function.name}: {returns}"
    arguments = re.sub(r"^self(, )?", "", ast.unparse(function.args))
    keyword = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    return f"{keyword}{function.name}({arguments}) -> {returns}"


def _types_entry(module: ModuleType, tree: ast.Module) -> str:
    """Show the named types and constants that carry a docstring."""
    lines = []
    for position, node in enumerate(tree.body):
        docstring = _string_after(tree.body, position)
        if isinstance(node, ast.AnnAssign) and docstring and node.value:
            lines.append(f"- `{ast.unparse(node.target)} = {ast.unparse(node.value)}`: {_one_line(docstring)}")
    return "\n\n".join(["## Types", "\n".join(lines)]) if lines else ""


def _string_after(body: list[ast.stmt], position: int) -> str | None:
    following = body[position + 1] if position + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return str(following.value.value)
    return None


def _clause_table(title: str, clauses: Iterable[Clause]) -> str:
    rows = [
        f"| {clause.id} | {_cell(clause.text)} | {clause.law or ''} | {_cell(_how_checked(clause))} | {_cell(hint_for(clause.id))} |"
        for clause in clauses
        if clause.level == title.lower()
    ]
    head = ["| clause | promise | law | how the kit looks | how to mend it |", "|---|---|---|---|---|"]
    return "\n".join([f"## {title}", "", *head, *rows]) if rows else ""


def _how_checked(clause: Clause) -> str:
    ways = [check.how for check in CHECKS.values() if clause.id in check.clauses]
    return " ".join(dict.fromkeys(ways))


# ── all of it ────────────────────────────────────────────────────────────────────────────────────


def render() -> dict[str, str]:
    """Return every generated page by its path below ``docs/reference``."""
    pages = {"events.md": events_page(), "errors.md": errors_page()}
    pages |= {f"contracts/{name}.md": contract_page(name) for name in CONTRACT_PAGES}
    return pages


def main() -> None:
    """Write the pages."""
    for path, text in render().items():
        target = REFERENCE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
