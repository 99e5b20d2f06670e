"""`amplifier acp` with the official client: sessions, turns, tool calls, permissions, stored conversations."""

from __future__ import annotations

import asyncio
import json

import acp
import pytest
from acp.exceptions import RequestError

from amplifier.cli._sessions import SessionStore
from tests.cli._scripted_agent import call
from tests.servers.acp._editor import edit, editing, plan_with

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


def test_text_is_streamed_and_usage_reported(shared, workdir):
    async def scenario(editor):
        session_id = await editor.open(workdir)
        answer = await editor.ask(session_id, "say one two three")
        assert editor.kinds() == ["agent_message_chunk"] * 3
        assert editor.text() == "one two three "
        assert answer.stop_reason == "end_turn"
        assert (answer.usage.input_tokens, answer.usage.total_tokens) == (10, 15)
        assert (await editor.ask(session_id, "history")).stop_reason == "end_turn"
        assert editor.text().endswith("2 prompts so far ")

    shared.run(scenario)


def test_initialize_reports_version_and_capabilities(shared, workdir):
    async def scenario(editor):
        answer = await editor.agent.initialize(protocol_version=7)
        assert answer.protocol_version == 1
        assert answer.agent_info.name == "amplifier"
        capabilities = answer.agent_capabilities
        assert capabilities.load_session
        assert capabilities.prompt_capabilities.embedded_context
        assert capabilities.prompt_capabilities.image
        assert not capabilities.prompt_capabilities.audio
        assert capabilities.session_capabilities.list is not None

    shared.run(scenario)


@pytest.mark.slow
def test_thoughts_are_streamed(backend, home, workdir, plan):
    """An answer that is not streamed is shown."""
    script = {"responses": [{"thinking": "let me see", "text": "done"}]}
    mock: dict[str, object] = {
        "providers": None,
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "hooks": [],
    }
    file = plan_with(plan, workdir, **mock)
    content = json.loads(file.read_text())
    content["providers"] = [{"module": "provider-mock", "config": script}]

    async def scenario(loop):
        content["session"]["orchestrator"] = loop
        file.write_text(json.dumps(content))
        async with editing(backend, file, home, workdir) as editor:
            await editor.ask(await editor.open(workdir), "go")
            assert editor.text() == "done"
            return editor.text("agent_thought_chunk")

    assert edit(lambda: scenario("loop-streaming")) == "let me see"
    edit(lambda: scenario("loop-basic"))


def test_tool_call_has_status_input_and_output(shared, workdir):
    (workdir / "gate").touch()

    async def scenario(editor):
        session_id = await editor.open(workdir)
        await editor.ask(session_id, call("wait_for", path=str(workdir / "gate")))
        await editor.ask(session_id, call("crash"))
        await editor.ask(session_id, call("nowhere"))
        started = [each for each in editor.updates if each.session_update == "tool_call"]
        ended = [each for each in editor.updates if each.session_update == "tool_call_update"]
        assert [each.status for each in started] == ["in_progress"] * 3
        assert started[0].title == f"wait_for {workdir / 'gate'}"
        assert started[0].raw_input == {"path": str(workdir / "gate")}
        assert [each.status for each in ended] == ["completed", "failed", "failed"]
        assert ended[0].content[0].content.text == "it is there"
        assert "the tool crashed" in ended[1].content[0].content.text
        assert [each.tool_call_id for each in started] == [each.tool_call_id for each in ended]

    shared.run(scenario)


def test_file_changes_are_diffs(shared, workdir):
    """Commands show their output."""
    (workdir / "old.txt").write_text("before\n")

    async def scenario(editor):
        session_id = await editor.open(workdir)
        await editor.ask(session_id, call("write_file", file_path="new.txt", content="fresh"))
        await editor.ask(session_id, call("write_file", file_path="old.txt", content="after\n"))
        await editor.ask(
            session_id,
            call("edit_file", file_path="old.txt", old_string="after", new_string="last"),
        )
        await editor.ask(session_id, call("bash", command="pwd; echo '```'; echo no >&2; exit 3"))
        started = [each for each in editor.updates if each.session_update == "tool_call"]
        diffs = [
            (each.content[0].path, each.content[0].old_text, each.content[0].new_text)
            for each in started[:3]
        ]
        new, old = str(workdir / "new.txt"), str(workdir / "old.txt")
        assert diffs == [(new, None, "fresh"), (old, "before\n", "after\n"), (old, "after", "last")]
        assert [each.kind for each in started] == ["edit", "edit", "edit", "execute"]
        assert started[0].locations[0].path == new
        last = [each for each in editor.updates if each.session_update == "tool_call_update"][-1]
        assert last.status == "failed"
        assert (
            last.content[0].content.text
            == f"````console\n{workdir}\n```\nno\n````\nError: exit code 3"
        )
        assert (workdir / "old.txt").read_text() == "last\n"

    shared.run(scenario)


