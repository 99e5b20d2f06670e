"""How to fix a call that does not end as cancelled, by what was observed and by the code around the await.

Code that swallows a cancellation, turns it into a group, replaces it by another error, or delays it, takes a different fix each
time. What came out of the call shows which of these it was; the syntax tree around the cancelled await shows where.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from amplifier.conformance.target.locate import Target, parsed

from .source_location import line_in_module

_CANCELLED = frozenset({"CancelledError", "Cancelled", "get_cancelled_exc_class"})
"""How code names the exception of a cancellation."""
_Block = ast.Try | ast.TryStar | ast.With | ast.AsyncWith


def cancellation_hint(target: Target, clause: str, cancelled_at: str | None, error: BaseException | None) -> str | None:
    """How to fix a broken A7 or A8; None where the advice of the clause is all that is known.

    Args:
        target: The module.
        clause: ``A7``, cancellation does not leave the call as cancellation; ``A8``, the call goes on.
        cancelled_at: The await that was cancelled, ``file:line function``.
        error: What the call raised instead; None if it returned or went on.
    """
    at = None if cancelled_at is None else line_in_module(target, cancelled_at)
    around = [] if at is None else list(_blocks_around(*at))
    if clause == "A8":
        return _of_delay(target, around)
    if isinstance(error, BaseExceptionGroup):
        return _of_group(target, around or _all_blocks(target))
    if error is not None:
        return _of_replacement(target, error)
    return _of_swallowing(target, around or _all_blocks(target))


def _of_swallowing(target: Target, blocks: list[tuple[Path, _Block]]) -> str | None:
    for file, block in blocks:
        if isinstance(block, ast.TryStar) and (star := _catching(block)) is not None:
            return (
                f"`{_head(star, star=True)}` at {target.location_at(file, star.lineno)} handles the cancellation as part of a "
                "group and ends it. Name the errors you expect there, so that cancellation passes."
            )
        if isinstance(block, ast.Try):
            leaving = next((node for node in _own_nodes(block.finalbody) if isinstance(node, ast.Return)), None)
            if leaving is not None:
                return (
                    f"The `return` in a finally block at {target.location_at(file, leaving.lineno)} discards the "
                    "cancellation. Return after the try statement instead."
                )
            if (handler := _catching(block)) is not None:
                broad = handler.type is None or not _names(handler.type) & _CANCELLED
                fix = "Catch Exception instead" if broad else "End the block with a bare `raise`"
                return (
                    f"`{_head(handler)}` at {target.location_at(file, handler.lineno)} catches the cancellation. {fix}."
                )
        if isinstance(block, ast.With | ast.AsyncWith) and (call := _suppressing(block)) is not None:
            return (
                f"`{ast.unparse(call)}` at {target.location_at(file, call.lineno)} suppresses the cancellation. Suppress "
                "Exception or a narrower class."
            )
    return None


def _of_group(target: Target, blocks: list[tuple[Path, _Block]]) -> str:
    for file, block in blocks:
        if isinstance(block, ast.TryStar) and (star := _catching(block)) is not None:
            return (
                f"`{_head(star, star=True)}` at {target.location_at(file, star.lineno)} turns the cancellation into a group, also "
                "where it raises it again. Name the errors you expect there, and tidy up in a finally block."
            )
    return (
        "An error that a task raises while its task group is cancelled comes out as a group in place of the cancellation. "
        "Let the tasks end with the cancellation: tidy up in a finally block, and catch there what may fail."
    )


def _of_replacement(target: Target, error: BaseException) -> str:
    line = target.location_of(error)
    place = "" if line is None else f" at {line}"
    return (
        f"The {type(error).__name__} raised{place} replaces the cancellation. Where you handle cancellation, end the block with a bare `raise`; "
        "in cleanup, catch Exception around what may fail."
    )


def _of_delay(target: Target, around: list[tuple[Path, _Block]]) -> str | None:
    for file, block in around:
        for scope in _scopes_of(block):
            if (call := _shielding(scope)) is not None:
                return (
                    f"`{ast.unparse(call)}` at {target.location_at(file, call.lineno)} keeps the cancellation out while its body "
                    "waits. Shield only short cleanup, with a deadline below one second: "
                    "`anyio.move_on_after(0.5, shield=True)`."
                )
    return None


def _scopes_of(block: _Block) -> list[ast.With | ast.AsyncWith]:
    """The with statements that an await in the body is left through: the block itself, or those of its cleanup."""
    if isinstance(block, ast.With | ast.AsyncWith):
        return [block]
    cleanup = [*(statement for handler in block.handlers for statement in handler.body), *block.finalbody]
    return [node for node in _own_nodes(cleanup) if isinstance(node, ast.With | ast.AsyncWith)]


# ── the code around an await ─────────────────────────────────────────────────────────────────────


def _blocks_around(file: Path, line: int) -> Iterator[tuple[Path, _Block]]:
    """The try and with statements whose body holds the line, innermost first."""
    tree = parsed(file)
    found = [] if tree is None else [node for node in ast.walk(tree) if isinstance(node, _Block)]
    holding = [node for node in found if node.body[0].lineno <= line <= (node.body[-1].end_lineno or 0)]
    for node in sorted(holding, key=lambda each: -each.lineno):
        yield file, node


def _all_blocks(target: Target) -> list[tuple[Path, _Block]]:
    trees = [(file, parsed(file)) for file in target.sources()]
    return [
        (file, node)
        for file, tree in trees
        if tree is not None
        for node in ast.walk(tree)
        if isinstance(node, _Block)
        and any(isinstance(inner, ast.Await | ast.AsyncWith) for inner in _own_nodes(node.body))
    ]


def _catching(block: ast.Try | ast.TryStar) -> ast.ExceptHandler | None:
    """The handler that catches a cancellation and does not raise it again."""
    for handler in block.handlers:
        if handler.type is None or _names(handler.type) & {*_CANCELLED, "BaseException"}:
            raises = any(isinstance(node, ast.Raise) and node.exc is None for node in _own_nodes(handler.body))
            return None if raises and isinstance(block, ast.Try) else handler
    return None


def _suppressing(block: ast.With | ast.AsyncWith) -> ast.Call | None:
    for item in block.items:
        call = item.context_expr
        if not isinstance(call, ast.Call) or not ast.unparse(call.func).endswith("suppress"):
            continue
        if any(_names(argument) & {*_CANCELLED, "BaseException"} for argument in call.args):
            return call
    return None


def _shielding(block: ast.With | ast.AsyncWith) -> ast.Call | None:
    for item in block.items:
        call = item.context_expr
        if isinstance(call, ast.Call) and any(word.arg == "shield" for word in call.keywords):
            return call
    return None


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a block, without those of functions defined in it."""
    pending: list[ast.AST] = list(body)
    while pending:
        node = pending.pop(0)
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)


def _names(node: ast.expr) -> set[str]:
    return set(re.findall(r"\w+", ast.unparse(node)))


def _head(handler: ast.ExceptHandler, *, star: bool = False) -> str:
    return f"except{'*' if star else ''}{'' if handler.type is None else f' {ast.unparse(handler.type)}'}:"
