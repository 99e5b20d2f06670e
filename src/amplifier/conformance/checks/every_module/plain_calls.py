"""Check the calls that any user makes: no line slips, and time grows in proportion to input."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from attrs import frozen

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.growing import LISTS, TEXTS, growing_lists, growing_texts
from amplifier.conformance.inputs.json_schema import Accepts, acceptor
from amplifier.conformance.inputs.payloads import ordinary_payload, several_tools
from amplifier.conformance.inputs.values import with_texts
from amplifier.conformance.inputs.varied import Place, places_of, value_at, with_value
from amplifier.conformance.target.mounted import CheckContext, MountedModule, MountFailed
from amplifier.conformance.target.slips import SlipDetector
from amplifier.conformance.target.use import (
    Operation,
    execute,
    handling,
    plain_request,
    schema_of,
    typical_operations,
)

Input = dict[str, Any]


@check("A26", kind="behaviour")
async def makes_no_slip(ctx: CheckContext) -> None:
    """Mount the module, make plain calls, and examine every error of its lines, caught or not."""
    detector = SlipDetector(ctx.loaded.target)
    try:
        with detector.watching():
            async with ctx.mount():
                pass
    except MountFailed as failed:
        for line, error in detector.slips:
            if error is failed.outcome.error and not _may_need_settings(error):
                what = f"mount met {type(error).__name__}: {error}"
                ctx.fault("A26", what, location=line)
                return
        raise
    async with ctx.mount() as mounted:
        detector = SlipDetector(ctx.loaded.target)
        for operation in _plain(mounted):
            with detector.watching():
                await mounted.call(operation.run, mounted)
            for line, error in detector.slips[:1]:
                what = f"{operation.name} met {type(error).__name__}: {error}"
                ctx.fault("A26", what, given=operation.given, location=line)
                return


def _may_need_settings(error: BaseException) -> bool:
    """Return True for an error that a setting of another type may cause."""
    return isinstance(error, TypeError)


def _plain(mounted: MountedModule) -> list[Operation]:
    """Return the typical operations that leave nothing to guess."""
    kind = mounted.loaded.module_type
    if kind == "tool":
        known = {name for name, tool in mounted.instances.items() if schema_of(tool)}
        return [
            operation
            for operation in typical_operations(mounted)
            if operation.given["tool"] in known
        ]
    if kind != "hook":
        return typical_operations(mounted)
    handled = {entry.event for entry in mounted.registrations if entry.event != "*"}
    events = [*((event, ordinary_payload(event)) for event in sorted(handled)), *several_tools()]
    return [
        operation
        for event, data in events
        if not isinstance(data.get("result"), str)
        for operation in handling(mounted, event, data)
    ]


# ── growth ──

_MIN_SLOW_SECONDS = 0.2
"""Processor seconds of the loop's thread in one call, below which growth is ignored."""
_RUNS = 3
_CALLS = 1_600
_MAX_BASES = 3
_MAX_PLACES = 5


@frozen
class _Subject:
    """A call with an input that can be made longer at some places.

    Attributes:
        name: A phrase for reports.
        given: The input, or the payload.
        call: Makes the call.
        accepts: Returns True for an input that the call is meant for, or is None to accept every
            input.
    """

    name: str
    given: Input
    call: Callable[[MountedModule, Input], Any]
    accepts: Accepts | None = None


@check("A17", kind="hygiene", types=("tool", "hook", "provider"))
async def keeps_pace(ctx: CheckContext) -> None:
    """Make the same call with increasingly long texts and lists, and compare the times."""
    if ctx.loaded.starts_processes:
        return
    async with ctx.mount() as mounted:
        subjects = await _subjects(mounted)
    budget = ctx.budget(_CALLS)
    texts, lists = growing_texts(ctx.loaded.triggers), growing_lists()
    for subject in subjects:
        for place in list(places_of(subject.given))[:_MAX_PLACES]:
            is_text = isinstance(value_at(subject.given, place), str)
            shapes = texts if is_text else lists
            for shape, grow in shapes.items():
                if budget.is_spent():
                    return
                lengths = TEXTS if is_text else LISTS
                slow = await _slow_length(ctx, subject, place, grow, lengths)
                if slow is not None:
                    where = "/".join(map(str, place))
                    unit = "characters" if is_text else "items"
                    what = f"{subject.name} blocks the event loop when {where!r} grows: {slow[1]}"
                    given = {"at": where, shape: f"{slow[0]} {unit}"}
                    ctx.fault("A17", what, given=given)
                    return


