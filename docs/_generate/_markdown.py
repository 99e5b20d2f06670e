"""Parsing of docstrings and source, and the Markdown helpers of all pages."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

NOTICE = "<!-- Written by docs/_generate from the code. Change the code, not this page. -->"

_SECTIONS = ("Attributes:", "Args:", "Returns:", "Yields:", "Raises:")


@dataclass
class Doc:
    """A parsed docstring in Google style."""

    paragraphs: list[str] = field(default_factory=list)
    sections: dict[str, list[str]] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Everything but the sections."""
        return "\n\n".join(self.paragraphs)

    @property
    def summary(self) -> str:
        """The first sentence."""
        first = self.paragraphs[0] if self.paragraphs else ""
        return re.split(r"(?<=[.!?])\s+(?=[A-Z`])", first)[0]


def read_doc(docstring: str | None) -> Doc:
    """Parse a docstring."""
    doc = Doc()
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring or "")):
        title, _, body = block.partition("\n")
        if title in _SECTIONS:
            doc.sections[title[:-1]] = _entries(textwrap.dedent(body))
            continue
        if block.startswith("    "):  # a drawing, or code
            doc.paragraphs.append(f"```text\n{textwrap.dedent(block)}\n```")
            continue
        if block:
            doc.paragraphs.append(one_line(block))
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


# ── text ─────────────────────────────────────────────────────────────────────────────────────────


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def named(entries: Iterable[str], indent: str = "") -> Iterator[str]:
    """Show ``name: description`` entries as a list."""
    for entry in entries:
        name, _, description = entry.partition(": ")
        yield f"{indent}- `{name}`: {description}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; nothing at all without rows."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return (
        "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|", *lines])
        if lines
        else ""
    )


def joined(parts: Iterable[str]) -> str:
    """Blocks of a page, those that are not empty."""
    return "\n\n".join(part for part in parts if part)


def page(title: str, *parts: str) -> str:
    """A whole page."""
    return joined([f"# {title}", NOTICE, *parts]) + "\n"


def fill(template: str, **parts: str) -> str:
    """A text of several paragraphs with ``<name>`` replaced; lines of one paragraph are joined, code blocks are kept."""
    blocks = []
    for block in inspect.cleandoc(template).split("\n\n"):
        blocks.append(block if block.startswith("```") or "\n|" in block else one_line(block))
    text = "\n\n".join(blocks)
    for name, part in parts.items():
        text = text.replace(f"<{name}>", part)
    return text


def anchor(name: str) -> str:
    """What a Markdown host makes of the heading that is this name in code."""
    return re.sub(r"[^\w\- ]", "", name.lower()).replace(" ", "-")


# ── source ───────────────────────────────────────────────────────────────────────────────────────

Function = ast.FunctionDef | ast.AsyncFunctionDef


def signature(function: Function, *, is_member: bool = False) -> str:
    """The signature of a function, or of a property as an attribute."""
    returns = ast.unparse(function.returns) if function.returns else "None"
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in function.decorator_list}
    if marks & {"property", "cached_property"}:
        return f"{function.name}: {returns}"
    keyword = "async " if isinstance(function, ast.AsyncFunctionDef) else ""
    skipped = 1 if is_member and "staticmethod" not in marks else 0
    call = f"{function.name}({_arguments(function.args, skipped)})"
    if marks & {"contextmanager", "asynccontextmanager"}:
        given = re.sub(r"^\w+\[(\w+).*\]$", r"\1", returns)  # what the generator yields
        return f"{keyword}with {call}" + ("" if given == "None" else f" as {given}")
    return f"{keyword}{call} -> {returns}"


def _arguments(args: ast.arguments, skipped: int) -> str:
    """The parameters, spaced as people write them; a default with a private name is left out."""
    plain = [*args.posonlyargs, *args.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(args.defaults)) + list(
        args.defaults
    )
    shown = [_argument(arg, default) for arg, default in zip(plain, defaults, strict=True)]
    if args.posonlyargs:
        shown.insert(len(args.posonlyargs), "/")
    shown = shown[skipped:]
    if args.vararg:
        shown.append(f"*{_argument(args.vararg, None)}")
    elif args.kwonlyargs:
        shown.append("*")
    shown += [
        _argument(arg, default)
        for arg, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
    ]
    if args.kwarg:
        shown.append(f"**{_argument(args.kwarg, None)}")
    return ", ".join(shown)


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    name = f"{arg.arg}: {ast.unparse(arg.annotation)}" if arg.annotation else arg.arg
    if default is None:
        return name
    value = ast.unparse(default)
    return f"{name}{' = ' if arg.annotation else '='}{'...' if value.startswith('_') else value}"


def is_overload(node: ast.stmt) -> bool:
    """Whether it is one of the typed signatures of a function, which are left out in favour of the function itself."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    return isinstance(node, functions) and any(
        ast.unparse(mark) == "overload" for mark in node.decorator_list
    )


def function_lines(function: Function) -> list[str]:
    """A member of a class as an entry of a list, with arguments and errors from its docstring."""
    doc = read_doc(ast.get_docstring(function))
    return [
        f"- `{signature(function, is_member=True)}`: {one_line(doc.text)}",
        *section_lines(doc, indent="    "),
    ]


def section_lines(doc: Doc, indent: str = "") -> list[str]:
    """The arguments, the result and the errors of a docstring."""
    lines = list(named(doc.sections.get("Args", []), indent=indent))
    if returned := doc.sections.get("Returns") or doc.sections.get("Yields"):
        lines.append(f"{indent}- returns: {one_line(' '.join(returned))}")
    return lines + [
        f"{indent}- raises {entry.lstrip('- ')}" for entry in named(doc.sections.get("Raises", []))
    ]


def string_after(body: list[ast.stmt], position: int) -> str | None:
    """The docstring of an assignment: the string literal after it."""
    following = body[position + 1] if position + 1 < len(body) else None
    if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
        return str(following.value.value)
    return None
