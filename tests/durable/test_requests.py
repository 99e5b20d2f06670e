"""What clients and applications hand over: ids, prompts, factories, files; each mistake gets one clear error."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing

import anyio
import pytest

from amplifier.durable import (
    EngineClosedError,
    EngineUnavailableError,
    QuestionClosedError,
    TurnFailedError,
    UnknownTurnError,
)
from amplifier.errors import SessionBusyError
from amplifier.models import ChatResponse, ToolCall
from tests.durable.agents import (
    ENGINES,
    agent,
    answering,
    asking_agent,
    hanging,
    open_engine,
    tool,
    until,
    working,
)

KINDS = pytest.mark.parametrize("kind", ENGINES)


@KINDS
async def test_malformed_ids_and_prompts_are_refused(engine):
    for wrong in ("", "a b", "../x", ".hidden", "ü", "nul\0", "sur\ud800", "x" * 201, "a\n"):
        with pytest.raises(
            ValueError, match="turn_id must have the form of a session id, 1 to 200 of"
        ):
            await engine.start("s", "go", turn_id=wrong)
    with pytest.raises(TypeError, match="turn_id must be a str, got int: 5"):
        await engine.start("s", "go", turn_id=5)
    for wrong, problem in (
        ("nul\0", "without NUL and lone surrogates"),
        ("sur\ud800", "lone surrogate at position 3"),
    ):
        with pytest.raises(ValueError, match=problem):
            await engine.start("s", wrong)
        for call in (engine.status, engine.result, engine.stop, engine.resume):
            with pytest.raises(UnknownTurnError, match="there is no turn"):
                await call(wrong)
        with pytest.raises(UnknownTurnError):
            await anext(aiter(engine.watch(wrong)))
    longest = "x" * 200
    assert await engine.start("s", "Grüße 🎉\n", turn_id=longest) == longest
    assert (await engine.status(longest)).state == "queued"


@KINDS
async def test_factory_without_session_fails_turn(engine):
    async def make_later(session_id):
        raise AssertionError

    def make_session(session_id):
        if session_id == "exit":
            sys.exit(2)
        if session_id == "later":
            return make_later(session_id)
        return None if session_id == "nothing" else agent(answering("Hello."))(session_id)

    async with working(engine, make_session):
        with pytest.raises(
            TurnFailedError, match=r"TypeError: make_session must be a plain function .* async"
        ):
            await engine.result(await engine.start("later", "go"))
        with pytest.raises(
            TurnFailedError, match="must return an AmplifierSession, got NoneType: None"
        ):
            await engine.result(await engine.start("nothing", "go"))
        with pytest.raises(TurnFailedError, match=r"make_session called sys.exit\(2\)"):
            await engine.result(await engine.start("exit", "go"))
        assert await engine.result(await engine.start("s", "go")) == "Hello."


@KINDS
async def test_unstorable_model_answer_is_named(engine):
    call = ToolCall(id="c", name="look", arguments={"number": 2**70})
    make_session = agent(
        answering(ChatResponse(content=[], tool_calls=[call])), tool("look", lambda given: "x")
    )
    async with working(engine, make_session):
        with (
            anyio.fail_after(60),
            pytest.raises(
                TurnFailedError,
                match=r"model call 1 \(step '1/1/model-1-1'\) cannot be stored: .*64",
            ),
        ):
            await engine.result(await engine.start("s", "go"))


@KINDS
async def test_closed_engine_refuses_every_call(kind, place):
    async with open_engine(kind, place) as engine:
        turn = await engine.start("s", "go")
    calls = (
        lambda: engine.start("other", "go"),
        lambda: engine.status(turn),
        lambda: engine.result(turn),
        lambda: engine.stop(turn),
        lambda: engine.resume(turn),
        lambda: engine.approve(turn, "q", "Allow"),
        lambda: engine.messages("s"),
        lambda: anext(aiter(engine.watch(turn))),
        lambda: engine.work(agent(answering("Hello."))),
    )
    for call in calls:
        with anyio.fail_after(60), pytest.raises(EngineClosedError, match="block has ended"):
            await call()
    async with open_engine(kind, place) as engine:
        assert (await engine.status(turn)).state == "queued"


@KINDS
async def test_worker_of_closed_engine_ends(kind, place):
    """Its turn continues later."""
    hang, begun = hanging(repeatable=True)
    ended = anyio.Event()
    async with anyio.create_task_group() as group:
        async with open_engine(kind, place) as engine:
            turn = await engine.start("s", "go")

            async def work():
                with pytest.raises(EngineClosedError, match="block has ended"):
                    await engine.work(agent(answering([("hang", {})]), hang))
                ended.set()

            group.start_soon(work)
            with anyio.fail_after(60):
                await begun.wait()
        with anyio.fail_after(60):
            await ended.wait()
    async with (
        open_engine(kind, place) as engine,
        working(
            engine, agent(answering("Done."), tool("hang", lambda given: "again", repeatable=True))
        ),
    ):
        assert await engine.result(turn) == "Done."


async def test_non_database_file_is_reported(tmp_path):
    (tmp_path / "turns.db").write_text("this is no database, whatever else it may be" * 100)
    with (
        anyio.fail_after(60),
        pytest.raises(EngineUnavailableError, match="file is not a database"),
    ):
        async with open_engine("sqlite", tmp_path):
            pass


async def test_unwritable_database_is_reported(tmp_path):
    with closing(sqlite3.connect(tmp_path / "turns.db")) as connection:
        connection.execute("CREATE TABLE dbos_migrations (something_else TEXT)")
        connection.commit()
    with (
        anyio.fail_after(60),
        pytest.raises(EngineUnavailableError, match="DBOS cannot create its tables") as caught,
    ):
        async with open_engine("sqlite", tmp_path):
            pass
    assert caught.value.engine.endswith("turns.db")


@KINDS
async def test_first_of_two_simultaneous_answers_counts(engine, tmp_path):
    turn = await engine.start("s", "pay")
    async with working(engine, asking_agent(tmp_path)):
        [question] = (await until(engine, turn, lambda status: status.questions)).questions
    refused = []

    async def answer(option):
        try:
            await engine.approve(turn, question.question_id, option)
        except QuestionClosedError as error:
            refused.append((option, str(error)))

    async with anyio.create_task_group() as group:
        for option in ("Allow", "Deny") * 4:
            group.start_soon(answer, option)
    # The same answer again is accepted.
    assert len({option for option, _ in refused}) == 1
    assert len(refused) == 4
    assert "does not wait for an answer" in refused[0][1]
    async with working(engine, asking_agent(tmp_path)):
        assert await engine.result(turn) == "Paid."
    assert (tmp_path / "s.effects").exists() is (refused[0][0] == "Deny")


@KINDS
async def test_simultaneous_starts_begin_one_turn(engine):
    refused = []

    async def start(turn_id):
        try:
            await engine.start("s", "go", turn_id=turn_id)
        except SessionBusyError:
            refused.append(turn_id)

    async with anyio.create_task_group() as group:
        for turn_id in ("order-17", "order-18") * 4:
            group.start_soon(start, turn_id)
    [found] = await engine.list()
    assert len(refused) == 4
    assert found.turn_id not in refused


async def test_closed_engine_can_be_reopened(tmp_path):
    for _ in range(2):
        async with open_engine("sqlite", tmp_path) as engine:
            assert await engine.messages("s") == []
