"""Runs that outlive the connection of their client: it comes back for what it missed, or cancels them."""

from __future__ import annotations

from typing import Any

import anyio
import openai
import pytest

from amplifier.servers.http import Limits
from tests.cli._scripted_agent import call
from tests.servers.http._asgi_client import Client, Exchange, serving
from tests.servers.http._server import Server
from tests.servers.http.test_openai_python import openai_client

RESPONSES = "/v1/responses"


def asking(prompt: str) -> dict[str, Any]:
    return {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "1", "role": "user", "content": prompt}],
    }


async def followed(client: Client, prompt: str, last: str | None = "0") -> Exchange:
    """A run of AG-UI, of a client that knows how to come back unless ``last`` is None."""
    exchange = client.begin("POST", "/ag-ui", asking(prompt), last_event_id=last)
    assert (await exchange.start()).status == 200
    return exchange


async def leave(exchange: Exchange) -> None:
    exchange.leave()
    await exchange.ended.wait()


# ── AG-UI ──


async def test_ag_ui_client_resumes_missed_events(tmp_path):
    prompt = call("wait_for", path=str(tmp_path / "gate"))
    async with serving() as client:
        first = await followed(client, prompt)
        await first.until("TOOL_CALL_ARGS")
        await leave(first)
        assert client.factory.statuses() == ["running"]
        missed = await followed(client, prompt, "2")  # RUN_STARTED and TOOL_CALL_START have come
        (tmp_path / "gate").touch()
        kinds = [event["type"] async for event in missed.events()]
        assert kinds[:3] == ["TOOL_CALL_ARGS", "TOOL_CALL_END", "TOOL_CALL_RESULT"]
        assert kinds[-1] == "RUN_FINISHED"
        again = [event["type"] async for event in (await followed(client, prompt)).events()]
        assert again == [
            "RUN_STARTED",
            "TOOL_CALL_START",
            *kinds,
        ]  # the run is over and still known
        assert len(client.factory.made) == 1


async def test_lost_question_is_found_again(tmp_path):
    prompt = call("risky", path=str(tmp_path / "trace"))
    async with serving() as client:
        first = await followed(client, prompt)
        await first.until("TOOL_CALL_END")
        await leave(first)
        found = await (await followed(client, prompt, "4")).until("RUN_FINISHED")
        (question,) = found["outcome"]["interrupts"]
        answer = {
            "interruptId": question["id"],
            "status": "resolved",
            "payload": {"approved": True},
        }
        body = {"threadId": "t", "runId": "r2", "messages": [], "resume": [answer]}
        exchange = client.begin("POST", "/ag-ui", body)
        await exchange.start()
        assert (await exchange.until("RUN_FINISHED"))["outcome"] == {"type": "success"}
    assert (tmp_path / "trace").exists()


@pytest.mark.virtual_time
async def test_run_of_lost_client_is_stopped(tmp_path):
    async with serving(limits=Limits(abandoned_seconds=30)) as client:
        first = await followed(client, call("wait_for", path=str(tmp_path / "never")))
        await first.until("TOOL_CALL_END")
        await leave(first)
        await anyio.sleep(29)
        second = await followed(
            client, "", "1"
        )  # what it sends does not matter: it has events of the run
        await anyio.sleep(100)
        assert client.factory.statuses() == ["running"]
        await leave(second)
        await anyio.sleep(31)
        assert client.factory.statuses() == ["cancelled"]
    assert (tmp_path / "never.cancelled").exists()


