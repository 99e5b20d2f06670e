"""Open sessions that several callers use: claims, ends, questions, watchers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession, ModuleLoader
from amplifier.errors import QuotaExceededError, SessionBusyError
from amplifier.models import TextDelta, TurnEvent
from amplifier.models.turns import TurnRecord
from amplifier.shared_sessions import (
    EventLog,
    LiveSession,
    LiveSessions,
    LiveTurn,
    Question,
    Questions,
    SessionRefused,
    questions_on,
    run_turn,
)
from tests.cli._scripted_agent import call, mount_hook, mount_provider, mount_tools

PLAN: dict[str, Any] = {
    "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
    "providers": ["provider-scripted"],
    "tools": ["tool-scripted"],
    "hooks": ["hooks-ask"],
}


def made(session_id: str = "one", approvals: Any = None) -> AmplifierSession:
    modules = {
        "provider-scripted": mount_provider,
        "tool-scripted": mount_tools,
        "hooks-ask": mount_hook,
    }
    return AmplifierSession(
        PLAN, ModuleLoader(modules=modules), session_id=session_id, approval_system=approvals
    )


async def ignore(event: TurnEvent, text: str) -> None:
    pass


@asynccontextmanager
async def opened(
    session_id: str = "one", **options: Any
) -> AsyncIterator[tuple[LiveSessions[None], LiveSession[None]]]:
    sessions: LiveSessions[None] = LiveSessions(**options)
    async with sessions.running():
        with sessions.reserved(session_id):
            live = await sessions.add(LiveSession(made(session_id), None), lambda session: None)
        yield sessions, live


async def until_streaming(live: LiveSession[None], turn: LiveTurn, group: Any) -> None:
    """Run a turn in a task, and return when the model writes."""
    writes = anyio.Event()

    async def show(event: TurnEvent, text: str) -> None:
        if isinstance(event, TextDelta):
            writes.set()

    async def run() -> None:
        try:
            await live.run_turn(turn, show)
        finally:
            live.end_turn(turn)

    group.start_soon(run)
    await writes.wait()


# ── a turn ──


async def test_turn_failure_ends_turn_only():
    """A failure of the caller propagates."""
    async with made() as session:
        ended = await run_turn(session, "fail", TurnRecord(), ignore)
        assert (ended.status, type(ended.error)) == ("error", QuotaExceededError)

        async def leave(event: TurnEvent, text: str) -> None:
            if text:
                raise ConnectionError("the client has left")

        with pytest.raises(ConnectionError, match="the client has left"):
            await run_turn(session, "say hello there", TurnRecord(), leave)
        record = TurnRecord()
        ended = await run_turn(session, "say again", record, ignore)
        assert (ended.status, ended.error, record.rest(ended.result)) == ("success", None, "")


async def test_second_turn_is_refused(tmp_path, monkeypatch):
    """Closing stops the first one."""
    monkeypatch.chdir(tmp_path)
    async with opened() as (sessions, live), anyio.create_task_group() as group:
        turn = live.begin_turn("hang")
        with pytest.raises(SessionBusyError, match="is running a turn"):
            live.begin_turn("say no")
        await until_streaming(live, turn, group)
        await live.close()
        assert (turn.ended.status, turn.record.unfinished) == ("cancelled", "hanging ")
        assert sessions.all() == []
        with pytest.raises(SessionBusyError, match="is being closed"):
            live.begin_turn("say no")


async def test_abandoned_claim_frees_session():
    freed: list[str] = []
    async with opened() as (_, live):
        turn = live.begin_turn("say hello")
        turn.claims.callback(freed.append, "place")
        live.end_turn(turn)
        live.end_turn(turn)
        assert (freed, live.is_busy, turn.ended.status) == (["place"], False, "cancelled")
        assert not live.stop("nothing runs")


# ── all sessions ──


async def test_id_is_open_once_within_limit():
    async with opened(most=2) as (sessions, live):
        with pytest.raises(SessionRefused) as refused, sessions.reserved("one"):
            pass
        assert refused.value.code == "session_open"
        with (
            sessions.reserved("two"),
            pytest.raises(SessionRefused) as refused,
            sessions.reserved("three"),
        ):
            pass
        assert refused.value.code == "too_many_sessions"
        async with sessions.without(live.session_id):
            assert sessions.find("one") is None
            with pytest.raises(SessionRefused), sessions.reserved("one"):
                pass
        with sessions.reserved("one"):
            await sessions.add(LiveSession(made(), None), lambda session: None)
        await sessions.close_all()
        assert len(sessions) == 0
        with pytest.raises(SessionRefused) as refused, sessions.reserved("four"):
            pass
        assert refused.value.code == "stopping"


async def test_session_failing_check_is_closed():
    session = made("two")

    async def refuse(opened: AmplifierSession) -> None:
        raise ValueError("no provider")

    async with opened() as (sessions, _):
        with pytest.raises(ValueError, match="no provider"), sessions.reserved("two"):
            await sessions.add(LiveSession(session, None), refuse)
        assert not session.initialized
        assert sessions.find("two") is None


async def test_opening_needs_running_sessions():
    sessions: LiveSessions[None] = LiveSessions()
    with pytest.raises(SessionRefused, match="has to run its lifespan") as refused:
        await sessions.add(LiveSession(made(), None), lambda session: None)
    assert refused.value.code == "not_started"


# ── questions ──


def question(name: str = "q") -> Question:
    return Question(question_id=name, prompt="May it?", options=("Allow", "Deny"))


async def test_first_answer_counts():
    questions = Questions()
    answers: list[str] = []

    async def ask(name: str) -> None:
        answers.append(await questions.ask(question(name)))

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "a")
        group.start_soon(ask, "b")
        await anyio.wait_all_tasks_blocked()
        assert {each.question_id for each in questions.waiting()} == {"a", "b"}
        assert questions.answer("a", "Allow")
        assert questions.answer("a", "Deny")  # known, but answered
        assert questions.find("a") is None
        assert not questions.answer("c", "Allow")
        await anyio.wait_all_tasks_blocked()
        assert answers == ["Allow"]
        questions.answer("b", "Deny")
    assert answers == ["Allow", "Deny"]
    assert questions.waiting() == []


async def test_abandoned_question_closes_without_answer():
    closed: list[tuple[str, Any]] = []
    questions = Questions(
        closed=lambda question, answer: closed.append((question.question_id, answer))
    )
    with anyio.move_on_after(0):
        await questions.ask(question())
    assert (closed, questions.waiting()) == ([("q", None)], [])
    assert not questions.answer("q", "Allow")


async def test_turn_questions_are_logged(tmp_path):
    log = EventLog()
    questions = questions_on(log)
    async with made(approvals=questions) as session, anyio.create_task_group() as group:

        async def answer() -> None:
            await log.wait_after(0)
            (waiting,) = questions.waiting()
            assert (waiting.tool_name, waiting.tool_call_id) == ("risky", "call-1")
            assert waiting.expires_at is not None
            questions.answer(waiting.question_id, "Deny")

        group.start_soon(answer)
        prompt = call("risky", path=tmp_path / "trace")
        record = TurnRecord()
        await run_turn(session, prompt, record, ignore)
        assert record.tools["call-1"].success is False
    required, over = (json.loads(data) for _, data in log.after(0))
    assert (required["type"], required["tool_call_id"]) == ("approval_required", "call-1")
    assert over == {
        "id": 2,
        "type": "approval_closed",
        "question": required["question"],
        "answer": "Deny",
    }
    assert not (tmp_path / "trace").exists()


async def test_answer_time_is_not_call_time(tmp_path, monkeypatch):
    now = [100.0]
    for module in ("amplifier.shared_sessions.questions", "amplifier.models.turns"):
        monkeypatch.setattr(f"{module}.time", SimpleNamespace(monotonic=lambda: now[0]))

    async def asked(question: Question) -> None:
        now[0] += 60
        questions.answer(question.question_id, "Deny")

    questions = Questions(asked)
    sessions: LiveSessions[None] = LiveSessions()
    async with sessions.running():
        with sessions.reserved("one"):
            live = LiveSession(made(approvals=questions), None, questions=questions)
            await sessions.add(live, lambda session: None)
        turn = live.begin_turn(call("risky", path=tmp_path / "trace"))
        await live.run_turn(turn, ignore)
        live.end_turn(turn)
    assert turn.record.tools["call-1"].seconds == 0.0


# ── the log ──


def test_log_drops_old_events_showing_gap():
    log = EventLog(most_events=10, most_bytes=10_000)
    for number in range(25):
        log.add("text", text=str(number))
    found = [json.loads(data) for _, data in log.after(3)]
    assert found[0] == {"id": 15, "type": "gap"}
    assert [event["id"] for event in found[1:]] == list(range(16, 26))
    log.add("text", text="x" * 20_000)  # alone above the limit: it is kept, and nothing else
    assert len(log.after(25)) == 1
    assert "1 of 26 events" in repr(log)
