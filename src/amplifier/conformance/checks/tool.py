"""Check tools: members, schema, results for valid and invalid inputs, and the schema's truth."""

from __future__ import annotations

import copy
import io
import json
import linecache
import re
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import nullcontext, redirect_stdout, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.json_schema import (
    Accepts,
    acceptor,
    fingerprint,
    json_problem,
    resolved,
    schema_problem,
)
from amplifier.conformance.inputs.values import (
    SHAPED_TEXTS,
    Values,
    is_harmless,
    kinds_of,
    properties_of,
    required_of,
    valid_inputs,
)
from amplifier.conformance.inputs.varied import (
    NOTHING,
    Place,
    VariedInputs,
    choices_at,
    objects_at,
    shown_place,
    value_at,
    with_value,
)
from amplifier.conformance.oracles.calls import SECONDS_PER_CALL, CallSeries, first_difference
from amplifier.conformance.target.calls import Budget, binding_error, waits_indefinitely
from amplifier.conformance.target.interrupted import InterruptedCall, call_and_kill, digest_of
from amplifier.conformance.target.mounted import (
    CANARY,
    CheckContext,
    MountedModule,
    MountFailed,
    private_directories,
)
from amplifier.conformance.target.process import files_below, refused_access
from amplifier.conformance.target.source import choices_in, inputs_in
from amplifier.conformance.target.use import schema_of, typical_operations
from amplifier.contracts import Done, NotDone, Unknown, call_scope, tool_schema
from amplifier.errors import ContractError
from amplifier.models import ToolResult

Input = dict[str, Any]
_CUT = "\\ufffd"
"""JSON text of the character that replaces undecodable bytes."""
_polling: set[str] = set()
"""Tools with late calls that aren't stuck. Finding that out takes long, so it is done once.
"""


class _PrintDetector(io.TextIOBase):
    """Replaces standard output and records the line of the module that prints."""

    def __init__(self, ctx: CheckContext) -> None:
        self._owns = ctx.loaded.target.owns
        self.line: str | None = None

    def write(self, text: str) -> int:
        frame = sys._getframe(1)
        if text.strip() and self._owns(frame.f_code.co_filename):
            self.line = (
                self.line or f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
            )
        return len(text)


