"""The checks of tools as they are: each is a function of an examination, and runs over one connection.

Nothing is guessed: where the state cannot be seen, or no call takes long enough to be cancelled, a
clause is not examined, and the report says so.
"""

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

CHECKS: dict[str, ServerCheck] = {}
"""Every check by name, in the order in which they run."""

UNKNOWN_TOOL = "amplifier_there_is_no_such_tool"
_MAX_INVALID = 18
_MAX_ASKED = 25
_AT_ONCE = 12
_WINDOW = 20
"""Calls between two looks at what a server holds."""
_MAX_MEMORY = 256
"""Kilobytes a call that memory may grow by, in every window."""
_SETTLING = 0.05
_MOMENTS = (0.5, 0.3, 0.7, 0.1, 0.9, 0.4, 0.6)
"""Parts of the usual time after which a call is cancelled, to see a finding again."""
_MAX_OTHERS = 2
_LONGEST_FAILURE = 500
_QUICK = 0.25
"""Seconds. A call that takes longer is repeated less often."""
_LATE_RESULT = 0.3
"""Seconds after a cancellation in which a result may have been on its way."""
_CONTROL_SECONDS = 1.1
"""An answer with the time in seconds differs after so many."""

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
"""Exceptions that nobody raises on purpose to report wrong input that the schema accepts."""


def _check(function: ServerCheck) -> ServerCheck:
    CHECKS[f"server.{function.__name__}"] = function
    return function


def how(name: str) -> str:
    """Return what a check does, in a sentence."""
    return (CHECKS[name].__doc__ or "").partition("\n")[0]


# ── the list ──


@_check
async def lists_its_tools(exam: Examination) -> None:
    """Reads the list of tools twice and validates every name and schema."""
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
    what = f"changed: {', '.join(changed)}" if changed else "is in another order"
    exam.fault("S2", f"{when}, the list of tools {what}, and no change was announced")


# ── single calls ──


@_check
async def answers_its_schema(exam: Examination) -> None:
    """Calls each tool with inputs that its schema accepts: the least, the full, each alternative."""
    for tool in _each_tool(exam):
        for given in tool.inputs:
            if not exam.goes_on(tool):
                break
            reply = await _watched_call(exam, tool, given)
            tool.replies.append((given, reply))
            _judge(
                exam, tool, given, reply, is_valid=tool.accepts is not None and tool.accepts(given)
            )
            await _look_for_hidden_failure(exam, tool, given, reply)
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
    """Yield the tools that still can be called, each with its time; those that gave no answer are left alone."""
    for tool in exam.tools:
        exam.start_tool(tool)
        if tool.name in exam.slow:
            exam.note_cut(tool)
        elif exam.goes_on(tool):
            yield tool


async def _watched_call(exam: Examination, tool: ExaminedTool, given: Input) -> Reply:
    """Call a tool, and compare the files around the call if it declares that it changes nothing."""
    if not tool.is_read_only or exam.link.subject.kind == "url":
        return await exam.call(tool, given)
    before = exam.link.files()
    reply = await exam.call(tool, given)
    exam.look("S14")
    changed = _changed_files(before, exam.link.files())
    if changed and not exam.is_known("S14", tool):
        # Others write files as well, and a cache is filled once: it must happen again, and only with a call.
        await anyio.sleep(_CONTROL_SECONDS)
        before = exam.link.files()
        await anyio.sleep(_CONTROL_SECONDS)
        quiet = exam.link.files()
        if exam.can_call(tool):
            await exam.call(tool, given)
            again = _changed_files(quiet, exam.link.files())
            by_itself = _changed_files(before, quiet)
            found = [name for name in changed if name in again and name not in by_itself]
            if found:
                exam.fault(
                    "S14",
                    f"it declares readOnlyHint, and a call changed the file {found[0]!r}",
                    tool,
                    given,
                )
    return reply


def _changed_files(before: Files, after: Files) -> list[str]:
    return [name for name in {**before, **after} if before.get(name, b"-") != after.get(name, b"-")]