def test_todo_list_is_shown_as_plan(shared, workdir):
    todos = [{"content": "Look", "activeForm": "Looking", "status": "in_progress"}]

    async def scenario(editor):
        await editor.ask(await editor.open(workdir), call("todo", action="create", todos=todos))
        (shown,) = [each for each in editor.updates if each.session_update == "plan"]
        assert [(entry.content, entry.status) for entry in shown.entries] == [
            ("Look", "in_progress")
        ]

    shared.run(scenario)


@pytest.mark.parametrize(
    ("answer", "is_done"), [("Allow once", True), ("Deny", False), ("something else", False)]
)
def test_permission_request_has_tool_call(answer, is_done, shared, workdir):
    async def scenario(editor):
        session_id = await editor.open(workdir)
        editor.answer = answer
        await editor.ask(session_id, call("risky", path=str(workdir / "trace")))
        ((tool_call, options),) = editor.questions
        assert [option.kind for option in options] == ["allow_once", "allow_always", "reject_once"]
        shown = next(each for each in editor.updates if each.session_update == "tool_call")
        assert tool_call.tool_call_id == shown.tool_call_id
        assert tool_call.raw_input == {"path": str(workdir / "trace")}
        assert "May risky touch trace?" in tool_call.content[0].content.text

    shared.run(scenario)
    assert (workdir / "trace").exists() is is_done


def test_cancel_stops_turn_only(shared, workdir):
    async def scenario(editor):
        session_id = await editor.open(workdir)
        running = asyncio.create_task(
            editor.ask(session_id, call("wait_for", path=str(workdir / "never")))
        )
        await editor.until(lambda: "tool_call" in editor.kinds())
        await editor.agent.cancel(session_id=session_id)
        assert (await running).stop_reason == "cancelled"
        assert [
            each.status for each in editor.updates if each.session_update == "tool_call_update"
        ] == ["failed"]
        assert (await editor.ask(session_id, "say again")).stop_reason == "end_turn"

    shared.run(scenario)
    assert (workdir / "never.cancelled").exists()


def test_message_joins_running_turn(shared, workdir):
    async def scenario(editor):
        session_id = await editor.open(workdir)
        steered = {"sessionId": session_id, "message": "say blue"}
        with pytest.raises(acp.RequestError, match="no turn is running"):
            await editor.agent.ext_method("amplifier/steer", steered)
        running = asyncio.create_task(
            editor.ask(session_id, call("wait_for", path=str(workdir / "now")))
        )
        await editor.until(lambda: "tool_call" in editor.kinds())
        assert await editor.agent.ext_method("amplifier/steer", steered) == {}
        (workdir / "now").touch()
        assert (await running).stop_reason == "end_turn"
        assert "blue" in editor.text()

    shared.run(scenario)


def test_cancel_right_after_prompt_is_kept(shared, workdir):
    async def scenario(editor):
        session_id = await editor.open(workdir)
        for _ in range(5):
            running = asyncio.create_task(editor.ask(session_id, "hang"))
            await asyncio.sleep(0)  # the prompt is written before the cancel
            await editor.agent.cancel(session_id=session_id)
            assert (await running).stop_reason == "cancelled"

    shared.run(scenario)


def test_second_prompt_at_once_is_refused(shared, workdir):
    async def scenario(editor):
        first = await editor.open(workdir)
        second = (await editor.agent.new_session(cwd=str(workdir), mcp_servers=[])).session_id
        running = asyncio.create_task(editor.ask(first, "hang"))
        await editor.until(lambda: bool(editor.updates))
        with pytest.raises(RequestError, match="is running a turn"):
            await editor.ask(first, "say me too")
        assert (await editor.ask(second, "say hello")).stop_reason == "end_turn"
        await editor.agent.close_session(session_id=first)
        assert (await running).stop_reason == "cancelled"
        with pytest.raises(RequestError, match="no session"):
            await editor.ask(first, "say hello")

    shared.run(scenario)


def test_model_failure_is_prompt_error(shared, workdir):
    async def scenario(editor):
        session_id = await editor.open(workdir)
        with pytest.raises(RequestError, match="the quota is used up"):
            await editor.ask(session_id, "fail")
        assert (await editor.ask(session_id, "say hello")).stop_reason == "end_turn"

    shared.run(scenario)


