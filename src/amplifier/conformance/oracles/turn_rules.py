"""Rules of the contract about one turn: its events, requests, transcript, hooks and stops."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from amplifier.conformance.target.turn_script import (
    TOOLS,
    Answer,
    Call,
    LogEntry,
    RecordedTurn,
    results_in,
    text_of,
    words_of,
)
from amplifier.conformance.target.turn_session import RESULT_KEYS, SCHEMA

# Each rule yields pairs of a broken clause and a description. Rules read only the log of the
# doubles, so they need no access to the loop.

Violation = tuple[str, str]


def turn_violations(turn: RecordedTurn) -> Iterator[Violation]:
    """Yield the clauses that a turn breaks, whatever its ending."""
    yield from _check_frame(turn)
    yield from _check_answer(turn)
    yield from _check_model_calls(turn)
    yield from _check_tool_events(turn)
    yield from _check_requests(turn)
    yield from _check_transcript(turn)


# ── where to look ──

_STORED_RESULT = (("stored", "tool"), ("returned", None), ("started", None))
_RUN = (("started", None), ("event", "tool:pre"))
_ASKED = (("asked", None),)
_PLACES: dict[str, tuple[tuple[str, str | None], ...]] = {
    "O5": (("event", "execution:end"),),
    "O6": (("event", "orchestrator:complete"),),
    "O8": _RUN,
    "O9": (("stored", "user"), *_ASKED),
    **dict.fromkeys(("O7", "O10", "O18", "O19", "O20"), _ASKED),
    **dict.fromkeys(("O11", "O12", "O13", "O14", "O29"), _STORED_RESULT),
    **dict.fromkeys(("O15", "O16", "O17", "O22"), _RUN),
    **dict.fromkeys(("O21", "O26"), (("failed", None),)),
    **dict.fromkeys(("O24", "O30"), (("stored", "assistant"), ("answered", None))),
}
"""The log entries that a clause is about, by clause, with the most telling ones first."""


def place_of(turn: RecordedTurn, clause: str) -> str | None:
    """Return the line of the loop that last acted on the subject of a clause.

    Return None if no line is known.
    """
    for kind, name in _PLACES.get(clause, ()):
        lines = [entry.line for _, entry in turn.entries(kind, name) if entry.line is not None]
        if lines:
            return lines[-1]
    return None


# ── start and end ──


def _check_frame(turn: RecordedTurn) -> Iterator[Violation]:
    """Check the first event and the two final ones, which every turn needs, whatever its ending."""
    names = [event.name for _, event in turn.events]
    if names[:1] != ["execution:start"]:
        yield "O4", f"the first event of the turn was {names[0] if names else 'none at all'}"
    ends = turn.entries("event", "execution:end")
    ending = _ending(turn)
    if len(ends) != 1:
        yield "O5", f"execution:end was {_times(len(ends))} in a turn that {ending}"
    completes = names.count("orchestrator:complete")
    if completes != 1:
        yield "O6", f"orchestrator:complete was {_times(completes)} in a turn that {ending}"
    for position, end in ends[:1]:
        status = end.data.get("status")
        allowed = _allowed_statuses(turn)
        if status not in allowed:
            what = f"execution:end had the status {status!r} in a turn that {ending}"
            yield "O5", f"{what}; expected {' or '.join(allowed)}"
        late = [entry for entry in turn.log[position:] if entry.kind in ("asked", "started")]
        if late:
            action = "the model was called" if late[0].kind == "asked" else "a tool was run"
            yield "O5", f"after execution:end {action}"


def _ending(turn: RecordedTurn) -> str:
    outcome = turn.outcome
    if turn.is_cancelled:
        return "was cancelled"
    if outcome is None or outcome.kind == "late":
        return "did not end"
    if outcome.kind == "raised":
        return f"raised {type(outcome.error).__name__}"
    return "was stopped" if turn.was_stopped else "returned"


def _allowed_statuses(turn: RecordedTurn) -> tuple[str, ...]:
    outcome = turn.outcome
    if turn.is_cancelled:
        # A turn that is cancelled while it unwinds from an error has both endings.
        return ("cancelled", "error") if turn.ends_with_a_failure else ("cancelled",)
    if outcome is not None and outcome.kind == "raised" and turn.has_failed:
        return ("error",)
    if turn.went_through and outcome is not None and outcome.returned:
        return ("completed",)
    return ("completed", "cancelled", "error")


def _times(count: int) -> str:
    return {0: "not emitted", 1: "emitted once"}.get(count, f"emitted {count} times")


# ── the returned text ──

_MIN_THOUGHT = 12
"""Minimum length of a thought that is not in an answer by chance."""


def _check_answer(turn: RecordedTurn) -> Iterator[Violation]:
    """Check that execute returns the text of the last answer, unless the turn ended early."""
    outcome = turn.outcome
    if outcome is None or turn.is_cancelled:
        return
    if outcome.returned and not isinstance(outcome.value, str):
        yield "O3", f"execute returned {type(outcome.value).__name__}; expected a str"
        return
    if not turn.went_through:
        return
    if outcome.kind == "late":
        yield "O3", f"execute {outcome}, with a model and tools that answer at once"
    if outcome.kind == "raised":
        yield "O3", f"execute {outcome}, and nothing had failed but tools"
    if outcome.returned and not turn.positions("asked"):
        yield "O3", f"execute returned {outcome.value[:80]!r} without having called the model"
    if outcome.returned and turn.answers:
        last = turn.answers[-1][1]
        missing = [text for text in last.texts if text.strip() not in outcome.value]
        if last.number and missing:
            what = f"execute returned {outcome.value[:80]!r}, without {missing[0][:80]!r}"
            yield "O3", f"{what} of the model's last answer"
        for thought in last.thoughts:
            if (
                len(thought.strip()) >= _MIN_THOUGHT
                and last.texts
                and thought.strip() in outcome.value
            ):
                what = f"execute returned {outcome.value[:80]!r}"
                yield "O3", f"{what}, of which {thought!r} is from a thinking block"


def offer_violations(turns: list[RecordedTurn]) -> Iterator[Violation]:
    """Yield tools that no request of a session offers, and tools offered with other parameters.

    One request may leave tools out, for a plan or a summary, so all requests are read together.
    """
    asked = [entry.data for turn in turns for _, entry in turn.entries("asked") if entry.data]
    if not asked or not all(turn.went_through for turn in turns):
        return
    offered = {
        str(spec.get("name")): spec
        for request in asked
        for spec in request.get("tools") or ()
        if isinstance(spec, Mapping)
    }
    missing = [name for name in TOOLS if name not in offered]
    if missing:
        yield "O10", f"no request of the session offers the tool {missing[0]!r}"
        return
    for name in TOOLS:
        if offered[name].get("parameters") != SCHEMA:
            shown = offered[name].get("parameters")
            yield (
                "O10",
                f"a request gives the tool {name!r} the parameters {shown}; expected {SCHEMA}",
            )
            return


def repeated_answer_violations(turns: list[RecordedTurn]) -> Iterator[Violation]:
    """Yield turns that return the text of an answer from an earlier turn."""
    marks: list[str] = []
    for turn in turns:
        returned = "" if turn.outcome is None else turn.outcome.value
        if isinstance(returned, str) and any(mark in returned for mark in marks):
            yield "O3", "execute returned words of the model from an earlier turn"
        marks += [answer.mark for _, answer in turn.answers if answer.texts]


# ── model calls ──


def _check_model_calls(turn: RecordedTurn) -> Iterator[Violation]:
    """Check the events around each model call, and that the prompt is stored before the first."""
    requests = responses = answered = 0
    for entry in turn.log:
        if entry.kind == "event":
            requests += entry.name == "provider:request"
            responses += entry.name == "provider:response"
            if entry.name == "provider:response" and responses > answered:
                yield "O7", "provider:response was emitted before the model had answered"
                return
        elif entry.kind == "answered":
            answered += 1
        elif entry.kind == "asked":
            # Another attempt after an error belongs to the same request.
            if requests <= answered:
                yield (
                    "O7",
                    f"the model was called (call {answered + 1}) without a provider:request before",
                )
                return
            if responses < answered:
                what = "the model was called again without a provider:response"
                yield "O7", f"{what} after its answer {answered}"
                return
    if responses < answered and not turn.is_cancelled and not turn.context_failed:
        yield "O7", f"provider:response was {_times(responses)} for {answered} answers of the model"
    yield from _check_prompt(turn)


def _check_prompt(turn: RecordedTurn) -> Iterator[Violation]:
    asked = turn.positions("asked")
    stored = [
        (position, text_of(entry.data.get("content")))
        for position, entry in turn.entries("stored", "user")
    ]
    prompt = turn.script.prompt.strip()
    if asked and not any(position < asked[0] and prompt in text for position, text in stored):
        when = "had not yet been" if any(prompt in text for _, text in stored) else "was not"
        yield "O9", f"when the model was called, the prompt {when} stored as a user's message"
    exact = [text for _, text in stored if text.strip() == prompt]
    if len(exact) > 1 and turn.script.submit is None:
        yield "O9", f"the prompt was stored {len(exact)} times"


# ── tool events ──


def _check_tool_events(turn: RecordedTurn) -> Iterator[Violation]:
    """Check tool:pre before each run of a tool, and tool:post or tool:error after it."""
    for event in ("tool:pre", "tool:post"):
        for _, entry in turn.entries("event", event):
            yield from _check_payload(turn, event, entry.data)
    names = {entry.name for _, entry in turn.entries("started")}
    for name in sorted(names):
        pres = [
            position
            for position, entry in turn.entries("event", "tool:pre")
            if entry.data.get("tool_name") == name
        ]
        for number, position in enumerate(turn.positions("started", name), 1):
            if sum(pre < position for pre in pres) < number:
                yield "O8", f"the tool {name!r} was run without a tool:pre before it"
                return
        if turn.is_cancelled or turn.context_failed:
            continue
        # A loop may treat any other value than a ToolResult as an error.
        returns = [
            at
            for at, entry in turn.entries("returned", name)
            if not getattr(entry.data["call"], "is_odd", False)
        ]
        if not _followed(turn, returns, "tool:post", name):
            yield "O8", f"the tool {name!r} returned, and no tool:post followed"
        if not _followed(turn, turn.positions("raised", name), "tool:error", name):
            yield "O14", f"the tool {name!r} raised, and no tool:error followed"


def _check_payload(turn: RecordedTurn, event: str, data: Mapping[str, Any]) -> Iterator[Violation]:
    name, call_id = data.get("tool_name"), data.get("tool_call_id")
    calls = turn.calls
    if not isinstance(name, str):
        yield "O8", f"{event} does not name the tool it is about (tool_name is {name!r})"
    elif (
        call_id is not None
        and calls
        and not any(call.id == call_id and call.tool == name for call in calls)
    ):
        what = f"{event} is about the tool {name!r} and the call {call_id!r}"
        yield "O8", f"{what}, which do not belong together"
    if event == "tool:post" and not any(key in data for key in RESULT_KEYS):
        yield "O8", "tool:post does not hold the tool's result (neither tool_result nor result)"


def _followed(turn: RecordedTurn, positions: list[int], event: str, name: str) -> bool:
    """Return whether each position can be paired with an event after it."""
    events = [
        at for at, entry in turn.entries("event", event) if entry.data.get("tool_name") == name
    ]
    return all(
        sum(at < event_at for event_at in events) >= len(positions) - index
        for index, at in enumerate(positions)
    )


# ── requests ──


def _check_requests(turn: RecordedTurn) -> Iterator[Violation]:
    """Check that each request contains the view that the context returned for it, in order."""
    # The number of messages in the views of such a turn is limited.
    if turn.is_limited:
        return
    before = -1
    for position, asked in turn.entries("asked"):
        if asked.data is None:
            yield "O10", "the provider was called with something that is not a ChatRequest"
            return
        views = [view.data for at, view in turn.entries("view") if before < at < position]
        request = asked.data["messages"]
        # A retry after an error may send the same request again.
        if not views and not any(before < at < position for at in turn.positions("failed")):
            yield (
                "O10",
                "a request was made without a call of get_messages_for_request since the last one",
            )
            return
        missing = (
            _missing(views, request)
            or _missing_calls(turn, views, request)
            or _missing_results(turn, position, request)
        )
        if views and missing:
            what = "a request leaves out a part of the view that get_messages_for_request returned"
            yield "O10", f"{what}: {missing}"
            return
        if "earlier0x" in words_of(request) and views and "earlier0x" not in words_of(views):
            yield "O10", "a request shows messages that get_messages_for_request had left out"
            return
        before = position


def _missing(views: list[list[dict[str, Any]]], request: list[dict[str, Any]]) -> str | None:
    """Return the part of the newest view that a request lacks.

    Return None if the request contains that view, or an older one that differs only in its first
    message.
    """
    missing = None
    newest = [_shape(message) for message in views[-1][1:]] if views else []
    for view in reversed(views):
        if [_shape(message) for message in view[1:]] != newest:
            continue
        lacking = _not_in_order(view, request)
        if lacking is None:
            return None
        missing = missing or lacking
    return missing


def _missing_calls(
    turn: RecordedTurn, views: list[list[dict[str, Any]]], request: list[dict[str, Any]]
) -> str | None:
    """Return a call of the view's assistant messages that the request lacks, or None."""
    viewed = words_of(
        [message for view in views[-1:] for message in view if message.get("role") == "assistant"]
    )
    shown = words_of([message for message in request if message.get("role") == "assistant"])
    ids = [call.id for call in turn.calls]
    return next(
        (f"the call {call_id!r}" for call_id in ids if call_id in viewed and call_id not in shown),
        None,
    )