class ToolCallSeries(CallSeries):
    """Calls of one tool."""

    def __init__(self, ctx: CheckContext, tool: str) -> None:
        super().__init__(ctx)
        self._tool = tool
        self._accepts: Accepts | None = None
        self._done: list[Input] = []

    async def run(self, inputs: Iterable[Input]) -> None:
        """Make the calls, then compare the tool's description with the earlier one."""
        output = _PrintDetector(self.ctx)
        async with self.ctx.mount() as mounted:
            tool = mounted.instances.get(self._tool)
            if tool is None:
                return
            before = _description(tool)
            self._accepts = acceptor(before["T7"])
            with redirect_stdout(output):
                for given in inputs:
                    await self._call(mounted, tool, given)
                    if self.is_over:
                        break
            after = _description(tool)
            for clause, what in {"T2": "name", "T3": "description", "T7": "schema"}.items():
                if clause in before and clause in after and after[clause] != before[clause]:
                    change = first_difference(str(before[clause]), str(after[clause]))
                    self.fault(clause, f"after some calls the {what} is {change}", None)
            await mounted.close()
            for name in (await mounted.temporary_files_left())[:1]:
                self.fault(
                    "A14",
                    f"after calls with inputs of all kinds the temporary file {name!r} remains",
                    None,
                )
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
            if (self._accepts is not None and self._accepts(given)) or self._is_raised_on_purpose(
                outcome.error
            ):
                self.fault("T6", f"execute {outcome}", shown, error=outcome.error)
        else:
            self._check_result(outcome.value, shown)
            is_refused = self._accepts is not None and not self._accepts(given)
            if is_refused and not getattr(outcome.value, "success", True):
                touched = sorted(
                    name for name, _ in files.items() ^ files_below(mounted.directory).items()
                )
                if touched:
                    self.fault(
                        "T12", f"it refused the input and had changed {touched[0]!r} before", shown
                    )
        if changed is not None:
            self.fault("T15", f"execute changed its input to {changed[:150]}", shown)
        self._done.append(given)

    def _is_raised_on_purpose(self, error: BaseException | None) -> bool:
        """Return whether a raise statement of the module itself raised an error."""
        *_, (frame, line) = traceback.walk_tb(None if error is None else error.__traceback__)
        file = frame.f_code.co_filename
        return self.ctx.loaded.target.owns(file) and linecache.getline(file, line).split()[:1] == [
            "raise"
        ]

    def _check_result(self, result: Any, shown: Any) -> None:
        if not isinstance(result, ToolResult):
            self.fault(
                "T5", f"execute returned {type(result).__name__}, expected a ToolResult", shown
            )
            return
        # A subclass may leave assignments unchecked.
        success: Any = result.success
        if not isinstance(success, bool):
            self.fault("T6", f"success is {result.success!r}, expected True or False", shown)
        elif not result.success and not result.error:
            self.fault("T6", "success is False and there is no error", shown)
        elif result.success and result.error:
            self.fault(
                "T6",
                f"success is True, and yet there is the error {str(result.error)[:150]}",
                shown,
            )
        for part in ("output", "error"):
            problem = json_problem(getattr(result, part))
            if problem is not None:
                self.fault("T9", f"the {part} holds {problem}, which is not JSON", shown)
        text = fingerprint([result.output, result.error])
        if _CUT in text and _CUT not in fingerprint(shown):
            cut = text[max(0, text.index(_CUT) - 40) :][:80]
            self.fault("T9", f"a character was cut in two: {cut}", shown)

    async def _check_late(self, given: Input) -> None:
        """Make a late call again in a new session, alone and after earlier ones.

        The input may demand an endless call. If the call ends in a new session, an earlier call
        has broken it.
        """
        for earlier in [None, *reversed(self._done[-6:]), self._done[0] if self._done else None]:
            try:
                async with self.ctx.mount() as mounted:
                    execute = mounted.instances[self._tool].execute
                    if earlier is not None:
                        await mounted.call(
                            execute, copy.deepcopy(earlier), seconds=SECONDS_PER_CALL
                        )
                    outcome = await mounted.call(
                        execute, copy.deepcopy(given), seconds=SECONDS_PER_CALL
                    )
            except MountFailed:
                return
            if outcome.kind != "late":
                continue
            if earlier is not None:
                what = f"execute never ends once it was called with {fingerprint(earlier)[:150]}"
                self.fault("T5", what, {"tool": self._tool, "input": given})
            elif self._tool not in _polling and await self._waits_indefinitely(given):
                what = "execute never returns: nothing is left that could end its wait"
                self.fault("T5", what, {"tool": self._tool, "input": given})
            else:
                self.ctx.notes.append(f"execute of {self._tool!r} {outcome} on some input")
            return

    async def _waits_indefinitely(self, given: Input) -> bool:
        async with self.ctx.mount() as mounted:
            execute = mounted.instances[self._tool].execute
            with self.ctx.watchdog(what=f"execute of the tool {self._tool!r}"):
                is_stuck = await waits_indefinitely(execute, copy.deepcopy(given))
        if not is_stuck:
            _polling.add(self._tool)
        return is_stuck


def _description(tool: Any) -> dict[str, Any]:
    """Return name, description and schema, each under the clause that demands it to be stable."""
    parts: dict[str, Any] = {"T7": copy.deepcopy(schema_of(tool))}
    for member, clause in (("name", "T2"), ("description", "T3")):
        # Another check reports the error. Nothing is awaited here.
        with suppress(BaseException):
            parts[clause] = getattr(tool, member)
    return parts


_TOOL = ("tool",)
_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_MAX_NAME_LENGTH = 64


@check("T1", "T2", "T3", "T14", kind="structure", types=_TOOL, on=CheckContext.mount)
async def is_a_tool(mounted: MountedModule) -> None:
    """Read name and description of the mounted tool, and call execute with an empty input."""
    ctx = mounted.ctx
    for at, tool in mounted.instances.items():
        name = await _read(mounted, tool, "name", "T2")
        await _read(mounted, tool, "description", "T3")
        if isinstance(name, str) and name.strip():
            is_good = _SNAKE_CASE.fullmatch(name) and len(name) <= _MAX_NAME_LENGTH
            ctx.expect(
                is_good,
                "T14",
                f"the name is {name!r}; expected snake_case, at most {_MAX_NAME_LENGTH} long",
            )
        await _check_execute(mounted, at, tool)


