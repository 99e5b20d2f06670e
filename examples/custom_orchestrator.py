"""A loop of your own: when one model cannot answer, the next one is asked; tools run one after another.

    python examples/custom_orchestrator.py
    amplifier module validate examples/custom_orchestrator.py

It keeps the whole orchestrator contract: every event in its place, verdicts of hooks honoured, one result for each tool call
on every way out. `amplifier module new my-loop --type orchestrator` writes a package with a loop like this one.
"""

from __future__ import annotations

import sys
from typing import Any

import anyio

from amplifier import (
    AmplifierSession,
    ChatRequest,
    LLMError,
    Message,
    ModelError,
    ModuleLoader,
    ToolResult,
    ToolSpec,
    from_dict,
    to_dict,
)
from amplifier.contracts import tool_schema

__amplifier_module_type__ = "orchestrator"


class FallbackLoop:
    """Asks the models in the order in which the plan names them."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.limit = config.get("max_iterations", 20)

    async def execute(
        self,
        prompt: str,
        context: Any,
        providers: dict[str, Any],
        tools: dict[str, Any],
        hooks: Any,
        coordinator: Any = None,
    ) -> str:
        """Run one turn."""
        turn = Turn(context, providers, tools, hooks, coordinator)
        status = "error"
        try:
            await hooks.emit("execution:start", {"prompt": prompt})
            answer = await turn.run(prompt, self.limit)
            status = "cancelled" if turn.is_stopped() else "completed"
            return answer
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            # Shielded from the cancellation of the turn, and bounded.
            with anyio.move_on_after(5, shield=True):
                await turn.answer_open_calls()
                await hooks.emit("execution:end", {"status": status})
                await hooks.emit(
                    "orchestrator:complete", {"orchestrator": "loop-fallback", "status": status}
                )


class Turn:
    """What one call of `FallbackLoop.execute` works on."""

    def __init__(
        self,
        context: Any,
        providers: dict[str, Any],
        tools: dict[str, Any],
        hooks: Any,
        coordinator: Any,
    ) -> None:
        self.context, self.providers, self.tools = context, providers, tools
        self.hooks, self.coordinator = hooks, coordinator
        self.open_calls: list[Any] = []
        # Messages for the next request only, never stored.
        self.ephemeral: list[dict[str, Any]] = []
        # Verdicts that may store something, which has to come after the results of the tool calls.
        self.later: list[tuple[Any, str]] = []

    def is_stopped(self) -> bool:
        return self.coordinator is not None and self.coordinator.cancellation.is_cancelled

    async def run(self, prompt: str, limit: int) -> str:
        if await self.is_denied("prompt:submit", {"prompt": prompt}):
            return "A hook refused the prompt."
        await self.context.add_message({"role": "user", "content": prompt})
        text = ""
        for _ in range(limit):
            if self.is_stopped():
                break
            response, calls = await self.ask_in_turn()
            if response is None:
                break
            text = "".join(block.text for block in response.content if block.type == "text")
            await self.store(response, calls)
            if not calls:
                break
            for call in calls:
                await self.answer(call, await self.run_tool(call))
            for verdict, event in self.later:
                await self.take(verdict, event)
            self.later.clear()
        await self.hooks.emit("prompt:complete", {"prompt": prompt, "response": text})
        return text

    # ── models ──

    async def ask_in_turn(self) -> tuple[Any, list[Any]]:
        """Ask the models one after another until one answers; if none does, the last one's error leaves the turn."""
        providers = list(self.providers.items())
        for number, (name, provider) in enumerate(providers, start=1):
            if await self.is_denied("provider:request", {"provider": name}):
                break
            messages = await self.context.get_messages_for_request(provider=provider)
            messages += self.ephemeral
            request = ChatRequest(
                messages=[as_message(each) for each in messages], tools=self.specs()
            )
            try:
                response = await provider.complete(request)
            except Exception as error:
                await self.hooks.emit("provider:error", {"provider": name, "error": str(error)})
                if not isinstance(error, LLMError) or number == len(providers):
                    raise
                continue
            self.ephemeral.clear()
            await self.hooks.emit(
                "provider:response", {"provider": name, "response": to_dict(response)}
            )
            for index, block in enumerate(response.content):
                await self.hooks.emit(
                    "content_block:end", {"block_index": index, "block": to_dict(block)}
                )
            return response, provider.parse_tool_calls(response)
        return None, []

    def specs(self) -> list[ToolSpec]:
        return [
            ToolSpec(
                name=name,
                description=tool.description,
                parameters=tool_schema(tool) or {"type": "object"},
            )
            for name, tool in self.tools.items()
        ]

    # ── tools ──

    async def run_tool(self, call: Any) -> str:
        """Run one tool call; whatever becomes of it, the model gets a text."""
        if self.is_stopped():
            return "Not started: a stop was requested."
        data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        verdict = await self.hooks.emit("tool:pre", data)
        if verdict.action == "ask_user" and self.coordinator is not None:
            verdict = await self.coordinator.process_hook_result(verdict, "tool:pre")
        if verdict.action in ("deny", "ask_user"):
            return f"Denied: {verdict.reason}"
        self.later.append((verdict, "tool:pre"))
        if call.name not in self.tools:
            return f"There is no tool {call.name!r}; there are {', '.join(self.tools) or 'none'}."
        data["tool_input"] = (verdict.data or data).get("tool_input", call.arguments)
        try:
            result = await self.tools[call.name].execute(data["tool_input"])
        # A tool that breaks its contract must not fail the turn.
        except Exception as error:  # noqa: BLE001
            await self.hooks.emit("tool:error", {**data, "error": str(error)})
            return f"Failed: {error}"
        data["result"] = to_dict(result)
        verdict = await self.hooks.emit("tool:post", data)
        if verdict.action == "deny":
            return f"Denied: {verdict.reason}"
        self.later.append((verdict, "tool:post"))
        return as_text((verdict.data or data).get("result", data["result"]))

    # ── the transcript ──

    async def store(self, response: Any, calls: list[Any]) -> None:
        """Store an answer and remember the calls in it; in one step, or a cancelled turn could lose a result."""
        message: dict[str, Any] = {
            "role": "assistant",
            "content": [to_dict(block) for block in response.content],
        }
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": call.arguments} for call in calls
            ]
        with anyio.CancelScope(shield=True):
            await self.context.add_message(message)
            self.open_calls = list(calls)

    async def answer(self, call: Any, text: str) -> None:
        message = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
        with anyio.CancelScope(shield=True):
            await self.context.add_message(message)
            self.open_calls.remove(call)

    async def answer_open_calls(self) -> None:
        for call in list(self.open_calls):
            await self.answer(call, "Cancelled before it ended.")

    # ── hooks ──

    async def is_denied(self, event: str, data: dict[str, Any]) -> bool:
        verdict = await self.hooks.emit(event, data)
        if verdict.action != "deny":
            verdict = await self.take(verdict, event)
        return bool(verdict.action == "deny")

    async def take(self, verdict: Any, event: str) -> Any:
        """Do what a verdict asks for: the kernel stores injections, asks people and shows messages."""
        if self.coordinator is None:
            return verdict
        verdict = await self.coordinator.process_hook_result(verdict, event)
        if verdict.action == "inject_context":  # what is left is ephemeral
            role = verdict.context_injection_role or "system"
            self.ephemeral.append({"role": role, "content": verdict.context_injection})
        return verdict