def _missing_results(
    turn: RecordedTurn, position: int, request: list[dict[str, Any]]
) -> str | None:
    """Return a result that was stored before the request and is not in it, or None.

    If there is one, the loop used a view that was too old.
    """
    stored = [call_id for at, call_id, _ in turn.stored_results if at < position]
    shown = {call_id for message in request for call_id, _ in results_in(message)}
    missing = (call_id for call_id in stored if call_id not in shown)
    return next((f"the result of {call_id!r}, stored before" for call_id in missing), None)


def _shape(message: Mapping[str, Any]) -> tuple[Any, ...]:
    return message.get("role"), message.get("tool_call_id"), text_of(message.get("content"))


def _not_in_order(view: list[dict[str, Any]], request: list[dict[str, Any]]) -> str | None:
    position = 0
    for message in view:
        role, call_id, text = _shape(message)
        # An empty message may be left out.
        if not text.strip() and not call_id:
            continue
        while position < len(request) and not _shows(request[position], role, call_id, text):
            position += 1
        if position == len(request):
            return f"the {role} message {text[:60]!r}"
        # The next one may be in the same message, since a loop may join messages of one role.
        shown, content = words_of(request[position:]), message.get("content")
        for block in content if isinstance(content, list) else []:
            signature = block.get("signature") if isinstance(block, Mapping) else None
            if signature and str(signature) not in shown:
                return f"{signature!r}, the signature of a thought"
    return None


