"""/api/sessions: sessions that stay, events that several clients follow, questions, stops, limits."""

from __future__ import annotations

from typing import Any

import anyio
import attrs
import pytest

from amplifier.servers.http import Limits
from amplifier.store import SessionIndex
from tests.cli._scripted_agent import call
from tests.servers.http._asgi_client import PLAN, Client, Factory, serving


async def follow(client: Client, session_id: str, after: int = 0):
    exchange = client.begin("GET", f"/api/sessions/{session_id}/events?after={after}")
    assert (await exchange.start()).status == 200
    return exchange


async def begin_turn(client: Client, session_id: str, prompt: str) -> None:
    answer = await client.ask("POST", f"/api/sessions/{session_id}/turns", {"prompt": prompt})
    assert answer.status == 202, answer.body


async def test_session_is_created_used_listed_and_deleted():
    async with serving() as client:
        created = await client.ask("POST", "/api/sessions", {"session_id": "anna"})
        assert (created.status, created.headers["location"]) == (201, "/api/sessions/anna")
        for number in (1, 2):
            answer = await client.ask(
                "POST", "/api/sessions/anna/turns", {"prompt": "history", "wait": True}
            )
            assert answer.json()["result"] == f"{number} prompts so far "
            assert answer.json()["usage"] == {"input_tokens": 10, "output_tokens": 5}
        (listed,) = (await client.ask("GET", "/api/sessions")).json()["sessions"]
        assert (listed["session_id"], listed["status"], listed["questions"]) == ("anna", "idle", [])
        read = (await client.ask("GET", "/api/sessions/anna")).json()
        assert [message["role"] for message in read["messages"]] == ["user", "assistant"] * 2
        assert (await client.ask("DELETE", "/api/sessions/anna")).status == 204
        assert (await client.ask("GET", "/api/sessions/anna")).status == 404
        assert client.factory.open() == 0


async def test_events_show_whole_turn_to_watchers(tmp_path):
    (tmp_path / "gate").touch()
    async with serving() as client:
        session_id = await client.open_session()
        early = await follow(client, session_id)
        await begin_turn(client, session_id, call("wait_for", path=str(tmp_path / "gate")))
        kinds = []
        async for event in early.events():
            kinds.append(event["type"])
            if event["type"] == "turn_ended":
                break
        assert kinds == [
            "turn_started",
            "tool_started",
            "tool_finished",
            *["text"] * 4,
            "turn_ended",
        ]
        late = await follow(client, session_id, after=2)
        event = await late.until("tool_finished")
        assert (event["id"], event["success"], event["output"]) == (3, True, "it is there")


async def test_reconnecting_watcher_gets_missed_events():
    async with serving() as client:
        session_id = await client.open_session()
        first = await follow(client, session_id)
        await begin_turn(client, session_id, "say one")
        last = await first.until("text")
        first.leave()
        await first.ended.wait()
        second = client.begin(
            "GET", f"/api/sessions/{session_id}/events", last_event_id=str(last["id"])
        )
        await second.start()
        assert (await second.until("turn_ended"))["status"] == "success"


async def test_question_is_answered_by_client(tmp_path):
    async with serving() as client:
        session_id = await client.open_session()
        events = await follow(client, session_id)
        await begin_turn(client, session_id, call("risky", path=str(tmp_path / "trace")))
        asked = await events.until("approval_required")
        assert asked["options"] == ["Allow once", "Allow always", "Deny"]
        assert asked["tool_call_id"] == "call-1"
        (shown,) = (await client.ask("GET", f"/api/sessions/{session_id}")).json()["questions"]
        assert shown["question"] == asked["question"]
        address = f"/api/sessions/{session_id}/approvals/{asked['question']}"
        wrong = await client.ask("POST", address, {"option": "Sure"})
        assert wrong.status == 400
        assert "'Allow once'" in wrong.error
        assert not (tmp_path / "trace").exists()
        assert (await client.ask("POST", address, {"option": "Allow once"})).status == 200
        assert (await events.until("approval_closed"))["answer"] == "Allow once"
        assert (await events.until("turn_ended"))["status"] == "success"
        assert (await client.ask("POST", address, {"option": "Deny"})).status == 404
    assert (tmp_path / "trace").exists()


