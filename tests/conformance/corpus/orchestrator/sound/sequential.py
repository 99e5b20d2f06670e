"""A loop that runs the tool calls of a response one after another.

Sound.
"""

from __future__ import annotations

from typing import Any

import anyio

from amplifier import (
    ChatRequest,
    ChatResponse,
    ContextManager,
    HookResult,
    Message,
    ModelError,
    Provider,
    TextBlock,
    Tool,
    ToolCall,
    ToolResult,
    ToolSpec,
    from_dict,
    to_dict,
)
from amplifier.contracts import Coordinator, Hooks, tool_schema
from amplifier.errors import ProviderUnavailableError

__amplifier_module_type__ = "orchestrator"


class SequentialLoop:
    """Asks the model, runs the tools it wants, and asks again until it answers in words."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._provider = str(config.get("provider", ""))
        self._limit = int(config.get("max_iterations", 20))

    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        **kwargs: Any,
    ) -> str:
        """Run one turn."""
        coordinator: Coordinator | None = kwargs.get("coordinator")
        turn = Turn(context, tools, hooks, coordinator)
        status = "error"
        try:
            await hooks.emit("execution:start", {"prompt": prompt})
            provider = providers.get(self._provider) or next(iter(providers.values()), None)
            if provider is None:
                raise ProviderUnavailableError("no provider is mounted; add one to the plan")
            answer = await turn.run(prompt, provider, self._limit)
            status = "cancelled" if turn.is_stopped else "completed"
            return answer
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            # On every way out the end is reported, and no call stays without a result.
            with anyio.CancelScope(shield=True), anyio.move_on_after(5):
                await turn.answer_open_calls()
                await hooks.emit("execution:end", {"status": status})
                await hooks.emit("orchestrator:complete", {"orchestrator": "loop-sequential", "status": status})


class Turn:
    """The state of one call of execute."""

    def __init__(
        self, context: ContextManager, tools: dict[str, Tool], hooks: Hooks, coordinator: Coordinator | None
    ) -> None:
        self._context, self._tools, self._hooks, self._coordinator = context, tools, hooks, coordinator
        self._open: list[ToolCall] = []
        self._ephemeral: list[dict[str, Any]] = []

    @property
    def is_stopped(self) -> bool:
        """Whether a stop was requested."""
        return self._coordinator is not None and self._coordinator.cancellation.is_cancelled

    async def run(self, prompt: str, provider: Provider, limit: int) -> str:
        """Store the prompt and work until there is an answer."""
        verdict = await self._apply(await self._hooks.emit("prompt:submit", {"prompt": prompt}), "prompt:submit")
        if verdict.action == "deny":
            return f"Denied: {verdict.reason}"
        await self._context.add_message({"role": "user", "content": prompt})
        text = ""
        for _ in range(limit):
            if self.is_stopped:
                break
            response = await self._ask(provider)
            if response is None:
                break
            text = "".join(block.text for block in response.content if isinstance(block, TextBlock))
            calls = provider.parse_tool_calls(response)
            await self._store(response, calls)
            if not calls:
                break
            await self._run_tools(calls)
        await self._hooks.emit("prompt:complete", {"prompt": prompt, "response": text})
        return text

    async def _ask(self, provider: Provider) -> ChatResponse | None:
        """Ask the model; None if a hook denies the request."""
        emitted = await self._hooks.emit("provider:request", {"provider": provider.name})
        verdict = await self._apply(emitted, "provider:request")
        if verdict.action == "deny":
            return None
        messages = await self._context.get_messages_for_request(provider=provider)
        messages, self._ephemeral = [*messages, *self._ephemeral], []
        request = ChatRequest(messages=[read_message(each) for each in messages], tools=self._specs())
        try:
            response = await provider.complete(request)
        except Exception as error:  # the turn fails with the provider's own error
            await self._hooks.emit("provider:error", {"provider": provider.name, "error": str(error)})
            raise
        usage = to_dict(response.usage) if response.usage is not None else None
        await self._hooks.emit("provider:response", {"provider": provider.name, "usage": usage})
        for number, block in enumerate(response.content):
            await self._hooks.emit("content_block:end", {"block_index": number, "block": to_dict(block)})
        return response

    async def _store(self, response: ChatResponse, calls: list[ToolCall]) -> None:
        message: dict[str, Any] = {"role": "assistant", "content": [to_dict(block) for block in response.content]}
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "name": call.name, "tool": call.name, "arguments": call.arguments} for call in calls
            ]
        with anyio.CancelScope(shield=True):
            await self._context.add_message(message)
            self._open = list(calls)

    async def _run_tools(self, calls: list[ToolCall]) -> None:
        results: dict[int, str] = {}
        verdicts: list[tuple[HookResult, str]] = []

        try:
            for number, call in enumerate(calls):
                results[number] = await self._run_tool(call, verdicts)
        finally:
            with anyio.CancelScope(shield=True):
                for number, call in enumerate(calls):
                    await self._answer(call, results.get(number, "Cancelled before it ended."))
        # Injections are stored after the results, because no message may come between a call and its result.
        for verdict, event in verdicts:
            await self._apply(verdict, event)

    async def _run_tool(self, call: ToolCall, verdicts: list[tuple[HookResult, str]]) -> str:
        """Run one tool; the model gets denials and failures as the text of the result."""
        if self.is_stopped:
            return "Not started: a stop was requested."
        data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        verdict = await self._hooks.emit("tool:pre", data)
        if verdict.action == "ask_user":
            verdict = await self._apply(verdict, "tool:pre")
        if verdict.action == "deny":
            return f"Denied: {verdict.reason}"
        verdicts.append((verdict, "tool:pre"))
        tool = self._tools.get(call.name)
        if tool is None:
            return f"There is no tool {call.name!r}; there are {', '.join(self._tools) or 'none'}."
        given = (verdict.data or {}).get("tool_input", call.arguments)
        try:
            result = await tool.execute(given)
        except Exception as error:  # a tool that breaks its contract must not end the turn
            await self._hooks.emit("tool:error", {**data, "error": str(error)})
            return f"Failed: {error}"
        seen = {**data, "tool_input": given, "result": to_dict(result)}
        verdict = await self._hooks.emit("tool:post", seen)
        if verdict.action == "deny":
            return f"Denied: {verdict.reason}"
        verdicts.append((verdict, "tool:post"))
        return result_text((verdict.data or {}).get("result", seen["result"]))

    async def _answer(self, call: ToolCall, text: str) -> None:
        await self._context.add_message({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text})
        self._open.remove(call)

    async def answer_open_calls(self) -> None:
        """Give every call that has none a result."""
        for call in list(self._open):
            await self._answer(call, "Cancelled before it ended.")

    async def _apply(self, verdict: HookResult, event: str) -> HookResult:
        """Do what hooks ask for: store injections, show messages, ask the user. A denial is left to the caller."""
        if self._coordinator is not None:
            verdict = await self._coordinator.process_hook_result(verdict, event, "loop-sequential")
        elif verdict.action == "ask_user":
            return HookResult(action="deny", reason="there is no one to ask")
        for item in verdict.context_injections:
            if item.ephemeral:
                self._ephemeral.append({"role": item.role, "content": item.content})
        return verdict

    def _specs(self) -> list[ToolSpec]:
        nothing: dict[str, Any] = {"type": "object", "properties": {}}
        return [
            ToolSpec(name=name, description=tool.description, parameters=tool_schema(tool) or nothing)
            for name, tool in self._tools.items()
        ]


def result_text(result: Any) -> str:
    """A result as the model is to read it; a hook may have put another value in its place."""
    try:
        return from_dict(ToolResult, result).get_serialized_output()
    except ModelError:
        return str(result)


def read_message(message: dict[str, Any]) -> Message:
    """A stored message as the provider expects it."""
    return Message(**{key: value for key, value in message.items() if key != "tool_calls"})


async def mount(coordinator: Coordinator, config: dict[str, Any]) -> None:
    """Mount the loop."""
    await coordinator.mount("orchestrator", SequentialLoop(config))