def _shows(message: Mapping[str, Any], role: Any, call_id: Any, text: str) -> bool:
    if message.get("role") != role or (
        call_id and call_id not in [result_id for result_id, _ in results_in(message)]
    ):
        return False
    shown = text_of(message.get("content")) or words_of(message.get("content"))
    return text.strip() in shown or bool(call_id)


# ── the transcript ──


def _check_transcript(turn: RecordedTurn) -> Iterator[Violation]:
    """Check that each answer is stored unchanged, then one result for each of its calls, in order.

    All of them have to be stored before the next model call.
    """
    if turn.context_failed or turn.broke_on_odd_result:
        return
    known = {call.id for call in turn.calls}
    for _, call_id, _ in turn.stored_results:
        if call_id not in known:
            what = f"a result was stored under {call_id!r}, which is not the id of a call"
            yield "O12", f"{what}; there are {sorted(known)}"
            return
    for position, answer in turn.answers:
        stored_at = _stored_at(turn, position, answer)
        yield from _check_stored(turn, position, stored_at, answer)
        if answer.calls:
            yield from _check_results(turn, position, stored_at, answer)


def _check_stored(
    turn: RecordedTurn, position: int, stored_at: int | None, answer: Answer
) -> Iterator[Violation]:
    defined = answer.structured(also=())
    if stored_at is None:
        if not answer.number or turn.is_cancelled or turn.was_stopped:
            return
        if answer.calls or answer.texts or defined:
            shown = answer.texts or [call.id for call in answer.calls]
            yield "O24", f"the model's answer {shown} was not stored"
        elif answer.structured():
            yield "O30", f"the model's answer {answer.structured()} was not stored"
        return
    # A loop may store an answer in several messages, and add other messages.
    until = min((at for at in turn.positions("answered") if at > position), default=len(turn.log))
    places = {at for at in turn.positions("stored", "assistant") if position < at < until} | {
        stored_at
    }
    messages = [turn.log[at].data for at in sorted(places)]
    words = words_of(messages)
    for text in answer.texts:
        if text.strip() not in words:
            yield "O24", f"the text {text[:60]!r} of an answer was not stored with it"
    for call in answer.calls:
        if call.key not in words:
            yield "O24", f"the arguments of the call {call.id!r} were not stored with the answer"
    contents = [message.get("content") for message in messages]
    blocks = [block for content in contents if isinstance(content, list) for block in content]
    for clause, expected in (("O24", defined), ("O30", answer.structured())):
        missing = _first_missing(expected, blocks)
        if missing is not None:
            what = f"a {missing['type']} block was not stored as it came: {missing}"
            stored = str(contents[0] if len(contents) == 1 else contents)
            yield clause, f"{what}; stored was {stored[:160]}"
            return