async def test_question_about_edit_has_diff(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    plan = {**PLAN, "tools": ["tool-filesystem"], "hooks": ["hooks-approval"]}
    async with serving(Factory(plan=plan)) as client:
        session_id = await client.open_session()
        events = await follow(client, session_id)
        await begin_turn(
            client,
            session_id,
            call("edit_file", file_path="a.txt", old_string="two", new_string="three"),
        )
        asked = await events.until("approval_required")
        assert asked["diff"] == ["@@ -1,2 +1,2 @@", " one", "-two", "+three"]
        assert "edit_file" in asked["prompt"]
        assert "three" not in asked["prompt"]
        (shown,) = (await client.ask("GET", f"/api/sessions/{session_id}")).json()["questions"]
        assert shown["diff"] == asked["diff"]
        address = f"/api/sessions/{session_id}/approvals/{asked['question']}"
        assert (await client.ask("POST", address, {"option": "Deny"})).status == 200
        assert (await events.until("turn_ended"))["status"] == "success"
    assert (tmp_path / "a.txt").read_text() == "one\ntwo\n"


async def test_stop_ends_turn_and_question(tmp_path):
    async with serving() as client:
        session_id = await client.open_session()
        events = await follow(client, session_id)
        stop = f"/api/sessions/{session_id}/stop"
        assert (await client.ask("POST", stop, {})).json() == {"stopped": False}
        await begin_turn(client, session_id, call("risky", path=str(tmp_path / "trace")))
        await events.until("approval_required")
        assert (await client.ask("POST", stop, {})).json() == {"stopped": True}
        assert (await events.until("approval_closed"))["answer"] is None
        assert (await events.until("turn_ended"))["status"] == "cancelled"
        answer = await client.ask(
            "POST", f"/api/sessions/{session_id}/turns", {"prompt": "say on", "wait": True}
        )
        assert answer.json()["status"] == "success"


async def test_message_joins_running_turn(tmp_path):
    async with serving() as client:
        session_id = await client.open_session()
        events = await follow(client, session_id)
        steer = f"/api/sessions/{session_id}/steer"
        early = await client.ask("POST", steer, {"message": "say blue"})
        assert (early.status, early.json()["error"]["code"]) == (409, "no_turn")
        await begin_turn(client, session_id, call("risky", path=str(tmp_path / "trace")))
        asked = await events.until("approval_required")
        assert (await client.ask("POST", steer, {"message": " "})).status == 400
        assert (await client.ask("POST", steer, {"message": "say blue"})).json() == {
            "steered": True
        }
        address = f"/api/sessions/{session_id}/approvals/{asked['question']}"
        await client.ask("POST", address, {"option": "Allow once"})
        ended = await events.until("turn_ended")
    assert (ended["status"], ended["result"].strip()) == ("success", "blue")


async def test_second_turn_at_once_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving() as client:
        session_id = await client.open_session()
        await begin_turn(client, session_id, "hang")
        for wait in (True, False):
            answer = await client.ask(
                "POST", f"/api/sessions/{session_id}/turns", {"prompt": "say x", "wait": wait}
            )
            assert (answer.status, answer.json()["error"]["code"]) == (409, "session_busy")
        assert (await client.ask("DELETE", f"/api/sessions/{session_id}")).status == 204
        assert client.factory.statuses() == ["cancelled"]


async def test_model_failure_ends_turn():
    async with serving() as client:
        session_id = await client.open_session()
        answer = await client.ask(
            "POST", f"/api/sessions/{session_id}/turns", {"prompt": "fail", "wait": True}
        )
        assert (answer.json()["status"], answer.json()["error"]) == (
            "error",
            "the quota is used up",
        )


async def test_leaving_waiting_client_stops_turn(tmp_path):
    async with serving() as client:
        session_id = await client.open_session()
        prompt = call("wait_for", path=str(tmp_path / "never"))
        exchange = client.begin(
            "POST", f"/api/sessions/{session_id}/turns", {"prompt": prompt, "wait": True}
        )
        await (await follow(client, session_id)).until("tool_started")
        exchange.leave()
        await (await follow(client, session_id)).until("turn_ended")
    assert (tmp_path / "never.cancelled").exists()


@pytest.mark.virtual_time
async def test_turn_without_watchers_is_stopped(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    async with serving(limits=Limits(abandoned_seconds=30)) as client:
        session_id = await client.open_session()
        events = await follow(client, session_id)
        await begin_turn(client, session_id, "hang")
        await events.until("text")
        events.leave()
        await anyio.sleep(29)
        back = await follow(client, session_id)
        await anyio.sleep(100)
        assert client.factory.statuses() == ["running"]
        back.leave()
        await anyio.sleep(31)
        assert client.factory.statuses() == ["cancelled"]


async def test_unanswered_question_is_denied_in_time(tmp_path):
    async with serving() as client:
        session_id = await client.open_session()
        prompt = call("risky", path=str(tmp_path / "quick"))
        ended = await client.ask(
            "POST", f"/api/sessions/{session_id}/turns", {"prompt": prompt, "wait": True}
        )
        assert ended.json()["status"] == "success"
    assert not (tmp_path / "quick").exists()


@pytest.mark.virtual_time
async def test_unused_session_is_closed():
    async with serving(limits=Limits(idle_seconds=100)) as client:
        session_id = await client.open_session()
        watched = await client.open_session()
        events = await follow(client, watched)
        await anyio.sleep(120)
        assert (await client.ask("GET", f"/api/sessions/{session_id}")).status == 404
        assert (await client.ask("GET", f"/api/sessions/{watched}")).status == 200
        events.leave()


@pytest.mark.virtual_time
async def test_quiet_session_sends_signs_of_life():
    async with serving() as client:
        events = await follow(client, await client.open_session())
        sent = [(await events._messages.receive())["body"] for _ in range(3)]
        assert sent == [b": connected\n\n", b": still here\n\n", b": still here\n\n"]


async def test_sessions_above_limit_are_refused():
    async with serving(limits=Limits(sessions=2)) as client:
        first = await client.open_session()
        await client.open_session()
        answer = await client.ask("POST", "/api/sessions", {})
        assert (answer.status, answer.json()["error"]["code"]) == (429, "too_many_sessions")
        await client.ask("DELETE", f"/api/sessions/{first}")
        await client.open_session()


async def test_watchers_above_limit_are_refused():
    async with serving() as client:
        session_id = await client.open_session()
        for _ in range(20):
            await follow(client, session_id)
        answer = await client.ask("GET", f"/api/sessions/{session_id}/events")
        assert (answer.status, answer.json()["error"]["code"]) == (429, "too_many_watchers")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("POST", "", {"session_id": "../up"}, 400, "session_id"),
        ("POST", "", {"session_id": 7}, 400, "session_id"),
        ("POST", "", {"session_id": "anna"}, 409, "open already"),
        ("GET", "/nowhere", None, 404, "no session 'nowhere' is open"),
        ("DELETE", "/nowhere", None, 404, "no session"),
        ("POST", "/nowhere/turns", {"prompt": "x"}, 404, "no session"),
        ("POST", "/anna/turns", {"prompt": " "}, 400, "prompt: expected a text"),
        ("POST", "/anna/turns", {}, 400, "prompt: expected a text"),
        (
            "POST",
            "/anna/turns",
            {"prompt": "x", "resume": True},
            400,
            "prompt: expected none with resume",
        ),
        ("POST", "/anna/turns", {"resume": 1}, 400, "resume: expected true or false"),
        (
            "POST",
            "/anna/turns",
            {"prompt": "x", "wait": "yes"},
            400,
            "wait: expected true or false",
        ),
        ("POST", "/anna/approvals/q9", {"option": "Allow"}, 404, "no question 'q9'"),
        ("POST", "/anna/approvals/q9", {"option": "Allow", "note": "x"}, 400, "note: unknown key"),
        ("GET", "/anna/events?after=x", None, 400, "after: expected"),
        ("GET", "/anna/events?after=-1", None, 400, "after: expected"),
    ],
)
async def test_wrong_request_is_answered_with_reason(method, path, body, status, message):
    async with serving() as client:
        await client.ask("POST", "/api/sessions", {"session_id": "anna"})
        answer = await client.ask(method, f"/api/sessions{path}", body)
        assert answer.status == status
        assert message in answer.error


