"""The checks of tools, each a function of an examination over one connection."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import anyio
import attrs

from amplifier.conformance.checks.tool import SchemaCheck
from amplifier.conformance.inputs.json_schema import acceptor, fingerprint, schema_problem
from amplifier.conformance.inputs.values import invalid_inputs
from amplifier.conformance.target.mounted import CANARY

from .connection import Link, Reply, Usage
from .examination import CutShort, Examination, ExaminedTool, Input, State, stable_text

Files = Mapping[str, bytes | None]
ServerCheck = Callable[[Examination], Awaitable[None]]

# Nothing is guessed. Where the state can't be seen, or no call takes long enough to be cancelled,
# a clause isn't examined, and the report says so.
CHECKS: dict[str, ServerCheck] = {}
"""Every check by name, in running order."""

UNKNOWN_TOOL = "amplifier_there_is_no_such_tool"
_MAX_INVALID = 18
_MAX_ASKED = 25
_AT_ONCE = 12
_WINDOW = 20
"""Calls between two measurements of a server."""
_MAX_MEMORY = 256
"""Kilobytes by which memory may grow with each call, in every window."""
_SETTLING_SECONDS = 0.05
_MOMENTS = (0.5, 0.3, 0.7, 0.1, 0.9, 0.4, 0.6)
"""Parts of the usual time after which a call is cancelled, to confirm a finding."""
_MAX_OTHERS = 2
_MAX_FAILURE_LENGTH = 500
_QUICK_SECONDS = 0.25
"""A call that takes longer is repeated less often."""
_LATE_SECONDS = 0.3
"""Seconds after a cancellation in which a result may have been on its way."""
_CONTROL_SECONDS = 1.1
"""Pause after which an answer with the time in seconds differs."""

# The forms in which Python and Node report an error of the operating system.
_SYSTEM_ERROR = re.compile(r"\[Errno \d+\] |\bE[A-Z]{3,}: ")
_FRESH = "amplifier-1f0c47"
_SLIPS = (
    "AttributeError",
    "NameError",
    "UnboundLocalError",
    "TypeError",
    "RecursionError",
    "ImportError",
)
"""Exceptions that are never raised on purpose for wrong input that the schema accepts."""


def _check(function: ServerCheck) -> ServerCheck:
    CHECKS[f"server.{function.__name__}"] = function
    return function


def how(name: str) -> str:
    """Return the description of a check, in a sentence."""
    return (CHECKS[name].__doc__ or "").partition("\n")[0]


# ── the list ──


@_check
async def lists_its_tools(exam: Examination) -> None:
    """Read the list of tools twice, and validate every name and schema."""
    listed = exam.link.tools
    exam.look("S1", "S2", "S3", "S16")
    names = [tool.get("name") for tool in listed]
    for tool in listed:
        name = tool.get("name")
        if not isinstance(name, str) or not name.strip():
            exam.fault("S1", f"a tool in the list has the name {name!r}, expected a text")
        elif names.count(name) > 1:
            exam.fault("S1", f"the tool {name!r} is listed {names.count(name)} times")
        if not isinstance(tool.get("inputSchema"), dict):
            exam.fault("S1", f"the tool {name!r} has no input schema")
        for key in ("inputSchema", "outputSchema"):
            problem = schema_problem(tool[key]) if isinstance(tool.get(key), dict) else None
            if problem is not None:
                exam.fault(
                    "S3",
                    f"the {key} of {name!r} is not a valid JSON Schema of an object: {problem}",
                )
        if not str(tool.get("description") or "").strip():
            exam.fault("S16", f"the tool {name!r} has no description")
    await _compare_lists(exam, "when it is read again")


async def _compare_lists(exam: Examination, when: str) -> None:
    again = await exam.link.read_tools()
    if exam.link.has_changed or again == exam.link.tools:
        return
    before = {tool.get("name"): tool for tool in exam.link.tools}
    after = {tool.get("name"): tool for tool in again}
    changed = [f"{name!r}" for name in {**before, **after} if before.get(name) != after.get(name)]
    difference = f"changed: {', '.join(changed)}" if changed else "is in another order"
    exam.fault("S2", f"{when}, the list of tools {difference}, and no change was announced")


# ── single calls ──


@_check
async def answers_its_schema(exam: Examination) -> None:
    """Call each tool with inputs that its schema accepts: least, full, each alternative."""
    for tool in _each_tool(exam):
        for arguments in tool.inputs:
            if not exam.goes_on(tool):
                break
            reply = await _watched_call(exam, tool, arguments)
            tool.replies.append((arguments, reply))
            _judge(
                exam,
                tool,
                arguments,
                reply,
                is_valid=tool.accepts is not None and tool.accepts(arguments),
            )
            await _look_for_hidden_failure(exam, tool, arguments, reply)
            if reply.kind == "late":
                break
    if not any(tool.replies for tool in exam.tools):
        return
    exam.look("S5", "S6")
    if any(tool.successes() for tool in exam.tools):
        exam.look("S7")
    else:
        exam.explain("S7", "no call succeeded; give values by --arguments")
    await _choose_probes(exam)


def _each_tool(exam: Examination) -> Iterator[ExaminedTool]:
    """Yield each tool that can still be called, after starting its count of calls."""
    for tool in exam.tools:
        exam.start_tool(tool)
        if tool.name in exam.slow:
            exam.note_cut(tool)
        elif exam.goes_on(tool):
            yield tool


async def _watched_call(exam: Examination, tool: ExaminedTool, arguments: Input) -> Reply:
    """Call a tool, and compare the files around the call if it declares that it changes nothing."""
    if not tool.is_read_only or exam.link.subject.kind == "url":
        return await exam.call(tool, arguments)
    before = exam.link.files()
    reply = await exam.call(tool, arguments)
    exam.look("S14")
    changed = _changed_files(before, exam.link.files())
    if changed and not exam.is_known("S14", tool):
        # Other programs write files too, and a cache is filled once. Only a call can repeat its own
        # change.
        await anyio.sleep(_CONTROL_SECONDS)
        before = exam.link.files()
        await anyio.sleep(_CONTROL_SECONDS)
        quiet = exam.link.files()
        if exam.can_call(tool):
            await exam.call(tool, arguments)
            again = _changed_files(quiet, exam.link.files())
            by_itself = _changed_files(before, quiet)
            repeated = [name for name in changed if name in again and name not in by_itself]
            if repeated:
                exam.fault(
                    "S14",
                    f"it declares readOnlyHint, and a call changed the file {repeated[0]!r}",
                    tool,
                    arguments,
                )
    return reply


def _changed_files(before: Files, after: Files) -> list[str]:
    return [name for name in {**before, **after} if before.get(name, b"-") != after.get(name, b"-")]


def _judge(
    exam: Examination, tool: ExaminedTool, arguments: Input, reply: Reply, *, is_valid: bool
) -> None:
    """Judge a single reply."""
    if reply.kind in ("late", "lost"):
        exam.fault("S5", f"a call {reply}", tool, arguments)
    elif reply.kind == "invalid":
        exam.fault("S7", f"a call {reply}", tool, arguments)
    elif is_valid and reply.raised is not None and reply.raised.get("type") in _SLIPS:
        place = reply.raised.get("location")
        exam.fault(
            "S5",
            f"an input that the schema accepts raised {reply.text[:150]}",
            tool,
            arguments,
            location=place,
        )
    elif is_valid and reply.kind == "refused" and "-32603" in reply.text:
        exam.fault("S5", f"an input that the schema accepts {reply}", tool, arguments)
    if reply.kind != "result":
        return
    problem = None if tool.output_schema is None else _output_problem(tool.output_schema, reply)
    if problem is not None:
        exam.fault("S7", problem, tool, arguments)


async def _look_for_hidden_failure(
    exam: Examination, tool: ExaminedTool, arguments: Input, reply: Reply
) -> None:
    """Report a successful result that has the text of the call's own failure.

    A tool that reads logs returns texts of errors too. So the text has to quote a value of the
    input, and has to quote a new value when the call is repeated with that.
    """
    if (
        reply.kind != "result"
        or not _SYSTEM_ERROR.search(reply.text)
        or len(reply.text) > _MAX_FAILURE_LENGTH
    ):
        return
    for key, value in arguments.items():
        if (
            key in tool.fixed
            or not isinstance(value, str)
            or not _quotes(reply.text, value)
            or not exam.can_call(tool)
        ):
            continue
        again = await exam.call(tool, {**arguments, key: _FRESH})
        if (
            again.kind == "result"
            and _SYSTEM_ERROR.search(again.text)
            and _quotes(again.text, _FRESH)
        ):
            exam.fault(
                "S6",
                f"a call succeeded, and its text reports a failure: {reply.text[:150]!r}",
                tool,
                arguments,
            )
            return


def _quotes(text: str, value: str) -> bool:
    return (
        bool(value)
        and re.search(f"""['"]([^'"]*[/\\\\])?{re.escape(value)}['"]""", text) is not None
    )


def _output_problem(schema: dict[str, Any], reply: Reply) -> str | None:
    if reply.structured is None:
        return "it has an output schema, and the result has no structuredContent"
    accepts = acceptor(schema)
    if accepts is None or accepts(reply.structured):
        return None
    return f"structuredContent does not fit the output schema: {json.dumps(reply.structured)[:150]}"


async def _choose_probes(exam: Examination) -> None:
    """Choose the calls of read-only tools that give the same answer again."""
    candidates = []
    for tool in exam.tools:
        for arguments, _ in tool.successes()[:4] if tool.is_read_only else ():
            if tool.fastest > _QUICK_SECONDS or not exam.can_call(tool, 20):
                continue
            once, again = await exam.call(tool, arguments), await exam.call(tool, arguments)
            if once.kind == "result" and stable_text(once) == stable_text(again):
                candidates.append((tool, arguments))
    # A call without arguments shows the state as a whole.
    exam.choose_probes(sorted(candidates, key=lambda probe: len(fingerprint(probe[1]))))


@_check
async def answers_anything(exam: Examination) -> None:
    """Call each tool with inputs that have one defect, and call a tool that doesn't exist."""
    if not exam.tools:
        # A server that forwards every name might have an effect even then.
        return
    unknown = await exam.link.call(UNKNOWN_TOOL, {}, exam.call_seconds)
    exam.look("S6")
    if unknown.kind == "result":
        exam.fault("S6", f"a call of a tool that does not exist {unknown}")
    for tool in _each_tool(exam):
        bases = [arguments for arguments, _ in tool.successes()] or tool.inputs
        defective: dict[str, Input] = {}
        for arguments in invalid_inputs(tool.schema, bases[:3], ()):
            fixed = tool.fix(arguments)
            if tool.accepts is not None and not tool.accepts(fixed):
                defective.setdefault(fingerprint(fixed), fixed)
        for arguments in _spread(list(defective.values()), _MAX_INVALID):
            if not exam.goes_on(tool):
                break
            files = exam.link.files() if exam.link.subject.kind != "url" else {}
            reply = await exam.call(tool, arguments)
            exam.look("S5")
            _judge(exam, tool, arguments, reply, is_valid=False)
            if reply.is_failure and exam.link.subject.kind != "url":
                exam.look("S17")
                if exam.link.files() != files:
                    exam.fault(
                        "S17",
                        "it refused the input, and had changed a file before",
                        tool,
                        arguments,
                    )
            if reply.kind == "late":
                break