def _judge(
    exam: Examination, tool: ExaminedTool, given: Input, reply: Reply, *, is_valid: bool
) -> None:
    """Judge one reply by itself."""
    if reply.kind in ("late", "lost"):
        exam.fault("S5", f"a call {reply}", tool, given)
    elif reply.kind == "invalid":
        exam.fault("S7", f"a call {reply}", tool, given)
    elif is_valid and reply.raised is not None and reply.raised.get("type") in _SLIPS:
        place = reply.raised.get("location")
        exam.fault(
            "S5",
            f"an input that the schema accepts raised {reply.text[:150]}",
            tool,
            given,
            location=place,
        )
    elif is_valid and reply.kind == "refused" and "-32603" in reply.text:
        exam.fault("S5", f"an input that the schema accepts {reply}", tool, given)
    if reply.kind != "result":
        return
    problem = None if tool.output_schema is None else _output_problem(tool.output_schema, reply)
    if problem is not None:
        exam.fault("S7", problem, tool, given)


async def _look_for_hidden_failure(
    exam: Examination, tool: ExaminedTool, given: Input, reply: Reply
) -> None:
    """Report a successful result whose text is the failure of this very call.

    A tool that reads logs returns texts of errors, too. So it is one only if it quotes a text of the
    input, and another one that no earlier call has had as soon as that takes its place.
    """
    if (
        reply.kind != "result"
        or not _SYSTEM_ERROR.search(reply.text)
        or len(reply.text) > _LONGEST_FAILURE
    ):
        return
    for key, value in given.items():
        if (
            key in tool.fixed
            or not isinstance(value, str)
            or not _quotes(reply.text, value)
            or not exam.can_call(tool)
        ):
            continue
        again = await exam.call(tool, {**given, key: _FRESH})
        if (
            again.kind == "result"
            and _SYSTEM_ERROR.search(again.text)
            and _quotes(again.text, _FRESH)
        ):
            exam.fault(
                "S6",
                f"a call succeeded, and its text reports a failure: {reply.text[:150]!r}",
                tool,
                given,
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
        for given, _ in tool.successes()[:4] if tool.is_read_only else ():
            if tool.fastest > _QUICK or not exam.can_call(tool, 20):
                continue
            once, again = await exam.call(tool, given), await exam.call(tool, given)
            if once.kind == "result" and stable_text(once) == stable_text(again):
                candidates.append((tool, given))
    # What needs no argument shows the state as a whole.
    exam.choose_probes(sorted(candidates, key=lambda probe: len(fingerprint(probe[1]))))


@_check
async def answers_anything(exam: Examination) -> None:
    """Calls each tool with inputs that have one defect, and calls a tool that does not exist."""
    if not exam.tools:
        # A server that passes on every name might do something even then.
        return
    unknown = await exam.link.call(UNKNOWN_TOOL, {}, exam.call_seconds)
    exam.look("S6")
    if unknown.kind == "result":
        exam.fault("S6", f"a call of a tool that does not exist {unknown}")
    for tool in _each_tool(exam):
        bases = [given for given, _ in tool.successes()] or tool.inputs
        made: dict[str, Input] = {}
        for given in invalid_inputs(tool.schema, bases[:3], ()):
            fixed = tool.fix(given)
            if tool.accepts is not None and not tool.accepts(fixed):
                made.setdefault(fingerprint(fixed), fixed)
        for given in _spread(list(made.values()), _MAX_INVALID):
            if not exam.goes_on(tool):
                break
            files = exam.link.files() if exam.link.subject.kind != "url" else {}
            reply = await exam.call(tool, given)
            exam.look("S5")
            _judge(exam, tool, given, reply, is_valid=False)
            if reply.is_failure and exam.link.subject.kind != "url":
                exam.look("S17")
                if exam.link.files() != files:
                    exam.fault(
                        "S17", "it refused the input, and had changed a file before", tool, given
                    )
            if reply.kind == "late":
                break


def _spread(values: list[Input], count: int) -> list[Input]:
    """Return at most so many values, from the whole list."""
    step = max(1, math.ceil(len(values) / count))
    return values[:6] + [value for value in values[6::step] if value][: count - 6]


@_check
async def tells_the_truth(exam: Examination) -> None:
    """Searches inputs that the schema accepts and the tool refuses for their shape, with a counterpart that proves it."""
    for tool in _each_tool(exam):
        if tool.accepts is None or not tool.replies:
            continue
        if tool.fastest > _QUICK:
            exam.note_cut(tool)
            continue
        if any(tool.accepts(given) and reply.is_answer for given, reply in tool.replies):
            exam.look("S4")
        found = await _schema_problem(exam, tool)
        # A tool that keeps state may answer differently the second time, which proves nothing.
        if found is not None and found == await _schema_problem(exam, tool):
            what, given = found
            exam.fault("S4", what, tool, given)


async def _schema_problem(exam: Examination, tool: ExaminedTool) -> tuple[str, Input] | None:
    asked = 0

    async def ask(given: Input) -> bool | str | None:
        nonlocal asked
        if asked >= _MAX_ASKED or not exam.goes_on(tool):
            return None
        asked += 1
        reply = await exam.call(tool, tool.fix(given))
        return True if reply.kind == "result" else reply.text if reply.is_failure else None

    return await SchemaCheck(tool.schema, ask, file_name=CANARY, inputs=tool.inputs).find()


# ── several calls ──


@_check
async def keeps_calls_apart(exam: Examination) -> None:
    """Makes calls with different answers at the same time and compares each with its answer alone."""
    alone: list[tuple[ExaminedTool, Input, str]] = []
    for tool in _each_tool(exam):
        answers: set[str] = set()
        for given, reply in tool.successes():
            if len(answers) >= 4 or not exam.goes_on(tool, 20):
                break
            if stable_text(reply) in answers:
                continue
            again = await exam.call(tool, given)
            if stable_text(again) == stable_text(reply):
                answers.add(stable_text(reply))
                alone.append((tool, given, stable_text(reply)))
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
        for (tool, given, answer), beside in zip(calls, await _at_once(exam, calls), strict=True):
            # A tool may refuse calls at once, or count them. The answer of another call is a mixture.
            if beside is None or stable_text(beside) not in {other for *_, other in calls} - {
                answer
            }:
                continue
            # State that moved on is no mixture: alone, the call must still give its old answer.
            if exam.can_call(tool) and stable_text(await exam.call(tool, given)) == answer:
                exam.fault(
                    "S8",
                    f"beside other calls it gave the answer of another call: it {beside}",
                    tool,
                    given,
                )


async def _at_once(
    exam: Examination, calls: Sequence[tuple[ExaminedTool, Input, str]]
) -> list[Reply | None]:
    replies: list[Reply | None] = [None] * len(calls)

    async def make(index: int) -> None:
        tool, given, _ = calls[index]
        replies[index] = await exam.link.call(tool.name, given, exam.call_seconds)

    async with anyio.create_task_group() as group:
        for index, (tool, _, _) in enumerate(calls):
            exam.count_call(tool)
            group.start_soon(make, index)
    return replies


# ── cancelled calls ──


@_check
async def stops_when_cancelled(exam: Examination) -> None:
    """Cancels calls at several moments, then reads and calls again."""
    for tool in _each_tool(exam):
        replies = [(given, reply) for given, reply in tool.replies if reply.is_answer]
        # Successful calls first, and of these the one that takes longest, but not for ever.
        replies.sort(key=lambda pair: (pair[1].kind != "result", -min(pair[1].seconds, 2.0)))
        for given, reply in replies[:2]:
            if not exam.goes_on(tool, 10) or await _cancel(exam, tool, given, reply):
                break
    if "S9" not in exam.examined:
        exam.explain("S9", "no call could be cancelled before its answer came")
    if "S10" not in exam.examined:
        exam.explain(
            "S10", "no call that was cancelled changes anything that read-only tools or files show"
        )


async def _cancel(exam: Examination, tool: ExaminedTool, given: Input, usual: Reply) -> bool:
    """Cancel a call at several moments; return whether one could be cancelled."""
    effect = await _effect_of(exam, tool, given)
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
            effect.repeats and not effect.parts and (await exam.call(tool, given)).kind == "result"
        )
        late = len(exam.link.late_results)
        exam.count_call(tool)
        after = max(usual.seconds * share, 0.0005)
        if await exam.link.call_cancelled(tool.name, given, after, exam.call_seconds) is not None:
            continue
        cancelled = True
        exam.look("S9")
        # What a server answers after two more questions, it has gone on with.
        for _ in range(2):
            await exam.link.read_tools()
        # A call that was nearly done may have ended as usual.
        await anyio.sleep(max(_SETTLING, min(usual.seconds * (1 - share) * 1.5, 1.0)))
        state = await exam.state() if effect.parts else None
        again = await exam.call(tool, given)
        if again.kind in ("late", "lost"):
            exam.fault("S9", f"after a call was cancelled, the next call {again}", tool, given)
            break
        if repeats and again.is_failure and await _still_fails(exam, tool, given):
            exam.fault("S10", f"after a call was cancelled, the same call {again}", tool, given)
            break
        for seconds, questions in exam.link.late_results[late:]:
            if seconds > _LATE_RESULT and questions > 1:
                exam.fault(
                    "S9",
                    f"a cancelled call went on and sent its result after {seconds:.1f} s",
                    tool,
                    given,
                )
        if before is None or state is None:
            continue
        exam.look("S10")
        if effect.problem(before, state) is None:
            continue
        problem = await _lasting_problem(exam, tool, given, effect)
        if problem is not None:
            exam.fault("S10", problem, tool, given)
            break
    return cancelled


