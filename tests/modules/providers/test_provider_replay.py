"""provider-replay: sessions recorded against a real HTTP server and replayed, on both backends, after the server is gone."""

from __future__ import annotations

import json
import re
import stat
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier import AmplifierSession
from amplifier.errors import PlanError, RateLimitError, ReplayMismatchError, StreamError
from amplifier.models import ChatRequest, Message, StreamChunk, TextBlock
from amplifier.modules.providers import _cassette
from amplifier.modules.providers import replay as provider_replay
from amplifier.testing import Cassette, EventRecorder, TestCoordinator
from tests.modules.providers.scripted_http_server import CLOSE, EVENT_STREAM, ScriptedHttpServer
from tests.modules.providers.services import KEY, SERVICES, ServiceCase, arguments

TWO_TASKS = [
    (name, "task", arguments(agent="helper", instruction="count")) for name in ("c1", "c2")
]
SWAPPED = {
    '"one "': '"two "',
    '"two "': '"one "',
    "one sheep": "two sheep",
    "two sheep": "one sheep",
}
CHAT = SERVICES["openai-chat"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.jsonl"


def plan_for(
    service: ServiceCase, url: str, *, loop: str = "loop-streaming", key: str = KEY, **more: Any
) -> dict[str, Any]:
    config = {"api_key": key, "base_url": url + service.prefix, **service.config}
    return {
        "session": {
            "orchestrator": {
                "module": loop,
                "config": {"system_prompt": "Be brief.", "initial_delay": 0},
            },
            "context": "context-simple",
        },
        "providers": [{"module": service.provider_id(), "config": config}],
        "tools": ["tool-todo", "tool-task"],
        "agents": {"helper": {"description": "Helps.", "instruction": "You help."}},
        **more,
    }


async def run_turns(plan: dict[str, Any], *prompts: str) -> tuple[list[str], list[tuple[str, Any]]]:
    """The answers to some prompts, and the pieces of all streams of the main session."""
    recorder = EventRecorder()
    async with AmplifierSession(plan) as session:
        recorder.listen(session.coordinator.hooks)
        answers = [await session.execute(prompt) for prompt in prompts]
    pieces = [
        (data["block_type"], data["delta"])
        for name, data in recorder.events
        if name == "content_block:delta"
    ]
    return answers, pieces


def recording(path: Path, plan: dict[str, Any]) -> dict[str, Any]:
    return Cassette(path, mode="once").plan(plan)


def replaying(path: Path, plan: dict[str, Any]) -> dict[str, Any]:
    return Cassette(path).plan(plan)


async def record(
    path: Path, server: ScriptedHttpServer, talk: dict[str, str], mode: Any = "once"
) -> dict[str, Any]:
    """Record what the service answers to these prompts; returns the plan."""
    server.answers(*(CHAT.answer([answer]) for answer in talk.values()))
    plan = plan_for(CHAT, server.url)
    await run_turns(Cassette(path, mode=mode).plan(plan), *talk)
    return plan


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def record_a_family(service: ServiceCase, server: ScriptedHttpServer) -> None:
    """Script a turn with a retry, a tool call and two parallel agents whose requests are equal and whose answers differ."""
    server.answers(
        service.error(429, "slow down", retry_after="0.01"),
        service.answer(["I ", "look."], [("t1", "todo", arguments(action="list"))], ["hm ", "hm"]),
        service.answer(["Two agents."], TWO_TASKS),
        service.answer(["one ", "sheep"]),
        service.answer(["two ", "sheep"]),
        service.answer(["All ", "counted."]),
    )


@pytest.mark.parametrize(
    "replays", [pytest.param(2, marks=pytest.mark.slow), pytest.param(100, marks=pytest.mark.long)]
)
async def test_session_family_replays_on_other_backend(
    service, server, path, anyio_backend_name, replays
):
    recorded_on = "trio" if anyio_backend_name == "asyncio" else "asyncio"
    record_a_family(service, server)
    plan = plan_for(service, server.url)
    recorded = await anyio.to_thread.run_sync(
        lambda: anyio.run(run_turns, recording(path, plan), "count the sheep", backend=recorded_on)
    )
    assert recorded[0] == ["All counted."]
    server.close()
    asked = len(server.requests)
    for _ in range(replays):
        assert await run_turns(replaying(path, plan), "count the sheep") == recorded
    assert len(server.requests) == asked


@pytest.mark.parametrize("loop", ["loop-basic", "loop-events"])
async def test_recording_serves_streaming_and_other_loops(service, server, path, loop):
    server.answers(service.answer(["Hel", "lo."]))
    await run_turns(recording(path, plan_for(service, server.url)), "hello")
    server.close()
    assert (await run_turns(replaying(path, plan_for(service, server.url, loop=loop)), "hello"))[
        0
    ] == ["Hello."]


async def test_repeated_request_replays_in_recorded_order(server, path):
    service = SERVICES["anthropic"]
    server.answers(*(service.error(400, f"refusal {number}") for number in (1, 2)))

    async def messages(plan: dict[str, Any], times: int) -> list[str]:
        found = []
        async with AmplifierSession(plan) as session:
            for _ in range(times):
                with pytest.raises(Exception, match=r"refusal|no recording") as caught:
                    await session.execute("hello")
                found.append(str(caught.value))
                await session.coordinator.get("context").clear()
        return found

    recorded = await messages(recording(path, plan_for(service, server.url)), 2)
    replayed = await messages(replaying(path, plan_for(service, server.url)), 3)
    assert replayed[:2] == recorded
    assert "refusal 1" in recorded[0]
    assert "refusal 2" in recorded[1]
    assert "it was made 3 times, but recorded 2 times" in replayed[2]


async def test_replayed_error_is_retried_at_once(service, server, path):
    """It keeps its type and fields."""
    server.answers(service.error(429, "slow down", retry_after="30"))
    plan = plan_for(service, server.url)
    plan["session"]["orchestrator"]["config"]["max_retries"] = 0

    async def error_of(plan: dict[str, Any]) -> RateLimitError:
        with pytest.raises(RateLimitError) as caught:
            await run_turns(plan, "hello")
        return caught.value

    recorded = await error_of(recording(path, plan))
    replayed = await error_of(replaying(path, plan))
    assert (replayed.status_code, replayed.retryable, str(replayed)) == (429, True, str(recorded))
    assert (recorded.retry_after, replayed.retry_after) == (30, None)


async def test_interrupted_stream_replays_pieces_and_error(server, path):
    service = SERVICES["anthropic"]
    server.answers([EVENT_STREAM, *service.pieces(["Hel", "lo."])[:5], CLOSE])
    plan = plan_for(service, server.url)
    plan["session"]["orchestrator"]["config"]["max_retries"] = 0

    async def pieces_and_error(plan: dict[str, Any]) -> tuple[list[str], str]:
        recorder = EventRecorder()
        async with AmplifierSession(plan) as session:
            recorder.listen(session.coordinator.hooks)
            with pytest.raises(StreamError) as caught:
                await session.execute("hello")
        return [
            data["delta"] for name, data in recorder.events if name == "content_block:delta"
        ], str(caught.value)

    recorded = await pieces_and_error(recording(path, plan))
    assert recorded[0] == ["Hel", "lo."]
    server.close()
    assert await pieces_and_error(replaying(path, plan)) == recorded


async def test_abandoned_answer_is_not_recorded(server, path):
    server.answers(
        [EVENT_STREAM, *CHAT.pieces(["Hel", "lo."])[:3], "stall"], CHAT.answer(["Done."])
    )
    async with AmplifierSession(recording(path, plan_for(CHAT, server.url))) as session:
        async with session.stream("hello") as events:
            async for event in events:
                if type(event).__name__ == "TextDelta":
                    break
        assert await session.execute("again") == "Done."
    contents = [line["response"]["content"] for line in lines_of(path) if "response" in line]
    assert contents == [[{"type": "text", "text": "Done."}]]
    assert sum("request" in line for line in lines_of(path)) == 1


# ── mismatches ───────────────────────────────────────────────────────────────────────────────────


async def mismatch_of(plan: dict[str, Any], *prompts: str) -> ReplayMismatchError:
    with pytest.raises(ReplayMismatchError) as caught:
        await run_turns(plan, *prompts)
    return caught.value


async def test_mismatch_names_nearest_recording(server, path):
    plan = await record(path, server, {"hello": "Hi.", "how are you?": "Fine."})
    error = await mismatch_of(replaying(path, plan), "hello", "how are they?")
    assert (error.path, error.expected, error.found) == (
        "$.messages[3].content",
        "'how are you?'",
        "'how are they?'",
    )
    for words in (
        "a.jsonl has no recording",
        "of main to provider 'openai'",
        "the nearest is request 2",
        "differs at $.messages[3].content: expected 'how are you?', found 'how are they?'",
        "record again",
    ):
        assert words in str(error)
    assert error.retryable is False


async def test_provider_without_recordings_is_never_called(server, path):
    await record(path, server, {"hello": "Hi."})
    other = plan_for(SERVICES["anthropic"], server.url)
    other["providers"].append(replaying(path, {})["providers"][0])
    asked = len(server.requests)
    assert "recorded providers: 'openai'" in str(await mismatch_of(other, "hello"))
    assert len(server.requests) == asked


async def test_mode_new_requests_unrecorded_only(server, path):
    server.answers(
        CHAT.answer(["Hi."]), CHAT.answer(["Fine."]), CHAT.error(500, "must not be asked")
    )
    plan = plan_for(CHAT, server.url)
    await run_turns(Cassette(path, mode="new").plan(plan), "hello")
    before = path.read_text().splitlines()
    assert (await run_turns(Cassette(path, mode="new").plan(plan), "hello", "how are you?"))[0] == [
        "Hi.",
        "Fine.",
    ]
    assert len(server.requests) == 2
    assert path.read_text().splitlines()[: len(before)] == before
    server.close()
    assert (await run_turns(replaying(path, plan), "hello", "how are you?"))[0] == ["Hi.", "Fine."]


async def test_unchanged_file_is_not_written(server, path):
    plan = await record(path, server, {"hello": "Hi."}, "new")
    written = path.stat()
    await run_turns(Cassette(path, mode="new").plan(plan), "hello")
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


async def test_directory_change_with_placeholder(server, tmp_path, path):
    service = SERVICES["anthropic"]
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "note.txt").write_text("a note", encoding="utf-8")
    where = str(tmp_path / "here" / "note.txt")
    middle = len(where) // 2
    server.answers(
        service.answer(
            ["I read ", where[:middle], where[middle:], "."],
            [("r1", "read_file", arguments(file_path=where))],
        ),
        service.answer(["Read."]),
    )

    def plan_in(folder: str, **more: Any) -> dict[str, Any]:
        cassette = Cassette(path, placeholders={"<here>": str(tmp_path / folder)}, **more)
        tools = [
            {"module": "tool-filesystem", "config": {"allowed_paths": [str(tmp_path / folder)]}}
        ]
        return cassette.plan(plan_for(service, server.url, tools=tools))

    await run_turns(plan_in("here", mode="once"), f"read {where}")
    assert str(tmp_path / "here") not in path.read_text()
    server.close()
    answers, pieces = await run_turns(plan_in("there"), f"read {tmp_path / 'there' / 'note.txt'}")
    assert answers == ["Read."]
    assert f"I read {tmp_path / 'there' / 'note.txt'}." in "".join(
        text for kind, text in pieces if kind == "text"
    )


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


