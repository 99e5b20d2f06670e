"""What an editor offers and shows beside turns: its open files, commands of one's own, how calls ended before."""

from __future__ import annotations

import acp
import pytest
from acp.schema import (
    ClientCapabilities,
    FileSystemCapabilities,
    ReadTextFileResponse,
    WriteTextFileResponse,
)

from tests.cli._scripted_agent import call
from tests.servers.acp._editor import Editor, edit, editing, plan_with
from tests.servers.acp._in_process import Host, connected


class OpenFiles(Editor):
    """The official client with files that are open and not saved."""

    async def read_text_file(self, path, session_id, limit=None, line=None, **kwargs):
        if path not in self.files:
            raise acp.RequestError(-32002, "not open")
        return ReadTextFileResponse(content=self.files[path])

    async def write_text_file(self, content, path, session_id, **kwargs):
        self.files[path] = content
        return WriteTextFileResponse()

    @property
    def files(self) -> dict[str, str]:
        return self.__dict__.setdefault("_files", {})


@pytest.mark.slow
def test_official_client_reads_and_writes_open_files(backend, home, workdir, plan, monkeypatch):
    (workdir / "open.txt").write_text("saved\n")
    (workdir / "closed.txt").write_text("on disk\n")
    plan = plan_with(plan, home.parent, tools=["tool-filesystem"])
    monkeypatch.setattr("tests.servers.acp._editor.Editor", OpenFiles)
    path, new = str(workdir / "open.txt"), str(workdir / "new.txt")

    async def scenario():
        async with editing(backend, plan, home, workdir) as editor:
            assert isinstance(editor, OpenFiles)
            editor.files[path] = "one\nnot saved\n"
            fs = FileSystemCapabilities(read_text_file=True, write_text_file=True)
            await editor.agent.initialize(
                protocol_version=1, client_capabilities=ClientCapabilities(fs=fs)
            )
            session_id = (
                await editor.agent.new_session(cwd=str(workdir), mcp_servers=[])
            ).session_id
            await editor.ask(session_id, call("read_file", file_path="open.txt", offset=2))
            assert "not saved" in editor.text()
            await editor.ask(session_id, call("read_file", file_path="closed.txt"))
            assert "on disk" in editor.text()
            await editor.ask(
                session_id,
                call("edit_file", file_path="open.txt", old_string="not ", new_string="now "),
            )
            await editor.ask(
                session_id,
                call("edit_file", file_path="closed.txt", old_string="on", new_string="off"),
            )
            await editor.ask(session_id, call("write_file", file_path="new.txt", content="new\n"))
            await editor.ask(session_id, call("write_file", file_path="/etc/never", content="no"))
            await editor.ask(session_id, call("read_file", file_path="/etc/hostname"))
            return editor.files

    files = edit(scenario)
    assert files == {path: "one\nnow saved\n", new: "new\n"}
    assert (workdir / "open.txt").read_text() == "saved\n"  # the editor's business
    assert (workdir / "closed.txt").read_text() == "off disk\n"


@pytest.mark.slow
def test_official_client_sees_denied_calls_on_load(backend, home, workdir, plan):
    async def scenario():
        async with editing(backend, plan, home, workdir) as editor:
            editor.answer = "Deny"
            session_id = await editor.open(workdir)
            await editor.ask(session_id, call("risky", path=str(workdir / "trace")))
            await editor.agent.close_session(session_id=session_id)
            editor.forget()
            await editor.agent.load_session(cwd=str(workdir), session_id=session_id, mcp_servers=[])
            return [
                update.status
                for update in editor.updates
                if update.session_update == "tool_call_update"
            ]

    assert edit(scenario) == ["failed"]


async def test_own_commands_are_shown_and_expanded():
    host = Host(own={"tidy": "# Tidy up\nsay tidy $ARGUMENTS", "echo": "say it"})
    async with connected(host) as client:
        await client.answer_to(client.tell("initialize", protocolVersion=1))
        opened = await client.answer_to(client.tell("session/new", cwd="/", mcpServers=[]))
        shown = (await client.next())["params"]["update"]
        assert shown["sessionUpdate"] == "available_commands_update"
        assert shown["availableCommands"] == [
            {"name": "tidy", "description": "Tidy up", "input": {"hint": "arguments"}},
            {"name": "echo", "description": "say it"},
        ]
        session_id = opened["result"]["sessionId"]
        await client.answer_to(client.ask(session_id, "/echo twice"))
        await client.answer_to(client.ask(session_id, "/unknown twice"))
        messages = await host.made[0].coordinator.get("context").get_messages()
        assert [each["content"] for each in messages if each["role"] == "user"] == [
            "say it\n\ntwice",
            "/unknown twice",
        ]


@pytest.mark.parametrize("version", [1, 2, 99])
async def test_newer_client_gets_spoken_protocol_version(version):
    async with connected(Host()) as client:
        answer = await client.answer_to(
            client.tell("initialize", protocolVersion=version, clientCapabilities={"new": 1})
        )
        assert (answer["result"]["protocolVersion"], answer["result"]["authMethods"]) == (1, [])
        answer = await client.answer_to(client.tell("authenticate", methodId="oauth"))
        assert "has no methods to authenticate with" in answer["error"]["message"]
        answer = await client.answer_to(client.tell("session/fork", sessionId="x"))
        assert answer["error"]["code"] == -32601