async def _still_fails(exam: Examination, tool: ExaminedTool, given: Input) -> bool:
    """Return whether a tool that is still listed fails after a while, too."""
    await anyio.sleep(_CONTROL_SECONDS)
    if tool.name not in [listed.get("name") for listed in await exam.link.read_tools()]:
        return False
    return (await exam.call(tool, given)).is_failure


async def _lasting_problem(
    exam: Examination, tool: ExaminedTool, given: Input, effect: _Effect
) -> str | None:
    """Cancel a call once more and return what is in between; None if it passes, or if completed calls do the same."""
    for share in _MOMENTS:
        if not exam.can_call(tool, 4) or not exam.can_read(4):
            exam.note_cut(tool)
            return None
        if effect.prepare is not None:
            await exam.call(tool, effect.prepare)
        before = await exam.state()
        exam.count_call(tool)
        after = max(effect.seconds * share, 0.0005)
        if await exam.link.call_cancelled(tool.name, given, after, exam.call_seconds) is not None:
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
        await exam.call(tool, given)
        done = state.changes(await exam.state())
        return problem if set(effect.parts) <= set(done) else None
    return None


@attrs.frozen
class _Effect:
    """What a call changes each time.

    Attributes:
        parts: The readers and files that it changes, all of them each time.
        prepare: An input of the same tool that takes the change back, or None if each call changes more.
        after: The state that the call leads to after ``prepare``, or None.
        repeats: Whether a second call must succeed if the first one does.
        seconds: How long the call takes.
    """

    parts: tuple[str, ...] = ()
    prepare: Input | None = None
    after: State | None = None
    repeats: bool = False
    seconds: float = 0.0

    def problem(self, before: State, state: State) -> str | None:
        """Return what is in between in the state after a cancelled call; None if nothing is."""
        changed = before.changes(state)
        for name in changed:
            shown = state.shown.get(name)
            if (
                self.after is not None
                and name in self.parts
                and shown != self.after.shown.get(name)
            ):
                return f"a cancelled call left {name} neither as before nor as after it: {shown!s:.120}"
        missing = [name for name in self.parts if name not in changed]
        done = [name for name in self.parts if name in changed]
        if done and missing:
            return f"a cancelled call changed {done[0]} and not {missing[0]}, which change together otherwise"
        return None