async def test_secrets_never_reach_file(service, server, path, monkeypatch):
    key, variable = "an-unusual-key-without-a-shape", "value-of-a-variable-0"
    monkeypatch.setenv("OTHER_SERVICE_TOKEN", variable)
    shaped = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
    server.answers(
        service.error(429, f"key {key} is used too often"),
        service.answer(
            ["It is ", shaped[:10], shaped[10:], ".", key[:9], key[9:]],
            [("t1", "todo", arguments(action="list", password="hunter2hunter2"))],
        ),
        service.answer(["Done."]),
    )
    plan = plan_for(service, server.url, key=key)
    prompt = f"remember {variable} and {shaped}"
    recorded = await run_turns(recording(path, plan), prompt)
    text = path.read_text(encoding="utf-8")
    streamed = "".join(
        line.get("text", "") for line in lines_of(path) if line.get("chunk") == "block_delta"
    )
    for secret in (
        key,
        variable,
        shaped,
        shaped[10:],
        key[9:],
        "hunter2",
        "Authorization",
        "x-api-key",
    ):
        assert secret not in text, secret
        assert secret not in streamed, secret
    server.close()
    monkeypatch.delenv("OTHER_SERVICE_TOKEN")
    del plan["providers"]
    assert (await run_turns(replaying(path, plan), prompt.replace(variable, "[REDACTED]")))[
        0
    ] == recorded[0]