def _first_missing(expected: list[dict[str, Any]], blocks: list[Any]) -> dict[str, Any] | None:
    """Return the first expected block that is missing, or None if all are present in order."""
    position = 0
    for block in expected:
        while position < len(blocks) and not _holds(blocks[position], block):
            position += 1
        if position == len(blocks):
            return block
        position += 1
    return None


def _holds(block: Any, expected: Mapping[str, Any]) -> bool:
    if not isinstance(block, Mapping):
        return False
    # A block of an unknown type has its fields in "extra".
    extra = block.get("extra")
    shown = {**(extra if isinstance(extra, Mapping) else {}), **block}
    return all(shown.get(key) == value for key, value in expected.items())


def _stored_at(turn: RecordedTurn, position: int, answer: Answer) -> int | None:
    """Return the position of the stored message of an answer, or None if it was not stored."""
    ids = [call.id for call in answer.calls]
    for at, entry in turn.entries("stored", "assistant"):
        if at <= position or not all(call_id in words_of(entry.data) for call_id in ids):
            continue
        is_of_a_later_answer = any(position < later < at for later in turn.positions("answered"))
        return None if not ids and is_of_a_later_answer else at
    return None


def _check_results(
    turn: RecordedTurn, position: int, stored_at: int | None, answer: Answer
) -> Iterator[Violation]:
    ids = [call.id for call in answer.calls]
    stored = [result for result in turn.stored_results if result[1] in ids]
    order = [call_id for _, call_id, _ in stored]
    if stored_at is None:
        storing = [
            words_of(entry.data)
            for _, entry in turn.entries("storing", "assistant")
            if turn.is_cancelled
        ]
        # Nothing shows whether the cancelled add_message stored the answer.
        if stored and any(all(call_id in text for call_id in ids) for text in storing):
            return
        if stored:
            orphans = sorted(set(order))
            yield "O11", f"results of {orphans} were stored without the answer that has these calls"
        elif not turn.is_cancelled and not turn.was_stopped:
            yield "O13", f"the calls {ids} got no results"
        return
    if stored and stored[0][0] < stored_at:
        yield (
            "O11",
            f"the result of {stored[0][1]!r} was stored before the answer that has the call",
        )
    asked = turn.next_asked(position)
    for call in answer.calls:
        if order.count(call.id) != 1:
            what = f"the call {call.id!r} ({_fate(turn, call)}) got {order.count(call.id)} results"
            yield "O13", f"{what} in a turn that {_ending(turn)}"
            return
    if order != ids:
        yield "O12", f"the calls were {ids}, and their results were stored as {order}"
    if asked is not None and any(at > asked for at, _, _ in stored):
        yield "O13", "the model was called again before every call of its answer had a result"
    if not turn.is_cancelled:
        yield from _check_contents(turn, answer, {call_id: result for _, call_id, result in stored})