async def _read(mounted: MountedModule, tool: Any, member: str, clause: str) -> Any:
    ctx = mounted.ctx
    first, again = [await mounted.call(getattr, tool, member) for _ in range(2)]
    if (
        not first.returned
        and not hasattr(type(tool), member)
        and member not in getattr(tool, "__dict__", {})
    ):
        ctx.fault("T1", f"the tool has no {member}")
        return None
    if not first.returned or not again.returned:
        ctx.fault(
            clause,
            f"reading the {member} {first if not first.returned else again}",
            error=first.error,
        )
        return None
    value = first.value
    if not isinstance(value, str):
        hint = "; is it a method without @property?" if callable(value) else ""
        ctx.fault(
            clause, f"the {member} is of type {type(value).__name__}, expected a string{hint}"
        )
    elif not value.strip():
        ctx.fault(clause, f"the {member} is empty")
    elif value != again.value:
        ctx.fault(clause, f"the {member} was {value!r} and then {again.value!r}")
    return value


async def _check_execute(mounted: MountedModule, at: str, tool: Any) -> None:
    execute = getattr(tool, "execute", None)
    if not callable(execute):
        mounted.ctx.fault("T1", f"the tool {at!r} has no execute")
        return
    problem = binding_error(execute, {})
    if problem is not None:
        mounted.ctx.fault("T1", f"execute cannot be called as execute(input): {problem}")
        return
    outcome = await mounted.call(execute, {})
    what = "execute is not async: it returned something that cannot be awaited"
    mounted.ctx.expect(outcome.is_async is not False, "T1", what)


@check("T7", "T11", kind="structure", types=_TOOL, on=CheckContext.mount)
async def describes_its_input(mounted: MountedModule) -> None:
    """Read the schema twice and validate it against the meta-schema of JSON Schema."""
    ctx = mounted.ctx
    for at, tool in mounted.instances.items():
        try:
            schema = tool_schema(tool)
        except ContractError as error:
            ctx.fault("T7", str(error), error=error.__cause__)
            continue
        if schema is None:
            ctx.fault("T11", f"the tool {at!r} gives no schema of its input")
            continue
        problem = schema_problem(schema)
        if problem is not None:
            ctx.fault(
                "T7", f"the schema of {at!r} is not a valid JSON Schema of an object: {problem}"
            )
        elif schema != schema_of(tool):
            ctx.fault("T7", f"the schema of {at!r} changes every time it is read")


@check(
    "T2", "T3", "T5", "T6", "T7", "T9", "T12", "T13", "T15", "A14",
    kind="behaviour", types=_TOOL, inputs="tool_inputs", needs_success=("T9",),
)  # fmt: skip
async def answers_inputs(ctx: CheckContext) -> None:
    """Call the tool with inputs of its schema, with defective ones, and with drawn JSON objects."""
    await ToolCallSeries(ctx, ctx.case["tool"]).run(ctx.case["inputs"])


@check("T6", kind="behaviour", types=_TOOL)
async def admits_failures(ctx: CheckContext) -> None:
    """Let the file system refuse all access during a call, whose success needs its usual effect."""
    async with ctx.mount() as mounted:
        count = 0 if ctx.loaded.starts_processes else len(typical_operations(mounted))
    for number in range(min(count, _MAX_OPERATIONS)):
        made, left_out = await _effect(ctx, number, "made"), await _effect(ctx, number, "left out")
        # The operation fails, or has no visible effect.
        if made is None or made == left_out:
            continue
        refused = await _effect(ctx, number, "refused")
        if (
            refused is not None
            and refused == left_out
            and made == await _effect(ctx, number, "made")
        ):
            async with ctx.mount() as mounted:
                operation = typical_operations(mounted)[number]
            what = (
                "the file system refused every access during the call, "
                "which reported success and had no effect"
            )
            ctx.fault("T6", what, given=operation.given)
            return


_MAX_OPERATIONS = 6


async def _effect(ctx: CheckContext, number: int, how: str) -> list[str] | None:
    """Return the results of all operations after one was made, left out, or made without access.

    Return None if that operation failed, or accessed no file.
    """
    async with ctx.mount() as mounted:
        operations = typical_operations(mounted)
        if how != "left out":
            with (
                refused_access(mounted.directory.parent)
                if how == "refused"
                else nullcontext([""]) as accessed
            ):
                value = (
                    await mounted.call(operations[number].run, mounted, seconds=SECONDS_PER_CALL)
                ).value
            if not accessed or not isinstance(value, list) or value[:1] != [True]:
                return None
        # The last one comes first, because most schemas list reading after writing.
        outcomes = [
            await mounted.call(operation.run, mounted, seconds=SECONDS_PER_CALL)
            for operation in reversed(operations)
        ]
        return [mounted.without_session(repr(outcome.value)) for outcome in outcomes]


