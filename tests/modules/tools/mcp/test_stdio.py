"""tool-mcp over standard streams: mounting, calling, changing lists, stopping, crashing, closing."""

from __future__ import annotations

import base64
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from amplifier import AmplifierSession
from amplifier.errors import ExecutionCancelled
from amplifier.models import ImageBlock, TextBlock, ToolResult, to_dict
from amplifier.modules.tools import task as tool_task
from amplifier.testing import wait_for
from tests._support.processes import is_alive
from tests.modules.tools.mcp.desk import Desk, answer, new_session, opened, small


async def test_tools_are_mounted_with_schemas_and_annotations():
    async with opened({"small": small()}) as desk:
        assert sorted(desk.tools) == ["small_echo", "small_upper"]
        echo = desk.tools["small_echo"]
        assert echo.description == "Return the text."
        assert echo.get_schema()["required"] == ["text"]
        assert echo.annotations == {"readOnlyHint": True}
        assert (await desk.call("small_upper", text="abc")).output == "ABC"
        (connected,) = desk.events("mcp:server_connected")
        assert connected["server"] == "small"
        assert connected["tools"] == ["small_echo", "small_upper"]


async def test_prefix_allow_and_deny_choose_tools():
    servers = {
        "a": small(
            "--all",
            prefix="",
            allow_unprefixed_names=True,
            allow=["echo", "up*", "hang"],
            deny=["hang", "read_resource", "get_prompt"],
        ),
        "b": small(deny=["echo"]),
    }
    async with opened(servers) as desk:
        assert sorted(desk.tools) == ["b_upper", "echo", "upper"]


async def test_failing_server_is_named_and_others_work(caplog):
    servers = {
        "missing": {"command": "no-such-program-anywhere"},
        "ends": small("--exit"),
        "silent": small("--silent", open_timeout=1.0, stop_grace=0.1),
        "small": small(),
    }
    async with opened(servers) as desk:
        assert sorted(desk.tools) == ["small_echo", "small_upper"]
        failed = {event["server"]: event["error"] for event in desk.events("mcp:server_failed")}
        assert failed.keys() == {"missing", "ends", "silent"}
        assert "'no-such-program-anywhere' was not found" in failed["missing"]
        assert "exit code 3" in failed["ends"]
        assert "no licence found" in failed["ends"]
        assert "abcdef0123456789" not in failed["ends"]
        assert desk.session.failures == []
    assert "server 'missing'" in caplog.text


async def test_failing_required_server_fails_module():
    async with opened(
        {"missing": {"command": "no-such-program-anywhere", "required": True}, "small": small()}
    ) as desk:
        (failure,) = desk.session.failures
        assert "no-such-program-anywhere" in str(failure.error)
        assert desk.tools == {}


async def test_tools_appear_and_disappear_during_session():
    async with opened({"small": small("--all")}) as desk:
        before = desk.tools["small_echo"]
        assert "small_upper" in desk.tools
        await desk.call("small_more_tools")
        assert await wait_for(lambda: bool(desk.events("mcp:tools_changed")), timeout=60)
        assert "small_upper" not in desk.tools
        assert (await desk.call("small_lower", text="ABC")).output == "abc"
        assert desk.tools["small_echo"] is before
        (changed,) = desk.events("mcp:tools_changed")
        assert (changed["added"], changed["removed"]) == (["lower"], ["upper"])


async def test_resources_and_prompts_are_listed_and_read():
    async with opened({"small": small("--all")}) as desk:
        listed = (await desk.call("small_read_resource")).output
        assert listed["resources"] == [
            {"name": "one", "uri": "note://one", "description": "The first."}
        ]
        assert listed["templates"] == [{"name": "note", "uri_template": "note://{id}"}]
        assert (
            await desk.call("small_read_resource", uri="note://one")
        ).output == "content of note://one"
        prompts = (await desk.call("small_get_prompt")).output
        assert prompts == {
            "prompts": [{"name": "greet", "arguments": [{"name": "who", "required": True}]}]
        }
        filled = await desk.call("small_get_prompt", name="greet", arguments={"who": "Anna"})
        assert filled.output == "user: Greet Anna."
        wrong = await desk.call("small_read_resource", url="note://one")
        assert "unknown key" in wrong.error["message"]