def _spread(values: list[Input], count: int) -> list[Input]:
    """Return at most ``count`` values from the whole list."""
    step = max(1, math.ceil(len(values) / count))
    return values[:6] + [value for value in values[6::step] if value][: count - 6]


@_check
async def tells_the_truth(exam: Examination) -> None:
    """Search for inputs that the schema accepts and the tool refuses, with proof of the reason."""
    for tool in _each_tool(exam):
        if tool.accepts is None or not tool.replies:
            continue
        if tool.fastest > _QUICK_SECONDS:
            exam.note_cut(tool)
            continue
        if any(tool.accepts(arguments) and reply.is_answer for arguments, reply in tool.replies):
            exam.look("S4")
        problem = await _schema_problem(exam, tool)
        # A tool that keeps state may answer differently the second time, which proves nothing.
        if problem is not None and problem == await _schema_problem(exam, tool):
            exam.fault("S4", problem[0], tool, problem[1])


async def _schema_problem(exam: Examination, tool: ExaminedTool) -> tuple[str, Input] | None:
    asked = 0

    async def ask(arguments: Input) -> bool | str | None:
        nonlocal asked
        if asked >= _MAX_ASKED or not exam.goes_on(tool):
            return None
        asked += 1
        reply = await exam.call(tool, tool.fix(arguments))
        return True if reply.kind == "result" else reply.text if reply.is_failure else None

    return await SchemaCheck(tool.schema, ask, file_name=CANARY, inputs=tool.inputs).find()