async def _effect_of(exam: Examination, tool: ExaminedTool, given: Input) -> _Effect:
    """Find out what a call changes, by making it twice, or before and after one that takes it back."""
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
        reply = await exam.call(tool, given)
        if reply.kind != "result":
            return nothing
        seconds = max(seconds, reply.seconds)
        states.append(await exam.state())
    first, second = states[0].changes(states[1]), states[1].changes(states[2])
    if second:
        same = set(first) == set(second)
        return attrs.evolve(nothing, parts=tuple(second), seconds=seconds) if same else nothing
    for other in [other for other, _ in tool.successes() if other != given][:_MAX_OTHERS]:
        if not exam.can_call(tool, 8) or not exam.can_read(4):
            exam.note_cut(tool)
            break
        seen: list[State] = []
        for each in (other, given, other, given):
            await exam.call(tool, each)
            seen.append(await exam.state())
            if len(seen) == 2 and not seen[0].changes(seen[1]):
                break
        parts = seen[0].changes(seen[1])
        if (
            len(seen) == 4
            and parts
            and not seen[0].changes(seen[2])
            and not seen[1].changes(seen[3])
        ):
            return attrs.evolve(
                nothing, parts=tuple(parts), prepare=other, after=seen[1], seconds=seconds
            )
    return nothing


