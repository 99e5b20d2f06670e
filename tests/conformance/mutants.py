"""``python -m tests.conformance.mutants 60``: how many mutants of sound modules the kit finds in its ordinary mode.

Sound modules of the corpus and built-in modules are changed at one place of their syntax tree by operators of this field. Which modules, operators
and places is drawn anew in every run, so that nothing can be tuned to them; ``--seed`` repeats a run. A mutant is *found* if it gets a finding,
*unchecked* if it gets none and is not said to conform either. Nobody has said which mutants are equivalent: the survivors are written to a
file as diffs, to be judged by hand.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import itertools
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
from attrs import define, frozen

from amplifier.conformance import check_module
from tests.conformance.corpus_modules import corpus_modules
from tests.conformance.test_builtins import CHECKED, DECLINES

Change = Callable[[], None]
"""Changes the tree in place."""

Operator = Callable[[ast.AST], Iterator[Change]]
"""The changes of one kind that a tree allows."""

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
_COPIES = ("deepcopy", "copy", "list", "dict", "tuple", "set")
_DEADLINES = ("fail_after", "move_on_after", "timeout")
_LOCKS = ("lock", "limiter", "semaphore", "slots", "guard")


def _name(node: ast.AST) -> str:
    """The last word of a name or of a call's function."""
    called = node.func if isinstance(node, ast.Call) else node
    return str(getattr(called, "attr", getattr(called, "id", "")))


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            found = getattr(node, field, None)
            if isinstance(found, list) and not isinstance(node, (ast.Module, ast.ClassDef)):
                yield found


def _put(holder: Any, field: str | int, value: Any) -> Change:
    return partial(
        holder.__setitem__ if isinstance(holder, list) else partial(setattr, holder), field, value
    )


def _wherever(is_meant: Callable[[Any], bool], field: str, value: Callable[[Any], Any]) -> Operator:
    """An operator that gives a field of each node that is meant another value."""

    def changes(tree: ast.AST) -> Iterator[Change]:
        yield from (_put(node, field, value(node)) for node in ast.walk(tree) if is_meant(node))

    return changes


def _statements(tree: ast.AST) -> Iterator[tuple[list[ast.stmt], int, ast.stmt]]:
    for body in _bodies(tree):
        yield from ((body, at, each) for at, each in enumerate(body))


def _drop_statement(tree: ast.AST, wanted: Callable[[ast.stmt], bool]) -> Iterator[Change]:
    for body, at, each in _statements(tree):
        if wanted(each):
            yield _put(body, at, ast.Pass())


def _is_call(each: ast.stmt, *names: str) -> bool:
    value = each.value if isinstance(each, ast.Expr) else None
    value = value.value if isinstance(value, ast.Await) else value
    return isinstance(value, ast.Call) and (not names or _name(value) in names)


def _swap(tree: ast.AST) -> Iterator[Change]:
    for body, at, each in _statements(tree):
        if at and all(
            isinstance(one, (ast.Expr, ast.Assign, ast.AugAssign)) for one in (each, body[at - 1])
        ):
            yield partial(body.__setitem__, slice(at - 1, at + 1), [each, body[at - 1]])


def _cleans(name: str) -> bool:
    return any(word in name for word in ("cleanup", "close", "unregister", "undo"))


def _share(tree: ast.AST) -> Iterator[Change]:
    """What __init__ makes for each instance becomes one object of the class."""
    for holder in ast.walk(tree):
        if not isinstance(holder, ast.ClassDef):
            continue
        for body, at, each in _statements(holder):
            if not isinstance(each, ast.Assign) or not isinstance(each.targets[0], ast.Attribute):
                continue
            if isinstance(each.value, (ast.List, ast.Dict, ast.Set)) or _name(each.value) in (
                "deque",
                "Lock",
                "OrderedDict",
            ):
                yield partial(_hoist, holder, body, at)