# ── interrupted calls ──

_MAX_INTERRUPTED = 2
"""Inputs of a tool with which a process is killed. Each costs one or two processes."""


@check("T16", kind="behaviour", types=_TOOL)
async def reconciles_interrupted_calls(ctx: CheckContext) -> None:
    """Kill the process of a call before it is acknowledged, follow reconcile, count effects."""
    async with ctx.mount() as mounted:
        having = [
            name
            for name, tool in mounted.instances.items()
            if callable(getattr(tool, "reconcile", None))
        ]
        samples = [operation.given for operation in typical_operations(mounted)]
    for name in having:
        made = 0
        for given in samples:
            if given["tool"] == name and made < _MAX_INTERRUPTED and not ctx.faults:
                made += await _interrupt(ctx, name, given["input"])


async def _interrupt(ctx: CheckContext, name: str, given: Input) -> bool:
    """Interrupt one call. Return False if it had no effect that survived its process."""
    loaded = ctx.loaded
    call = InterruptedCall(
        target=loaded.target,
        config=loaded.config,
        plan=loaded.plan,
        backend=ctx.backend,
        tool=name,
        arguments=given,
        session_id="conformance",
        call_id="call-1",
    )
    with private_directories() as (directory, _):
        if not call_and_kill(call, directory.parent):
            return False
        if await _repeats(ctx, call, directory, NotDone):
            what = (
                "reconcile returned NotDone() for a call that had its effect before its process "
                "was killed; it was made twice"
            )
            ctx.fault("T16", what, given={"tool": name, "input": given})
        elif await _repeats(ctx, call.other(), directory, Done):
            what = (
                "reconcile returned Done() for a call that was never made, "
                "after one with the same input; its effect is lost"
            )
            ctx.fault("T16", what, given={"tool": name, "input": given})
    with private_directories() as (directory, _):
        if not ctx.faults and await _repeats(ctx, call, directory, Done):
            what = "reconcile returned Done() for a call that was never made; its effect is lost"
            ctx.fault("T16", what, given={"tool": name, "input": given})
    return True


async def _repeats(ctx: CheckContext, call: InterruptedCall, directory: Path, answer: type) -> bool:
    """Return whether reconcile gives this answer and the call still has an effect.

    For a call without an effect, such as writing the same value again, any answer is correct.
    """
    beside: Any = SimpleNamespace(directory=directory, temporary=directory.parent / "tmp")
    async with ctx.mount(beside=beside) as mounted:
        tool = mounted.instances[call.tool]
        result = await mounted.call(tool.reconcile, copy.deepcopy(call.arguments), call.current)
        if result.returned and not isinstance(result.value, Done | NotDone | Unknown):
            what = (
                f"reconcile returned {type(result.value).__name__}; "
                "expected Done(result), NotDone() or Unknown()"
            )
            ctx.fault("T16", what, given={"tool": call.tool, "input": call.arguments})
        if not result.returned or not isinstance(result.value, answer):
            return False
        before = digest_of(directory.parent)
        with call_scope(call.current):
            outcome = await mounted.call(
                tool.execute, copy.deepcopy(call.arguments), seconds=SECONDS_PER_CALL
            )
        is_success = getattr(outcome.value, "success", None) is True
        return is_success and digest_of(directory.parent) != before


# ── the schema against the behaviour ──

# These checks search inputs that a tool's schema accepts and the tool refuses for their shape. A
# refusal alone proves little, since a file may not exist or a list may be empty. So it is reported
# only with its counterpart: a key or choice that the tool refuses in the words for one that does
# not exist, an input that the schema forbids and the tool accepts, or a key that turns every
# refusal into success. A tool may accept more than its schema.

Found = tuple[str, Input]
"""A fault and an input that shows it."""

_CALLS = 3_000
_MAX_QUESTIONS = 250
_UNKNOWN_KEY = "no_such_key"
_CONDITIONS = ("anyOf", "oneOf", "if", "dependentSchemas", "dependentRequired", "not")
_OTHER_TYPES: tuple[Any, ...] = (
    "text",
    "1234",
    1234,
    12.5,
    True,
    ["text"],
    [1234],
    {"text": "text"},
)
"""Values without empty ones and small numbers, which could mean a missing value or a file.
"""
_NO_CHOICES: tuple[Any, ...] = ("no_such_choice", 1234, ["text"], {"text": "text"}, True)
_PLAUSIBLE = (*SHAPED_TEXTS, "1 + 1", "{}", "[]", "true", 0, 1, 2, 5, 10, 100, 0.5)
_SHAPE_WORDS = re.compile(
    r"\b(must|should|expect|expected|requires?|required|missing|type|int|integer|str|string|list|"
    r"dict|bool|boolean|number|object|array|float|unhashable|attribute|operand|indices|convert)\b",
    re.IGNORECASE,
)


