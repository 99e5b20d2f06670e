"""From the lines of a log to the rows of a trace."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.events import CATALOGUE, TRACE_ROLES
from amplifier.tracing import (
    Row,
    Trace,
    compare,
    page_data,
    slowest,
    totals,
    write_comparison_text,
    write_text,
)
from tests.tracing._logs import line, model_call, small_session, tool_call, turn


def read(*lines: bytes, session_id: str = "s") -> Trace:
    trace = Trace(session_id)
    trace.add_lines(lines)
    return trace


def tree(trace: Trace) -> list[str]:
    return [
        f"{'  ' * depth}{row.kind} {row.name} {row.status}".rstrip() for row, depth in trace.walk()
    ]


def only(trace: Trace, kind: str) -> Row:
    (row,) = [row for row in trace.rows if row.kind == kind]
    return row


@pytest.mark.parametrize("is_reported", [True, False])
def test_compaction_is_row_with_summary(is_reported):
    """It counts once."""
    counted = {"input_tokens": 100, "output_tokens": 10, "cache_read_tokens": 80}
    wire = [
        line("llm:request", 1, model="m-1"),
        line("llm:response", 2, model="m-1", usage=counted),
    ]
    told: dict[str, Any] = {
        "tier": "summary",
        "before_tokens": 900,
        "after_tokens": 400,
        "usage": counted,
    }
    inside = [
        line("context:pre_compact", 1, message_count=9, token_count=900),
        *(wire if is_reported else []),
        line("context:post_compact", 2.5, message_count=4, token_count=400),
        line("context:compaction", 3, **told),
    ]
    trace = read(line("session:start"), *turn(1, *inside, *model_call(3, 1, cost=None), end=4))
    below = ["      model model ok"] if is_reported else []
    assert tree(trace) == [
        "session s open",
        "  turn turn ok",
        "    compaction compaction ok",
        *below,
        "    model mock ok",
    ]
    row = only(trace, "compaction")
    assert (row.text, row.seconds) == ("summary: 900 → 400 tokens", 2.0)
    total = totals(trace)
    assert (total.input_tokens, total.cache_read_tokens) == (110, 80)
    assert "125 tokens (73% of the input cached)" in write_text(trace)


def test_session_is_tree_of_turns_and_calls():
    trace = read(*small_session())
    assert tree(trace) == [
        "session s ok",
        "  turn turn ok",
        "    model mock ok",
        "    tool bash ok",
        "    model mock ok",
    ]
    model = trace.rows[2]
    assert (model.seconds, model.first_token, model.model) == (2.0, 1.0, "m-1")
    assert (model.input_tokens, model.output_tokens, model.cost) == (10, 5, Decimal("0.01"))
    assert model.text == "hello"
    assert only(trace, "tool").text == '{"command": "ls"}'
    total = totals(trace)
    assert (total.turns, total.model_calls, total.tool_calls, total.steps) == (1, 2, 1, 3)
    assert (total.tokens, total.cost, total.seconds) == (30, Decimal("0.02"), 4.0)
    assert (total.model_seconds, total.tool_seconds, total.errors) == (3.0, 0.5, 0)


def test_parallel_calls_keep_their_events():
    first, second = tool_call(1, 5, "a", name="read"), tool_call(2, 1, "b", name="write")
    said = line("user:notification", 2.5, tool_call_id="a", message="half")
    trace = read(*turn(0, first[0], second[0], said, second[1], first[1], end=7))
    assert tree(trace)[2:] == [
        "    tool read ok",
        "      event user:notification",
        "    tool write ok",
    ]
    assert [row.seconds for row in trace.rows if row.kind == "tool"] == [5.0, 1.0]


@pytest.mark.parametrize("parent_first", [True, False])
def test_child_session_is_below_its_call(parent_first):
    child = [
        line("session:fork", 2, "child", parent_id="s", parent_call_id="c1"),
        *turn(2, *model_call(2, 1, "child"), end=4, session_id="child"),
    ]
    parent = turn(0, *tool_call(1, 4, name="task"), end=6)
    trace = read(*parent, *child) if parent_first else read(*child, *parent)
    assert tree(trace) == [
        "session s open",
        "  turn turn ok",
        "    tool task ok",
        "      session child open",
        "        turn turn ok",
        "          model mock ok",
    ]
    assert totals(trace).sessions == 2
    assert totals(trace).seconds == 6.0


def test_reused_id_means_running_call():
    calls = [*turn(0, *tool_call(1, 1), end=3), *turn(10, *tool_call(11, 1), end=13)]
    child = line("session:fork", 1.5, "child", parent_id="s", parent_call_id="c1")
    trace = read(*calls, child)
    session = trace.rows[-1]
    assert session.parent is not None
    assert trace.rows[session.parent].start == trace.rows[2].start


def test_denied_call_has_one_row():
    about = {"tool_name": "bash", "tool_call_id": "c1", "tool_input": {"command": "rm"}}
    error = {"message": "denied: not here", "type": "Denied"}
    trace = read(*turn(0, line("tool:error", 1, level="ERROR", error=error, **about), end=2))
    row = only(trace, "tool")
    assert (row.status, row.text) == ("denied", 'denied: not here {"command": "rm"}')
    assert totals(trace).denied == 1


def test_denial_by_person_is_not_slow():
    about = {"tool_name": "bash", "tool_call_id": "c1"}
    question = {"hook_name": "hooks-approval", "event": "tool:pre", "prompt": "Allow it?", **about}
    trace = read(
        *turn(
            0,
            line("tool:pre", 1, tool_input={"command": "rm"}, **about),
            line("approval:required", 1, **question),
            line("approval:denied", 60, **question),
            line(
                "tool:error",
                61,
                level="ERROR",
                error={"message": "denied: no", "type": "Denied"},
                **about,
            ),
            end=62,
        )
    )
    assert totals(trace).denied == 1
    assert [row.kind for row in slowest(trace)] == ["tool"]


def test_error_and_result_make_one_row():
    before, after = tool_call(1, 1)
    error = line("tool:error", 1.5, tool_name="bash", tool_call_id="c1", error="broken")
    trace = read(*turn(0, before, error, after, end=3))
    assert len([row for row in trace.rows if row.kind == "tool"]) == 1


def test_question_lasts_until_answered():
    asked = {"hook_name": "gate", "event": "tool:pre", "prompt": "May it?"}
    trace = read(
        line("approval:required", 1, **asked),
        line("approval:denied", 4, level="WARNING", **asked, reason="no"),
        line("approval:granted", 5, **asked, remembered=True),
    )
    first, second = [row for row in trace.rows if row.kind == "approval"]
    assert (first.seconds, first.status, first.text) == (3.0, "denied", "May it? (no)")
    assert (second.seconds, second.status) == (0.0, "ok")


def test_cancelled_turn_ends_its_calls():
    before, _after = tool_call(2, 1)
    trace = read(
        line("execution:start", 0, prompt="x"),
        line("provider:request", 1, provider="mock"),
        before,
        line("cancel:requested", 3, state="immediate"),
        line("execution:end", 4, status="cancelled"),
        line(
            "cancel:completed",
            4,
            was_immediate=True,
            stopped=[
                {"what": "tool call bash", "module": None, "seconds": 1.0, "outcome": "ended"},
                {"what": "cleanup", "module": "tool-x", "seconds": None, "outcome": "abandoned"},
                "no part",
            ],
        ),
    )
    assert trace.rows[5].text == "stopped tool call bash in 1.0 s; cleanup of tool-x would not stop"
    assert [(row.kind, row.status) for row in trace.rows[1:]] == [
        ("turn", "cancelled"),
        ("model", "cancelled"),
        ("tool", "cancelled"),
        ("cancel", ""),
        ("cancel", ""),
    ]
    assert trace.rows[3].seconds == 2.0
    assert totals(trace).cancelled == 1  # the turn; its calls went with it


def test_killed_process_leaves_open_calls():
    before, _after = tool_call(2, 1)
    trace = read(
        line("session:start"),
        line("execution:start", 1),
        before,
        line("session:resume", 9),
        *turn(10, end=11),
    )
    assert tree(trace) == [
        "session s open",
        "  turn turn open",
        "    tool bash open",
        "  turn turn ok",
    ]
    assert "no end in the log" in write_text(trace)


def test_model_failures_are_errors():
    trace = read(
        *turn(
            0,
            line("provider:request", 1, provider="mock"),
            line("provider:retry", 2, level="WARNING", error_type="X", error_message="busy"),
            line("provider:error", 3, level="ERROR", error={"type": "X", "message": "gone"}),
            end=4,
            status="error",
        )
    )
    assert tree(trace)[1:] == [
        "  turn turn error",
        "    model mock error",
        "      event provider:retry",
        "      event provider:error error",
    ]
    assert trace.rows[-1].text == "gone"


def test_provider_without_reporting_loop_has_rows():
    trace = read(
        line("llm:request", 1, model="m"),
        line("llm:response", 3, model="m", usage={"input_tokens": 3}),
    )
    assert (only(trace, "model").seconds, only(trace, "model").input_tokens) == (2.0, 3)


def test_unstreamed_answer_has_no_first_token():
    trace = read(
        line("provider:request", 1),
        line("content_block:start", 2, block_index=0, total_blocks=1),
        line("provider:response", 2),
    )
    assert only(trace, "model").first_token is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"not json\n", "not JSON"),
        (b'{"ts":"2026-01-01T00:00:00+00:00","event":"tool:p', "incomplete"),
        (b"[1]\n", "expected a JSON object, got list"),
        (b"{}\n", "expected a member 'event'"),
        (b'{"event":"x","schema":{"ver":"2.0.0"}}\n', "version 2.0.0 of the format, expected 1.x"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 100_000 + b"\n", "not JSON"),
    ],
)
def test_unreadable_line_has_row_with_reason(text, reason):
    trace = read(*small_session(), text)
    row = only(trace, "unread")
    assert reason in row.text
    assert totals(trace).unread == 1
    assert "1 line not read" in write_text(trace)


def test_consecutive_unread_lines_share_row():
    trace = read(b"x\n", b"y\n", b"\n", b"[]\n")
    assert [row.name for row in trace.rows] == ["2 lines not read", "1 line not read"]


def test_slowest_row_takes_time_itself():
    child = [
        line("session:fork", 2, "child", parent_id="s", parent_call_id="c1"),
        *turn(2, *model_call(2, 7, "child"), end=9, session_id="child"),
        line("session:end", 9, "child", status="completed"),
    ]
    trace = read(*turn(0, *tool_call(1, 9, name="task"), *tool_call(10, 3, "c2"), end=13), *child)
    assert [(row.kind, row.name) for row in slowest(trace)] == [
        ("model", "mock"),
        ("tool", "bash"),
        ("tool", "task"),
    ]


def test_circular_parents_form_no_cycle():
    trace = read(
        line("session:fork", 0, "a", parent_id="b"), line("session:fork", 1, "b", parent_id="a")
    )
    assert len(list(trace.walk())) == 2


def test_every_change_is_visible_by_revision():
    trace = Trace("s")
    known: dict[int, tuple[Any, ...]] = {}
    revision = 0
    for text in [*small_session(), *turn(7, *tool_call(8, 1)[:1], end=9, status="cancelled")]:
        trace.add_lines([text])
        for row in trace.rows:
            if row.revision > revision:
                known[row.number] = (row.status, row.end, row.parent, row.text, len(row.events))
        revision = trace.revision
        assert known == {
            row.number: (row.status, row.end, row.parent, row.text, len(row.events))
            for row in trace.rows
        }


def test_journal_is_part_of_its_call():
    trace = read(line("execution:start"), tool_call(1, 1)[0])
    trace.add_steps(
        [
            {"step": "answered"},
            {"step": "started", "call": "c1"},
            {"step": "finished", "call": "c2"},
        ]
    )
    assert [getattr(event, "name", "") for event in trace.rows[2].events] == [
        "tool:pre",
        "journal:started",
    ]
    assert (trace.rows[-1].name, trace.rows[-1].text) == ("c2", "in the step journal: finished")


def test_text_has_no_terminal_escapes():
    about: dict[str, Any] = {
        "tool_name": "b\x1b[2Jash",
        "tool_call_id": "c",
        "tool_input": {"x": "\x1b]0;t\x07"},
    }
    trace = read(line("tool:pre", **about), b"\x1b[31m\n")
    trace.notes.append("\x1b[2J")
    assert "\x1b" not in write_text(trace)


KINDS = {
    "invoke_agent": {"turn"},
    "chat": {"model"},
    "execute_tool": {"tool"},
    "none": {"model"},
    "event": {"event", "approval", "hook", "cancel", "compaction"},
    "session": {"session", "event", "cancel"},
}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_catalogue_event_becomes_row_of_its_role(name):
    begun = [line("session:start"), line("execution:start", 1), line("provider:request", 2)]
    trace = read(*begun, line(name, 3, tool_name="bash", tool_call_id="c1"))
    (row,) = [row for row in trace.rows if row.events[-1].number == 4]
    assert row.kind in KINDS[TRACE_ROLES[name]]


names = st.sampled_from(sorted(CATALOGUE)) | st.text(max_size=20)
ids = st.sampled_from(["", "s", "a", "b", "c1", "c2"])
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | ids,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
keys = st.sampled_from(
    [
        *(
            "tool_call_id",
            "tool_name",
            "tool_input",
            "tool_result",
            "error",
            "usage",
            "response",
            "provider",
            "model",
        ),
        *(
            "parent_id",
            "parent_call_id",
            "status",
            "prompt",
            "hook_name",
            "event",
            "reason",
            "block_index",
            "total_blocks",
        ),
    ]
)
payloads = st.dictionaries(keys, values | ids, max_size=6)
times = st.sampled_from(
    ["2026-01-01T00:00:00+00:00", "2026-01-01T00:00:09", "", "x", "0001-01-01T00:00:00+23:59"]
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    record = {
        "ts": draw(times | values),
        "lvl": draw(st.sampled_from(["INFO", "ERROR"]) | values),
        "event": draw(names | values),
        "session_id": draw(ids | values),
        "data": draw(payloads | values),
    }
    return json.dumps(record).encode() + b"\n"


lines_of_logs = st.lists(
    records()
    | st.binary(max_size=30)
    | st.sampled_from([*small_session(), *tool_call(1, 1), b"\n", b"{", b"[]\n"]),
    max_size=30,
)


@given(lines_of_logs)
def test_every_line_is_in_one_row(lines):
    trace = read(*lines)
    trace.add_steps([{"step": "started", "call": "c1"}])
    numbers = sorted(event.number for row in trace.rows for event in row.events)
    assert numbers == list(range(1, trace.lines + 1))
    assert trace.lines == 1 + sum(bool(line.strip()) for line in lines)
    walked = [row.number for row, _depth in trace.walk()]
    assert sorted(walked) == list(range(len(trace.rows)))
    total = totals(trace)
    assert total.seconds >= 0
    assert "\x1b" not in write_text(trace)
    assert all(row.seconds is None or row.seconds >= 0 for row in trace.rows)
    json.dumps(page_data(trace), allow_nan=False, ensure_ascii=False).encode()
    assert len(write_comparison_text(compare(trace, trace)).splitlines()) >= 14