def _fate(turn: RecordedTurn, call: Call) -> str:
    if call.does == "unknown":
        return "its tool does not exist"
    decisions = [
        decision.data["what"]
        for _, decision in turn.entries("decision", "tool:pre")
        if decision.data["number"] == call.number
    ]
    if decisions:
        return f"a hook returned: {decisions[0]}"
    ran = any(entry.data["call"] == call for _, entry in turn.entries("started"))
    return f"its tool {call.does}" if ran else "its tool was not run"


def _check_contents(
    turn: RecordedTurn, answer: Answer, results: dict[str, Any]
) -> Iterator[Violation]:
    finished = {
        entry.data["call"].key
        for _, entry in turn.entries("returned")
        if entry.data["call"] is not None
    }
    for call in answer.calls:
        if (
            not call.is_marked
            or call.post in ("modify", "deny", "deny silently")
            or call.pre in _REFUSALS
        ):
            continue
        if turn.was_stopped and call.key not in finished:
            continue
        text = words_of(results[call.id])
        if call.mark in text:
            lost = [word for word in _PARTS.get(call.does, ()) if not _is_in(word, text)]
            if lost:
                what = f"the result stored for {call.id!r} does not hold {lost[0]!r}"
                yield "O13", f"{what} of the result of the tool: {text[:120]!r}"
                return
            continue
        others = [
            other.id for other in answer.calls if other.key != call.key and other.mark in text
        ]
        if others:
            yield "O12", f"under the id {call.id!r} the result of the call {others[0]!r} was stored"
        else:
            what = f"the result stored for {call.id!r} does not hold the result of the tool"
            yield "O13", f"{what}: {text[:120]!r}"
        return


