"""tool-mcp with servers that others have written, from npm and PyPI: `make parts` installs them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from amplifier.models import ImageBlock
from amplifier.testing import MockApprovalSystem
from tests._support.mcp_servers import node_server, python_server
from tests.modules.tools.mcp.desk import opened

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Async generator '(httpx2|httpcore2|mcp):ResourceWarning"),
]


def node(package: str, *arguments: str, **more: Any) -> dict[str, Any]:
    program, script = node_server(package)
    return {"command": program, "args": [script, *arguments], **more}


async def test_four_servers_answer_side_by_side(tmp_path):
    (tmp_path / "note.txt").write_text("Buy milk.\n")
    servers = {
        "files": node("server-filesystem", str(tmp_path)),
        "memory": node("server-memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.json")}),
        "everything": node("server-everything", "stdio"),
        "time": {"command": python_server("mcp-server-time"), "args": ["--local-timezone", "UTC"]},
    }
    async with opened(servers) as desk:
        assert desk.events("mcp:server_failed") == []
        read = await desk.call("files_read_text_file", path=str(tmp_path / "note.txt"))
        assert "Buy milk." in str(read.output)
        assert desk.tools["files_read_text_file"].annotations["readOnlyHint"] is True
        outside = await desk.call("files_read_text_file", path="/etc/passwd")
        assert not outside.success
        entity = {"name": "Anna", "entityType": "person", "observations": ["likes milk"]}
        assert (await desk.call("memory_create_entities", entities=[entity])).success
        assert "likes milk" in str((await desk.call("memory_search_nodes", query="Anna")).output)
        assert (await desk.call("everything_echo", message="hello")).output == "Echo: hello"
        now = await desk.call("time_get_current_time", timezone="Europe/Berlin")
        assert "Europe/Berlin" in str(now.output)
        assert not (await desk.call("time_get_current_time", timezone="Nowhere/Town")).success


async def test_everything_server_exercises_all_content():
    person = MockApprovalSystem(["Allow once"])
    async with opened(
        {"all": node("server-everything", "stdio")}, model=["Forty-two."], approval=person
    ) as desk:
        asked = await desk.call(
            "all_trigger-sampling-request", prompt="What is six times seven?", maxTokens=20
        )
        assert "Forty-two." in str(asked.output)
        assert len(person.requests) == 1
        image = await desk.call("all_get-tiny-image")
        assert any(isinstance(block, ImageBlock) for block in image.content)
        structured = await desk.call("all_get-structured-content", location="Chicago")
        assert set(structured.output) >= {"temperature", "conditions"}
        assert desk.tools["all_read_resource"] is not None
        listed = (await desk.call("all_read_resource")).output
        assert listed["resources"] or listed["templates"]
        prompts = (await desk.call("all_get_prompt")).output["prompts"]
        assert prompts
        result = await desk.call("all_trigger-long-running-operation", duration=1, steps=2)
        assert result.success
        assert [event["progress"] for event in desk.events("mcp:progress")] == [1.0, 2.0]


@contextmanager
def everything_over_http() -> Iterator[str]:
    program, script = node_server("server-everything")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "PORT": str(port)}
    command = [program, script, "streamableHttp"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if str(port) in line:
                    break
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.kill()
            process.stderr.close()


async def test_everything_server_answers_over_http():
    with everything_over_http() as url:
        async with opened({"web": {"url": url}}) as desk:
            assert desk.events("mcp:server_failed") == []
            assert (await desk.call("web_echo", message="hello")).output == "Echo: hello"
            result = await desk.call("web_trigger-long-running-operation", duration=1, steps=2)
            assert result.success
            assert desk.events("mcp:progress")


def test_servers_of_file_are_installed():
    for package in ("server-everything", "server-filesystem", "server-memory"):
        assert Path(node_server(package)[1]).is_file()
