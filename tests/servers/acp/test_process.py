"""`amplifier acp` as a process: standard output belongs to the protocol, signals and closed pipes end it."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests._support.forked import run_forked
from tests._support.terminal import command, environment, run_cli, start
from tests.servers.acp._editor import PATIENCE, acp_words, plan_with

NOISY = """
import os, subprocess, sys

async def mount(coordinator, config):
    print("noise of a module")
    os.write(1, b"noise of a descriptor\\n")
    subprocess.run(["echo", "noise of a child"], check=True)
    assert sys.stdin.read() == ""
    assert subprocess.run(["cat"], capture_output=True, check=True).stdout == b""

__amplifier_module_type__ = "tool"
"""


class Agent:
    """The process, and messages written by hand."""

    def __init__(self, backend: str, plan: str | Path, home: Path, cwd: Path) -> None:
        self.process = start(
            *acp_words(backend, plan), home=home, cwd=cwd, stdin=subprocess.PIPE, text=False
        )

    def tell(self, number: int, method: str, **params: Any) -> None:
        assert self.process.stdin is not None
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def until(self, method: str | None) -> dict[str, Any]:
        """Read up to a message of the method, or up to an answer."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message: dict[str, Any] = json.loads(line)
            if message.get("method") == method:
                return message
        raise AssertionError("the agent has ended")

    def open(self, cwd: Path) -> str:
        self.tell(1, "initialize", protocolVersion=1)
        self.until(None)
        self.tell(2, "session/new", cwd=str(cwd), mcpServers=[])
        session_id: str = self.until(None)["result"]["sessionId"]
        return session_id

    def prompt(self, session_id: str, text: str) -> None:
        self.tell(
            3, "session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}]
        )

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors.decode()


def test_standard_output_has_messages_only(backend, home, workdir, plan):
    package = home.parent / "modules" / "amplifier_module_tool_noisy"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(NOISY)
    file = plan_with(plan, home.parent, tools=[{"module": "tool-noisy", "source": str(package)}])
    agent = Agent(backend, file, home, workdir)
    agent.prompt(agent.open(workdir), "say hello")
    assert agent.until(None)["result"]["stopReason"] == "end_turn"  # every line before it was JSON
    code, errors = agent.end()
    assert code == 0
    for noise in ("noise of a module", "noise of a descriptor", "noise of a child"):
        assert noise in errors


@pytest.mark.slow
def test_broken_pipes_during_question_end_process(backend, home, workdir, plan):
    agent = Agent(backend, plan, home, workdir)
    agent.prompt(agent.open(workdir), f"call risky {json.dumps({'path': str(workdir / 'trace')})}")
    agent.until("session/request_permission")
    assert agent.process.stdout is not None
    agent.process.stdout.close()
    code, errors = agent.end()
    assert code == 0, errors
    assert "Traceback" not in errors
    assert not (workdir / "trace").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_turn_and_closes_session(number, backend, home, workdir, plan):
    agent = Agent(backend, plan, home, workdir)
    session_id = agent.open(workdir)
    agent.prompt(session_id, f"call wait_for {json.dumps({'path': str(workdir / 'never')})}")
    agent.until("session/update")
    agent.process.send_signal(number)
    code, errors = agent.end()
    assert code == 128 + number, errors
    assert (workdir / "never.cancelled").exists()


def test_standard_input_may_be_file(backend, home, workdir, plan):
    line = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": 1}}
    )
    (workdir / "input").write_text(f"{line}\nnonsense\n")
    with (workdir / "input").open("rb") as source:
        words = command(*acp_words(backend, plan))
        finished = run_forked(
            words, stdin=source, env=environment(home), cwd=workdir, timeout=PATIENCE
        )
    answers = [json.loads(line) for line in finished.stdout.splitlines()]
    assert finished.returncode == 0
    assert -32700 in [answer.get("error", {}).get("code") for answer in answers]


def test_unusable_plan_is_reported_on_stderr(home, workdir):
    (workdir / "plan.json").write_text("{")
    finished = run_cli("acp", "--plan", "plan.json", home=home, cwd=workdir)
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "not valid JSON" in finished.stderr