async def test_images_and_audio_become_blocks():
    async with opened({"small": small("--all")}) as desk:
        result = await desk.call("small_image")
        text, image, audio, link = result.content
        assert isinstance(image, ImageBlock)
        assert image.source["media_type"] == "image/png"
        assert isinstance(text, TextBlock)
        assert text.text == "a pixel"
        assert to_dict(audio) == {
            "type": "audio",
            "source": {"type": "base64", "media_type": "audio/wav", "data": "UklGRg=="},
        }
        assert result.output == "a pixel\n[image/png]\n[audio/wav]\n[resource note://one (one)]"
        assert link.text == "[resource note://one (one)]"


async def test_big_result_is_cut_with_size_note():
    async with opened({"small": small("--all")}, max_result_chars=1000) as desk:
        output = (await desk.call("small_big", size=50_000)).output
        assert output.startswith("x" * 1000 + "\n[… cut: the result has 50000 characters")


async def test_result_cost_is_linear():
    async with opened({"small": small("--all")}, max_result_chars=20_000_000) as desk:

        async def cpu_seconds(size: int) -> float:
            times = []
            for _ in range(3):  # the least of them: what else the machine does only adds to it
                started = time.process_time()
                assert (await desk.call("small_big", size=size)).output == "x" * size
                times.append(time.process_time() - started)
            return min(times)

        assert (
            await cpu_seconds(4_000_000) / await cpu_seconds(1_000_000) < 8
        )  # 4 if it is linear, 16 if quadratic


async def test_oversized_message_ends_connection():
    async with opened({"small": small("--all")}, max_message_bytes=100_000) as desk:
        result = await desk.call("small_big", size=200_000)
        assert "more than 100000 bytes; raise max_message_bytes" in result.error["message"]
        assert (await desk.call("small_echo", text="back")).output == "back"


async def test_progress_becomes_events_in_order():
    model = [answer("", ("small_progress", {})), "Done."]
    async with opened({"small": small("--all")}, model=model) as desk:
        await desk.session.execute("go")
        events = desk.events("mcp:progress")
        assert [event["progress"] for event in events] == sorted(
            {event["progress"] for event in events}
        )
        assert events[-1] | {"timestamp": "", "session_id": "", "parent_id": None} == {
            "server": "small",
            "tool_name": "small_progress",
            "tool_call_id": "call-1",
            "progress": 3.0,
            "total": 3.0,
            "message": "step 3",
            "timestamp": "",
            "session_id": "",
            "parent_id": None,
        }


async def test_tool_error_is_result():
    async with opened({"small": small()}) as desk:
        result = await desk.call("small_upper")
        assert not result.success
        assert result.error == {"message": "KeyError: 'text'", "type": "ToolError"}


@pytest.mark.parametrize(
    "given", [{"text": "\ud800"}, {"text": float("nan")}, {"text": object()}, {"\ud800": 1}]
)
async def test_non_json_input_is_refused(given):
    async with opened({"small": small("--all")}) as desk:
        for tool in ("small_echo", "small_read_resource", "small_get_prompt"):
            result = await desk.tools[tool].execute(
                {**given} if tool == "small_echo" else {"uri": "\ud800", "name": "\ud800"}
            )
            assert result.error["type"] == "InvalidInput"
        assert (await desk.call("small_echo", text="fine")).success
        assert desk.status("small")["starts"] == 1


# ── stopping ──


async def until_noted(file: Path, line: str) -> None:
    assert await wait_for(lambda: file.exists() and line in file.read_text(), timeout=60), (
        f"never {line}"
    )


async def test_stop_reaches_server(tmp_path):
    """The session stays usable."""
    file = tmp_path / "notes"
    model = [
        answer("", ("small_hang", {"note": str(file)})),
        answer("", ("small_echo", {"text": "hi"})),
        "Fine.",
    ]
    async with opened({"small": small("--all")}, model=model) as desk:

        async def stop() -> None:
            await until_noted(file, "begun")
            desk.session.coordinator.cancellation.request_immediate()

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            with pytest.raises(ExecutionCancelled):
                await desk.session.execute("hang")
        await until_noted(file, "cancelled")
        pid = desk.status("small")["pid"]
        desk.session.coordinator.cancellation.reset()
        assert await desk.session.execute("go on") == "Fine."
        assert desk.status("small")["pid"] == pid


