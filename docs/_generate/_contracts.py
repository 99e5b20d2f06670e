"""The pages of the contracts: Protocols, types and clauses, with how the conformance kit checks each."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Iterable, Iterator

from amplifier.conformance.checks.registry import CHECKS
from amplifier.contracts import Clause

from ._markdown import (
    function_lines,
    is_overload,
    joined,
    one_line,
    page,
    read_doc,
    string_after,
    table,
)

CONTRACT_PAGES = {
    "mount": "Every module",
    "tool": "Tools",
    "provider": "Providers",
    "hook": "Hooks",
    "orchestrator": "Orchestrators",
    "context": "Contexts",
    "source": "Module sources",
    "coordinator": "The coordinator",
    "host": "The host",
    "approval": "Approval and display",
}
"""Page by file name: ``contracts/_tool.py`` becomes ``contracts/tool.md``."""


_SOURCES = """A clause is required only if something demands it.
The column "demanded by" or "recommended by" of its page names the source:

- `L5` and the like are the [laws of the kernel](../../explanation/design.md#the-laws).
- `tool contract, Required` is an item of that name in the checklist of the published contract of that type of module.
  `module contracts` means that every type has the item.
  The module source contract has no checklist. Its invariants and Protocols take its place.
- `contract clarifications` are decisions of this project where the published contracts leave a choice. The clause states the decision.

A module that breaks a recommended clause conforms all the same, and the report lists the recommendation."""


def contracts_index() -> str:
    """List the contracts with their first sentences."""
    rows = []
    for name, title in CONTRACT_PAGES.items():
        module = importlib.import_module(f"amplifier.contracts._{name}")
        clauses: tuple[Clause, ...] = getattr(module, "CLAUSES", ())
        required = sum(clause.level == "required" for clause in clauses)
        counts = f"{required} and {len(clauses) - required}" if clauses else ""
        rows.append((f"[{title}]({name}.md)", read_doc(module.__doc__).summary, counts))
    return page(
        "Contracts",
        "The requirements for a module of each type, and the guarantees of its host.\n"
        "A module needs no base class: it fits if it has the members of the Protocol.\n"
        "Each promise is a numbered clause, and `amplifier module validate` checks every one of them. "
        "See [prove a module](../../how-to/prove-a-module.md).",
        _SOURCES,
        table(("contract", "subject", "clauses: required and recommended"), rows),
    )


def contract_page(name: str) -> str:
    """Show one contract: its Protocols, its types and its clauses."""
    module = importlib.import_module(f"amplifier.contracts._{name}")
    tree = ast.parse(inspect.getsource(module))
    clauses: tuple[Clause, ...] = getattr(module, "CLAUSES", ())
    also = (
        "Every module also keeps [these clauses](mount.md)."
        if clauses and name not in ("mount", "source")
        else ""
    )
    return page(
        CONTRACT_PAGES[name],
        read_doc(module.__doc__).text,
        also,
        *(
            _protocol_entry(node)
            for node in tree.body
            if isinstance(node, ast.ClassDef) and is_protocol(node)
        ),
        _types_entry(tree),
        _clause_table("Required", clauses),
        _clause_table("Recommended", clauses),
    )


def is_protocol(node: ast.ClassDef) -> bool:
    """Whether the class is a Protocol by its own bases."""
    return any(isinstance(base, ast.Name) and base.id == "Protocol" for base in node.bases)


def _protocol_entry(node: ast.ClassDef) -> str:
    members = "\n".join(line for member in _members(node) for line in member)
    return joined([f"## `{node.name}`", read_doc(ast.get_docstring(node)).text, members])


def _members(node: ast.ClassDef) -> Iterator[list[str]]:
    for position, member in enumerate(node.body):
        if isinstance(member, ast.AnnAssign):
            summary = read_doc(string_after(node.body, position)).text
            yield [f"- `{ast.unparse(member.target)}: {ast.unparse(member.annotation)}`: {summary}"]
        elif isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and not is_overload(member):
            yield function_lines(member)


def _types_entry(tree: ast.Module) -> str:
    """Show the named types and constants that carry a docstring."""
    lines = []
    for position, node in enumerate(tree.body):
        docstring = string_after(tree.body, position)
        if isinstance(node, ast.AnnAssign) and docstring and node.value:
            lines.append(
                f"- `{ast.unparse(node.target)} = {ast.unparse(node.value)}`: {one_line(docstring)}"
            )
    return joined(["## Types", "\n".join(lines)]) if lines else ""


def _clause_table(title: str, clauses: Iterable[Clause]) -> str:
    rows = [
        (clause.id, clause.text, clause.law or "", clause.source, _how_checked(clause), clause.hint)
        for clause in clauses
        if clause.level == title.lower()
    ]
    by = {"Required": "demanded by", "Recommended": "recommended by"}[title]
    head = ("clause", "promise", "law", by, "how the kit looks", "how to fix it")
    return joined([f"## {title}", table(head, rows)]) if rows else ""


def _how_checked(clause: Clause) -> str:
    ways = [check.how for check in CHECKS.values() if clause.id in check.clauses]
    return " ".join(dict.fromkeys(ways))