@check("T8", kind="behaviour", types=_TOOL, needs_success=("T8",))
async def tells_the_truth(ctx: CheckContext) -> None:
    """Search inputs that the schema accepts and the tool refuses for their shape, with proof."""
    async with ctx.mount() as mounted:
        schemas = {name: schema_of(tool) for name, tool in mounted.instances.items()}
    for name, schema in schemas.items():
        if schema is None or (accepts := acceptor(schema)) is None:
            continue
        ask = _asking(ctx, name, ctx.budget(_CALLS / len(schemas)))
        problem = await _untruth(ctx, schema, ask, accepts)
        if problem is None:
            problem = await _untruth_inside(ctx, schema, ask, accepts)
        if problem is not None:
            what, given = problem
            ctx.fault("T8", what, given={"tool": name, "input": given})


async def _untruth(
    ctx: CheckContext, schema: dict[str, Any], ask: Asking, accepts: Accepts
) -> Found | None:
    """Return a fault of the schema of an object, and a value that shows it."""
    target = ctx.loaded.target
    valid = valid_inputs(schema, CANARY, choices_in(target))
    inputs = [given for given in valid if accepts(given)]
    searched = SchemaCheck(
        schema,
        ask,
        file_name=CANARY,
        inputs=inputs[:30],
        accepts=accepts,
        choices=choices_in(target),
        words=inputs_in(target),
    )
    return await searched.find()


_MAX_OBJECTS = 6


async def _untruth_inside(
    ctx: CheckContext, schema: dict[str, Any], ask: Asking, accepts: Accepts
) -> Found | None:
    """Return a fault of the schema of an object at any depth of the input.

    Only the object varies, in an input that the tool accepts if there is one.
    """
    names = ("$defs", "definitions")
    shared: dict[str, Any] = {name: schema[name] for name in names if name in schema}
    objects = list(objects_at(schema))[:_MAX_OBJECTS]
    drawn = VariedInputs(schema, CANARY, words=choices_in(ctx.loaded.target), seed=ctx.seed).draw(
        _MAX_TRIES if objects else 0
    )
    drawn.sort(key=lambda given: len(fingerprint(given)))
    for place, part in objects:
        whole = {**shared, **part}
        fits = acceptor(whole)
        having = [given for given in drawn if fits and fits(value_at(given, place))]
        if not having:
            continue
        taken = [given for given in having[:_MAX_WHOLES] if await ask(given) is True]
        base = (taken or having)[0]

        async def ask_inside(inner: Input, base: Input = base, place: Place = place) -> Answered:
            return await ask(with_value(base, place, inner))

        def accepts_inside(inner: Any, base: Input = base, place: Place = place) -> bool:
            return accepts(with_value(base, place, inner))

        problem = await _untruth(ctx, whole, ask_inside, accepts_inside)
        if problem is not None:
            what, inner = problem
            return f"inside {shown_place(place)}, {what}", with_value(base, place, inner)
    return None


_MAX_WHOLES = 12


_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_MAX_REFUSALS = 8
_MIN_REFUSALS = 3
_NO_CHOICE = "no_such_choice"


@check("T8", kind="behaviour", types=_TOOL, needs_success=("T8",))
async def takes_what_it_offers(ctx: CheckContext) -> None:
    """Search choices of the schema that the tool always refuses like a forbidden value."""
    if ctx.loaded.starts_processes:
        return
    async with ctx.mount() as mounted:
        schemas = {name: schema_of(tool) for name, tool in mounted.instances.items()}
    for name, schema in schemas.items():
        listed = list(choices_at(schema)) if schema else []
        if schema is None or not listed:
            continue
        drawn = VariedInputs(
            schema, CANARY, words=choices_in(ctx.loaded.target), seed=ctx.seed
        ).draw(_MAX_TRIES)
        ask = _asking(ctx, name, ctx.budget(_CALLS / len(schemas)))
        answers = [(given, await ask(given)) for given in drawn]
        for place, choices in listed:
            for choice in choices[:_MAX_CHOICES]:
                given = await _refused_choice(ctx, name, ask, answers, place, choice)
                if given is not None:
                    shown = shown_place(place)
                    what = f"the schema offers {json.dumps(choice)} for {shown}"
                    what = f"{what}, the tool refuses it like a value that the schema forbids"
                    ctx.fault("T8", what, given={"tool": name, "input": given})
                    return