# ── several calls ──


@_check
async def keeps_calls_apart(exam: Examination) -> None:
    """Make calls with different answers at once, and compare each with its answer alone."""
    alone: list[tuple[ExaminedTool, Input, str]] = []
    for tool in _each_tool(exam):
        answers: set[str] = set()
        for arguments, reply in tool.successes():
            if len(answers) >= 4 or not exam.goes_on(tool, 20):
                break
            if stable_text(reply) in answers:
                continue
            again = await exam.call(tool, arguments)
            if stable_text(again) == stable_text(reply):
                answers.add(stable_text(reply))
                alone.append((tool, arguments, stable_text(reply)))
    if len({answer for *_, answer in alone}) < 2:
        exam.explain("S8", "there are not two calls with different answers that stay the same")
        return
    exam.look("S8")
    for _ in range(3):
        calls = [
            call
            for call in (alone * _AT_ONCE)[: max(_AT_ONCE, len(alone))]
            if exam.can_call(call[0], _AT_ONCE)
        ]
        for (tool, arguments, answer), beside in zip(
            calls, await _at_once(exam, calls), strict=True
        ):
            # A tool may refuse calls at once, or count them. Another call's answer is a mixture.
            if beside is None or stable_text(beside) not in {other for *_, other in calls} - {
                answer
            }:
                continue
            # State that has changed isn't a mixture. The call alone must still give its old answer.
            if exam.can_call(tool) and stable_text(await exam.call(tool, arguments)) == answer:
                exam.fault(
                    "S8",
                    f"beside other calls it gave the answer of another call: it {beside}",
                    tool,
                    arguments,
                )