async def test_cancelled_call_does_not_await_deaf_server(tmp_path):
    async with opened({"small": small("--all", stop_grace=0.1)}) as desk:
        os.kill(desk.status("small")["pid"], signal.SIGSTOP)
        text = "x" * 1_000_000  # more than a pipe holds
        started = time.monotonic()
        for _ in range(12):
            with anyio.move_on_after(0.05):
                await desk.call("small_echo", text=text)
        assert time.monotonic() - started < 55  # each would wait for 5 s in the SDK's own transport


async def test_slow_call_error_names_server(tmp_path):
    file = tmp_path / "notes"
    async with opened({"small": small("--all", call_timeout=1.0)}) as desk:
        result = await desk.call("small_hang", note=str(file))
        assert result.error["type"] == "Timeout"
        assert "server 'small' did not answer within 1 s" in result.error["message"]
        await until_noted(file, "cancelled")


# ── crashing ──


async def test_crashed_server_restarts_at_next_call():
    async with opened({"small": small("--all")}) as desk:
        result = await desk.call("small_crash")
        assert result.error["type"] == "ServerCrashed"
        assert (
            "server 'small' was killed by SIGKILL; its last lines on standard error: about to crash"
            in str(result)
        )
        assert (await desk.call("small_echo", text="back")).output == "back"
        assert desk.status("small")["starts"] == 2
        assert [event["error_type"] for event in desk.events("mcp:server_failed")] == [
            "ServerCrashed"
        ]


@pytest.mark.slow
async def test_repeatedly_crashing_server_restarts_delayed():
    async with opened({"small": small("--all")}) as desk:
        kinds = [(await desk.call("small_crash")).error["type"] for _ in range(3)]
        assert kinds == ["ServerCrashed", "ServerCrashed", "ServerUnavailable"]
        refused = await desk.call("small_echo", text="back")
        assert "failed 2 times in a row and is started again in" in refused.error["message"]
        assert await wait_for(lambda: _works(desk), timeout=60)
        assert (await desk.call("small_crash")).error["type"] == "ServerCrashed"
        assert (await desk.call("small_echo", text="at once, after a call that worked")).success


async def _works(desk: Desk) -> bool:
    return (await desk.call("small_echo", text="back")).success


# ── closing ──


@pytest.mark.parametrize(
    "options", [(), ("--ignore-term",), ("--child",), ("--ignore-term", "--child")]
)
async def test_closed_session_leaves_nothing(options):
    async with opened({"small": small(*options, stop_grace=0.2)}) as desk:
        pid = desk.status("small")["pid"]
        assert is_alive(pid)
    assert not is_alive(pid)


async def test_closing_ends_running_call_and_server(tmp_path):
    session, _ = new_session({"small": small("--all")})
    file = tmp_path / "notes"
    with anyio.CancelScope() as scope:
        async with session:
            desk = Desk(session, None)  # type: ignore[arg-type]

            async def leave() -> None:
                await until_noted(file, "begun")
                scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(leave)
                await desk.call("small_hang", note=str(file))
    assert scope.cancelled_caught


async def test_tool_of_closed_session_is_error_result():
    async with opened({"small": small()}) as desk:
        echo = desk.tools["small_echo"]
    result = await echo.execute({"text": "late"})
    assert "closed with its session" in result.error["message"]


async def test_cancelled_opening_leaves_no_process():
    session, _ = new_session({"small": small("--silent", "--ignore-term", stop_grace=0.1)})
    with anyio.move_on_after(0.5) as scope:
        async with session:
            raise AssertionError("the server answers nothing")
    assert scope.cancelled_caught


# ── children ──


def family(
    config: dict[str, Any], overlay: dict[str, Any]
) -> tuple[AmplifierSession, Any, list[dict[str, Any]]]:
    """A parent whose agent calls a tool that notes the servers of the child."""
    seen: list[dict[str, Any]] = []

    class Look:
        name, description = "look", "Looks at the servers."

        def __init__(self, coordinator: Any) -> None:
            self._coordinator = coordinator

        async def execute(self, given: dict[str, Any]) -> ToolResult:
            seen.extend(self._coordinator.get_capability("mcp.status")())
            return ToolResult(output="looked")

    async def mount_look(coordinator: Any, _: Any) -> None:
        await coordinator.mount("tools", Look(coordinator))

    model = [
        answer("", ("task", {"agent": "helper", "instruction": "look"})),
        answer("", ("look", {})),
        "Seen.",
        "Done.",
    ]
    session, recorder = new_session(
        {"small": small()},
        model=model,
        tools={"tool-look": mount_look, "tool-task": tool_task},
        plan={"agents": {"helper": {"description": "Looks.", **overlay}}},
        **config,
    )
    return session, recorder, seen


