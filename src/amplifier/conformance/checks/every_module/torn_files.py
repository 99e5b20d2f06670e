"""Files after a cancelled call: whole, old or new. Above stands the check; below stand the mounted and `cancel_at`."""

from __future__ import annotations

import json
from contextlib import suppress

import attrs

from amplifier.conformance.harness.cancelled_calls import _NEVER, _chosen, _coroutine
from amplifier.conformance.harness.mounted_module import CALL_SECONDS, CANCEL_GRACE, CheckContext, MountedModule
from amplifier.conformance.harness.resource_snapshot import files_below
from amplifier.conformance.harness.time_budget import Budget
from amplifier.conformance.harness.typical_use import typical_operations
from amplifier.testing import cancel_at

Files = dict[str, bytes | None]

_SECONDS = 4.0
_TEMPORARY = "tmp/"


async def look_for_torn_files(ctx: CheckContext) -> None:
    """Compare the files after a cancelled call with those before and after an undisturbed one."""
    budget = Budget(ctx, _SECONDS)
    async with ctx.mount() as mounted:
        count = len(typical_operations(mounted))
    for index in range(count):
        if budget.is_spent():
            return
        first, second = await _undisturbed(ctx, index), await _undisturbed(ctx, index)
        if first is None or second is None or first[0] == first[1]:
            continue
        # Files that differ from run to run (dates, ids) have no "new" to compare with; nor have names that do.
        steady = {name for name in first[1] if first[1][name] == second[1].get(name)}
        named_alike = first[1].keys() == second[1].keys()
        for k in _chosen(first[2], ctx):
            if budget.is_spent():
                return
            if await _cancelled(ctx, index, k, _Files(first[0], first[1], steady, named_alike)):
                return


def _files(mounted: MountedModule) -> Files:
    """The files of a mounted, temporary ones and those at home too, under names that do not depend on its session."""
    session_id = mounted.session.session_id
    return {name.replace(session_id, "<session>"): text for name, text in files_below(mounted.directory.parent).items()}


async def _undisturbed(ctx: CheckContext, index: int) -> tuple[Files, Files, int] | None:
    async with ctx.mount() as mounted:
        operation = typical_operations(mounted)[index]
        before = _files(mounted)
        outcome = await mounted.call(cancel_at, _NEVER, _coroutine(operation, mounted))
        if not outcome.returned:
            return None
        return before, _files(mounted), outcome.value.suspensions


async def _cancelled(ctx: CheckContext, index: int, k: int, files: _Files) -> bool:
    async with ctx.mount() as mounted:
        operation = typical_operations(mounted)[index]
        trial = None
        with ctx.alarm(CALL_SECONDS + CANCEL_GRACE, "A8", operation.name), suppress(Exception):
            trial = await cancel_at(k, _coroutine(operation, mounted))
        if trial is None or not trial.fired:
            return False
        for name, content in _files(mounted).items():
            complaint = files.complaint(name, content)
            if complaint is not None:
                what = f"{operation.name} was cancelled, and {complaint}"
                ctx.fault("A10", what, given=operation.given, cancelled_at=trial.where)
                return True
    return False


@attrs.frozen
class _Files:
    """The files before and after an undisturbed call.

    Attributes:
        old: Before.
        new: After.
        steady: The names of those that hold the same after every such call.
        named_alike: Whether they have the same names after every such call.
    """

    old: Files
    new: Files
    steady: set[str]
    named_alike: bool

    def complaint(self, name: str, content: bytes | None) -> str | None:
        """What is wrong with a file after a call that was cancelled."""
        if content is None or (name in self.old and content == self.old[name]) or _is_database(name, content):
            return None
        whole = self.new.get(name)
        if whole is None:
            if not self.named_alike or name in self.new or name.startswith(_TEMPORARY):
                return None  # what cleanup removes may lie about until then
            return f"the half-written file {_shown(name)!r} was left behind"
        if name not in self.steady:
            if _can_be_read(name, whole, whole) and not _can_be_read(name, content, whole):
                return f"the file {_shown(name)!r} is not JSON any more"
            return None
        if content == whole or (content and content.endswith(b"\n") and whole.startswith(content)):
            return None  # done, or a log of which the first lines were written: each of them is whole
        return f"the file {_shown(name)!r} holds neither what it held before nor what it was to hold"


def _is_database(name: str, content: bytes) -> bool:
    """Whether a file belongs to SQLite, which keeps it whole by means of its own, whatever its bytes."""
    return content.startswith(b"SQLite format 3") or name.endswith(("-journal", "-wal", "-shm"))


def _can_be_read(name: str, content: bytes, whole: bytes) -> bool:
    """Whether a file is a JSON text, or a list of them with one in every line."""
    if not content.strip():
        # A list of nothing yet is a list.
        return name.endswith((".jsonl", ".ndjson", ".log")) or (whole.startswith(b"{") and not name.endswith(".json"))
    try:
        json.loads(content)
    except ValueError:
        try:
            return content.endswith(b"\n") and all(json.loads(line) is not None for line in content.splitlines())
        except ValueError:
            return False
    return True


def _shown(name: str) -> str:
    return name.removeprefix("work/")