async def test_cancelled_run_gives_up_question(tmp_path):
    async with serving() as client:
        exchange = await followed(client, call("risky", path=str(tmp_path / "trace")))
        (question,) = (await exchange.until("RUN_FINISHED"))["outcome"]["interrupts"]
        await exchange.ended.wait()
        assert (await client.ask("DELETE", "/ag-ui?threadId=t&runId=r")).status == 204
        assert client.factory.statuses() == ["cancelled"]
        late = [
            {"interruptId": question["id"], "status": "resolved", "payload": {"approved": True}}
        ]
        body = {"threadId": "t", "runId": "late", "messages": [], "resume": late}
        answered = client.begin("POST", "/ag-ui", body)
        await answered.start()
        (event,) = [event async for event in answered.events()]
        assert (event["type"], event["code"]) == ("RUN_ERROR", "question_not_found")
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("is_followed", [True, False])
async def test_run_is_cancelled_by_ids(is_followed, tmp_path):
    async with serving() as client:
        prompt = call("wait_for", path=str(tmp_path / "never"))
        exchange = await followed(client, prompt)
        await exchange.until("TOOL_CALL_END")
        if not is_followed:
            await leave(exchange)
        assert (await client.ask("DELETE", "/ag-ui?threadId=t&runId=r")).status == 204
        assert client.factory.statuses() == ["cancelled"]
        assert (await client.ask("DELETE", "/ag-ui?threadId=t&runId=other")).status == 404
        if is_followed:
            assert (await exchange.until("RUN_FINISHED"))["outcome"] == {"type": "cancelled"}
            await exchange.ended.wait()
        again = [event async for event in (await followed(client, prompt)).events()]
        assert [event["type"] for event in again].count("RUN_FINISHED") == 1
        assert again[-1]["outcome"] == {"type": "cancelled"}
    assert (tmp_path / "never.cancelled").exists()


async def test_non_returning_client_stops_its_run(tmp_path):
    async with serving() as client:
        exchange = await followed(client, call("wait_for", path=str(tmp_path / "never")), None)
        await exchange.until("TOOL_CALL_END")
        await leave(exchange)
        assert client.factory.statuses() == ["cancelled"]


@pytest.mark.parametrize(("last", "status"), [("7", 404), ("x", 400)])
async def test_events_of_unknown_run_are_refused(last, status):
    async with serving() as client:
        assert (
            await client.ask("POST", "/ag-ui", asking("say no"), last_event_id=last)
        ).status == status
        assert client.factory.made == []


async def test_expired_events_are_refused(monkeypatch):
    monkeypatch.setattr("amplifier.shared_sessions.runs._MAX_EVENTS", 3)
    async with serving() as client:
        assert (await (await followed(client, "say one")).until("RUN_FINISHED"))["runId"] == "r"
        answer = await client.ask("POST", "/ag-ui", asking("say one"), last_event_id="0")
        assert (answer.status, answer.json()["error"]["code"]) == (410, "events_gone")


async def test_run_ids_are_not_reused():
    async with serving() as client:
        await (await followed(client, "say one")).until("RUN_FINISHED")
        answer = await client.ask("POST", "/ag-ui", asking("say two"), last_event_id="0")
        assert (answer.status, answer.json()["error"]["code"]) == (409, "run_exists")
        assert "runId: 'r' is the run of another request" in answer.error
        again = [event async for event in (await followed(client, "say one")).events()]
        assert again[-1]["outcome"] == {"type": "success"}
        assert len(client.factory.made) == 1


async def test_future_event_is_refused():
    async with serving() as client:
        events = [event async for event in (await followed(client, "say one")).events()]
        ahead = await client.ask(
            "POST", "/ag-ui", asking("say one"), last_event_id=str(len(events) + 1)
        )
        whole = (
            await client.ask("POST", RESPONSES, {"input": "say hello", "background": True})
        ).json()
        await anyio.wait_all_tasks_blocked()
        later = await client.ask("GET", f"{RESPONSES}/{whole['id']}?stream=true&starting_after=99")
        session_id = await client.open_session()
        watched = await client.ask("GET", f"/api/sessions/{session_id}/events?after=7")
        for answer, number in ((ahead, len(events) + 1), (later, 100), (watched, 7)):
            assert (answer.status, answer.json()["error"]["code"]) == (400, "events_not_sent")
            assert f"{number} events are known to the client" in answer.error