async def test_unusable_plan_leaves_no_session():
    factory = Factory(plan={**Factory().plan, "providers": []})
    async with serving(factory) as client:
        answer = await client.ask("POST", "/api/sessions", {})
        assert (answer.status, answer.error) == (503, "no provider of the plan is available")
        assert factory.open() == 0
        assert (await client.ask("GET", "/api/sessions")).json() == {"sessions": []}


async def test_stored_conversation_is_resumed_and_deleted(tmp_path):
    storage = SessionIndex(tmp_path)
    storage.write(storage.record("anna"))
    async with serving(storage=storage) as client:
        await client.ask("POST", "/api/sessions", {"session_id": "anna"})
        await client.ask("POST", "/api/sessions", {"session_id": "ben"})
        assert [request.is_resumed for request in client.factory.requests] == [True, False]
        await client.ask("DELETE", "/api/sessions/anna")
    assert storage.names() == []


async def test_kept_conversation_is_deleted_at_limit(tmp_path):
    storage = SessionIndex(tmp_path)
    storage.write(storage.record("anna"))
    async with serving(storage=storage, limits=Limits(sessions=1)) as client:
        await client.ask("POST", "/api/sessions", {"session_id": "ben"})
        assert (await client.ask("DELETE", "/api/sessions/anna")).status == 204
    assert not storage.exists("anna")


