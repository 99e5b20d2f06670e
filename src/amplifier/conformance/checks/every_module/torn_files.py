"""Compares files after a cancelled call with those before and after an undisturbed one: each is whole, old or new."""

from __future__ import annotations

import json
from contextlib import suppress

import attrs

from amplifier.conformance.harness.calls.cancelled import NEVER, cancel_once, chosen_suspensions
from amplifier.conformance.harness.check_registry import check
from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule
from amplifier.conformance.harness.resources.snapshot import files_below
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.conformance.harness.work_budget import Budget
from amplifier.testing import cancel_at

_Contents = dict[str, bytes | None]

_CALLS = 4_000


@check("A10", kind="cancellation", needs_success=("A10",))
async def tears_no_file(ctx: CheckContext) -> None:
    """Cancels calls that write files at each suspension; a file holds its old content or its new content."""
    budget = Budget(ctx, _CALLS)
    async with ctx.mount() as mounted:
        count = len(typical_operations(mounted))
    for index in range(count):
        if budget.is_spent():
            return
        first, second = await _undisturbed(ctx, index), await _undisturbed(ctx, index)
        if first is None or second is None or first[0] == first[1]:
            continue
        old, new, suspensions = first
        # Files that differ from run to run (dates, ids) have no new content to compare with; nor have names that do.
        steady = {name for name in new if new[name] == second[1].get(name)}
        files = _Files(old, new, steady, new.keys() == second[1].keys())
        for k in chosen_suspensions(ctx, suspensions):
            if budget.is_spent() or await _is_torn(ctx, index, k, files):
                return


def _contents(mounted: MountedModule) -> _Contents:
    """All files, temporary ones and those in the home too, under names without the session id."""
    session_id = mounted.session.session_id
    return {name.replace(session_id, "<session>"): text for name, text in files_below(mounted.directory.parent).items()}


async def _undisturbed(ctx: CheckContext, index: int) -> tuple[_Contents, _Contents, int] | None:
    async with ctx.mount() as mounted:
        before = _contents(mounted)
        outcome = await mounted.call(cancel_at, NEVER, typical_operations(mounted)[index].run, mounted)
        return (before, _contents(mounted), outcome.value.suspensions) if outcome.returned else None


async def _is_torn(ctx: CheckContext, index: int, k: int, files: _Files) -> bool:
    async with ctx.mount() as mounted:
        operation = typical_operations(mounted)[index]
        trial = await cancel_once(mounted, operation, k)
        for name, content in _contents(mounted).items() if trial is not None and trial.fired else ():
            problem = files.problem(name, content)
            if problem is not None:
                what = f"{operation.name} was cancelled, and {problem}"
                ctx.fault("A10", what, given=operation.given, cancelled_at=trial.where)
                return True
    return False


@attrs.frozen
class _Files:
    """The files before and after an undisturbed call.

    Attributes:
        old: Before.
        new: After.
        steady: The names of those with the same content after every such call.
        has_steady_names: Whether the names are the same after every such call.
    """

    old: _Contents
    new: _Contents
    steady: set[str]
    has_steady_names: bool

    def problem(self, name: str, content: bytes | None) -> str | None:
        """What is wrong with a file after a cancelled call."""
        if content is None or (name in self.old and content == self.old[name]) or _is_database(name, content):
            return None
        shown = repr(name.removeprefix("work/"))
        whole = self.new.get(name)
        if whole is None:
            if not self.has_steady_names or name in self.new or name.startswith("tmp/"):
                return None  # cleanup may remove it
            return f"the half-written file {shown} was left behind"
        if name not in self.steady:
            if _is_readable(name, whole, whole) and not _is_readable(name, content, whole):
                return f"the file {shown} is not JSON any more"
            return None
        if content == whole or (content and content.endswith(b"\n") and whole.startswith(content)):
            return None  # new, or a log with complete lines
        return f"the file {shown} holds neither what it held before nor what it was to hold"


def _is_database(name: str, content: bytes) -> bool:
    """Whether a file belongs to SQLite, which keeps it consistent whatever its bytes."""
    return content.startswith(b"SQLite format 3") or name.endswith(("-journal", "-wal", "-shm"))


def _is_readable(name: str, content: bytes, whole: bytes) -> bool:
    """Whether a file is a JSON text, or has one in every line."""
    if not content.strip():
        # An empty list of lines is readable.
        return name.endswith((".jsonl", ".ndjson", ".log")) or (whole.startswith(b"{") and not name.endswith(".json"))
    with suppress(ValueError):
        json.loads(content)
        return True
    with suppress(ValueError):
        return content.endswith(b"\n") and all(json.loads(line) is not None for line in content.splitlines())
    return False
