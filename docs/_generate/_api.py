"""The pages of the Python API: every public name with its signature and its docstring.

A name is shown where it lives. The façade's page and the contracts' page lead there.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import amplifier

from ._contracts import CONTRACT_PAGES, is_protocol
from ._markdown import (
    Doc,
    anchor,
    function_lines,
    is_overload,
    joined,
    named,
    one_line,
    page,
    read_doc,
    section_lines,
    signature,
    string_after,
    table,
)

_PACKAGE = Path(amplifier.__file__).parent

API_PAGES = {
    "amplifier.kernel": "kernel",
    "amplifier.agents": "agents",
    "amplifier.functions": "functions",
    "amplifier.models": "models",
    "amplifier.contracts": "contracts",
    "amplifier.models.answers": "answers",
    "amplifier.budget": "budget",
    "amplifier.plan": "plan",
    "amplifier.loading": "loading",
    "amplifier.testing": "testing",
    "amplifier.testing.virtual_time": "virtual-time",
    "amplifier.conformance": "conformance",
    "amplifier.conformance.suites": "conformance-suites",
    "amplifier.conformance.strategies": "conformance-strategies",
    "amplifier.conformance.page": "conformance-page",
    "amplifier.events.payloads": "event-payloads",
    "amplifier.shared_sessions": "shared-sessions",
    "amplifier.models.turns": "turns",
    "amplifier.durable": "durable",
    "amplifier.store": "store",
    "amplifier.tracing": "tracing",
    "amplifier.servers": "servers",
    "amplifier.servers.mcp": "mcp",
    "amplifier.servers.acp": "acp",
    "amplifier.servers.http": "serve",
    "amplifier.compat": "compat",
}
"""Page by module; `amplifier.errors` and `amplifier.events` have pages of their own."""

_KERNELS_OWN = {
    "CancellationToken": {"attach", "detach", "bind", "unbind", "take_requests"},
    "ModuleLoader": {"acquire", "release"},
    "HookRegistry": {"belong_to", "record_into", "remove", "view_for"},
    "ModuleCoordinator": {"end_closing", "reset_turn", "undo", "view_for"},
}  # fmt: skip
"""Members of public classes that files of the kernel call on each other."""
_MADE_BY_SESSIONS = {"TurnStream"}
"""Public classes that no program calls; their constructors are the kernel's own."""
_MORE = {
    "amplifier.models": "What is written is described as JSON Schema (2020-12), one definition for each model: "
    "[models.schema.json](../../../src/amplifier/models/models.schema.json) in this package, for programs that read transcripts "
    "and events without Python. Reading accepts more.",
}
_LEFT_OUT = "Other members are the kernel's own; they may change at any time."


