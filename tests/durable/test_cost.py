"""What one turn costs its engine, as counts: its steps, and how the data grows. What tools of DBOS do with them, and who can read them."""

from __future__ import annotations

import json

import anyio
import pytest
import sqlalchemy as sa
from cryptography.fernet import Fernet

from amplifier.durable import DurableError
from tests.durable.agents import (
    ENGINES,
    agent,
    answering,
    asking,
    hand_over,
    open_engine,
    tool,
    until,
    working,
)

KINDS = pytest.mark.parametrize("kind", ENGINES)


async def steps_of(engine, turn):
    return await engine._do(lambda: engine._turns.client.list_workflow_steps(turn))


@KINDS
async def test_steps_have_names_and_results(engine):
    tools = (
        tool("look", lambda given: "two shelves", repeatable=True),
        tool("pay", lambda given: "paid"),
    )
    async with working(
        engine, agent(answering([("look", {}), ("pay", {})], "Two shelves."), *tools)
    ):
        turn = await engine.start("anna", "go")
        assert await engine.result(turn) == "Two shelves."
    steps = {
        " ".join(step["function_name"].split()[:3]): step["output"]
        for step in await steps_of(engine, turn)
    }
    assert sorted(steps) == [
        "begin tool pay",
        "conversation",
        "model 1/1/model-1-1",
        "model 1/2/model-1-2",
        "tool look 1/1/call_1",
        "tool pay 1/1/call_2",
    ]
    assert steps["tool look 1/1/call_1"]["output"] == "two shelves"


@pytest.mark.slow
async def test_data_grows_linearly_with_conversation(tmp_path):
    sizes = []
    make_session = agent(answering(*["long answer " * 1000] * 12))

    def pages(connection):
        return connection.execute(sa.text("PRAGMA page_count")).scalar_one()

    async with open_engine("sqlite", tmp_path) as engine, working(engine, make_session):
        for number in range(12):
            assert await engine.result(await engine.start("s", f"{number}"))
            with engine._do.engine.connect() as connection:
                sizes.append(pages(connection))
    assert sizes[11] - sizes[7] <= 1.5 * (sizes[7] - sizes[3])


SECRETS = ("the-prompt", "the-answer", "the-result", "the-question", "the-reason", "the-thought")


async def text_of_tables(engine):
    """Everything that the tables hold."""

    def read():
        with engine._do.engine.connect() as connection:
            tables = sa.inspect(connection)
            names = [
                (schema, name)
                for schema in (None, "dbos")
                if schema in (None, *tables.get_schema_names())
                for name in tables.get_table_names(schema)
            ]
            rows = [
                [str(value) for value in row]
                for schema, name in names
                for row in connection.execute(
                    sa.text(f"SELECT * FROM {schema + '.' if schema else ''}{name}")
                )
            ]
        return json.dumps(rows)

    return await engine._do(read)


@KINDS
@pytest.mark.parametrize("is_encrypted", [True, False])
async def test_encrypted_tables_hide_turn(kind, place, is_encrypted):
    key = Fernet.generate_key() if is_encrypted else None
    look = tool("look", lambda given: "the-result", repeatable=True)
    hooks = asking(prompt="the-question")
    script = answering([("look", {"at": "the-thought"})], "the-answer", [("look", {})])
    async with open_engine(kind, place, encryption_key=key) as engine:
        first = await engine.start("s", "the-prompt")
        async with working(engine, agent(script, look, hooks=hooks)):
            [question] = (await until(engine, first, lambda status: status.questions)).questions
            assert question.prompt == "the-question"
            await engine.approve(first, question.question_id, "Allow")
            assert await engine.result(first) == "the-answer"
            second = await engine.start("s", "go on")
            await until(engine, second, lambda status: status.questions)
        await engine.stop(second, reason="the-reason")
        text = await text_of_tables(engine)
        assert [word for word in SECRETS if word in text] == ([] if is_encrypted else list(SECRETS))
        assert [event async for event in engine.watch(first)]
    if is_encrypted:
        async with open_engine(kind, place, encryption_key=Fernet.generate_key()) as engine:
            with pytest.raises(DurableError, match="encrypted with another key"):
                await engine.messages("s")


async def test_key_of_another_kind_is_refused(tmp_path):
    with pytest.raises(ValueError, match="encryption_key must be a key"):
        async with open_engine("sqlite", tmp_path, encryption_key="secret"):
            pass


@KINDS
async def test_forgotten_session_leaves_nothing(engine):
    await engine.start("other", "keep this")
    turn = await engine.start("s", "forget this")
    await engine.schedule("report", "s", "forget this", every=3600)
    await hand_over(engine, repeatable=True)
    with pytest.raises(Exception, match="has an open turn"):
        await engine.forget_session("s")
    await engine.stop(turn)
    make_session = agent(answering("Done."), tool("hang", lambda given: "x", repeatable=True))
    async with working(engine, make_session):
        await until(engine, turn, lambda status: status.is_final)
        assert await engine.forget_session("s")
    assert not await engine.forget_session("s")
    assert await engine.list(session="s") == []
    assert await engine.messages("s") == []
    assert await engine.schedules() == []
    text = await text_of_tables(engine)
    assert ("forget this" in text, "keep this" in text) == (False, True)


@KINDS
async def test_fork_repeats_turn_in_own_session(engine):
    looks, answers = [], answering("First.", [("look", {})], "Two shelves.", "Three shelves.")

    def look(given):
        looks.append("look")
        return "two shelves"

    async with working(engine, agent(answers, tool("look", look, repeatable=True))):
        await engine.result(await engine.start("s", "hello"))
        turn = await engine.start("s", "what is there?")
        assert await engine.result(turn) == "Two shelves."
        [last] = [
            step
            for step in await steps_of(engine, turn)
            if step["function_name"].startswith("model 2/2/")
        ]
        fork = await engine._do(
            lambda: engine._turns.client.fork_workflow(turn, last["function_id"])
        )
        assert await engine.result(fork.workflow_id) == "Three shelves."
        messages = await engine.messages(fork.workflow_id)
        status = await engine.status(fork.workflow_id)
    assert looks == ["look"]
    assert [message["content"] for message in messages if message["role"] != "tool"] == [
        "hello",
        "First.",
        "what is there?",
        messages[3]["content"],
        "Three shelves.",
    ]
    assert (status.session_id, status.state) == (fork.workflow_id, "completed")
    assert (await engine.messages("s"))[-1]["content"] == "Two shelves."


@KINDS
async def test_rewound_turn_replaces_its_end(engine):
    answers = answering("First.", [("look", {})], "Two shelves.", "Three shelves.")
    async with working(
        engine, agent(answers, tool("look", lambda given: "two shelves", repeatable=True))
    ):
        await engine.result(await engine.start("s", "hello"))
        turn = await engine.start("s", "what is there?")
        assert await engine.result(turn) == "Two shelves."
        [last] = [
            step
            for step in await steps_of(engine, turn)
            if step["function_name"].startswith("model 2/2/")
        ]
        await engine._do(
            lambda: engine._turns.client.rewind_workflow(turn, start_step=last["function_id"])
        )
        with anyio.fail_after(60):
            assert await engine.result(turn) == "Three shelves."
        contents = [
            message["content"]
            for message in await engine.messages("s")
            if message["role"] == "user"
        ]
    assert contents == ["hello", "what is there?"]
    assert (await engine.messages("s"))[-1]["content"] == "Three shelves."