def test_stored_session_is_listed_and_loaded(shared, workdir):
    (workdir / "gate").touch()

    async def first(editor):
        session_id = await editor.open(workdir)
        await editor.ask(session_id, call("wait_for", path=str(workdir / "gate")))
        await editor.ask(session_id, "say it is noted")
        await editor.agent.close_session(session_id=session_id)
        return session_id

    async def second():
        async with editing(shared.backend, shared.plan, shared.home, workdir) as editor:
            await editor.agent.initialize(protocol_version=1)
            (listed,) = (await editor.agent.list_sessions(cwd=str(workdir))).sessions
            assert (listed.session_id, listed.cwd) == (session_id, str(workdir))
            assert listed.title.startswith("call wait_for")
            assert (await editor.agent.list_sessions(cwd="/nowhere")).sessions == []
            assert session_id in [
                each.session_id for each in (await editor.agent.list_sessions()).sessions
            ]
            await editor.agent.load_session(cwd=str(workdir), session_id=session_id, mcp_servers=[])
            calls = ["user_message_chunk", "tool_call", "tool_call_update", "agent_message_chunk"]
            assert editor.kinds() == [*calls, "user_message_chunk", "agent_message_chunk"]
            assert editor.text("user_message_chunk").endswith("say it is noted")
            with pytest.raises(RequestError, match="open already"):
                await editor.agent.load_session(
                    cwd=str(workdir), session_id=session_id, mcp_servers=[]
                )
            await editor.ask(session_id, "history")
            assert editor.text().endswith("3 prompts so far ")

    session_id = shared.run(first)
    edit(second)
    assert SessionStore(shared.home / "sessions").record(session_id).status == "success"


@pytest.mark.slow
def test_session_open_elsewhere_cannot_be_loaded(backend, home, workdir, plan):
    async def scenario():
        async with (
            editing(backend, plan, home, workdir) as editor,
            editing(backend, plan, home, workdir) as other,
        ):
            session_id = await editor.open(workdir)
            await editor.ask(session_id, "say hello")
            await other.agent.initialize(protocol_version=1)
            with pytest.raises(RequestError, match="open in another process"):
                await other.agent.load_session(
                    cwd=str(workdir), session_id=session_id, mcp_servers=[]
                )

    edit(scenario)


def test_embedded_files_and_links_join_prompt(shared, workdir):
    async def scenario(editor):
        session_id = await editor.open(workdir)
        resource = acp.embedded_text_resource("file:///a.txt", "its content")
        blocks = [
            acp.text_block("say"),
            acp.resource_link_block("b", "file:///b"),
            acp.resource_block(resource),
        ]
        await editor.agent.prompt(session_id=session_id, prompt=blocks)
        stored = SessionStore(shared.home / "sessions").transcript(session_id)[0]["content"]
        assert (
            stored
            == 'say\n[b](file:///b)\n<resource uri="file:///a.txt">\nits content\n</resource>'
        )
        with pytest.raises(RequestError, match="audio is not among the capabilities"):
            await editor.agent.prompt(
                session_id=session_id, prompt=[acp.audio_block("aGk=", "audio/wav")]
            )

    shared.run(scenario)


def test_images_join_prompt(shared, workdir):
    async def scenario(editor):
        session_id = await editor.open(workdir)
        blocks = [
            acp.text_block("what is"),
            acp.text_block("this?"),
            acp.image_block(PIXEL, "image/png"),
        ]
        await editor.agent.prompt(session_id=session_id, prompt=blocks)
        assert editor.text() == "text image "
        (text, image), *_ = (
            each["content"]
            for each in SessionStore(shared.home / "sessions").transcript(session_id)
        )
        assert text["text"] == "what is\nthis?"
        assert image["source"] == {"type": "base64", "media_type": "image/png", "data": PIXEL}
        with pytest.raises(RequestError, match=r"prompt\[0\]: "):
            await editor.agent.prompt(
                session_id=session_id, prompt=[acp.image_block("no base64", "image/png")]
            )

    shared.run(scenario)


@pytest.mark.parametrize(
    ("prompt", "stop_reason"),
    [
        ("end stop all", "end_turn"),
        ("end max_tokens all", "max_tokens"),
        ("end refusal no", "refusal"),
    ],
)
def test_stop_reason_of_model_is_reported(shared, workdir, prompt, stop_reason):
    async def scenario(editor):
        assert (await editor.ask(await editor.open(workdir), prompt)).stop_reason == stop_reason

    shared.run(scenario)


def test_turn_stopped_by_loop_is_reported(backend, home, workdir, plan):
    loop = {"module": "loop-streaming", "config": {"max_iterations": 1}}
    file = plan_with(
        plan, workdir, session={"orchestrator": loop, "context": "context-simple"}, hooks=[]
    )
    (workdir / "gate").touch()

    async def scenario():
        async with editing(backend, file, home, workdir) as editor:
            answer = await editor.ask(
                await editor.open(workdir), call("wait_for", path=str(workdir / "gate"))
            )
            assert answer.stop_reason == "max_turn_requests"

    edit(scenario)


def test_unmountable_module_is_session_error(backend, home, workdir, plan):
    file = plan_with(plan, home.parent, tools=["tool-nowhere"])

    async def scenario():
        async with editing(backend, file, home, workdir) as editor:
            with pytest.raises(RequestError, match="tool-nowhere"):
                await editor.open(workdir)

    edit(scenario)