async def _subjects(mounted: MountedModule) -> list[_Subject]:
    """Return the calls to examine. For a tool, they are calls that succeed."""
    kind = mounted.loaded.module_type
    if kind == "provider":
        given = {"content": plain_request().messages[0].content}
        return [] if mounted.instance is None else [_Subject("complete", given, _complete)]
    if kind == "hook":
        handled = {entry.event for entry in mounted.registrations}
        names = ["tool:pre", "tool:post", "prompt:submit"] if "*" in handled else sorted(handled)
        return [
            _Subject(f"the handler on {event}", {"text": "text"}, partial(_handle, event))
            for event in names
        ]
    by_tool: dict[str, list[_Subject]] = {}
    for operation in typical_operations(mounted):
        name, given = operation.given["tool"], operation.given["input"]
        accepts = acceptor(schema_of(mounted.instances[name]))
        outcome = await mounted.call(operation.run, mounted)
        if accepts is not None and outcome.returned and outcome.value[0] is True:
            call = partial(_execute, name)
            by_tool.setdefault(name, []).append(_Subject(operation.name, given, call, accepts))
    # The inputs with the most places come first.
    return [
        subject
        for subjects in by_tool.values()
        for subject in sorted(subjects, key=lambda subject: -len(list(places_of(subject.given))))[
            :_MAX_BASES
        ]
    ]


async def _complete(mounted: MountedModule, given: Input) -> Any:
    request = plain_request()
    request.messages[0].content = given["content"]
    return await mounted.instance.complete(request)


async def _execute(name: str, mounted: MountedModule, given: Input) -> Any:
    return await execute(name, given, mounted)


_LONG_TEXTS = frozenset({"prompt", "content", "response", "result"})
"""Keys of payloads for the text of a user, a model or a tool."""


async def _handle(event: str, mounted: MountedModule, given: Input) -> None:
    payload = ordinary_payload(event)
    for key in _LONG_TEXTS & payload.keys():
        payload[key] = with_texts(payload[key], lambda _: given["text"])
    for operation in handling(mounted, event, payload):
        await operation.run(mounted)


async def _slow_length(
    ctx: CheckContext,
    subject: _Subject,
    place: Place,
    grow: Callable[[Any, int], Any],
    lengths: Sequence[int],
) -> tuple[int, str] | None:
    """Return the first length with which a call takes too long, and its times, if there is one."""
    before = 0.0
    async with ctx.mount() as mounted:
        for shorter, length in zip((lengths[0], *lengths), lengths, strict=False):
            given = with_value(subject.given, place, grow(value_at(subject.given, place), length))
            if subject.accepts is not None and not subject.accepts(given):
                return None
            took = await _seconds(mounted, subject, given)
            limit = max(_MIN_SLOW_SECONDS, 2 * max(before, 1e-4) * length / shorter)
            if took > limit and (took := min(took, *(await _again(ctx, subject, given)))) > limit:
                return length, f"{_round(took)} s at {length}, {_round(before)} s at {shorter}"
            before = took
    return None


async def _again(ctx: CheckContext, subject: _Subject, given: Input) -> list[float]:
    """Return the times of the same call in fresh sessions, since another program may interfere."""
    times = []
    for _ in range(1, _RUNS):
        async with ctx.mount() as mounted:
            times.append(await _seconds(mounted, subject, given))
    return times


async def _seconds(mounted: MountedModule, subject: _Subject, given: Input) -> float:
    """Return the processor time of this thread in a call."""
    own = copy.deepcopy(given)
    started = time.thread_time()
    await mounted.call(subject.call, mounted, own)
    return time.thread_time() - started


def _round(seconds: float) -> float:
    """Return seconds rounded to one digit, so that a report is the same in each run."""
    return float(f"{seconds:.1g}")