async def _at_once(
    exam: Examination, calls: Sequence[tuple[ExaminedTool, Input, str]]
) -> list[Reply | None]:
    replies: list[Reply | None] = [None] * len(calls)

    async def make(index: int) -> None:
        tool, arguments, _ = calls[index]
        replies[index] = await exam.link.call(tool.name, arguments, exam.call_seconds)

    async with anyio.create_task_group() as group:
        for index, (tool, _, _) in enumerate(calls):
            exam.count_call(tool)
            group.start_soon(make, index)
    return replies


# ── cancelled calls ──


@_check
async def stops_when_cancelled(exam: Examination) -> None:
    """Cancel calls at several moments, then read and call again."""
    for tool in _each_tool(exam):
        replies = [(arguments, reply) for arguments, reply in tool.replies if reply.is_answer]
        # Successful calls come first. The one that takes longest is best, within limits.
        replies.sort(key=lambda pair: (pair[1].kind != "result", -min(pair[1].seconds, 2.0)))
        for arguments, reply in replies[:2]:
            if not exam.goes_on(tool, 10) or await _cancel(exam, tool, arguments, reply):
                break
    if "S9" not in exam.examined:
        exam.explain("S9", "no call could be cancelled before its answer came")
    if "S10" not in exam.examined:
        exam.explain(
            "S10", "no call that was cancelled changes anything that read-only tools or files show"
        )