def _hoist(holder: ast.ClassDef, body: list[ast.stmt], at: int) -> None:
    given: Any = body[at]
    name = f"_shared_{given.targets[0].attr}"
    holder.body.insert(0, ast.Assign([ast.Name(name, ast.Store())], given.value))
    given.value = ast.Attribute(ast.Name("self", ast.Load()), name, ast.Load())


def _off_by_one(tree: ast.AST) -> Iterator[Change]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Slice, ast.Compare, ast.BinOp)) or _name(node) in (
            "range",
            "enumerate",
        ):
            for part in ast.iter_child_nodes(node):
                if isinstance(part, ast.Constant) and type(part.value) is int:
                    yield _put(part, "value", part.value + 1)


def _wrong_field(tree: ast.AST) -> Iterator[Change]:
    """A key that is looked up, or a keyword that is given, gets the name of its neighbour."""
    keys = [node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)]
    keys += [
        node.args[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _name(node) == "get" and node.args
    ]
    texts = [key for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)]
    for one, other in itertools.pairwise(texts):
        if one.value != other.value:
            yield _put(one, "value", other.value)


def _lost_copy(tree: ast.AST) -> Iterator[Change]:
    for node in ast.walk(tree):
        for field, value in ast.iter_fields(node):
            if (
                isinstance(value, ast.Call)
                and _name(value) in _COPIES
                and len(value.args) == 1
                and not value.keywords
            ):
                yield _put(node, field, value.args[0])


def _unwrapped(tree: ast.AST, words: tuple[str, ...]) -> Iterator[Change]:
    for body, at, each in _statements(tree):
        if isinstance(each, (ast.With, ast.AsyncWith)):
            named = _name(each.items[0].context_expr).lower()
            if any(word in named for word in words):
                yield partial(body.__setitem__, slice(at, at + 1), each.body)


def _stale_key(tree: ast.AST) -> Iterator[Change]:
    """A tuple that is a key, or is assigned to something called so, loses its last part."""
    for node in ast.walk(tree):
        is_type = isinstance(node, ast.Subscript) and _name(node.value) in (
            "dict",
            "tuple",
            "Callable",
            "Mapping",
            "Iterator",
        )
        if isinstance(node, ast.Subscript) and not is_type and isinstance(node.slice, ast.Tuple):
            yield _put(node, "slice", node.slice.elts[0])
        elif (
            isinstance(node, ast.Assign)
            and "key" in _name(node.targets[0])
            and isinstance(node.value, (ast.Tuple, ast.Call))
        ):
            parts = node.value.elts if isinstance(node.value, ast.Tuple) else node.value.args
            if parts:
                yield _put(node, "value", parts[0])


def _other_constant(tree: ast.AST) -> Iterator[Change]:
    for node in ast.walk(tree):
        for part in [
            *getattr(node, "keywords", ()),
            *([node] if isinstance(node, (ast.Assign, ast.Return)) else []),
        ]:
            value = getattr(part, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, (bool, int, float)):
                yield _put(
                    value,
                    "value",
                    not value.value if value.value in (True, False) else value.value * 2 + 1,
                )