_PARTS = {
    "returns object": ("list", "1", "deep", "ä"),
    "returns list": ("2.5", "a"),
    "fails": ("it did not work",),
}
"""The parts of a result that have to reach the model, in addition to its mark, by tool action."""


def _is_in(word: str, text: str) -> bool:
    """Return whether a text holds a word, plain or escaped as in JSON."""
    return word in text or json.dumps(word)[1:-1] in text


_REFUSALS = (
    "deny",
    "deny silently",
    "ask no",
    "ask yes",
    "ask yes, inject",
    "ask yes, inject once",
)


def hook_violations(turn: RecordedTurn) -> Iterator[Violation]:
    """Yield the hook results of a turn that the loop did not follow."""
    calls = {call.number: call for call in turn.script.calls}
    for position, decision in turn.entries("decision"):
        what, number = decision.data["what"], decision.data["number"]
        if decision.name == "tool:pre":
            yield from _check_pre(turn, position, calls[number], decision)
        elif decision.name == "tool:post":
            yield from _check_post(turn, calls[number], decision)
        elif decision.data["action"] == "deny":
            later = [at for at in turn.positions("asked") if at > position]
            if later:
                yield "O20", f"the model was called although a hook had denied {decision.name}"
        if what in ("inject once", "inject into the result", "ask yes, inject once"):
            yield from _check_injected_once(turn, position, decision)
        if what in ("inject", "inject as user", "ask yes, inject") and decision.name in (
            "tool:pre",
            "tool:post",
        ):
            yield from _check_injection(turn, position, decision)


def _check_pre(
    turn: RecordedTurn, position: int, call: Call, decision: LogEntry
) -> Iterator[Violation]:
    runs = [
        entry.data["input"] for _, entry in turn.entries("started") if entry.data["call"] == call
    ]
    what = decision.data["what"]
    if what in ("deny", "deny silently"):
        if runs:
            yield "O15", f"the tool {call.tool!r} was run although a hook had denied it at tool:pre"
        elif what == "deny" and not _reaches_model(turn, position, call, decision.data["word"]):
            yield "O15", "a hook denied a tool at tool:pre, and the model did not get the reason"
    elif what == "modify":
        wrong = [arguments for arguments in runs if arguments != {"key": call.new_key}]
        if wrong:
            change = f"a hook changed the tool's arguments to {call.new_key!r} at tool:pre"
            yield "O16", f"{change}, and it got {wrong[0]}"
    elif what.startswith("ask "):
        answers = [
            entry.data
            for _, entry in turn.entries("approval")
            if decision.data["word"] in entry.name
        ]
        if runs and "Allow" not in answers:
            how = "the user denied it" if answers else "the user was not asked"
            yield "O17", f"a hook asked for approval at tool:pre, {how}, and the tool was run"
        if not runs and "Allow" in answers:
            request = "a hook asked for approval at tool:pre"
            yield "O17", f"{request}, the user allowed it, and the tool was not run"


def _reaches_model(turn: RecordedTurn, position: int, call: Call, word: str) -> bool:
    requests = [
        asked.data
        for at, asked in turn.entries("asked")
        if at > position and asked.data is not None
    ]
    return any(word in words_of(value) for value in (_result(turn, call), *requests))