async def _cancel(exam: Examination, tool: ExaminedTool, arguments: Input, usual: Reply) -> bool:
    """Cancel a call at several moments. Return whether one could be cancelled."""
    effect = await _effect_of(exam, tool, arguments)
    cancelled = False
    for share in (0.5, 0.0, 0.8, 0.2):
        if not exam.can_call(tool, 6):
            exam.note_cut(tool)
            break
        if effect.prepare is not None:
            await exam.call(tool, effect.prepare)
        if effect.parts and not exam.can_read(2):
            exam.note_cut(tool)
            effect = _Effect(repeats=effect.repeats)
        before = await exam.state() if effect.parts else None
        repeats = (
            effect.repeats
            and not effect.parts
            and (await exam.call(tool, arguments)).kind == "result"
        )
        late = len(exam.link.late_results)
        exam.count_call(tool)
        after = max(usual.seconds * share, 0.0005)
        if (
            await exam.link.call_cancelled(tool.name, arguments, after, exam.call_seconds)
            is not None
        ):
            continue
        cancelled = True
        exam.look("S9")
        # A result that comes after two more answers belongs to a call that continued.
        for _ in range(2):
            await exam.link.read_tools()
        # A call that was nearly complete may have ended as usual.
        await anyio.sleep(max(_SETTLING_SECONDS, min(usual.seconds * (1 - share) * 1.5, 1.0)))
        state = await exam.state() if effect.parts else None
        again = await exam.call(tool, arguments)
        if again.kind in ("late", "lost"):
            exam.fault("S9", f"after a call was cancelled, the next call {again}", tool, arguments)
            break
        if repeats and again.is_failure and await _still_fails(exam, tool, arguments):
            exam.fault("S10", f"after a call was cancelled, the same call {again}", tool, arguments)
            break
        for seconds, questions in exam.link.late_results[late:]:
            if seconds > _LATE_SECONDS and questions > 1:
                exam.fault(
                    "S9",
                    f"a cancelled call went on and sent its result after {seconds:.1f} s",
                    tool,
                    arguments,
                )
        if before is None or state is None:
            continue
        exam.look("S10")
        if effect.problem(before, state) is None:
            continue
        problem = await _lasting_problem(exam, tool, arguments, effect)
        if problem is not None:
            exam.fault("S10", problem, tool, arguments)
            break
    return cancelled


async def _still_fails(exam: Examination, tool: ExaminedTool, arguments: Input) -> bool:
    """Return whether a tool that is still listed also fails after a while."""
    await anyio.sleep(_CONTROL_SECONDS)
    if tool.name not in [listed.get("name") for listed in await exam.link.read_tools()]:
        return False
    return (await exam.call(tool, arguments)).is_failure


async def _lasting_problem(
    exam: Examination, tool: ExaminedTool, arguments: Input, effect: _Effect
) -> str | None:
    """Cancel a call once more, and return the half-done change.

    Return None if the change passes, or if completed calls leave the same.
    """
    for share in _MOMENTS:
        if not exam.can_call(tool, 4) or not exam.can_read(4):
            exam.note_cut(tool)
            return None
        if effect.prepare is not None:
            await exam.call(tool, effect.prepare)
        before = await exam.state()
        exam.count_call(tool)
        after = max(effect.seconds * share, 0.0005)
        if (
            await exam.link.call_cancelled(tool.name, arguments, after, exam.call_seconds)
            is not None
        ):
            continue
        await anyio.sleep(_CONTROL_SECONDS)
        state = await exam.state()
        problem = effect.problem(before, state)
        if problem is None:
            continue
        # A call that is not cancelled must still do all of it, from here on.
        if effect.prepare is not None:
            await exam.call(tool, effect.prepare)
            state = await exam.state()
        await exam.call(tool, arguments)
        done = state.changes(await exam.state())
        return problem if set(effect.parts) <= set(done) else None
    return None


@attrs.frozen
class _Effect:
    """The change that a call makes each time.

    Attributes:
        parts: The readers and files that change, all of them each time.
        prepare: An input of the same tool that reverts the change, or None if each call changes
            more.
        after: The state that the call leads to after ``prepare``, or None.
        repeats: True if a second call must succeed if the first one does.
        seconds: The duration of the call.
    """

    parts: tuple[str, ...] = ()
    prepare: Input | None = None
    after: State | None = None
    repeats: bool = False
    seconds: float = 0.0

    def problem(self, before: State, state: State) -> str | None:
        """Return the half-done change in the state after a cancelled call, or None."""
        changed = before.changes(state)
        for name in changed:
            shown = state.shown.get(name)
            if (
                self.after is not None
                and name in self.parts
                and shown != self.after.shown.get(name)
            ):
                return (
                    f"a cancelled call left {name} neither as before nor as after it: "
                    f"{shown!s:.120}"
                )
        missing = [name for name in self.parts if name not in changed]
        done = [name for name in self.parts if name in changed]
        if done and missing:
            return (
                f"a cancelled call changed {done[0]} and not {missing[0]}, which change together "
                "otherwise"
            )
        return None