def as_message(stored: dict[str, Any]) -> Message:
    """A stored message as models are given it; its content names the tool calls already."""
    return Message(**{key: value for key, value in stored.items() if key != "tool_calls"})


def as_text(result: Any) -> str:
    """A tool's result as the model is to read it; a hook may have put something else in its place."""
    try:
        return from_dict(ToolResult, result).get_serialized_output()
    except ModelError:
        return str(result)


async def mount(coordinator: Any, config: dict[str, Any]) -> None:
    """Mount the loop."""
    coordinator.mount("orchestrator", FallbackLoop(config))


OVERLOADED = {
    "error": {"type": "ProviderUnavailableError", "message": "overloaded, try again later"}
}
PLAN = {
    "session": {"orchestrator": "loop-fallback", "context": "context-simple"},
    "providers": [
        {"module": "provider-mock", "config": {"responses": [OVERLOADED]}},
        {"module": "provider-offline"},
    ],
    "tools": [{"module": "tool-filesystem"}],
}


async def main(backend: str) -> None:
    print(f"── a loop that falls back, on {backend}")
    async with AmplifierSession(PLAN, ModuleLoader(modules={"loop-fallback": mount})) as session:
        async with session.stream("list the files") as events:
            async for event in events:
                if event.name in (
                    "provider:request",
                    "provider:error",
                    "tool:pre",
                    "execution:end",
                ):
                    detail = {
                        key: event.data[key]
                        for key in ("provider", "tool_name", "error", "status")
                        if key in event.data
                    }
                    print(f"  {event.name} {detail}")
        print(f"  agent: {(events.result or '').splitlines()[0]}")


if __name__ == "__main__":
    for name in sys.argv[1:] or ["asyncio", "trio"]:
        anyio.run(main, name, backend=name)