async def test_file_is_private_to_owner(server, tmp_path):
    path = tmp_path / "deep" / "down" / "a.jsonl"
    await record(path, server, {"hello": "Hi."})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["a.jsonl"]


async def test_recordings_of_same_run_are_equal(server, tmp_path):
    texts = []
    for path in (tmp_path / "1.jsonl", tmp_path / "2.jsonl"):
        record_a_family(CHAT, server)
        await run_turns(recording(path, plan_for(CHAT, server.url)), "count the sheep")
        text = path.read_text(encoding="utf-8")
        if text.index("one sheep") > text.index(
            "two sheep"
        ):  # which agent asked first is up to the scheduler
            text = re.sub("|".join(SWAPPED), lambda found: SWAPPED[found[0]], text)
        texts.append([re.sub(r'"[0-9a-f]{12}"', "<digest>", line) for line in text.splitlines()])
    assert texts[0] == texts[1]
    assert sum(line.startswith('{"request"') for line in texts[0]) == 6


async def test_message_is_written_once(server, path):
    await record(path, server, {f"question {number}": f"Answer {number}." for number in range(5)})
    lines = lines_of(path)
    contents = [line["value"]["content"] for line in lines if "message" in line]
    assert contents.count("question 0") == 1
    assert sum("tool" in line and "value" in line for line in lines) == 2
    assert len([line for line in lines if "request" in line][-1]["messages"]) == 10