_MAX_TRIES = 150
_MAX_CHOICES = 12


async def _refused_choice(
    ctx: CheckContext,
    name: str,
    ask: Asking,
    answers: Sequence[tuple[Input, bool | str | None]],
    place: Place,
    choice: Any,
) -> Input | None:
    """Return an input in which a choice is refused for itself.

    Return None if there may be another reason for the refusal.
    """
    having = [answer for given, answer in answers if repr(value_at(given, place)) == repr(choice)]
    if not having or not all(isinstance(answer, str) for answer in having):
        return None
    # These inputs differ only in the choice.
    bases: list[Input] = [
        with_value(given, place, choice)
        for given, answer in answers
        if answer is True and value_at(given, place) is not NOTHING
    ][:_MAX_REFUSALS]
    if len(bases) < _MIN_REFUSALS:
        return None
    for given in bases:
        words = await ask(given)
        forbidden = await ask(with_value(given, place, _NO_CHOICE))
        if not isinstance(words, str) or not isinstance(forbidden, str):
            return None
        if words.replace(str(choice), _NO_CHOICE) != forbidden:
            return None
    # The tool may need the effect of other calls.
    async with ctx.mount() as mounted:
        for given in [*ctx.loaded.chosen_inputs.get(name, ()), *bases]:
            outcome = await mounted.call(
                mounted.instances[name].execute, copy.deepcopy(given), seconds=SECONDS_PER_CALL
            )
            if given in bases and getattr(outcome.value, "success", None) is not False:
                return None
    return min(bases, key=lambda given: len(fingerprint(given)))


Answered = bool | str | None
Asking = Callable[[Input], Awaitable[Answered]]
"""Returns True if a tool accepts an input, or the words of its refusal.

It returns None if the tool raised, or was not called.
"""


def _asking(ctx: CheckContext, name: str, budget: Budget) -> Asking:
    """Return a function that mounts a tool anew for every input, to keep results independent."""

    async def ask(given: Input) -> bool | str | None:
        if budget.is_spent():
            return None
        async with ctx.mount() as mounted:
            execute = mounted.instances[name].execute
            result = (
                await mounted.call(execute, copy.deepcopy(given), seconds=SECONDS_PER_CALL)
            ).value
        if not isinstance(result, ToolResult):
            return None
        error = result.error if isinstance(result.error, dict) else {}
        words = error.get("message") or json.dumps(error, default=repr, sort_keys=True)
        return bool(result.success) or str(words)

    return ask


