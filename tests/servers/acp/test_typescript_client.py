"""`amplifier acp` with the protocol's TypeScript library: a client that shares no code with the one in Python."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests._support.node_parts import node, program
from tests._support.terminal import command, environment
from tests.servers.acp._editor import PATIENCE, acp_words


@pytest.mark.slow
def test_typescript_client_streams_asks_cancels_and_loads(backend, home, workdir, plan):
    library = program("@agentclientprotocol/sdk", "dist/v1/stable/acp.js")
    given = {"command": command(*acp_words(backend, plan)), "cwd": str(workdir), "gate": "never"}
    finished = subprocess.run(
        [
            node(),
            str(Path(__file__).with_name("_typescript_client.mjs")),
            library,
            json.dumps(given),
        ],
        capture_output=True,
        text=True,
        env=environment(home),
        timeout=2 * PATIENCE,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert found["version"] == 1
    calls = ["tool_call", "tool_call_update", "agent_message_chunk"]
    kinds = [
        kind
        for index, kind in enumerate(found["first"])
        if kind != found["first"][index - 1] or index == 0
    ]
    assert kinds == ["agent_message_chunk", *calls * 3, "tool_call", "tool_call_update"]
    assert found["questions"] == [
        f"risky {workdir / name}" for name in ("allowed", "rejected", "cancelled")
    ]
    assert found["stops"] == [*["end_turn"] * 4, "cancelled", "end_turn"]
    busy, failed, unknown = found["errors"]
    assert "is running a turn" in busy
    assert "the quota is used up" in failed
    assert "no session 'nowhere' is stored" in unknown
    assert sorted(path.name for path in workdir.iterdir()) == ["allowed", "never.cancelled"]
    assert found["listed"]
    assert found["replayed"].count("user_message_chunk") == 6
    assert found["text"] == "7 prompts so far "
    assert found["exit"] == 0