async def test_session_metadata_is_shown_and_kept(tmp_path):
    storage = SessionIndex(tmp_path)
    storage.write_metadata("anna", {"kept": [1, None, "ü"]})
    async with serving(storage=storage) as client:
        opened = (await client.ask("POST", "/api/sessions", {"session_id": "anna"})).json()
        assert opened["metadata"] == {"kept": [1, None, "ü"]}
        created = (await client.ask("POST", "/api/sessions", {"metadata": {"user": "ben"}})).json()
        assert created["metadata"] == {"user": "ben"}
        listed = (await client.ask("GET", "/api/sessions")).json()["sessions"]
        assert [each["metadata"] for each in listed] == [{"kept": [1, None, "ü"]}, {"user": "ben"}]
        read = (await client.ask("GET", f"/api/sessions/{created['session_id']}")).json()
        assert read["metadata"] == {"user": "ben"}
        await client.ask("DELETE", "/api/sessions/anna")
        assert {name: storage.metadata(name) for name in storage.names()} == {
            created["session_id"]: {"user": "ben"}
        }
        replaced = await client.ask("POST", "/api/sessions", {"session_id": "cleo", "metadata": {}})
        assert replaced.json()["metadata"] == {}


def nested(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ("text", "metadata: expected an object, or null, got 'text'"),
        ([], "metadata: expected an object, or null, got a list"),
        (7, "metadata: expected an object, or null, got 7"),
        ({"x": "y" * 16_400}, "metadata: expected at most 16384 bytes"),
        (nested(300), "metadata: expected fewer levels"),
    ],
)
async def test_unkeepable_metadata_is_refused(metadata, message):
    async with serving() as client:
        answer = await client.ask("POST", "/api/sessions", {"metadata": metadata})
        assert answer.status == 400
        assert message in answer.error
        assert client.factory.made == []


async def test_unstorable_metadata_opens_no_session(tmp_path):
    class Full(SessionIndex):
        def write_metadata(self, session_id: str, metadata: dict[str, Any]) -> None:
            raise OSError(28, "No space left on device")

    async with serving(storage=Full(tmp_path)) as client:
        answer = await client.ask("POST", "/api/sessions", {"metadata": {"user": "anna"}})
        assert answer.status == 500
        assert client.factory.open() == 0


async def test_finished_turn_cannot_be_resumed():
    async with serving() as client:
        session_id = await client.open_session()
        answer = await client.ask(
            "POST", f"/api/sessions/{session_id}/turns", {"resume": True, "wait": True}
        )
        assert (answer.json()["status"], answer.json()["code"]) == ("error", "no_unfinished_turn")


async def test_shutdown_closes_sessions_and_watchers():
    async with serving() as client:
        events = await follow(client, await client.open_session())
        await client.app.shut_down()
        assert [event["type"] async for event in events] == ["session_closed"]
        assert client.factory.open() == 0
        answer = await client.ask("POST", "/api/sessions", {})
        assert (answer.status, answer.json()["error"]["code"]) == (503, "stopping")


async def test_shutdown_does_not_end_conversation():
    async with serving() as client:
        session_id = await client.open_session()
        await client.app.shut_down()
        for path in ("", "/events?after=0"):
            answer = await client.ask("GET", f"/api/sessions/{session_id}{path}")
            assert (answer.status, answer.json()["error"]["code"]) == (503, "stopping")


@pytest.mark.virtual_time
async def test_shutdown_stops_waiting_turns_at_once(tmp_path):
    async with serving() as client:
        session_id = await client.open_session()
        events = await follow(client, session_id)
        await begin_turn(client, session_id, call("risky", path=str(tmp_path / "trace")))
        await events.until("approval_required")
        expected = "Stopping: up to 10 s for 1 turn to end (1 of them waits for an answer and is stopped now)."
        assert client.app.describe_running() == expected
        began = anyio.current_time()
        await client.app.shut_down()
        assert anyio.current_time() - began < 1
        assert client.factory.statuses() == ["cancelled"]
        assert client.app.describe_running() == ""
    assert not (tmp_path / "trace").exists()