async def test_child_session_shares_servers():
    session, _, seen = family({}, {})
    async with session:
        assert await session.execute("delegate") == "Done."
        (of_parent,) = session.coordinator.get_capability("mcp.status")()
    assert seen == [of_parent]
    assert of_parent["starts"] == 1


async def test_child_session_may_start_own_servers():
    session, _, seen = family({"share": False}, {})
    async with session:
        await session.execute("delegate")
        (of_parent,) = session.coordinator.get_capability("mcp.status")()
    assert len(seen) == 1
    assert seen[0]["pid"] != of_parent["pid"]


async def test_server_instructions_join_system_prompt():
    servers = {"small": small("--instructions=Capitals are rude."), "quiet": small()}
    async with opened(servers, model=["yes", "yes"]) as desk:
        for _ in range(2):
            await desk.session.execute("hello")
        messages = await desk.session.messages()
    assert [message["role"] for message in messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
    ]
    assert (
        messages[0]["content"]
        == "Instructions from the MCP server small for its tools:\nCapitals are rude."
    )


async def test_paged_lists_are_read_completely():
    async with opened({"small": small("--all", "--pages")}) as desk:
        prompts = (await desk.call("small_get_prompt")).output["prompts"]
        templates = (await desk.call("small_read_resource")).output["templates"]
    assert [prompt["name"] for prompt in prompts] == ["greet-1", "greet-2"]
    assert [template["name"] for template in templates] == ["note-1", "note-2"]


async def test_task_only_tool_is_left_out(caplog):
    tools = [
        {"name": name, "inputSchema": {"type": "object"}, "execution": {"taskSupport": support}}
        for name, support in (("slow", "required"), ("either", "optional"))
    ]
    async with opened({"small": small(f"--tools={json.dumps(tools)}")}) as desk:
        assert sorted(desk.tools) == ["small_echo", "small_either", "small_upper"]
    assert "tool 'slow' is not used: it can only be called as a task" in caplog.text


async def test_server_log_messages_are_events():
    tools = [{"name": "log", "inputSchema": {"type": "object"}}]
    async with opened({"small": small(f"--tools={json.dumps(tools)}")}) as desk:
        await desk.call("small_log", text="warming up")
        assert await wait_for(lambda: len(desk.events("mcp:log")) == 2, timeout=60)
        first, second = desk.events("mcp:log")
    assert first["server"] == "small"
    assert [first["level"], first["logger"], first["message"]] == ["info", "small", "warming up"]
    assert [second["level"], second["message"]] == ["error", '{"code": 7}']


@pytest.mark.parametrize(
    ("structured", "output"),
    [
        ({"content": "done"}, "done"),
        ({"result": "done"}, "done"),
        (
            {"content": "done", "size": 4},
            {"text": "done", "structured": {"content": "done", "size": 4}},
        ),
    ],
)
async def test_text_equal_to_structured_value_comes_once(structured, output):
    tools = [{"name": "work", "inputSchema": {"type": "object"}, "structured": structured}]
    async with opened({"small": small(f"--tools={json.dumps(tools)}")}) as desk:
        assert (await desk.call("small_work")).output == output


@pytest.mark.parametrize(
    ("media_type", "data", "shown"),
    [
        ("text/csv", "a;ü\n".encode(), "a;ü\n"),
        ("application/json; charset=utf-8", b'{"a": 1}', '{"a": 1}'),
        ("text/plain", b"\xff\xfe", "[resource note://b: text/plain, 3 bytes, left out]"),
        ("application/pdf", b"%PDF", "[resource note://b: application/pdf, 6 bytes, left out]"),
    ],
)
async def test_text_sent_as_bytes_is_read(tmp_path, media_type, data, shown):
    content = {"uri": "note://b", "mimeType": media_type, "blob": base64.b64encode(data).decode()}
    answers = tmp_path / "answers.json"
    answers.write_text(json.dumps({"resources/read": json.dumps({"contents": [content]})}))
    async with opened({"small": small("--all", f"--answers-file={answers}")}) as desk:
        assert (await desk.call("small_read_resource", uri="note://b")).output == shown