async def test_slow_client_does_not_exclude_another(tmp_path):
    async with serving() as client:
        slow = await followed(client, call("wait_for", path=str(tmp_path / "gate")))
        await slow.until("TOOL_CALL_END")
        slow.is_taking = anyio.Event()
        quick = await followed(client, call("wait_for", path=str(tmp_path / "gate")), "0")
        (tmp_path / "gate").touch()
        assert (await quick.until("RUN_FINISHED"))["outcome"] == {"type": "success"}
        slow.is_taking.set()
        assert (await slow.until("RUN_FINISHED"))["outcome"] == {"type": "success"}


async def test_slow_client_holds_long_turn():
    async with serving() as client:
        slow = await followed(client, "say " + "word " * 2000)
        slow.is_taking = anyio.Event()
        await anyio.wait_all_tasks_blocked()
        assert client.factory.statuses() == ["running"]
        slow.is_taking.set()
        assert (await slow.until("RUN_FINISHED"))["outcome"] == {"type": "success"}


@pytest.mark.slow
def test_ag_ui_client_continues_lost_run(ag_ui, server, workdir):
    """The official client is broken off after the call began, and asks for the same run again."""
    found = ag_ui(
        server,
        {"lost": call("wait_for", path=str(workdir / "gate")), "gate": str(workdir / "gate")},
    )
    assert (found["failures"], found["outcomes"]) == ([None], ["success"])
    assert [message["role"] for message in found["messages"]] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert found["messages"][-1]["content"] == "done: it is there "


# ── Responses ──


async def started(client: Client, prompt: str, **more: Any) -> Any:
    answer = await client.ask("POST", RESPONSES, {"input": prompt, "background": True, **more})
    assert answer.status == 200, answer.body
    return answer.json()


async def test_background_response_is_polled_and_continued(tmp_path):
    async with serving() as client:
        begun = await started(client, call("wait_for", path=str(tmp_path / "gate")))
        assert (begun["status"], begun["output"], begun["background"]) == ("in_progress", [], True)
        path = f"{RESPONSES}/{begun['id']}"
        assert (await client.ask("GET", path)).json()["status"] == "in_progress"
        early = await client.ask(
            "POST", RESPONSES, {"input": "say no", "previous_response_id": begun["id"]}
        )
        assert (early.status, early.json()["error"]["code"]) == (409, "response_in_progress")
        (tmp_path / "gate").touch()
        with anyio.fail_after(30):
            while (found := (await client.ask("GET", path)).json())["status"] == "in_progress":
                await anyio.lowlevel.checkpoint()
        assert found["output"][-1]["content"][0]["text"] == "done: it is there "
        later = await client.ask(
            "POST", RESPONSES, {"input": "history", "previous_response_id": begun["id"]}
        )
        assert later.json()["output"][-1]["content"][0]["text"] == "2 prompts so far "
        assert (await client.ask("DELETE", path)).json()["deleted"]
        assert (await client.ask("GET", path)).status == 404


async def test_background_response_over_limit_is_refused(tmp_path):
    async with serving(limits=Limits(turns=1)) as client:
        begun = await started(client, call("wait_for", path=str(tmp_path / "gate")))
        with anyio.fail_after(30):
            while not client.factory.statuses():
                await anyio.lowlevel.checkpoint()
        refused = await client.ask("POST", RESPONSES, {"input": "say more", "background": True})
        assert (refused.status, refused.json()["error"]["code"]) == (429, "too_many_turns")
        assert (await client.ask("POST", f"{RESPONSES}/{begun['id']}/cancel")).status == 200


async def test_background_events_continue_after_number(tmp_path):
    async with serving() as client:
        body = {
            "input": call("wait_for", path=str(tmp_path / "gate")),
            "background": True,
            "stream": True,
        }
        first = client.begin("POST", RESPONSES, body)
        await first.start()
        (tmp_path / "gate").touch()
        begun = (await first.until("response.created"))["response"]
        await leave(first)
        path = f"{RESPONSES}/{begun['id']}?stream=true&starting_after=1"
        exchange = client.begin("GET", path)
        await exchange.start()
        events = [event async for event in exchange.events()]
        assert [event["sequence_number"] for event in events] == list(range(2, len(events) + 2))
        assert events[-1]["response"]["status"] == "completed"