async def ask_and_wait(client: Client, session_id: str, prompt: Any, **more: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "wait": True, **more}
    answer: dict[str, Any] = (
        await client.ask("POST", f"/api/sessions/{session_id}/turns", body)
    ).json()
    return answer


async def test_kept_conversations_can_be_managed(tmp_path):
    index = SessionIndex(tmp_path)
    async with serving(storage=index) as client:
        await client.ask("POST", "/api/sessions", {"session_id": "anna"})
        assert (await client.ask("GET", "/api/sessions?stored")).json()[
            "stored"
        ] == []  # nothing was said yet
        await ask_and_wait(client, "anna", "say  hello\nyou")
        (listed,) = (await client.ask("GET", "/api/sessions?stored")).json()["stored"]
        assert (listed["title"], listed["status"]) == ("say hello you", "success")
        renamed = await client.ask("PATCH", "/api/sessions/anna", {"title": " A  name "})
        assert renamed.json() == {"session_id": "anna", "title": "A name"}
        assert (await client.ask("PATCH", "/api/sessions/anna", {"title": " "})).status == 400
        assert (await client.ask("PATCH", "/api/sessions/nobody", {"title": "x"})).status == 404
        copied = (await client.ask("POST", "/api/sessions", {"fork_of": "anna"})).json()[
            "session_id"
        ]
        assert (await ask_and_wait(client, copied, "history"))["result"] == "2 prompts so far "
        shorter = (
            await client.ask("POST", "/api/sessions", {"fork_of": "anna", "keep": 0})
        ).json()["session_id"]
        assert (await ask_and_wait(client, shorter, "history"))["result"] == "1 prompts so far "
        titles = {
            each["title"]
            for each in (await client.ask("GET", "/api/sessions?stored")).json()["stored"]
        }
        assert titles == {"A name", "say hello you (copy)", "history"}
        await client.ask("DELETE", "/api/sessions/anna")
        assert not index.exists("anna")
        index.write(attrs.evolve(index.record("anna"), title="not open"))
        assert (await client.ask("DELETE", "/api/sessions/anna")).status == 204
        assert not index.exists("anna")
        assert (await client.ask("DELETE", "/api/sessions/anna")).status == 404


async def test_turn_restarts_from_message_with_images(tmp_path):
    async with serving() as client:
        session_id = await client.open_session()
        for prompt in ("history", "history"):
            await ask_and_wait(client, session_id, prompt)
        assert (await ask_and_wait(client, session_id, "history", keep=2))[
            "result"
        ] == "2 prompts so far "
        assert (await ask_and_wait(client, session_id, "history", keep=0))[
            "result"
        ] == "1 prompts so far "
        image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        ended = await ask_and_wait(client, session_id, [{"type": "text", "text": "blocks"}, image])
        assert ended["result"] == "text image "
        assert (ended["cost"], ended["model"]) == ("0.0001", None)
        wrong = await client.ask(
            "POST", f"/api/sessions/{session_id}/turns", {"prompt": [{"type": "sound"}]}
        )
        assert (wrong.status, "this server takes no sound" in wrong.json()["error"]["message"]) == (
            400,
            True,
        )
        assert (
            await client.ask(
                "POST", f"/api/sessions/{session_id}/turns", {"prompt": "x", "keep": -1}
            )
        ).status == 400


async def test_call_end_has_outcome_and_own_time(
    tmp_path,
):
    """The time excludes the question."""
    async with serving() as client:
        session_id = await client.open_session()
        watching = await follow(client, session_id)
        await begin_turn(client, session_id, call("risky", path=str(tmp_path / "trace")))
        question = await watching.until("approval_required")
        path = f"/api/sessions/{session_id}/approvals/{question['question']}"
        await client.ask("POST", path, {"option": "Deny"})
        finished = await watching.until("tool_finished")
        assert (finished["status"], finished["success"]) == ("denied", False)
        assert 0 <= finished["seconds"] < 30
        await watching.until("turn_ended")
        await begin_turn(client, session_id, call("crash"))
        assert (await watching.until("tool_finished"))["status"] == "error"
