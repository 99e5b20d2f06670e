"""Many calls of one tool in one session, and what is wrong with the results."""

from __future__ import annotations

import copy
import linecache
import sys
import traceback
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from amplifier.conformance.harness.calls.outcome import waits_for_ever
from amplifier.conformance.harness.calls.series import SECONDS_PER_CALL, CallSeries
from amplifier.conformance.harness.mounted_module import CheckContext, MountedModule, MountFailed
from amplifier.conformance.harness.resources.snapshot import files_below
from amplifier.conformance.harness.typical_use import schema_of
from amplifier.conformance.harness.work_budget import Budget
from amplifier.conformance.inputs.json_schema import Accepts, acceptor, fingerprint, json_problem
from amplifier.models import ToolResult

Input = dict[str, Any]
_polling: set[str] = set()
"""Tools of which a late call waits for more than nothing; finding that out takes long, and once is enough."""


class _PrintDetector:
    """Replaces standard output and keeps the line of the module that prints."""

    def __init__(self, ctx: CheckContext) -> None:
        self._owns = ctx.loaded.target.owns
        self.line: str | None = None

    def write(self, text: str) -> int:
        frame = sys._getframe(1)
        if text.strip() and self._owns(frame.f_code.co_filename):
            self.line = self.line or f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
        return len(text)

    def flush(self) -> None:
        """Do nothing: no text is kept."""

    def isatty(self) -> bool:
        return False


class ToolCallSeries(CallSeries):
    """Calls of one tool."""

    def __init__(self, ctx: CheckContext, tool: str, budget: Budget | None = None, *, is_drawn: bool = False) -> None:
        super().__init__(ctx, budget, is_drawn=is_drawn)
        self._tool = tool
        self._accepts: Accepts | None = None
        self._results: list[tuple[Input, Any, str]] = []
        self._done: list[Input] = []

    async def run(self, inputs: Iterable[Input]) -> None:
        """Make the calls, then compare the tool's description and its earlier results with what they were."""
        output: Any = _PrintDetector(self.ctx)  # as much of a stream as print needs
        async with self.ctx.mount() as mounted:
            tool = mounted.instances.get(self._tool)
            if tool is None:
                return
            before = _description(tool)
            self._accepts = acceptor(before["T7"])
            kept, sys.stdout = sys.stdout, output
            try:
                for given in inputs:
                    await self._call(mounted, tool, given)
                    if self.is_over:
                        break
            finally:
                sys.stdout = kept
            self._check_unchanged(before, _description(tool))
        if output.line is not None:
            self.fault("T13", "it prints", None, location=output.line)

    async def _call(self, mounted: MountedModule, tool: Any, given: Input) -> None:
        shown = {"tool": self._tool, "input": given}
        files = files_below(mounted.directory)
        outcome, _, changed = await self.call(mounted, tool.execute, given)
        if outcome.kind == "late":
            await self._check_late(given)
        elif outcome.kind == "raised":
            self.fault("T5", f"execute {outcome}", shown, error=outcome.error)
            if (self._accepts is not None and self._accepts(given)) or self._is_raised_on_purpose(outcome.error):
                self.fault("T6", f"execute {outcome}", shown, error=outcome.error)
        else:
            self._check_result(outcome.value, shown)
            is_refused = self._accepts is not None and not self._accepts(given)
            if is_refused and not getattr(outcome.value, "success", True):
                touched = sorted(name for name, _ in files.items() ^ files_below(mounted.directory).items())
                if touched:
                    self.fault("T12", f"it refused the input and had changed {touched[0]!r} before", shown)
        if changed is not None:
            self.fault("T15", f"execute changed its input to {changed[:150]}", shown)
        self._done.append(given)

    def _is_raised_on_purpose(self, error: BaseException | None) -> bool:
        """Whether an error comes from a raise statement of the module, and not from code that it called."""
        *_, (frame, line) = traceback.walk_tb(None if error is None else error.__traceback__)
        file = frame.f_code.co_filename
        return self.ctx.loaded.target.owns(file) and linecache.getline(file, line).split()[:1] == ["raise"]

    def _check_result(self, result: Any, shown: Any) -> None:
        if not isinstance(result, ToolResult):
            self.fault("T5", f"execute returned {type(result).__name__}, expected a ToolResult", shown)
            return
        success: Any = result.success  # assignments are checked, but not by every subclass
        if not isinstance(success, bool):
            self.fault("T6", f"success is {result.success!r}, expected True or False", shown)
        elif not result.success and not result.error:
            self.fault("T6", "success is False and there is no error", shown)
        elif result.success and result.error:
            self.fault("T6", f"success is True, and yet there is the error {str(result.error)[:150]}", shown)
        for part in ("output", "error"):
            problem = json_problem(getattr(result, part))
            if problem is not None:
                self.fault("T9", f"the {part} holds {problem}, which is not JSON", shown)
        self._results.append((shown, result, fingerprint([result.output, result.error])))

    async def _check_late(self, given: Input) -> None:
        """A call that never ends may be what the input demands; one that ends in a new session was spoilt by another."""
        for culprit in [None, *reversed(self._done[-6:]), self._done[0] if self._done else None]:
            try:
                async with self.ctx.mount() as mounted:
                    execute = mounted.instances[self._tool].execute
                    if culprit is not None:
                        await mounted.call(execute, copy.deepcopy(culprit), seconds=SECONDS_PER_CALL)
                    outcome = await mounted.call(execute, copy.deepcopy(given), seconds=SECONDS_PER_CALL)
            except MountFailed:
                return
            if outcome.kind != "late":
                continue
            if culprit is not None:
                what = f"execute never ends once it was called with {fingerprint(culprit)[:150]}"
                self.fault("T5", what, {"tool": self._tool, "input": given})
            elif self._tool not in _polling and await self._waits_for_ever(given):
                what = "execute never returns: it waits for something that nothing is left to bring about"
                self.fault("T5", what, {"tool": self._tool, "input": given})
            else:
                self.ctx.notes.append(f"execute of {self._tool!r} {outcome} on some input")
            return

    async def _waits_for_ever(self, given: Input) -> bool:
        async with self.ctx.mount() as mounted:
            execute = mounted.instances[self._tool].execute
            with self.ctx.alarm(what=f"execute of the tool {self._tool!r}"):
                is_stuck = await waits_for_ever(execute, copy.deepcopy(given))
        if not is_stuck:
            _polling.add(self._tool)
        return is_stuck

    def _check_unchanged(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        names = {"T2": "name", "T3": "description", "T7": "schema"}
        for clause, value in before.items():
            if clause in after and after[clause] != value:
                change = f"was {str(value)[:80]!r} and is {str(after[clause])[:80]!r}"
                self.fault(clause, f"the {names[clause]} {change} after some calls", None)
        for shown, result, was in self._results:
            now = fingerprint([result.output, result.error])
            if now != was:
                self.fault("T10", f"a result was {was[:100]} and later calls changed it to {now[:100]}", shown)


def _description(tool: Any) -> dict[str, Any]:
    """Name, description and schema, each under the clause that fixes it."""
    found: dict[str, Any] = {"T7": copy.deepcopy(schema_of(tool))}
    for member, clause in (("name", "T2"), ("description", "T3")):
        with suppress(BaseException):  # another check reports it; nothing is awaited here
            found[clause] = getattr(tool, member)
    return found