FIRST_FORMAT = """\
{"cassette": 1}
{"provider": "mock", "info": {"id": "mock", "display_name": "Mock", "capabilities": [], "defaults": {"model": "m"}}}
{"message": "aaa", "value": {"role": "user", "content": "hello"}}
{"request": "main", "provider": "mock", "messages": ["aaa"], "tools": [], "settings": {}}
{"chunk": "block_start", "index": 0, "block_type": "text"}
{"chunk": "block_delta", "index": 0, "block_type": "text", "text": "Hel"}
{"error": "StreamError", "message": "broken off", "provider": "mock", "retryable": true, "retry_after": 60.0}
{"request": "main", "provider": "mock", "messages": ["aaa"], "tools": [], "settings": {}}
{"chunk": "block_start", "index": 0, "block_type": "text"}
{"chunk": "block_delta", "index": 0, "block_type": "text", "text": "Hel"}
{"chunk": "block_delta", "index": 0, "block_type": "text", "text": "lo."}
{"chunk": "block_end", "index": 0, "block_type": "text"}
{"response": {"content": [{"type": "text", "text": "Hello."}]}}
"""


async def test_first_format_is_replayed(path):
    path.write_text(FIRST_FORMAT, encoding="utf-8")
    plan = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}}
    async with AmplifierSession(replaying(path, plan)) as session:
        provider: Any = session.coordinator.get("providers", "mock")
        with pytest.raises(StreamError, match="broken off") as caught:
            [chunk async for chunk in provider.stream(_request("hello"))]
        chunks = [chunk async for chunk in provider.stream(_request("hello"))]
    assert (caught.value.retryable, caught.value.retry_after) == (True, None)
    assert [chunk.text for chunk in chunks if chunk.kind == "block_delta"] == ["Hel", "lo."]
    assert chunks[-2].block == chunks[-1].response.content[0] == TextBlock(text="Hello.")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "line 1"),
        ("{}\n", 'line 1: expected {"cassette": 1}'),
        ('{"cassette": 2}\n', 'line 1: expected {"cassette": 1}'),
        ('{"cassette": 1}\n{"what": 1}\n', "line 2: expected one of provider, message"),
        ('{"cassette": 1}\n[]\n', "line 2: expected one of provider, message"),
        (
            '{"cassette": 1}\n{"response": {"content": []}}\n',
            "line 2: expected a request before the answer",
        ),
        (
            f'{FIRST_FORMAT}{{"response": {{"content": []}}}}\n',
            "line 14: expected a request before the answer",
        ),
        (
            FIRST_FORMAT.replace("StreamError", "OSError"),
            "line 7: expected an error of amplifier.errors",
        ),
        (
            '{"cassette": 1}\n{"request": "main", "provider": "x", "messages": ["a"], "tools": [], "settings": {}}\n',
            "line 2: no member 'a'",
        ),
        ("\x00\xff", "line 1"),
    ],
)
async def test_invalid_cassette_error_names_line(path, content, words):
    path.write_text(content, encoding="latin-1")
    with pytest.raises(PlanError) as caught:
        await _mount_alone(path)
    assert words in str(caught.value) or "cannot be read" in str(caught.value)
    assert "$.cassette" in str(caught.value)