class SchemaCheck:
    """The schema of a tool against its behaviour.

    Args:
        schema: A valid schema.
        ask: Passes an input to the tool.
        file_name: The name of an existing file.
        inputs: Inputs that the schema accepts.
        accepts: Returns whether an input is accepted, or is None to decide by the schema.
        choices: Words of comparisons in the tool's source.
        words: Keys that its source looks up.
    """

    def __init__(
        self,
        schema: dict[str, Any],
        ask: Asking,
        *,
        file_name: str,
        inputs: Sequence[Input],
        accepts: Accepts | None = None,
        choices: Iterable[str] = (),
        words: Iterable[str] = (),
    ) -> None:
        self._top = resolved(schema, schema)
        accepts = accepts or acceptor(schema)
        assert accepts is not None
        self._accepts, self._ask_tool = accepts, ask
        self._parts = {
            key: resolved(part, schema) for key, part in properties_of(self._top).items()
        }
        self._values = Values(schema, file_name)
        self._choices = [choice for choice in choices if is_harmless(choice)][:20]
        self._undeclared = [key for key in words if key not in self._parts and is_harmless(key)]
        self._inputs = [given for given in inputs if accepts(given)]
        self._known: dict[str, bool | str | None] = {}

    async def find(self) -> Found | None:
        """Return the first fault, or None if there is none."""
        answers = [await self._ask(given) for given in self._inputs]
        if not any(isinstance(answer, str) for answer in answers):
            return None
        if len(answers) >= _MIN_REFUSALS and len(set(answers)) == 1:
            problem = await self._same_refusal(str(answers[0]))
            if problem is not None:
                return problem
        for find in (
            self._unknown_key,
            self._other_type_or_key,
            self._needed_key,
            self._false_choice,
            self._false_bound,
        ):
            for key in self._parts:
                fault = await find(key)
                if fault is not None:
                    what, given = fault
                    return f"{what}: {str(await self._ask(given))[:150]}", given
        return await self._undeclared_key()

    async def _ask(self, given: Input) -> bool | str | None:
        """Call the tool as `Asking` describes, at most once for each input."""
        key = fingerprint(given)
        if key not in self._known and len(self._known) < _MAX_QUESTIONS:
            self._known[key] = await self._ask_tool(given)
        return self._known.get(key)

    async def _all_refused(self, inputs: list[Input]) -> bool:
        return bool(inputs) and all([isinstance(await self._ask(given), str) for given in inputs])

    def _is_required(self, key: str) -> bool:
        return key in required_of(self._top)

    async def _same_refusal(self, words: str) -> Found | None:
        """Return a fault if every valid input is refused in the words for a forbidden value."""
        # Something that the tool needs may be missing.
        if not _SHAPE_WORDS.search(words):
            return None
        for key in self._parts:
            if _without(words, key) in (None, words):
                continue
            for given in self._inputs[:2]:
                for forbidden in self._with_values(key, given, _OTHER_TYPES, valid=False):
                    if await self._ask(forbidden) == words:
                        what = f"every valid input is refused like one with a forbidden {key!r}"
                        return f"{what}: {words[:150]}", given
        return None

    async def _unknown_key(self, key: str) -> Found | None:
        """Return a key that is refused like an unknown one, in every mode that works without it."""
        bases = [
            given for given in self._inputs if key not in given and await self._ask(given) is True
        ]
        # The accepted keys may depend on other keys.
        is_conditional = any(condition in self._top for condition in _CONDITIONS)
        if self._is_required(key) or is_conditional or not bases:
            return None
        having = [given for given in self._inputs if key in given]
        if not await self._all_refused(having) or not await self._works_in_every_mode(
            bases[0], key
        ):
            return None
        value = self._values.plain(self._parts[key], key)
        for base in bases:
            with_it, unknown = [
                await self._ask({**base, name: value}) for name in (key, _UNKNOWN_KEY)
            ]
            named = _without(with_it, key)
            if named is None or named == with_it or named != _without(unknown, _UNKNOWN_KEY):
                return None
        what = (
            f"the schema names {key!r}, the tool refuses every input with it, "
            "like one with an unknown key"
        )
        return what, {**bases[0], key: value}

    async def _works_in_every_mode(self, base: Input, without: str) -> bool:
        """Return whether an input works with every choice of every other property.

        Otherwise the key may belong to one of the choices.
        """
        for key, part in self._parts.items():
            choices = _closed(part) or (self._choices if kinds_of(part) == ["string"] else [])
            for choice in choices if key != without else ():
                given = {**base, key: choice}
                if self._accepts(given) and await self._ask(given) is not True:
                    return False
        return True

    async def _other_type_or_key(self, key: str) -> Found | None:
        """Return a property that is accepted only with a forbidden value, or under another name."""
        having = [given for given in self._inputs if key in given]
        if not await self._all_refused(having):
            return None
        given, words = having[0], str(await self._ask(having[0]))
        # The tool may expect a number in a text, or a name.
        if any(
            [
                await self._ask(plausible) is True
                for plausible in self._with_values(key, given, _PLAUSIBLE, valid=True)
            ]
        ):
            return None
        what = f"the schema accepts this {key!r}, the tool refuses it and takes"
        rest = {name: value for name, value in given.items() if name != key}
        # The value is required, so it may belong to another name.
        if isinstance(await self._ask(rest), str):
            for word in self._undeclared:
                if await self._ask({**rest, word: given[key]}) is True:
                    return f"{what} the key {word!r} instead", given
        if _SHAPE_WORDS.search(words) or _without(words, key) != words:
            for other in self._with_values(
                key, given, (*_OTHER_TYPES, *self._choices), valid=False
            ):
                if await self._ask(other) is True:
                    return f"{what} {json.dumps(other[key])} instead", given
        return None

    def _with_values(
        self, key: str, given: Input, values: tuple[Any, ...], *, valid: bool
    ) -> list[Input]:
        changed = [{**given, key: value} for value in values]
        return [variant for variant in changed if self._accepts(variant) is valid]

    async def _needed_key(self, key: str) -> Found | None:
        """Return an optional key that is named in the refusal of every input without it."""
        lacking = [given for given in self._inputs if key not in given]
        words = {await self._ask(given) for given in lacking}
        if (
            self._is_required(key)
            or len(words) != 1
            or _without(next(iter(words)), key) in (None, *words)
        ):
            return None
        for value in self._values.alternatives(self._parts[key], key)[:4]:
            given = {**lacking[0], key: value}
            if self._accepts(given) and await self._ask(given) is True:
                return (
                    f"the schema does not require {key!r}, the tool refuses every input without it",
                    lacking[0],
                )
        return None

    async def _false_bound(self, key: str) -> Found | None:
        """Return a value at a bound that is refused like one beyond the bound."""
        working = [
            given for given in self._inputs if key in given and await self._ask(given) is True
        ]
        for given in working[:1]:
            for bound, at, beyond in self._values.bounds(self._parts[key], key):
                at_bound, outside = {**given, key: at}, {**given, key: beyond}
                if not self._accepts(at_bound) or self._accepts(outside):
                    continue
                words, other = await self._ask(at_bound), await self._ask(outside)
                if not isinstance(words, str) or not isinstance(other, str):
                    continue
                names_bound = f"{bound:g}" in _NUMBER.findall(other)
                if names_bound and _NUMBER.sub("#", words) == _NUMBER.sub("#", other):
                    what = f"the schema accepts this {key!r}, at the bound {bound:g}"
                    return f"{what}, the tool refuses it like one beyond", at_bound
        return None

    async def _undeclared_key(self) -> Found | None:
        """Return a key that the schema does not name, but without which every input is refused."""
        for word in self._undeclared if await self._all_refused(self._inputs) else ():
            what = f"the schema does not name {word!r}, and the tool refuses every input without it"
            for value in (self._values.plain({"type": "string"}, word), 1234, True, ["text"]):
                for given in self._inputs[:2]:
                    if await self._ask({**given, word: value}) is True:
                        return what, given
        return None

    async def _false_choice(self, key: str) -> Found | None:
        """Return a choice that is refused like a value that the schema forbids."""
        working = [
            given for given in self._inputs if key in given and await self._ask(given) is True
        ]
        taken = {fingerprint(given[key]) for given in working}
        for choice in _closed(self._parts[key]) or _one_of_each_type(
            self._parts[key], self._values
        ):
            if not working or fingerprint(choice) in taken:
                continue
            given = {**working[0], key: choice}
            words = _without_value(await self._ask(given), choice) if self._accepts(given) else None
            others = (choice - 1, choice - 2) if type(choice) is int else _NO_CHOICES
            for forbidden in (
                self._with_values(key, given, others, valid=False) if words is not None else ()
            ):
                if _without_value(await self._ask(forbidden), forbidden[key]) == words:
                    what = (
                        f"the schema offers {json.dumps(choice)} for {key!r}, "
                        "the tool refuses it like a value that the schema forbids"
                    )
                    return what, given
        return None