def _check_post(turn: RecordedTurn, call: Call, decision: LogEntry) -> Iterator[Violation]:
    text = words_of(_result(turn, call))
    what = decision.data["what"]
    if what == "modify" and text and (call.mark in text or call.new_mark not in text):
        change = f"a hook changed the result to {call.new_mark!r} at tool:post"
        yield "O16", f"{change}, and stored was {text[:120]!r}"
    if what in ("deny", "deny silently") and call.mark in text:
        yield "O29", "a hook denied a result at tool:post, and it was stored all the same"
    elif what == "deny" and text and decision.data["word"] not in text:
        stored = f"stored was {text[:120]!r}, without its reason"
        yield "O29", f"a hook denied a result at tool:post, and {stored}"


def _result(turn: RecordedTurn, call: Call) -> Any:
    """Return the stored result of a call, or None if there is none."""
    return next((result for _, call_id, result in turn.stored_results if call_id == call.id), None)


def _check_injection(turn: RecordedTurn, position: int, decision: LogEntry) -> Iterator[Violation]:
    word = decision.data["word"]
    stored = [at for at, entry in turn.entries("stored") if word in words_of(entry.data)]
    asked = turn.next_asked(position)
    subject = f"the text that a hook injected at {decision.name}"
    if not stored:
        yield "O18", f"{subject} was not stored"
    elif len(stored) > 1:
        yield "O18", f"{subject} was stored {len(stored)} times"
    elif asked is not None and stored[0] > asked:
        yield "O18", f"{subject} was stored only after the model had been called again"


def _check_injected_once(
    turn: RecordedTurn, position: int, decision: LogEntry
) -> Iterator[Violation]:
    word = decision.data["word"]
    if any(word in words_of(entry.data) for _, entry in turn.entries("stored")):
        subject = "the text that a hook injected for one request only"
        yield "O19", f"{subject}, at {decision.name}, was stored"
    later = [word in words_of(asked.data) for at, asked in turn.entries("asked") if at > position]
    times = sum(later)
    # At prompt:submit a loop need only follow a deny.
    if later and not later[0] and decision.name != "prompt:submit":
        subject = "the text that a hook injected for the next request"
        yield "O19", f"{subject}, at {decision.name}, was not in it"
    elif times > 1:
        subject = "the text that a hook injected for one request"
        yield "O19", f"{subject}, at {decision.name}, was in {times} of them"


_MAX_ATTEMPTS = 20


def error_violations(turn: RecordedTurn) -> Iterator[Violation]:
    """Check that execute raises the error of a provider unchanged, and that it is emitted."""
    failed, outcome = turn.entries("failed"), turn.outcome
    if not failed or outcome is None:
        return
    if outcome.kind == "late":
        if len(failed) > _MAX_ATTEMPTS:
            what = f"a provider that always fails was called {len(failed)} times"
            yield "O23", f"{what}, and the turn had not ended"
        return
    # A later attempt was answered.
    if turn.answers and turn.answers[-1][0] > failed[-1][0]:
        return
    error = failed[-1][1].data
    if not isinstance(outcome.error, type(error)):
        yield "O21", f"the provider raised {type(error).__name__}, and execute {outcome}"
    if not turn.positions("event", "provider:error"):
        yield (
            "O26",
            f"the provider raised {type(error).__name__}, and no provider:error was emitted",
        )


def stop_violations(turn: RecordedTurn, *, is_on_island: bool = False) -> Iterator[Violation]:
    """Check that running tools finish after a graceful stop, and that nothing new starts.

    Args:
        turn: The record of the turn.
        is_on_island: True if the loop runs in a different thread than its tools. A call to a tool
            that was announced before the stop may then be on its way.
    """
    stops = turn.positions("stop")
    if not stops:
        return
    stop = stops[0]
    if turn.next_asked(stop) is not None:
        yield "O22", "the model was called after a graceful stop"
    on_the_way = {
        (event.data or {}).get("tool_name")
        for at, event in turn.entries("event")
        if is_on_island and event.name == "tool:pre" and at < stop
    }
    for at, tool in turn.entries("started"):
        if at > stop and tool.name not in on_the_way:
            yield "O22", f"the tool {tool.name!r} was started after a graceful stop"
            break
    for at, tool in turn.entries("interrupted"):
        if at > stop and not turn.is_cancelled:
            yield "O22", f"the running tool {tool.name!r} was cancelled by a graceful stop"
            break
