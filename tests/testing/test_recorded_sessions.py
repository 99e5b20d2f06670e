"""A stored session becomes a test that plays it again: with failed tools, up to the point of a stop, without secrets."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier.testing import replay_session
from amplifier.testing.sessions import write_test

BACKENDS = ["asyncio", "trio"]
PROMPT = {"role": "user", "content": "Look."}


def asking(call: str, name: str, **arguments: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": "I look."}],
        "tool_calls": [{"id": call, "name": name, "arguments": arguments}],
    }


def result(call: str, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "name": "look", "content": text}


DONE = [
    PROMPT,
    asking("a", "look", at="x"),
    result("a", '{"seen": 1}'),
    {"role": "assistant", "content": "Seen."},
]
FAILED = [
    PROMPT,
    asking("b", "look", at="x"),
    result("b", "no disk"),
    {"role": "assistant", "content": "Sorry."},
]
STOPPED = [PROMPT, asking("c", "look", at="y"), result("c", "cancelled while it was running")]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "messages", [DONE, FAILED, [*DONE, *FAILED]], ids=["done", "failed", "two turns"]
)
def test_session_replays_as_recorded(tmp_path, messages, backend):
    log = tmp_path / "events.jsonl"
    told = {"event": "tool:post", "data": {"tool_call_id": "b", "tool_result": {"success": False}}}
    log.write_text(f"{json.dumps(told)}\n{{cut off")
    recording = write_test("one", messages, tmp_path / "new", log=log).with_suffix(".json")
    assert recording.read_text().count('"failed": true') == messages.count(FAILED[2])
    replay_session(recording, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "messages",
    [
        [*DONE, PROMPT],
        [*DONE, PROMPT, asking("c", "slow", n=1)],
        [*DONE, PROMPT, asking("c", "slow", n=1), result("c", "[interrupted: the turn ended]")],
        [
            *STOPPED,
            {
                "role": "assistant",
                "content": "[interrupted: the turn ended before there was an answer]",
            },
            PROMPT,
        ],
    ],
    ids=[
        "while the model answered",
        "in a tool",
        "in a tool, with its note",
        "after an earlier turn that was stopped",
    ],
)
def test_stopped_turn_stops_at_same_place(tmp_path, messages, backend):
    test = write_test("one", messages, tmp_path)
    replay_session(test.with_suffix(".json"), backend=backend)


def test_different_conversation_names_message(tmp_path):
    recording = write_test("one", DONE, tmp_path).with_suffix(".json")
    changed = json.loads(recording.read_text())
    changed["messages"][2]["name"] = "another"
    recording.write_text(json.dumps(changed))
    with pytest.raises(AssertionError, match="message 3 is"):
        replay_session(recording)


def test_secrets_are_omitted_and_tests_kept(tmp_path):
    key = "sk-ant-api03-" + "Ab3dEf9hJk2LmN0pQr5tUv8xYz1Bc4De6Fg"
    messages = [{**PROMPT, "content": f"Use {key}."}, {"role": "assistant", "content": "Done."}]
    system = {"role": "system", "content": "Be kind.", "metadata": {"source": "system_prompt"}}
    test = write_test("2026-11/x", [system, *messages], tmp_path)
    assert test.name == "test_session_2026_11_x.py"
    assert key not in test.with_suffix(".json").read_text()
    assert "Be kind" not in test.with_suffix(".json").read_text()
    with pytest.raises(FileExistsError):
        write_test("2026-11/x", messages, tmp_path)
    with pytest.raises(ValueError, match="no prompt"):
        write_test("empty", [system], tmp_path)


@pytest.mark.slow
def test_written_file_runs_unchanged(tmp_path):
    test = write_test("one", FAILED, tmp_path)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(tmp_path), timeout=300
    )
    assert "2 passed" in ran.stdout, ran.stdout


def test_retracted_stopped_turn_replays_to_end(tmp_path):
    recording = write_test("one", DONE, tmp_path).with_suffix(".json")
    assert json.loads(recording.read_text())["is_stopped"] is False
    assert (
        json.loads(write_test("two", [*DONE, PROMPT], tmp_path).with_suffix(".json").read_text())[
            "is_stopped"
        ]
        is True
    )