async def test_missing_file_error_gives_remedy(tmp_path):
    with pytest.raises(PlanError, match=r"does not exist; record it with mode 'once'"):
        await _mount_alone(tmp_path / "none.jsonl")


async def _mount_alone(path: Path) -> None:
    await provider_replay.mount(TestCoordinator(), {"cassette": str(path)})


async def test_closing_restores_session_state_and_providers(server, tmp_path):
    server.answers(CHAT.answer(["Hi."]))
    session = AmplifierSession(
        Cassette(tmp_path / "a.jsonl", mode="once").plan(plan_for(CHAT, server.url))
    )
    async with session:
        provider: Any = session.coordinator.get("providers", "openai")
        assert "Recording" in repr(provider)
        async with provider.stream(_request("hello")) as chunks:
            kinds = [chunk.kind async for chunk in chunks]
        assert kinds[-1] == "response"
        assert isinstance(provider.get_info().id, str)
        bare = [chunk async for chunk in provider.stream(_request("again"))]
        assert isinstance(bare[-1], StreamChunk)
    assert sum("request" in line for line in lines_of(tmp_path / "a.jsonl")) == 2


def _request(text: str) -> Any:
    return ChatRequest(messages=[Message(role="user", content=text)])


async def test_empty_recording_writes_no_file(server, tmp_path):
    async with AmplifierSession(
        Cassette(tmp_path / "a.jsonl", mode="once").plan(plan_for(CHAT, server.url))
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run", [None, "one"])
async def test_session_closes_during_request_of_another(server, tmp_path, run):
    """The file is written twice, and neither session loses what the other one has recorded or still replays."""
    server.answers(
        CHAT.answer(["slow ", "answer"]), CHAT.answer(["quick ", "answer"]), CHAT.answer(["last"])
    )
    plan = plan_for(CHAT, server.url)

    async def both() -> list[str]:
        recorded = {
            "cassette": str(tmp_path / "a.jsonl"),
            "mode": "once",
            **({} if run is None else {"run": run}),
        }
        shared = {
            **plan,
            "providers": [*plan["providers"], {"module": "provider-replay", "config": recorded}],
        }
        begun, closed = anyio.Event(), anyio.Event()
        answers: list[str] = []

        async def wait(event: str, data: dict[str, Any]) -> None:
            begun.set()
            await closed.wait()

        async def ask_slowly() -> None:
            async with AmplifierSession(shared) as slow:
                slow.coordinator.hooks.register("content_block:delta", wait, name="wait")
                answers.append(await slow.execute("one"))
                answers.append(await slow.execute("three"))

        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(ask_slowly)
                await begun.wait()
                async with AmplifierSession(shared) as quick:
                    answers.append(await quick.execute("two"))
                closed.set()
        return answers

    assert await both() == ["quick answer", "slow answer", "last"]
    requests = [line["request"] for line in lines_of(tmp_path / "a.jsonl") if "request" in line]
    assert requests == ["main", "main", "main-2"]
    server.close()
    _cassette._cassettes.clear()  # as in another process
    assert await both() == ["quick answer", "slow answer", "last"]
    assert len(server.requests) == 3
