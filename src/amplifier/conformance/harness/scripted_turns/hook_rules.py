"""Rules of the contract about hook results: what a loop has to do about them, and about a graceful stop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .record import LogEntry, RecordedTurn, words_of
from .script import Call
from .turn_rules import Violation


def hook_violations(turn: RecordedTurn) -> Iterator[Violation]:
    """Every hook result of the turn that the loop did not follow."""
    calls = {call.number: call for call in turn.script.calls}
    for position, verdict in turn.entries("verdict"):
        what, number = verdict.data["what"], verdict.data["number"]
        if verdict.name == "tool:pre":
            yield from _check_pre(turn, position, calls[number], verdict)
        elif verdict.name == "tool:post":
            yield from _check_post(turn, calls[number], verdict)
        elif verdict.data["action"] == "deny":
            later = [at for at in turn.positions("asked") if at > position]
            if later:
                yield "O20", f"the model was asked although a hook had denied {verdict.name}"
        if what in ("whisper", "whisper to the result"):
            yield from _check_whisper(turn, position, verdict)
        if what in ("inject", "inject as user") and verdict.name in ("tool:pre", "tool:post"):
            yield from _check_injection(turn, position, verdict)


def _check_pre(turn: RecordedTurn, position: int, call: Call, verdict: LogEntry) -> Iterator[Violation]:
    runs = [each.data["input"] for _, each in turn.entries("started") if each.data["call"] == call]
    what = verdict.data["what"]
    if what in ("deny", "deny silently"):
        if runs:
            yield "O15", f"the tool {call.tool!r} was run although a hook had denied it at tool:pre"
        elif what == "deny" and not _reaches_model(turn, position, call, verdict.data["word"]):
            yield "O15", "a hook denied a tool at tool:pre, and the model did not get the reason"
    elif what == "modify":
        wrong = [given for given in runs if given != {"key": call.new_key}]
        if wrong:
            yield "O16", f"a hook changed what the tool is given to {call.new_key!r} at tool:pre, and it got {wrong[0]}"
    elif what in ("ask yes", "ask no"):
        answers = [each.data for _, each in turn.entries("approval") if verdict.data["word"] in each.name]
        if runs and "Allow" not in answers:
            how = "the user denied it" if answers else "the user was not asked"
            yield "O17", f"a hook asked for approval at tool:pre, {how}, and the tool was run"
        if not runs and "Allow" in answers:
            yield "O17", "a hook asked for approval at tool:pre, the user allowed it, and the tool was not run"


def _reaches_model(turn: RecordedTurn, position: int, call: Call, word: str) -> bool:
    requests = [asked.data for at, asked in turn.entries("asked") if at > position and asked.data is not None]
    return any(word in words_of(value) for value in (_result(turn, call), *requests))


def _check_post(turn: RecordedTurn, call: Call, verdict: LogEntry) -> Iterator[Violation]:
    text = words_of(_result(turn, call))
    what = verdict.data["what"]
    if what == "modify" and text and (call.mark in text or call.new_mark not in text):
        yield "O16", f"a hook changed the result to {call.new_mark!r} at tool:post, and stored was {text[:120]!r}"
    if what in ("deny", "deny silently") and call.mark in text:
        yield "O29", "a hook denied a result at tool:post, and it was stored all the same"


def _result(turn: RecordedTurn, call: Call) -> Any:
    """The stored result of a call; None if there is none."""
    return next((result for _, call_id, result in turn.stored_results if call_id == call.id), None)


def _check_injection(turn: RecordedTurn, position: int, verdict: LogEntry) -> Iterator[Violation]:
    word = verdict.data["word"]
    stored = [at for at, each in turn.entries("stored") if word in words_of(each.data)]
    asked = turn.next_asked(position)
    if not stored:
        yield "O18", f"what a hook injected at {verdict.name} was not stored"
    elif len(stored) > 1:
        yield "O18", f"what a hook injected at {verdict.name} was stored {len(stored)} times"
    elif asked is not None and stored[0] > asked:
        yield "O18", f"what a hook injected at {verdict.name} was stored only after the model had been asked again"


def _check_whisper(turn: RecordedTurn, position: int, verdict: LogEntry) -> Iterator[Violation]:
    word = verdict.data["word"]
    if any(word in words_of(each.data) for _, each in turn.entries("stored")):
        yield "O19", f"what a hook injected for one request only, at {verdict.name}, was stored"
    later = [word in words_of(asked.data) for at, asked in turn.entries("asked") if at > position]
    times = sum(later)
    # At prompt:submit a loop need not follow anything but a deny.
    if later and not later[0] and verdict.name != "prompt:submit":
        yield "O19", f"what a hook injected for the next request, at {verdict.name}, was not in it"
    elif times > 1:
        yield "O19", f"what a hook injected for one request, at {verdict.name}, was in {times} of them"


def stop_violations(turn: RecordedTurn, *, is_on_island: bool = False) -> Iterator[Violation]:
    """After a graceful stop running tools finish, and nothing new starts.

    Args:
        turn: What happened.
        is_on_island: The loop runs in another thread than its tools. The call of a tool that it had announced before the
            stop may be on its way then.
    """
    stops = turn.positions("stop")
    if not stops:
        return
    stop = stops[0]
    if turn.next_asked(stop) is not None:
        yield "O22", "the model was asked after a graceful stop"
    on_the_way = {
        (each.data or {}).get("tool_name")
        for at, each in turn.entries("event")
        if is_on_island and each.name == "tool:pre" and at < stop
    }
    for at, each in turn.entries("started"):
        if at > stop and each.name not in on_the_way:
            yield "O22", f"the tool {each.name!r} was started after a graceful stop"
            break
    for at, each in turn.entries("interrupted"):
        if at > stop and not turn.is_cancelled:
            yield "O22", f"the running tool {each.name!r} was cancelled by a graceful stop"
            break
