"""An agent's MCP client under the official conformance suite of the protocol.

    npx @modelcontextprotocol/conformance@0.2.0-alpha.12 client \
        --command "python examples/mcp_conformance_client.py" --requirements 2026-07-28

The suite starts this program once for each scenario, with the address of its server as the last
argument. The program does what an application does that has `tool-mcp` in its plan: it opens a
session, lets its user log in, answers the questions of the server and calls its tools. The user is
a program here, which follows every login page and accepts every form as it is. `tests/suites` runs
all required scenarios.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread
import httpx2

from amplifier import AmplifierSession

SERVER = "suite"
# The suite's own, which no one fetches.
CLIENT_METADATA = "https://conformance-test.local/client-metadata.json"


class Accepting:
    """A user who accepts everything, and leaves every field of a form as it is."""

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        return options[0]

    async def request_input(
        self, prompt: str, schema: dict[str, Any], timeout: float
    ) -> dict[str, Any] | None:
        """Fill in the defaults, and a true for what has none."""
        return {name: field.get("default", True) for name, field in schema["properties"].items()}


async def browse(page: str) -> None:
    """Open a login page, as the browser of a user would; it leads back to the session."""
    await anyio.to_thread.run_sync(lambda: httpx2.get(page, follow_redirects=True))


def plan(address: str, tokens: str, context: dict[str, Any]) -> dict[str, Any]:
    """An agent with one server, which the suite plays."""
    known: dict[str, Any] = {
        key: context[key] for key in ("client_id", "client_secret") if key in context
    }
    who = known or {"client_metadata_url": CLIENT_METADATA}
    oauth = {"token_directory": tokens, **who}
    server = {
        "url": address,
        "oauth": oauth,
        "prefix": "",
        "allow_unprefixed_names": True,
        "required": True,
    }
    return {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-offline"}],
        "tools": [{"module": "tool-mcp", "config": {"servers": {SERVER: server}}}],
    }


def calls(tools: dict[str, Any], context: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """What to call: what the scenario asks for, or else every tool that the server offers."""
    if "toolCalls" in context:
        for call in context["toolCalls"]:
            yield call["name"], call["arguments"]
        return
    schemas = {name: tool.get_schema() for name, tool in tools.items()}
    for name, schema in schemas.items():
        if name == "json_schema_echo":  # asks for a schema as a model would see it
            yield name, {"schema": schemas["json_schema_2020_12_tool"]}
        else:
            yield name, dict.fromkeys(schema.get("properties", {}), 2)


async def main(address: str) -> None:
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    with tempfile.TemporaryDirectory() as tokens:
        session = AmplifierSession(plan(address, tokens, context), approval_system=Accepting())
        async with anyio.create_task_group() as browser:

            async def log_in(page: str) -> None:
                browser.start_soon(browse, page)

            session.coordinator.register_capability("mcp.login", log_in)
            await use(session, context)


async def use(session: AmplifierSession, context: dict[str, Any]) -> None:
    async with session:
        tools = dict(session.coordinator.get("tools") or {})
        for name, arguments in calls(tools, context):
            result = await tools[name].execute(arguments)
            print(f"{name}: {result.output if result.success else result.error}")


if __name__ == "__main__":
    anyio.run(main, sys.argv[-1], backend=os.environ.get("AMPLIFIER_BACKEND", "asyncio"))