# ── finding names ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Place:
    """Where a public name is defined."""

    file: Path
    node: ast.stmt
    docstring: str | None

    @property
    def doc(self) -> Doc:
        """Its docstring, taken apart."""
        if isinstance(self.node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            return read_doc(ast.get_docstring(self.node))
        return read_doc(self.docstring)


@functools.cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _file_of(module: str) -> Path:
    path = _PACKAGE.joinpath(*module.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@functools.cache
def find(module: str, name: str) -> Place:
    """Follow a name from a package's `__init__.py` to the file that defines it."""
    file = _file_of(module)
    body = _tree(file).body
    for position, node in enumerate(body):
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return find(_imported_module(module, file, node), name)
        if name in _bound(node) and not is_overload(node):
            return Place(file, node, string_after(body, position))
    raise LookupError(f"{module} does not define {name}")


def _imported_module(module: str, file: Path, node: ast.ImportFrom) -> str:
    """The module of this package that an import in a file of it names."""
    source = node.module or ""
    if node.level:
        base = module.removesuffix(".__init__").split(".")
        up = node.level - 1 if file.name == "__init__.py" else node.level
        return ".".join([*base[: len(base) - up], *filter(None, [source])])
    if source.partition(".")[0] != "amplifier":
        raise LookupError(f"{source} is not of this package")
    return source


def _bound(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        return {node.name}
    if isinstance(node, ast.AnnAssign):
        return {ast.unparse(node.target)}
    return (
        {ast.unparse(target) for target in node.targets} if isinstance(node, ast.Assign) else set()
    )


def _names(module: str) -> list[str]:
    return list(importlib.import_module(module).__all__)


# ── pages ────────────────────────────────────────────────────────────────────────────────────────


def api_index() -> str:
    """List the modules that programs may import."""
    rows = [
        (
            "[`amplifier`](amplifier.md)",
            "The names most programs need, gathered from the modules below.",
        )
    ]
    for module, file in API_PAGES.items():
        rows.append(
            (f"[`{module}`]({file}.md)", read_doc(importlib.import_module(module).__doc__).summary)
        )
    rows.append(("[`amplifier.errors`](../errors.md)", "Every error class."))
    rows.append(
        (
            "[`amplifier.events`](../events.md)",
            "The names of events, and the catalogue that describes them.",
        )
    )
    return page(
        "Python API",
        "Every name listed here is public: it does not disappear or change its meaning without a note in the changelog. "
        "What starts with an underscore is not. `amplifier.modules` holds the built-in modules, which are loaded by id and not imported; "
        "see [modules](../modules/index.md). The package is typed (`py.typed`); all public types are known to type checkers.",
        table(("module", "what is in it"), rows),
    )


def facade_page() -> str:
    """Lead from every name of the façade to the place where it is described."""
    rows = []
    for name in amplifier.__all__:
        if name == "__version__":
            continue
        module = _home(name)
        rows.append(
            (f"[`{name}`]({_address(module, name)})", f"`{module}`", find(module, name).doc.summary)
        )
    example = "\n".join(
        line
        for line in inspect.cleandoc(amplifier.__doc__ or "").splitlines()
        if line.startswith("    ")
    )
    code = "\n".join(line.removeprefix("    ") for line in example.splitlines()[:2])
    return page(
        "`amplifier`",
        read_doc(amplifier.__doc__).summary,
        f"```text\n{code}\n```",
        "`amplifier.__version__` is the version as text. Everything else is defined in another module and only repeated here:",
        table(("name", "defined in", "what it is"), rows),
    )


def _home(name: str) -> str:
    for module in ("amplifier.errors", *API_PAGES):
        if name in _names(module):
            return module
    raise LookupError(f"no page shows {name}")


def _address(module: str, name: str) -> str:
    """Where a name is described, from a page of this folder."""
    if module == "amplifier.errors":
        return f"../errors.md#{anchor(name)}"
    place = find(module, name)
    if (
        module == "amplifier.contracts"
        and isinstance(place.node, ast.ClassDef)
        and is_protocol(place.node)
    ):
        return f"../contracts/{place.file.stem.removeprefix('_')}.md#{anchor(name)}"
    return f"{API_PAGES[module]}.md#{anchor(name)}"


def module_page(module: str) -> str:
    """Show every public name of one module."""
    intro = joined([read_doc(importlib.import_module(module).__doc__).text, _MORE.get(module, "")])
    names = _names(module)
    if module != "amplifier.contracts":
        return page(f"`{module}`", intro, *(_entry(module, name) for name in names))
    elsewhere = [name for name in names if _is_on_contract_page(name)]
    rows = [
        (f"[`{name}`]({_contract_address(name)})", find(module, name).doc.summary)
        for name in elsewhere
    ]
    return page(
        f"`{module}`",
        intro,
        "These are described with the contract they belong to:",
        table(("name", "what it is"), rows),
        *(_entry(module, name) for name in names if name not in elsewhere),
    )


def _is_on_contract_page(name: str) -> bool:
    place = find("amplifier.contracts", name)
    if place.file.stem.removeprefix("_") not in CONTRACT_PAGES:
        return False
    if isinstance(place.node, ast.ClassDef):
        return is_protocol(place.node)
    return isinstance(place.node, ast.AnnAssign) and bool(place.docstring)


def _contract_address(name: str) -> str:
    place = find("amplifier.contracts", name)
    heading = anchor(name) if isinstance(place.node, ast.ClassDef) else "types"
    return f"../contracts/{place.file.stem.removeprefix('_')}.md#{heading}"


# ── entries ──────────────────────────────────────────────────────────────────────────────────────


def _entry(module: str, name: str) -> str:
    place = find(module, name)
    if isinstance(place.node, ast.ClassDef):
        return _class_entry(place, place.node)
    doc = place.doc
    shown = ""
    if isinstance(place.node, ast.FunctionDef | ast.AsyncFunctionDef):
        shown = f"`{signature(place.node)}`"
    elif isinstance(place.node, ast.AnnAssign | ast.Assign) and place.node.value:
        text = one_line(ast.unparse(place.node.value))
        shown = f"`{name} = {text}`" if len(text) <= 200 and not re.search(r"\b_\w", text) else ""
    return joined([f"## `{name}`", shown, doc.text, "\n".join(section_lines(doc))])


def _class_entry(place: Place, node: ast.ClassDef) -> str:
    doc = place.doc
    docs = [doc, *(read_doc(ast.get_docstring(base)) for base in _hidden_bases(place, node))]
    described: dict[str, str] = {}
    for entry in (entry for each in docs for entry in each.sections.pop("Attributes", [])):
        name, _, text = entry.partition(": ")
        described.setdefault(name, text)
    lines = place.file.read_text(encoding="utf-8").splitlines()
    fields, functions = [], []
    for member in _members(place, node, set(described)):
        if isinstance(member, ast.AnnAssign | ast.Assign):
            fields.append(_field_line(member, described, lines))
        else:
            functions += function_lines(member)
    # What the docstring describes and no line of the class body declares is set by the constructor.
    fields += named(f"{name}: {text}" for name, text in described.items())
    if node.name in _KERNELS_OWN:
        functions.append(f"\n{_LEFT_OUT}")
    constructor = next(
        (m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"), None
    )
    if node.name in _MADE_BY_SESSIONS:
        constructor = None
    call = (
        signature(constructor, is_member=True).replace("__init__", node.name, 1)
        if constructor
        else ""
    )
    about = "\n".join(section_lines(doc))
    members = "\n".join(fields + functions)
    # Two lists in a row are one list to Markdown.
    between = "Attributes and methods:" if about and members else ""
    call = f"`{call.partition(' -> ')[0]}`" if call else ""
    return joined([f"## `{node.name}`", call, _bases(node), doc.text, about, between, members])


def _members(
    place: Place, node: ast.ClassDef, described: set[str]
) -> Iterator[ast.AnnAssign | ast.Assign | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public members of a class; those of bases that are not public themselves count as its own."""
    seen: set[str] = set()
    for owner in [node, *_hidden_bases(place, node)]:
        for member in _flat(owner.body):
            if not isinstance(
                member, ast.AnnAssign | ast.Assign | ast.FunctionDef | ast.AsyncFunctionDef
            ):
                continue
            if is_overload(member):
                continue
            if (
                owner is not node
                and _is_declared_only(owner, member)
                and not _bound(member) & described
            ):
                continue
            names = _bound(member) - _KERNELS_OWN.get(owner.name, set())
            if (
                names
                and not names & seen
                and not any(name.startswith("_") and name != "__call__" for name in names)
            ):
                seen |= names
                yield member


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Members of a class, with those that are hidden from type checkers because a base has better signatures."""
    for member in body:
        if isinstance(member, ast.If) and ast.unparse(member.test) == "not TYPE_CHECKING":
            yield from member.body
        else:
            yield member


def _is_declared_only(owner: ast.ClassDef, member: ast.stmt) -> bool:
    """Whether a base only tells type checkers what the class has; of a decorated class (attrs) it is a field."""
    return isinstance(member, ast.AnnAssign) and member.value is None and not owner.decorator_list


def _hidden_bases(place: Place, node: ast.ClassDef) -> Iterator[ast.ClassDef]:
    """Base classes from the same package that no public module lists."""
    module = ".".join(
        ("amplifier", *place.file.relative_to(_PACKAGE).parent.parts, place.file.stem)
    )
    for base in node.bases:
        name = ast.unparse(base).partition("[")[0]
        if _is_public(name):
            continue
        try:
            found = find(module, name)
        except (LookupError, OSError):  # of another package
            continue
        if isinstance(found.node, ast.ClassDef):
            yield found.node
            yield from _hidden_bases(found, found.node)


def _is_public(name: str) -> bool:
    return any(name in _names(module) for module in API_PAGES)


def _bases(node: ast.ClassDef) -> str:
    shown = [f"`{ast.unparse(base)}`" for base in node.bases if _is_public(ast.unparse(base))]
    return f"Base: {', '.join(shown)}." if shown else ""


def _field_line(
    member: ast.AnnAssign | ast.Assign, described: dict[str, str], lines: list[str]
) -> str:
    name = next(iter(_bound(member)))
    comment = re.search(
        r"  # (?!noqa|type:|fmt:)(.*)$", lines[(member.end_lineno or member.lineno) - 1]
    )
    text = described.pop(name, "") or (comment[1] if comment else "")
    return f"- `{_declaration(member)}`" + (f": {text}" if text else "")


def _declaration(member: ast.AnnAssign | ast.Assign) -> str:
    """The field as it is declared; of the attrs options, only an empty default is shown."""
    value = member.value
    is_option = isinstance(value, ast.Call) and ast.unparse(value.func) in ("option", "_setting")
    if isinstance(member, ast.AnnAssign) and isinstance(value, ast.Call) and is_option:
        default = next(iter(value.args[1:2]), None)  # between what it accepts and its meaning
        member = ast.AnnAssign(
            target=member.target, annotation=member.annotation, value=default, simple=1
        )
    text = one_line(ast.unparse(member))
    for made, shown in (("list", "[]"), ("dict", "{}")):
        text = re.sub(
            rf" = (attrs\.)?(field\(factory={made}[^)]*\)|Factory\({made}\))$", f" = {shown}", text
        )
    text = re.sub(r" = \w+\(.*\bdefault=([^(),]+).*\)$", r" = \1", text)
    return re.sub(r" = attrs\.field\(.*\)$", "", text)