# ── annotations ──


@_check
async def keeps_its_hints(exam: Examination) -> None:
    """Reads again after calls of tools that declare to change nothing, or nothing more the second time."""
    for tool in _each_tool(exam):
        if not tool.is_read_only and tool.hints.get("idempotentHint") is not True:
            continue
        clause = "S14" if tool.is_read_only else "S15"
        others = [reader for reader, _ in exam.probes if reader is not tool]
        if not others and exam.link.subject.kind == "url":
            exam.explain(clause, "no read-only call shows the state")
            continue
        for given, _ in tool.successes()[:2]:
            if not exam.goes_on(tool, 6):
                break
            if not exam.can_read(5):
                exam.note_cut(tool)
                break
            await _compare_around(exam, tool, given, clause)
    for clause, hint in (("S14", "readOnlyHint"), ("S15", "idempotentHint")):
        if clause not in exam.examined:
            exam.explain(
                clause, f"no tool that was called declares {hint} and shows what it changes"
            )


async def _compare_around(exam: Examination, tool: ExaminedTool, given: Input, clause: str) -> None:
    """Compare the state before and after a call that declares to change nothing more."""
    first: State | None = None
    if clause == "S15":
        # Another input comes first, because earlier calls have had the effect of this one.
        for other, _ in tool.successes():
            if other != given:
                await exam.call(tool, other)
                break
        first = await exam.state()
        await exam.call(tool, given)
    before = await exam.state()
    await exam.call(tool, given)
    after = await exam.state()
    changed = before.changes(after)
    if not changed:
        # Only a change that can be seen at all shows that a second one is missing.
        if first is None or first.changes(before):
            exam.look(clause)
        return
    # What changes by itself, or with the first calls only, is not what the call changes each time.
    await anyio.sleep(_CONTROL_SECONDS)
    quiet = await exam.state()
    await exam.call(tool, given)
    again = quiet.changes(await exam.state())
    found = [name for name in changed if name in again and name not in after.changes(quiet)]
    if found:
        what = (
            "readOnlyHint, and a call"
            if clause == "S14"
            else "idempotentHint, and a second call with the same input"
        )
        exam.fault(clause, f"it declares {what} changed {found[0]}", tool, given)


# ── after many calls ──


@_check
async def does_not_grow(exam: Examination) -> None:
    """Repeats one call of each tool, and measures open files, threads, processes and memory in between."""
    exam.reserve = 0
    for tool in _each_tool(exam):
        usable = [(given, reply) for given, reply in tool.replies if reply.is_answer]
        if not usable or exam.link.usage() is None:
            continue
        if tool.fastest > _QUICK / 4:
            exam.note_cut(tool)
            continue
        usable.sort(key=lambda pair: pair[1].kind != "result")
        given = usable[0][0]
        measured: list[Usage] = []
        for window in range(5):
            for _ in range(_WINDOW if window else 2):
                if not exam.can_call(tool):
                    break
                await exam.call(tool, given)
            usage = exam.link.usage()
            if usage is None or not exam.can_call(tool):
                break
            measured.append(usage)
            # Two quiet windows are enough: what grows with the calls grows in each.
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
                    "S11", f"in {count} equal calls its {noun} grew from {pair}{unit}", tool, given
                )
    if "S11" not in exam.examined:
        exam.explain("S11", "no call was quick enough to be repeated often")


def _growth(measured: Sequence[Usage]) -> str | None:
    """Return what has grown with the calls in every window."""
    for name, least in (
        ("files", _WINDOW // 2),
        ("threads", _WINDOW // 2),
        ("processes", _WINDOW // 2),
    ):
        if all(getattr(b, name) - getattr(a, name) >= least for a, b in pairwise(measured)):
            return name
    least = _MAX_MEMORY * _WINDOW
    pairs = pairwise(measured[1:])
    return (
        "memory"
        if len(measured) > 2 and all(b.memory - a.memory >= least for a, b in pairs)
        else None
    )


@_check
async def stays_the_same(exam: Examination) -> None:
    """Reads the list of tools once more, after all calls."""
    if not exam.link.is_lost:
        exam.look("S2")
        await _compare_lists(exam, "after the calls")


def judge_ending(exam: Examination, link: Link) -> None:
    """Judge how the program ended, once the connection is closed."""
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
    """Run all checks, or the one that is named with what it needs."""
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