OPERATORS: dict[str, Operator] = {
    "await dropped": _wherever(
        lambda node: isinstance(node, ast.Expr) and isinstance(node.value, ast.Await),
        "value",
        lambda node: node.value.value,
    ),
    "order swapped": _swap,
    "shield removed": _wherever(
        lambda node: isinstance(node, ast.keyword) and node.arg == "shield",
        "value",
        lambda node: ast.Constant(False),
    ),
    "except widened": _wherever(
        lambda node: (
            isinstance(node, ast.ExceptHandler)
            and node.type is not None
            and _name(node.type) != "BaseException"
        ),
        "type",
        lambda node: ast.Name("BaseException", ast.Load()),
    ),
    "re-raise removed": lambda tree: _drop_statement(
        tree, lambda each: isinstance(each, ast.Raise) and each.exc is None
    ),
    "finally emptied": _wherever(
        lambda node: isinstance(node, ast.Try) and bool(node.finalbody),
        "finalbody",
        lambda node: [ast.Pass()],
    ),
    "cleanup forgotten": _wherever(
        lambda node: (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _cleans(node.name)
        ),
        "body",
        lambda node: [ast.Pass()],
    ),
    "event skipped": lambda tree: _drop_statement(tree, lambda each: _is_call(each, "emit")),
    "call skipped": lambda tree: _drop_statement(
        tree, lambda each: _is_call(each) and not _is_call(each, "emit")
    ),
    "assignment skipped": lambda tree: _drop_statement(
        tree, lambda each: isinstance(each, ast.AugAssign)
    ),
    "state shared": _share,
    "off by one": _off_by_one,
    "other comparison": _wherever(
        lambda node: isinstance(node, ast.Compare) and type(node.ops[0]) in _COMPARISONS,
        "ops",
        lambda node: [_COMPARISONS[type(node.ops[0])](), *node.ops[1:]],
    ),
    "wrong field": _wrong_field,
    "copy lost": _lost_copy,
    "lock missing": lambda tree: _unwrapped(tree, _LOCKS),
    "deadline missing": lambda tree: _unwrapped(tree, _DEADLINES),
    "key incomplete": _stale_key,
    "other constant": _other_constant,
    "branch removed": _wherever(
        lambda node: isinstance(node, ast.If), "test", lambda node: ast.Constant(False)
    ),
    "condition ignored": _wherever(
        lambda node: isinstance(node, ast.If), "test", lambda node: ast.Constant(True)
    ),
    "half a condition": _wherever(
        lambda node: isinstance(node, ast.BoolOp),
        "values",
        lambda node: [node.values[0], node.values[0]],
    ),
}


@frozen
class Original:
    """A sound module as text.

    Attributes:
        files: Its files by name; the first one alone if it is no package.
        options: What the kit needs to examine it.
    """

    name: str
    type: str
    files: dict[str, str]
    options: dict[str, Any]

    def written(self, folder: Path) -> Path:
        """The module as a file or a package in a folder."""
        place = folder if len(self.files) == 1 else folder / self.name.replace("-", "_")
        place.mkdir(exist_ok=True)
        for name, text in self.files.items():
            (place / name).write_text(text, encoding="utf-8")
        return place / next(iter(self.files)) if len(self.files) == 1 else place


def originals() -> list[Original]:
    """Every sound module that can be written elsewhere."""
    found = [
        Original(
            each.name, each.type, {f"{each.name}.py": each.source()}, {"module_type": each.type}
        )
        for each in corpus_modules("sound")
    ]
    return [
        *found,
        *(
            _built_in(each.name, each.module)
            for each in entry_points(group="amplifier.builtin_modules")
            if each.name not in DECLINES
        ),
    ]


def _built_in(name: str, module: str) -> Original:
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    file, kind = (
        Path(spec.origin),
        {"loop": "orchestrator", "hooks": "hook"}.get(
            name.partition("-")[0], name.partition("-")[0]
        ),
    )
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    files = sorted(file.parent.glob("*.py")) if file.name == "__init__.py" else [file]
    texts = {each.name: _absolute(each, package, keep=1 if len(files) > 1 else 0) for each in files}
    if len(texts) == 1:
        texts = {f"{name.replace('-', '_')}.py": next(iter(texts.values()))}
    return Original(name, kind, texts, {**CHECKED[name], "module_type": kind})