async def _effect_of(exam: Examination, tool: ExaminedTool, arguments: Input) -> _Effect:
    """Find the change of a call by making it twice, or around a call that reverts it."""
    repeats = tool.is_read_only or tool.hints.get("idempotentHint") is True
    nothing = _Effect(repeats=repeats)
    if tool.is_read_only or not exam.shows_state:
        return nothing
    if not exam.can_call(tool, 8) or not exam.can_read(3):
        exam.note_cut(tool)
        return nothing
    states = [await exam.state()]
    seconds = 0.0
    for _ in range(2):
        reply = await exam.call(tool, arguments)
        if reply.kind != "result":
            return nothing
        seconds = max(seconds, reply.seconds)
        states.append(await exam.state())
    first, second = states[0].changes(states[1]), states[1].changes(states[2])
    if second:
        same = set(first) == set(second)
        return attrs.evolve(nothing, parts=tuple(second), seconds=seconds) if same else nothing
    for other in [other for other, _ in tool.successes() if other != arguments][:_MAX_OTHERS]:
        if not exam.can_call(tool, 8) or not exam.can_read(4):
            exam.note_cut(tool)
            break
        states = []
        for repeated in (other, arguments, other, arguments):
            await exam.call(tool, repeated)
            states.append(await exam.state())
            if len(states) == 2 and not states[0].changes(states[1]):
                break
        parts = states[0].changes(states[1])
        if (
            len(states) == 4
            and parts
            and not states[0].changes(states[2])
            and not states[1].changes(states[3])
        ):
            return attrs.evolve(
                nothing, parts=tuple(parts), prepare=other, after=states[1], seconds=seconds
            )
    return nothing


# ── annotations ──


@_check
async def keeps_its_hints(exam: Examination) -> None:
    """Read again after calls of tools that declare that they change nothing, or nothing more."""
    for tool in _each_tool(exam):
        if not tool.is_read_only and tool.hints.get("idempotentHint") is not True:
            continue
        clause = "S14" if tool.is_read_only else "S15"
        others = [reader for reader, _ in exam.probes if reader is not tool]
        if not others and exam.link.subject.kind == "url":
            exam.explain(clause, "no read-only call shows the state")
            continue
        for arguments, _ in tool.successes()[:2]:
            if not exam.goes_on(tool, 6):
                break
            if not exam.can_read(5):
                exam.note_cut(tool)
                break
            await _compare_around(exam, tool, arguments, clause)
    for clause, hint in (("S14", "readOnlyHint"), ("S15", "idempotentHint")):
        if clause not in exam.examined:
            exam.explain(
                clause, f"no tool that was called declares {hint} and shows what it changes"
            )


async def _compare_around(
    exam: Examination, tool: ExaminedTool, arguments: Input, clause: str
) -> None:
    """Compare the state around a call that declares that it changes nothing more."""
    first: State | None = None
    if clause == "S15":
        # Another input comes first, because earlier calls had the effect of this one.
        for other, _ in tool.successes():
            if other != arguments:
                await exam.call(tool, other)
                break
        first = await exam.state()
        await exam.call(tool, arguments)
    before = await exam.state()
    await exam.call(tool, arguments)
    after = await exam.state()
    changed = before.changes(after)
    if not changed:
        # Only an observable change shows that a second one is missing.
        if first is None or first.changes(before):
            exam.look(clause)
        return
        # A change by itself, or with the first calls only, isn't the call's.
    await anyio.sleep(_CONTROL_SECONDS)
    quiet = await exam.state()
    await exam.call(tool, arguments)
    again = quiet.changes(await exam.state())
    repeated = [name for name in changed if name in again and name not in after.changes(quiet)]
    if repeated:
        promise = (
            "readOnlyHint, and a call"
            if clause == "S14"
            else "idempotentHint, and a second call with the same input"
        )
        exam.fault(clause, f"it declares {promise} changed {repeated[0]}", tool, arguments)


