"""Many calls of one tool in one session, and what is wrong with the answers.

Above stand the checks of tools; below stands the mounted.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule, MountFailed, Outcome
from amplifier.conformance.harness.resource_snapshot import files_below
from amplifier.conformance.harness.time_budget import Budget
from amplifier.conformance.harness.typical_use import schema_of
from amplifier.conformance.inputs.json_schema import Accepts, acceptor, fingerprint, json_problem
from amplifier.models import ToolResult

Input = dict[str, Any]

_SECONDS = 1.5
_MOST_LATE = 2


class Printed:
    """Stands in for standard output and notes what the subject itself prints."""

    def __init__(self, ctx: CheckContext) -> None:
        self._owns = ctx.loaded.subject.owns
        self._ctx = ctx
        self.line: str | None = None

    def write(self, text: str) -> int:
        """Note the line of the module that prints."""
        frame = sys._getframe(1)
        if text.strip() and self._owns(frame.f_code.co_filename):
            self.line = self.line or f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        return len(text)

    def flush(self) -> None:
        """Do nothing, as there is nothing kept."""

    def isatty(self) -> bool:
        """Never a terminal."""
        return False


class ToolCallSeries:
    """A series of calls.

    Args:
        ctx: Where; faults are reported there, one for each clause.
        tool: The tool's name.
        budget: How long.
        is_drawn: Whether the calls are the ctx's case, which then is the input of every fault.
    """

    def __init__(self, ctx: CheckContext, tool: str, budget: Budget, *, is_drawn: bool = False) -> None:
        self._ctx = ctx
        self._tool = tool
        self._budget = budget
        self._accepts: Accepts | None = None
        self._is_drawn = is_drawn
        self._broken: set[str] = set()
        self._given: list[tuple[Input, Any, str]] = []
        self._done: list[Input] = []

    async def run(self, inputs: Iterable[Input]) -> None:
        """Make the calls, and then look whether the tool and its earlier answers are what they were."""
        late = 0
        printed: Any = Printed(self._ctx)  # as much of a stream as print needs
        kept = sys.stdout
        async with self._ctx.mount() as mounted:
            tool = mounted.instances.get(self._tool)
            if tool is None:
                return
            before = self._described(tool)
            self._accepts = acceptor(before["T7"])
            sys.stdout = printed
            try:
                for given in inputs:
                    outcome = await self._call(mounted, given)
                    late += outcome.kind == "late"
                    if late >= _MOST_LATE or self._budget.is_spent():
                        break
            finally:
                sys.stdout = kept
            self._look_at_what_stays(before, self._described(tool))
        if printed.line is not None:
            self._fault("T13", "it prints", None, location=printed.line)

    # ── one call ──

    async def _call(self, mounted: MountedModule, given: Input) -> Outcome:
        own, was = copy.deepcopy(given), fingerprint(given)
        files = files_below(mounted.directory)
        outcome = await mounted.call(mounted.instances[self._tool].execute, own, seconds=_SECONDS)
        if outcome.kind == "late":
            await self._look_at_lateness(given)
        elif outcome.kind == "raised":
            self._fault("T5", f"execute {outcome}", given, error=outcome.error)
            if self._accepts is not None and self._accepts(given):
                self._fault("T6", f"execute {outcome}", given, error=outcome.error)
        else:
            self._look_at(outcome.value, given)
            self._look_at_effects(outcome.value, given, files, mounted)
        if fingerprint(own) != was:
            self._fault("T15", f"execute changed its input to {fingerprint(own)[:150]}", given)
        self._done.append(given)
        return outcome

    def _look_at(self, result: Any, given: Input) -> None:
        if not isinstance(result, ToolResult):
            self._fault("T5", f"execute returned {type(result).__name__}, expected a ToolResult", given)
            return
        success: Any = result.success  # assignments are checked, but not by everybody's subclass
        if not isinstance(success, bool):
            self._fault("T6", f"success is {result.success!r}, expected True or False", given)
        elif not result.success and not result.error:
            self._fault("T6", "success is False and there is no error", given)
        elif result.success and result.error:
            self._fault("T6", f"success is True, and yet there is the error {str(result.error)[:150]}", given)
        for part in ("output", "error"):
            problem = json_problem(getattr(result, part))
            if problem is not None:
                self._fault("T9", f"the {part} holds {problem}, which is not JSON", given)
        self._given.append((given, result, fingerprint([result.output, result.error])))

    def _look_at_effects(self, result: Any, given: Input, files: Any, mounted: MountedModule) -> None:
        if self._accepts is None or self._accepts(given) or getattr(result, "success", True):
            return
        changed = sorted(name for name, _ in set(_items(files)) ^ set(_items(files_below(mounted.directory))))
        if changed:
            self._fault("T12", f"it refused the input and had changed {changed[0]!r} before", given)

    async def _look_at_lateness(self, given: Input) -> None:
        """A call that never ends may be what was asked for; one that does end in a new session was spoilt by another."""
        for culprit in [None, *reversed(self._done[-6:]), self._done[0] if self._done else None]:
            try:
                async with self._ctx.mount() as mounted:
                    execute = mounted.instances[self._tool].execute
                    if culprit is not None:
                        await mounted.call(execute, copy.deepcopy(culprit), seconds=_SECONDS)
                    outcome = await mounted.call(execute, copy.deepcopy(given), seconds=_SECONDS)
            except MountFailed:
                return
            if culprit is None and outcome.kind == "late":
                self._ctx.notes.append(f"execute of {self._tool!r} did not end within {_SECONDS:g} s on some input")
                return
            if culprit is not None and outcome.kind == "late":
                after = fingerprint(culprit)[:150]
                self._fault("T5", f"execute never ends once it was called with {after}", given)
                return

    # ── the whole series ──

    def _described(self, tool: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for member, clause in (("name", "T2"), ("description", "T3")):
            with suppress(Exception):  # another check says so
                found[clause] = getattr(tool, member)
        found["T7"] = copy.deepcopy(schema_of(tool))
        return found

    def _look_at_what_stays(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        names = {"T2": "name", "T3": "description", "T7": "schema"}
        for clause, value in before.items():
            if clause in after and after[clause] != value:
                what = (
                    f"the {names[clause]} was {str(value)[:80]!r} and is {str(after[clause])[:80]!r} after some calls"
                )
                self._fault(clause, what, None)
        for given, result, was in self._given:
            now = fingerprint([result.output, result.error])
            if now != was:
                self._fault("T10", f"a result was {was[:100]} and later calls changed it to {now[:100]}", given)

    def _fault(self, clause: str, what: str, given: Input | None, **details: Any) -> None:
        if clause not in self._broken:
            self._broken.add(clause)
            shown = None if given is None or self._is_drawn else {"tool": self._tool, "input": given}
            self._ctx.fault(clause, what, given=shown, **details)


def _items(files: dict[str, bytes | None]) -> list[tuple[str, bytes | None]]:
    return list(files.items())