def _absolute(file: Path, package: str, keep: int) -> str:
    """A source whose imports from outside of its package name that."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > keep:
            above = package.rsplit(".", node.level - 1)[0]
            node.module, node.level = ".".join(filter(None, (above, node.module))), 0
    return ast.unparse(tree)


@define
class Mutant:
    """One change of one module, and what became of it."""

    original: Original
    operator: str
    file: str
    text: str
    fate: str = ""
    clauses: tuple[str, ...] = ()

    def diff(self) -> str:
        before = ast.unparse(ast.parse(self.original.files[self.file])).splitlines()
        lines = difflib.unified_diff(before, self.text.splitlines(), lineterm="", n=4)
        return "\n".join(
            [
                f"## {self.original.type} {self.original.name} {self.file}: {self.operator} ({self.fate})",
                *lines,
            ]
        )


def draw(chance: random.Random, modules: list[Original]) -> Mutant | None:
    """A mutant of a module drawn by type, with an operator and at a place drawn after that; None if there is no such place."""
    kind = chance.choice(sorted({each.type for each in modules}))
    original = chance.choice([each for each in modules if each.type == kind])
    file, operator = chance.choice(list(original.files)), chance.choice(list(OPERATORS))
    tree = ast.parse(original.files[file])
    before = ast.unparse(tree)
    count = sum(1 for _ in OPERATORS[operator](tree))
    if not count:
        return None
    mutated = copy.deepcopy(tree)
    list(OPERATORS[operator](mutated))[chance.randrange(count)]()
    text = ast.unparse(ast.fix_missing_locations(mutated))
    return None if text == before else Mutant(original, operator, file, text)


async def judge(mutant: Mutant, *, thorough: bool) -> None:
    """Let the kit examine a mutant."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        files = {**mutant.original.files, mutant.file: mutant.text}
        place = Original(mutant.original.name, mutant.original.type, files, {}).written(
            Path(folder)
        )
        report = await check_module(place, thorough=thorough, **mutant.original.options)
    mutant.clauses = tuple(
        sorted({found.clause for found in [*report.violations, *report.recommendations]})
    )
    mutant.fate = (
        "found" if mutant.clauses else "survived" if report.verdict == "conforms" else "unchecked"
    )


async def run(count: int, seed: int, at_once: int, *, thorough: bool) -> list[Mutant]:
    """Draw mutants and judge them."""
    chance, modules = random.Random(seed), originals()
    drawn: dict[str, Mutant] = {}
    while len(drawn) < count:
        mutant = draw(chance, modules)
        if mutant is not None:
            drawn.setdefault(mutant.text, mutant)
    limiter = anyio.CapacityLimiter(at_once)

    async def one(mutant: Mutant) -> None:
        async with limiter:
            await judge(mutant, thorough=thorough)
            print(
                f"{mutant.fate:10}{mutant.operator:20}{mutant.original.type}/{mutant.original.name}  {', '.join(mutant.clauses)}",
                flush=True,
            )

    async with anyio.create_task_group() as group:
        for each in drawn.values():
            group.start_soon(one, each)
    return list(drawn.values())


def table(mutants: list[Mutant]) -> str:
    """The rates by operator and by type, and the clauses that found most, in Markdown."""
    lines = []
    for title, key in (
        ("operator", lambda each: each.operator),
        ("type", lambda each: each.original.type),
    ):
        lines += [f"| {title} | mutants | found | unchecked | survived |", "|---|---|---|---|---|"]
        for name in [*sorted({key(each) for each in mutants}), "all"]:
            fates = Counter(each.fate for each in mutants if name in ("all", key(each)))
            lines.append(
                f"| {name} | {fates.total()} | {fates['found']} | {fates['unchecked']} | {fates['survived']} |"
            )
        lines.append("")
    clauses = Counter(clause for each in mutants for clause in each.clauses)
    lines.append(
        "Found by: " + ", ".join(f"{clause} {count}" for clause, count in clauses.most_common())
    )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Draw, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=60)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("--survivors", type=Path, default=Path("survivors.diff"))
    given = parser.parse_args(arguments)
    print(f"seed {given.seed}", flush=True)
    mutants = anyio.run(
        partial(run, given.count, given.seed, given.at_once, thorough=given.thorough)
    )
    given.survivors.write_text(
        "\n\n".join(each.diff() for each in mutants if each.fate != "found"), encoding="utf-8"
    )
    print(table(mutants))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
