"""The agent that the command line's tests run: a provider that obeys the prompt, tools that wait, a hook that asks.

The command loads them in its own process, through the packages that `write_plan` makes, with the real loops, contexts and tools of
the project.

    say WORDS            streams the words
    call TOOL JSON       calls a tool, then answers with its output
    both JSON JSON       two calls at once, of `wait_for` or the tool that the JSON names
    pace SECONDS COUNT   streams that many pieces, with a pause before each
    hang                 streams one word, makes a file of that name and waits for ever
    fail                 raises a quota error, which is not retried
    limit SECONDS        raises a rate limit that asks to wait so long
    end REASON WORDS     streams the words and reports the reason why it stopped
    cut WORDS            streams the words and fails
    notes                answers with what the request says beside the conversation
    settings             answers with what the request sets
    blocks               answers with the types of the blocks of the prompt
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio

from amplifier import (
    ChatRequest,
    ChatResponse,
    HookResult,
    ModelInfo,
    ProviderInfo,
    TextBlock,
    ToolCall,
    ToolResult,
    Usage,
)
from amplifier.errors import LLMError, QuotaExceededError, RateLimitError
from amplifier.models import StreamChunk

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}}


def call(tool: str, **given: object) -> str:
    """The prompt for which the agent calls a tool."""
    return f"call {tool} {json.dumps(given, default=str)}"


def is_there(path: str) -> bool:
    return Path(path).exists()


def leave_trace(path: str) -> None:
    Path(path).touch()


class ScriptedProvider:
    name = "scripted"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id=self.name, display_name="Scripted (for tests)")

    async def list_models(self) -> list[ModelInfo]:
        return []

    async def complete(self, request: ChatRequest, **options: Any) -> ChatResponse:
        async with self.stream(request) as chunks:
            return [chunk async for chunk in chunks][-1].response

    @asynccontextmanager
    async def stream(self, request: ChatRequest, **options: Any) -> AsyncIterator[Any]:
        pieces = self._pieces(request)
        try:
            yield pieces
        finally:
            await pieces.aclose()

    async def _pieces(self, request: ChatRequest) -> AsyncGenerator[StreamChunk, None]:
        text, calls = self._decide(request)
        if text == "hang":
            yield StreamChunk(kind="block_delta", index=0, block_type="text", text="hanging ")
            await anyio.Path("hanging").touch()  # asked for more, so that word has been passed on
            await anyio.sleep_forever()
        if text == "fail":
            raise QuotaExceededError("the quota is used up", provider=self.name)
        if text.startswith("limit "):
            raise RateLimitError(
                "too many requests", provider=self.name, retry_after=float(text.split()[1])
            )
        pause, reason = 0.0, None
        if text.startswith("end "):
            _, reason, text = text.split(" ", 2)
        is_cut, text = text.startswith("cut "), text.removeprefix("cut ")
        if text.startswith("pace "):
            pause, text = float(text.split()[1]), " ".join(["piece"] * int(text.split()[2]))
        for word in text.split(" "):
            if pause:
                await anyio.sleep(pause)
            if text:
                yield StreamChunk(kind="block_delta", index=0, block_type="text", text=f"{word} ")
        if is_cut:
            raise LLMError("the line was cut", provider=self.name)
        content: list[Any] = (
            [TextBlock(text="".join(f"{word} " for word in text.split(" ")))] if text else []
        )
        usage = Usage(
            input_tokens=10,
            output_tokens=5,
            total_tokens=15,
            cost_usd=Decimal("0.0001"),
            cache_read_tokens=4,
            reasoning_tokens=2,
        )
        response = ChatResponse(
            content=content, tool_calls=calls or None, usage=usage, finish_reason=reason
        )
        yield StreamChunk(kind="response", response=response)

    def _decide(self, request: ChatRequest) -> tuple[str, list[ToolCall]]:
        last = next(
            message for message in reversed(request.messages) if message.role in ("user", "tool")
        )
        if last.role == "tool":
            return f"done: {last.content}", []
        if isinstance(last.content, list):
            return " ".join(block.type for block in last.content), []
        verb, _, rest = str(last.content).partition(" ")
        number = len(request.messages)
        if verb == "say":
            return rest, []
        if verb == "call":
            tool, _, given = rest.partition(" ")
            return "", [
                ToolCall(id=f"call-{number}", name=tool, arguments=json.loads(given or "{}"))
            ]
        if verb == "both":
            inputs = [json.loads(part) for part in rest.split(" ")]
            return "", [
                ToolCall(
                    id=f"call-{number}-{index}", name=given.pop("tool", "wait_for"), arguments=given
                )
                for index, given in enumerate(inputs)
            ]
        if verb in ("pace", "limit", "end", "cut"):
            return str(last.content), []
        if verb == "notes":
            return " ".join(
                str(message.content) for message in request.messages if message.role == "system"
            ), []
        if verb == "settings":
            names = (
                "temperature",
                "top_p",
                "max_output_tokens",
                "stop",
                "reasoning_effort",
                "metadata",
                "tool_choice",
            )
            return json.dumps({name: getattr(request, name) for name in names}).replace(" ", ""), []
        if verb == "history":
            return (
                f"{sum(message.role == 'user' for message in request.messages)} prompts so far",
                [],
            )
        return verb, []

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return response.tool_calls or []


class WaitFor:
    """Waits until a file is there."""

    name = "wait_for"
    description = "Wait until a file exists.\nSecond line."
    input_schema = SCHEMA

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002  # the contract's name
        try:
            while not is_there(input["path"]):  # noqa: ASYNC110  # another process makes it
                await anyio.sleep(0.02)
        except BaseException:
            leave_trace(f"{input['path']}.cancelled")
            raise
        return ToolResult(output="it is there")


class Risky:
    """Is asked about before it runs; leaves a trace."""

    name = "risky"
    description = "Do something that cannot be undone."
    input_schema = SCHEMA

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002  # the contract's name
        leave_trace(input["path"])
        return ToolResult(output="it was done")


class Crash:
    """Fails, with an error that would rename the window."""

    name = "crash"
    description = "Crash."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002  # the contract's name
        raise RuntimeError("the tool crashed \x1b]0;evil title\x07")


class Stubborn:
    """Refuses to be cancelled until a file is there."""

    name = "stubborn"
    description = "Never stop."
    input_schema = SCHEMA

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002  # the contract's name
        with anyio.CancelScope(shield=True):
            while not is_there(input["path"]):  # noqa: ASYNC110  # another process makes it
                await anyio.sleep(0.02)
        return ToolResult(output="it is there")


async def mount_provider(coordinator: Any, config: dict[str, Any]) -> ScriptedProvider:
    return ScriptedProvider()


async def mount_tools(coordinator: Any, config: dict[str, Any]) -> None:
    for tool in (WaitFor(), Risky(), Crash(), Stubborn()):
        await coordinator.mount("tools", tool, name=tool.name)


async def mount_hook(coordinator: Any, config: dict[str, Any]) -> Callable[[], None]:
    async def ask(event: str, data: dict[str, Any]) -> HookResult:
        if data.get("tool_name") != "risky":
            return HookResult()
        return HookResult(
            action="ask_user",
            approval_prompt=f"May risky touch {Path(data['tool_input']['path']).name}?\x1b[2J\u202e{data['tool_input'].get('long', '')}",
            approval_options=["Allow once", "Allow always", "Deny"],
            approval_timeout=0.3 if "quick" in data["tool_input"]["path"] else 30.0,
        )

    unregister: Callable[[], None] = coordinator.hooks.register(
        "tool:pre", ask, name="ask-first", on_failure="deny"
    )
    return unregister


_PACKAGES = {
    "provider-scripted": ("provider", "mount_provider"),
    "tool-scripted": ("tool", "mount_tools"),
    "hooks-ask": ("hook", "mount_hook"),
}


def write_plan(folder: Path, *, context: str = "context-persistent") -> Path:
    """Write the packages of the scripted modules and a plan with all of them below ``folder``; returns the plan's file."""
    sources = {}
    for module_id, (kind, mount) in _PACKAGES.items():
        package = folder / "modules" / f"amplifier_module_{module_id.replace('-', '_')}"
        package.mkdir(parents=True)
        text = f"from tests.cli._scripted_agent import {mount} as mount\n__amplifier_module_type__ = {kind!r}\n"
        (package / "__init__.py").write_text(text)
        sources[module_id] = str(package)
    plan = {
        "session": {"orchestrator": "loop-streaming", "context": context},
        "providers": [{"module": "provider-scripted", "source": sources["provider-scripted"]}],
        "tools": [{"module": "tool-scripted", "source": sources["tool-scripted"]}],
        "hooks": [{"module": "hooks-ask", "source": sources["hooks-ask"]}],
    }
    file = folder / "plan.json"
    file.write_text(json.dumps(plan))
    return file