async def test_background_response_is_cancelled(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving() as client:
        begun = await started(client, "hang")
        with anyio.fail_after(30):
            while not await anyio.Path("hanging").exists():
                await anyio.lowlevel.checkpoint()
        path = f"{RESPONSES}/{begun['id']}"
        for _ in range(2):
            assert (await client.ask("POST", f"{path}/cancel")).json()["status"] == "cancelled"
        assert client.factory.statuses() == ["cancelled"]
        assert (await client.ask("GET", path)).json()["status"] == "cancelled"


@pytest.mark.parametrize("is_deleted", [False, True])
async def test_cancelled_or_deleted_response_ends_stream(is_deleted, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving() as client:
        exchange = client.begin(
            "POST", RESPONSES, {"input": "hang", "background": True, "stream": True}
        )
        await exchange.start()
        begun = (await exchange.until("response.created"))["response"]
        with anyio.fail_after(30):
            while not await anyio.Path("hanging").exists():
                await anyio.lowlevel.checkpoint()
        path = f"{RESPONSES}/{begun['id']}"
        answer = await (
            client.ask("DELETE", path) if is_deleted else client.ask("POST", f"{path}/cancel")
        )
        assert answer.status == 200
        events = [event async for event in exchange.events()]
        # The event model of the API has none of its own for this: the status of the response tells it.
        assert (events[-1]["type"], events[-1]["response"]["status"]) == (
            "response.failed",
            "cancelled",
        )


async def test_background_failure_is_in_response():
    async with serving() as client:
        begun = await started(client, "fail")
        await anyio.wait_all_tasks_blocked()
        found = (await client.ask("GET", f"{RESPONSES}/{begun['id']}")).json()
        assert (found["status"], found["error"]["message"]) == ("failed", "the quota is used up")


@pytest.mark.parametrize(
    ("method", "path", "status", "param"),
    [
        ("GET", "/resp_x", 404, "response_id"),
        ("DELETE", "/resp_x", 404, "response_id"),
        ("POST", "/resp_x/cancel", 404, "response_id"),
        ("GET", "/ID?stream=maybe", 400, "stream"),
        ("GET", "/ID?starting_after=-1", 400, "starting_after"),
        ("GET", "/ID?include=reasoning", 400, "include"),
        ("POST", "/ID/cancel", 400, None),
    ],
)
async def test_wrong_retrieval_is_refused(method, path, status, param):
    async with serving() as client:
        whole = (await client.ask("POST", RESPONSES, {"input": "say hello"})).json()
        answer = await client.ask(method, RESPONSES + path.replace("ID", whole["id"]))
        assert (answer.status, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.slow
def test_openai_sdk_controls_background_responses(server: Server, workdir):
    with openai_client(server) as client:
        begun, seen = None, -1
        waiting = call("wait_for", path=str(workdir / "gate"))
        with client.responses.create(
            model="amplifier", input=waiting, background=True, stream=True
        ) as stream:
            for event in stream:
                if event.type == "response.created":
                    begun = event.response
                    (workdir / "gate").touch()
                seen = event.sequence_number
                break
        assert begun is not None
        with client.responses.retrieve(begun.id, stream=True, starting_after=seen) as rest:
            events = list(rest)
        assert [event.sequence_number for event in events] == list(
            range(seen + 1, seen + 1 + len(events))
        )
        found = client.responses.retrieve(begun.id)
        assert (found.status, found.output_text) == ("completed", "done: it is there ")
        endless = client.responses.create(
            model="amplifier", input=call("wait_for", path=str(workdir / "never")), background=True
        )
        assert endless.status == "in_progress"
        assert client.responses.cancel(endless.id).status == "cancelled"
        client.responses.delete(endless.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(endless.id)