# ── after many calls ──


@_check
async def does_not_grow(exam: Examination) -> None:
    """Repeat one call of each tool, and measure files, threads, processes and memory."""
    exam.reserve = 0
    for tool in _each_tool(exam):
        usable = [(arguments, reply) for arguments, reply in tool.replies if reply.is_answer]
        if not usable or exam.link.usage() is None:
            continue
        if tool.fastest > _QUICK_SECONDS / 4:
            exam.note_cut(tool)
            continue
        usable.sort(key=lambda pair: pair[1].kind != "result")
        arguments = usable[0][0]
        measured: list[Usage] = []
        for window in range(5):
            for _ in range(_WINDOW if window else 2):
                if not exam.can_call(tool):
                    break
                await exam.call(tool, arguments)
            usage = exam.link.usage()
            if usage is None or not exam.can_call(tool):
                break
            measured.append(usage)
            # Two quiet windows are enough, since growth with the calls shows in each.
            if len(measured) == 3 and not _growth(measured):
                break
        if len(measured) >= 3:
            exam.look("S11")
            growth = _growth(measured)
            if growth is not None and (growth != "memory" or len(measured) >= 4):
                first, last = measured[0], measured[-1]
                pair = f"{getattr(first, growth)} to {getattr(last, growth)}"
                unit = " kB" if growth == "memory" else ""
                noun = {"files": "open files", "processes": "processes"}.get(growth, growth)
                count = _WINDOW * (len(measured) - 1)
                exam.fault(
                    "S11",
                    f"in {count} equal calls its {noun} grew from {pair}{unit}",
                    tool,
                    arguments,
                )
    if "S11" not in exam.examined:
        exam.explain("S11", "no call was quick enough to be repeated often")


def _growth(measured: Sequence[Usage]) -> str | None:
    """Return the measure that has grown with the calls in every window, or None."""
    minimum = _WINDOW // 2
    for name in ("files", "threads", "processes"):
        if all(getattr(b, name) - getattr(a, name) >= minimum for a, b in pairwise(measured)):
            return name
    minimum = _MAX_MEMORY * _WINDOW
    pairs = pairwise(measured[1:])
    return (
        "memory"
        if len(measured) > 2 and all(b.memory - a.memory >= minimum for a, b in pairs)
        else None
    )


@_check
async def stays_the_same(exam: Examination) -> None:
    """Read the list of tools once more, after all calls."""
    if not exam.link.is_lost:
        exam.look("S2")
        await _compare_lists(exam, "after the calls")


def judge_ending(exam: Examination, link: Link) -> None:
    """Judge the end of the program, once the connection is closed."""
    if link.subject.kind == "url" or link.ending is None:
        return
    exam.check = "server.ends"
    if link.subject.kind == "command":
        exam.look("S13")
        if link.printed:
            exam.fault("S13", f"it printed {link.printed[0][:120]!r}, which is not a message")
    if link.is_lost:
        exam.explain("S12", "it ended before its input did")
        return
    exam.look("S12")
    if link.ending.seconds is None:
        exam.fault("S12", "it was still running 10 s after the end of its input")
    elif link.ending.left:
        exam.fault("S12", f"it ended and left a process behind: {link.ending.left[0]}")


async def run_checks(exam: Examination, only: str | None = None) -> None:
    """Run all checks, or the named one with the check that it needs."""
    needed = {only, "server.answers_its_schema"} if only else set(CHECKS)
    names = [name for name in CHECKS if name in needed]
    for done, name in enumerate(names):
        exam.progress(name.partition(".")[2].replace("_", " "), done, len(names))
        exam.check = name
        if exam.link.is_lost:
            return
        try:
            await CHECKS[name](exam)
        except CutShort:
            for tool in exam.tools:
                exam.note_cut(tool)