def _closed(schema: dict[str, Any]) -> list[Any]:
    """Return all values of a property if their number is limited."""
    listed = schema.get("enum")
    return (
        list(listed[:12])
        if isinstance(listed, list)
        else [False, True]
        if kinds_of(schema) == ["boolean"]
        else []
    )


def _one_of_each_type(schema: dict[str, Any], values: Values) -> list[Any]:
    least = schema.get("minimum")
    is_union = len(kinds_of(schema)) > 1 or any(
        isinstance(schema.get(key), list) for key in ("anyOf", "oneOf")
    )
    return values.alternatives(schema)[:8] if is_union else [least] if type(least) is int else []


def _without(words: bool | str | None, key: str) -> str | None:
    """Return the words of a refusal with a placeholder for a key, or None if there are none."""
    return (
        re.sub(rf"(?<!\w){re.escape(key)}(?!\w)", "<key>", words)
        if isinstance(words, str)
        else None
    )


def _without_value(words: bool | str | None, value: Any) -> str | None:
    """Return the words of a refusal with a placeholder for a value.

    Return None if there are none, or if they do not name a text.
    """
    if not isinstance(words, str):
        return None
    names = {"NoneType": None, "null": None, "bool": True, "boolean": True}
    spellings = {repr(value), str(value), json.dumps(value, default=repr), type(value).__name__}
    spellings |= {name for name, meant in names.items() if type(meant) is type(value)}
    result = words
    for spelling in sorted(filter(None, spellings), key=len, reverse=True):
        result = result.replace(spelling, "<value>")
    # A message without the value may be about anything.
    if isinstance(value, str) and result == words:
        return None
    return result.replace("'<value>'", "<value>").replace('"<value>"', "<value>")
