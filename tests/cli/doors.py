"""The doors of an agent in a process of their own, asked by the plainest client: lines of JSON, or HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests._support.forked import Forked


class Door:
    """A command of ours in a process, which is asked by lines or by HTTP."""

    def __init__(self, folder: Path, environment: dict[str, str], *command: str) -> None:
        self.process = Forked(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=folder,
            env=environment,
        )

    def __enter__(self) -> Door:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate(timeout=60)

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:  # noqa: UP028  # `yield from` closes it with the generator
            yield line
        raise AssertionError("it has ended")

    def ask(self, number: int, method: str, **params: Any) -> tuple[Any, list[Any]]:
        """The answer to a request of JSON-RPC, and what came before it."""
        assert self.process.stdin is not None
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        before: list[Any] = []
        for line in self.lines():
            said = json.loads(line) if line.startswith("{") else {}
            if said.get("id") == number:
                return said["result"], before
            before.append(said)
        raise AssertionError("no answer")


def by_http(door: Door) -> list[str]:
    address = next(
        found[0] for line in door.lines() if (found := re.search(r"http://[\w.:]+", line))
    )
    body = {
        "model": "amplifier",
        "stream": True,
        "messages": [{"role": "user", "content": "hello"}],
    }
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(
        f"{address}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(asked, timeout=100) as answer:
        return re.findall(r'"content":"([^"]*)"', answer.read().decode())


def by_acp(door: Door) -> list[str]:
    door.ask(1, "initialize", protocolVersion=1, clientCapabilities={})
    opened, _ = door.ask(2, "session/new", cwd="/", mcpServers=[])
    prompt = [{"type": "text", "text": "hello"}]
    _, told = door.ask(3, "session/prompt", sessionId=opened["sessionId"], prompt=prompt)
    updates = [each["params"]["update"] for each in told if each.get("method") == "session/update"]
    return [
        each["content"]["text"]
        for each in updates
        if each["sessionUpdate"] == "agent_message_chunk"
    ]


def by_mcp(door: Door) -> list[str]:
    client = {"name": "test", "version": "1"}
    door.ask(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
    result, _ = door.ask(2, "tools/call", name="run", arguments={"prompt": "hello"})
    return [result["content"][0]["text"]]
