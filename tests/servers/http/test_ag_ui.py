"""/ag-ui: runs, questions that end a run, and the runs that bring the answers."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from amplifier.servers.http import Limits
from amplifier.servers.http._history import read_messages, split_conversation
from tests.cli._scripted_agent import call
from tests.servers.http._asgi_client import Client, serving

USER = {"role": "user", "content": "say hello"}


def run_input(*prompts: str, thread: str = "a", **more: Any) -> dict[str, Any]:
    messages = [
        {"id": str(index), "role": "user", "content": prompt}
        for index, prompt in enumerate(prompts)
    ]
    return {"threadId": thread, "runId": "b", "messages": messages, **more}


async def run(client: Client, *prompts: str, **more: Any) -> list[Any]:
    """The events of a run."""
    exchange = client.begin("POST", "/ag-ui", run_input(*prompts, **more))
    assert (await exchange.start()).status == 200
    events = [event async for event in exchange.events()]
    await exchange.ended.wait()
    return events


async def interrupted(client: Client, *prompts: str, **more: Any) -> list[Any]:
    """The questions that end a run."""
    *_, last = await run(client, *prompts, **more)
    assert (last["type"], last["outcome"]["type"]) == ("RUN_FINISHED", "interrupt")
    interrupts: list[Any] = last["outcome"]["interrupts"]
    return interrupts


def text_of(events: list[Any]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "TEXT_MESSAGE_CONTENT")


def answer(question: Any, payload: Any = None, status: str = "resolved") -> dict[str, Any]:
    return {"interruptId": question["id"], "status": status, "payload": payload}


YES = {"approved": True}


async def test_forwarded_properties_reach_model_request():
    async with serving() as client:
        events = await run(client, "settings", forwardedProps={"tenant": "7"})
        assert json.loads(text_of(events))["metadata"] == {"tenant": "7"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"threadId": None}, "threadId"),
        ({"runId": ""}, "runId"),
        ({"forwardedProps": ["x"]}, "forwardedProps: expected an object"),
        ({"tools": [{"description": "x"}]}, "name: is missing"),
        ({"resume": {}}, "resume: expected a list of answers, or null, got a dict"),
        (
            {"resume": ["x"]},
            "resume[0]: expected an object with interruptId, status, payload, got 'x'",
        ),
        ({"resume": [{"status": "resolved"}]}, "resume[0].interruptId"),
        (
            {"resume": [{"interruptId": "x"}]},
            "resume[0].status: is missing; expected resolved or cancelled",
        ),
        (
            {"resume": [{"interruptId": "x", "status": 1}]},
            "resume[0].status: expected resolved or cancelled",
        ),
        (
            {"resume": [{"interruptId": "x", "status": "cancelled"}] * 2},
            "resume[1].interruptId: 'x' is answered twice",
        ),
        ({"messages": [{"id": "1", "role": "assistant", "content": "x"}]}, "the last message"),
    ],
)
async def test_wrong_run_is_answered_with_reason(change, message):
    async with serving() as client:
        body = {"threadId": "a", "runId": "b", "messages": [{"id": "1", **USER}], **change}
        answer = await client.ask("POST", "/ag-ui", body)
        assert answer.status == 400
        assert message in answer.error


# ── questions ──


async def test_answered_question_continues_turn(tmp_path):
    prompt = call("risky", path=str(tmp_path / "trace"))
    async with serving() as client:
        events = await run(client, prompt)
        assert [event["type"] for event in events] == [
            "RUN_STARTED",
            *["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"],
            "RUN_FINISHED",
        ]
        (question,) = events[-1]["outcome"]["interrupts"]
        assert (question["reason"], question["toolCallId"]) == (
            "tool_call",
            events[1]["toolCallId"],
        )
        assert question["message"].startswith("May risky touch trace?")
        options = question["responseSchema"]["properties"]["option"]["enum"]
        assert options == ["Allow once", "Allow always", "Deny"]
        assert question["expiresAt"].endswith("+00:00")
        assert not (tmp_path / "trace").exists()
        events = await run(client, prompt, resume=[answer(question, YES)])
        text = ["TEXT_MESSAGE_START", *["TEXT_MESSAGE_CONTENT"] * 4, "TEXT_MESSAGE_END"]
        assert [event["type"] for event in events] == [
            "RUN_STARTED",
            "TOOL_CALL_RESULT",
            *text,
            "RUN_FINISHED",
        ]
        assert events[1]["toolCallId"] == question["toolCallId"]
        assert events[-1]["outcome"] == {"type": "success"}
        assert events[-1]["usage"][0]["totalTokens"] == 15  # of this run alone
        assert client.factory.statuses() == ["completed"]
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("status", "payload"),
    [
        ("resolved", {"approved": False}),
        ("resolved", {"approved": False, "option": "Deny"}),
        ("cancelled", None),
        ("cancelled", {"approved": True}),
    ],
)
async def test_denied_call_does_not_run(status, payload, tmp_path):
    async with serving() as client:
        (question,) = await interrupted(client, call("risky", path=str(tmp_path / "trace")))
        events = await run(client, resume=[answer(question, payload, status)])
        assert events[-1]["outcome"] == {"type": "success"}
        assert client.factory.statuses() == ["completed"]
    assert not (tmp_path / "trace").exists()


async def test_option_of_question_can_be_chosen(tmp_path):
    async with serving() as client:
        (question,) = await interrupted(client, call("risky", path=str(tmp_path / "trace")))
        await run(client, resume=[answer(question, {"approved": True, "option": "Allow always"})])
    assert (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        "Allow once",
        {},
        {"approved": "yes"},
        {"approved": 1},
        {"approved": True, "option": "Deny"},
        {"approved": False, "option": "Allow once"},
        {"approved": True, "option": "Sure"},
        {"approved": True, "option": {}},
    ],
)
async def test_invalid_answer_keeps_question_waiting(payload, tmp_path):
    async with serving() as client:
        (question,) = await interrupted(client, call("risky", path=str(tmp_path / "trace")))
        (error,) = await run(client, resume=[answer(question, payload)])
        assert (error["type"], error["code"]) == ("RUN_ERROR", "invalid_option")
        assert not (tmp_path / "trace").exists()
        assert (await run(client, resume=[answer(question, YES)]))[-1]["outcome"] == {
            "type": "success"
        }
    assert (tmp_path / "trace").exists()


async def test_answer_without_question_is_refused(tmp_path):
    async with serving() as client:
        (error,) = await run(client, "say x", resume=[answer({"id": "q-never"}, YES)])
        assert (error["type"], error["code"]) == ("RUN_ERROR", "question_not_found")
        (question,) = await interrupted(client, call("risky", path=str(tmp_path / "trace")))
        (error,) = await run(client, resume=[answer(question, YES)], thread="another")
        assert error["code"] == "question_not_found"
        (error,) = await run(client, resume=[answer({"id": "q-never"}, YES)])
        assert error["code"] == "question_open"
        assert not (tmp_path / "trace").exists()


async def test_repeated_answer_runs_nothing_twice(tmp_path):
    trace = tmp_path / "trace"
    async with serving() as client:
        (question,) = await interrupted(client, call("risky", path=str(trace)))
        await run(client, resume=[answer(question, YES)])
        trace.unlink()
        (error,) = await run(client, resume=[answer(question, YES)])
        assert error["code"] == "question_not_found"
    assert not trace.exists()


async def test_thread_with_question_takes_no_run(tmp_path):
    async with serving() as client:
        (question,) = await interrupted(client, call("risky", path=str(tmp_path / "trace")))
        (error,) = await run(client, "say hello")
        assert (error["type"], error["code"]) == ("RUN_ERROR", "question_open")
        assert question["id"] in error["message"]
        assert (await run(client, "say hello", thread="another"))[-1]["outcome"] == {
            "type": "success"
        }


async def test_prompt_replacing_question_ends_turn(tmp_path):
    prompt = call("risky", path=str(tmp_path / "trace"))
    async with serving() as client:
        (question,) = await interrupted(client, prompt)
        (error,) = await run(client, prompt, "say hello", resume=[answer(question, YES)])
        assert "a new message cannot come with answers" in error["message"]
        calls = [{"id": question["toolCallId"], "function": {"name": "risky", "arguments": "{}"}}]
        messages = run_input(prompt)["messages"]
        messages += [
            {"role": "assistant", "toolCalls": calls},
            {"role": "user", "content": "history"},
        ]
        events = await run(client, messages=messages, resume=[answer(question, status="cancelled")])
        assert text_of(events) == "2 prompts so far "
        assert client.factory.statuses() == ["cancelled", "completed"]


async def test_questions_of_parallel_calls_are_asked_together(tmp_path):
    first, second = (
        json.dumps({"tool": "risky", "path": str(tmp_path / name)}, separators=(",", ":"))
        for name in ("one", "two")
    )
    async with serving() as client:
        found = await interrupted(client, f"both {first} {second}")
        questions = sorted(found, key=lambda question: question["message"])
        assert len({question["id"] for question in questions}) == 2
        (error,) = await run(client, resume=[answer(questions[0], YES)])
        assert error["code"] == "question_open"
        assert questions[1]["id"] in error["message"]
        answers = [answer(questions[0], YES), answer(questions[1], {"approved": False})]
        events = await run(client, resume=answers)
        assert [event["type"] for event in events].count("TOOL_CALL_RESULT") == 2
        assert events[-1]["outcome"] == {"type": "success"}
    assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.virtual_time
async def test_unanswered_question_ends_turn(tmp_path):
    async with serving() as client:
        (question,) = await interrupted(client, call("risky", path=str(tmp_path / "trace")))
        await anyio.sleep(31)
        assert client.factory.statuses() == ["cancelled"]
        assert client.factory.open() == 0
        (error,) = await run(client, resume=[answer(question, YES)])
        assert (error["type"], error["code"]) == ("RUN_ERROR", "question_not_found")
        # The official client insists on an answer before it begins another run.
        events = await run(client, resume=[answer(question, status="cancelled")])
        assert [event["type"] for event in events] == ["RUN_STARTED", "RUN_FINISHED"]
        assert events[-1]["outcome"] == {"type": "cancelled"}
        assert (await run(client, "say hello"))[-1]["outcome"] == {"type": "success"}
    assert not (tmp_path / "trace").exists()


async def test_vanished_client_has_successor(tmp_path):
    async with serving() as client:
        exchange = client.begin(
            "POST", "/ag-ui", run_input(call("risky", path=str(tmp_path / "trace")))
        )
        await exchange.start()
        question = (await exchange.until("RUN_FINISHED"))["outcome"]["interrupts"][0]
        exchange.leave()
        await exchange.ended.wait()
        assert client.factory.statuses() == ["running"]
        assert (await run(client, resume=[answer(question, YES)]))[-1]["outcome"] == {
            "type": "success"
        }
    assert (tmp_path / "trace").exists()


@pytest.mark.virtual_time
async def test_undelivered_question_stops_turn(tmp_path):
    async with serving(limits=Limits(send_seconds=5)) as client:
        exchange = client.begin(
            "POST", "/ag-ui", run_input(call("risky", path=str(tmp_path / "trace")))
        )
        await exchange.start()
        await exchange.until("TOOL_CALL_END")
        exchange.is_taking = anyio.Event()
        await exchange.ended.wait()
        assert client.factory.statuses() == ["cancelled"]
    assert not (tmp_path / "trace").exists()


async def test_lost_connection_stops_turn_quietly(tmp_path, caplog):
    prompt = call("wait_for", path=str(tmp_path / "never"))
    async with serving() as client:
        exchange = client.begin("POST", "/ag-ui", run_input(prompt))
        send = exchange.send

        async def lose(message: Any) -> None:
            if b"TOOL_CALL_END" in message.get("body", b""):
                raise OSError
            await send(message)

        exchange.send = lose  # type: ignore[method-assign]
        await exchange.ended.wait()
        assert client.factory.open() == 0
    assert [record.getMessage() for record in caplog.records] == []
    assert (tmp_path / "never.cancelled").exists()


async def test_client_leaving_answered_run_stops_turn(tmp_path):
    first = json.dumps({"tool": "risky", "path": str(tmp_path / "one")}, separators=(",", ":"))
    second = json.dumps({"path": str(tmp_path / "never")}, separators=(",", ":"))
    async with serving() as client:
        prompt = f"both {first} {second}"
        (question,) = await interrupted(client, prompt)
        exchange = client.begin("POST", "/ag-ui", run_input(prompt, resume=[answer(question, YES)]))
        await exchange.start()
        await exchange.until("TOOL_CALL_RESULT")
        exchange.leave()
        await exchange.ended.wait()
        assert client.factory.statuses() == ["cancelled"]
        assert client.factory.open() == 0
    assert (tmp_path / "never.cancelled").exists()


async def test_newer_question_replaces_older_one(tmp_path):
    prompt = call("risky", path=str(tmp_path / "trace"))
    async with serving() as client:
        exchanges = [client.begin("POST", "/ag-ui", run_input(prompt)) for _ in range(2)]
        found = []
        for exchange in exchanges:
            await exchange.start()
            found.append((await exchange.until("RUN_FINISHED"))["outcome"]["interrupts"][0])
            await exchange.ended.wait()
        with anyio.fail_after(30):
            while "cancelled" not in client.factory.statuses():  # the older one unwinds
                await anyio.wait_all_tasks_blocked()
        assert sorted(client.factory.statuses()) == ["cancelled", "running"]
        outcomes = [
            (await run(client, resume=[answer(question, YES)]))[-1]["type"] for question in found
        ]
        assert sorted(outcomes) == ["RUN_ERROR", "RUN_FINISHED"]


async def test_shutdown_stops_waiting_turns_at_once(tmp_path):
    async with serving() as client:
        await interrupted(client, call("risky", path=str(tmp_path / "trace")))
        await client.app.shut_down()
        assert client.factory.statuses() == ["cancelled"]


async def test_run_stopped_with_server_is_cancelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving(limits=Limits(shutdown_seconds=0.01)) as client:
        exchange = client.begin("POST", "/ag-ui", run_input("hang"))
        await exchange.start()
        await exchange.until("TEXT_MESSAGE_CONTENT")
        await client.app.shut_down()
        assert (await exchange.until("RUN_FINISHED"))["outcome"] == {"type": "cancelled"}


async def test_conversation_of_stopped_run_is_accepted():
    async with serving() as client:
        body = run_input("first")
        calls = [
            {"id": name, "function": {"name": "x", "arguments": "{}"}} for name in ("c1", "c2")
        ]
        result = {"role": "tool", "toolCallId": "c1", "content": "done"}
        body["messages"] += [
            {"role": "assistant", "toolCalls": calls},
            result,
            {"role": "user", "content": "history"},
        ]
        answer = await client.ask("POST", "/ag-ui", body)
        assert b"RUN_FINISHED" in answer.body
    history, _ = split_conversation(read_messages(body["messages"]), complete=True)
    assert [message.get("tool_call_id") for message in history[2:]] == ["c1", "c2"]
    assert "has no result" in history[3]["content"]


# ── the client's application ──

WEATHER = {
    "name": "weather",
    "description": "The weather of a town.",
    "parameters": {
        "type": "object",
        "properties": {"town": {"type": "string"}},
        "required": ["town"],
    },
}


async def test_frontend_tool_call_ends_run(
    tmp_path,
):
    """Its result comes with the next run."""
    (tmp_path / "gate").touch()
    inputs = [{"tool": "weather", "town": "Oslo"}, {"path": str(tmp_path / "gate")}]
    prompt = "both " + " ".join(json.dumps(each, separators=(",", ":")) for each in inputs)
    async with serving() as client:
        events = await run(client, prompt, tools=[WEATHER])
        started = [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_START"]
        finished = [event["toolCallId"] for event in events if event["type"] == "TOOL_CALL_RESULT"]
        assert (len(started), finished) == (2, [started[1]])  # the agent's own
        assert events[-1]["outcome"] == {"type": "success"}
        answers = {
            event["parentMessageId"] for event in events if event["type"] == "TOOL_CALL_START"
        }
        assert len(answers) == 1  # both are calls of one answer
        calls = [
            {
                "id": f"m{at}",
                "role": "assistant",
                "toolCalls": [
                    {"id": call, "type": "function", "function": {"name": name, "arguments": "{}"}}
                ],
            }
            for at, (call, name) in enumerate(zip(started, ("weather", "wait_for"), strict=True))
        ]
        results = [
            {"id": f"r{call}", "role": "tool", "toolCallId": call, "content": content}
            for call, content in ((started[1], "it is there"), (started[0], "rain"))
        ]
        messages = [*run_input(prompt)["messages"], *calls, *results]
        assert text_of(await run(client, messages=messages, tools=[WEATHER])) == "done: rain "


async def test_application_context_and_state_reach_model():
    context = [{"description": "The page", "value": "a map of Oslo"}]
    async with serving() as client:
        text = text_of(await run(client, "notes", context=context, state={"zoom": 7}))
        assert "The page: a map of Oslo" in text
        assert '{"zoom":7}' in text


async def test_message_below_running_run_is_answered(tmp_path):
    prompt = call("wait_for", path=str(tmp_path / "gate"))
    below = {"runId": "c", "parentRunId": "b"}
    async with serving() as client:
        exchange = client.begin("POST", "/ag-ui", run_input(prompt))
        await exchange.start()
        await exchange.until("TOOL_CALL_END")
        started, finished = await run(client, prompt, "say blue", **below)
        assert started == {"type": "RUN_STARTED", "threadId": "a", "runId": "c"}
        assert (finished["outcome"], finished["result"]) == ({"type": "success"}, {"steered": True})
        (tmp_path / "gate").touch()
        answered = [event async for event in exchange.events()]
        await exchange.ended.wait()
        late = await run(client, prompt, "say red", **below)  # a run of its own
    assert (text_of(answered).strip(), text_of(late).strip()) == ("blue", "red")
