"""The two loops of the published-style agent, as text; see `published_agent`."""

from __future__ import annotations

_LOOP_HEAD = """
import asyncio
import uuid

from amplifier_core import HookRegistry, HookResult, ModuleCoordinator
from amplifier_core.events import (
    CANCEL_COMPLETED, CANCEL_REQUESTED, CONTENT_BLOCK_END, CONTENT_BLOCK_START, ORCHESTRATOR_COMPLETE, PROMPT_COMPLETE,
    PROMPT_SUBMIT, PROVIDER_REQUEST, PROVIDER_RESPONSE, TOOL_ERROR, TOOL_POST, TOOL_PRE,
)
from amplifier_core.llm_errors import LLMError
from amplifier_core.message_models import ChatRequest, Message, ToolSpec

__amplifier_module_type__ = "orchestrator"
"""

BASIC = (
    _LOOP_HEAD
    + '''

async def mount(coordinator: ModuleCoordinator, config=None):
    coordinator.register_contributor("observability.events", "loop-basic", lambda: ["orchestrator:basic"])
    await coordinator.mount("orchestrator", BasicLoop(config or {}))


class BasicLoop:
    """Tools of one answer run together with gather; a cancellation is caught, tidied up after, and raised again."""

    def __init__(self, config):
        self.max_iterations = int(config.get("max_iterations", -1))

    async def execute(self, prompt, context, providers, tools, hooks: HookRegistry, coordinator=None) -> str:
        result = await hooks.emit(PROMPT_SUBMIT, {"prompt": prompt})
        if coordinator:
            result = await coordinator.process_hook_result(result, "prompt:submit", "orchestrator")
            if result.action == "deny":
                return f"Operation denied: {result.reason}"
        await context.add_message({"role": "user", "content": prompt})
        provider_name, provider = min(providers.items(), key=lambda item: getattr(item[1], "priority", 100))
        iteration, final, status = 0, "", "success"
        while self.max_iterations == -1 or iteration < self.max_iterations:
            if coordinator and coordinator.cancellation.is_cancelled:
                await self._emit_cancelled(hooks, coordinator, iteration)
                return final
            iteration += 1
            asked = await hooks.emit(PROVIDER_REQUEST, {"provider": provider_name, "iteration": iteration})
            extra = []
            if coordinator:
                asked = await coordinator.process_hook_result(asked, "provider:request", "orchestrator")
                if asked.action == "inject_context" and asked.ephemeral and asked.context_injection:
                    extra = [{"role": asked.context_injection_role, "content": asked.context_injection}]
            messages = await context.get_messages_for_request(provider=provider)
            request = ChatRequest(
                messages=[Message(**message) for message in [*messages, *extra]],
                tools=[ToolSpec(name=t.name, description=t.description, parameters=t.input_schema) for t in tools.values()] or None,
            )
            try:
                response = await provider.complete(request)
            except LLMError as error:
                await hooks.emit("provider:error", {
                    "provider": provider_name, "retryable": error.retryable, "status_code": error.status_code,
                    "error": {"type": type(error).__name__, "msg": str(error)},
                })
                await hooks.emit(ORCHESTRATOR_COMPLETE, {"orchestrator": "loop-basic", "turn_count": iteration, "status": "error"})
                raise
            if coordinator and coordinator.cancellation.is_immediate:
                await self._emit_cancelled(hooks, coordinator, iteration)
                return final
            usage = getattr(response, "usage", None)
            calls = provider.parse_tool_calls(response)
            await hooks.emit(PROVIDER_RESPONSE, {"provider": provider_name, "usage": usage, "tool_calls": bool(calls)})
            blocks = getattr(response, "content_blocks", None) or response.content
            for index, block in enumerate(blocks):
                kind = block.type.value if hasattr(block.type, "value") else block.type
                await hooks.emit(CONTENT_BLOCK_START, {"block_type": kind, "block_index": index, "total_blocks": len(blocks)})
                shown = block.to_dict() if hasattr(block, "to_dict") else block.model_dump()
                await hooks.emit(CONTENT_BLOCK_END, {
                    "block_index": index, "total_blocks": len(blocks), "block": shown, "usage": usage.model_dump() if usage else None,
                })
            message = {"role": "assistant", "content": [b.model_dump() for b in response.content if hasattr(b, "model_dump")]}
            if calls:
                message["tool_calls"] = [{"id": c.id, "tool": c.name, "arguments": c.arguments} for c in calls]
            await context.add_message(message)
            if not calls:
                final = getattr(response, "text", None) or "".join(b.text for b in response.content if b.type == "text")
                break
            group = str(uuid.uuid4())
            try:
                results = await asyncio.gather(*(self._run(c, tools, hooks, coordinator, group) for c in calls))
            except asyncio.CancelledError:
                for call in calls:
                    await context.add_message({
                        "role": "tool", "name": call.name, "tool_call_id": call.id, "content": '{"error": "cancelled by user"}',
                    })
                await self._emit_cancelled(hooks, coordinator, iteration)
                await context.add_message({"role": "assistant", "content": "Stopped before the tools had ended."})
                raise
            for call, content in zip(calls, results):
                await context.add_message({"role": "tool", "name": call.name, "tool_call_id": call.id, "content": content})
        await hooks.emit(PROMPT_COMPLETE, {"response_preview": final[:100], "length": len(final)})
        await hooks.emit(ORCHESTRATOR_COMPLETE, {"orchestrator": "loop-basic", "turn_count": iteration, "status": status})
        return final

    async def _emit_cancelled(self, hooks, coordinator, iteration):
        await hooks.emit(CANCEL_REQUESTED, {
            "orchestrator": "loop-basic", "turn_count": iteration, "state": str(coordinator.cancellation.state),
        })
        await coordinator.cancellation.trigger_callbacks()
        await hooks.emit(CANCEL_COMPLETED, {
            "orchestrator": "loop-basic", "turn_count": iteration, "was_immediate": coordinator.cancellation.is_immediate,
        })
        await hooks.emit(ORCHESTRATOR_COMPLETE, {"orchestrator": "loop-basic", "turn_count": iteration, "status": "cancelled"})

    async def _run(self, call, tools, hooks, coordinator, group):
        if coordinator:
            coordinator.cancellation.register_tool_start(call.id, call.name)
        try:
            details = {"tool_name": call.name, "tool_input": call.arguments, "parallel_group_id": group}
            before = await hooks.emit(TOOL_PRE, details)
            if coordinator:
                before = await coordinator.process_hook_result(before, "tool:pre", call.name)
                if before.action == "deny":
                    return f"Denied by hook: {before.reason}"
            tool = tools.get(call.name)
            if tool is None:
                await hooks.emit(TOOL_ERROR, {**details, "error": {"type": "RuntimeError", "msg": f"Tool '{call.name}' not found"}})
                return f"Error: Tool '{call.name}' not found"
            result = await tool.execute(call.arguments)
            shown = result.to_dict() if hasattr(result, "to_dict") else result
            after = await hooks.emit(TOOL_POST, {**details, "result": shown})
            if coordinator:
                after = await coordinator.process_hook_result(after, "tool:post", call.name)
            changed = after.data.get("result") if after.action == "continue" and after.data else None
            if changed is not None and changed is not shown:
                return str(changed)
            return result.get_serialized_output()
        except Exception as error:
            await hooks.emit(TOOL_ERROR, {
                "tool_name": call.name, "parallel_group_id": group, "error": {"type": type(error).__name__, "msg": str(error)},
            })
            return f"Internal error executing tool: {error}"
        finally:
            if coordinator:
                coordinator.cancellation.register_tool_complete(call.id)
'''
)

STREAMING = (
    _LOOP_HEAD
    + '''

async def mount(coordinator: ModuleCoordinator, config=None):
    coordinator.register_contributor("observability.events", "loop-streaming", lambda: ["execution:start", "execution:end"])
    await coordinator.mount("orchestrator", StreamingLoop(config or {}))


class StreamingLoop:
    """Answers go through a queue, tools know their task, and what is left is reported at the end of every path."""

    def __init__(self, config):
        self.delay = float(config.get("stream_delay", 0))
        self.steering = asyncio.Queue(maxsize=10)

    async def execute(self, prompt, context, providers, tools, hooks, coordinator=None, **kwargs) -> str:
        submitted = await hooks.emit(PROMPT_SUBMIT, {"prompt": prompt})
        submitted = await coordinator.process_hook_result(submitted, "prompt:submit", "orchestrator")
        if submitted.action == "deny":
            return f"Operation denied: {submitted.reason}"
        await hooks.emit("execution:start", {"prompt": prompt})
        status, turns, parts = "success", 0, []
        try:
            async for token in self._stream(prompt, context, providers, tools, hooks, coordinator):
                if isinstance(token, int):
                    turns = token
                    continue
                parts.append(token)
                await asyncio.sleep(self.delay)
            if coordinator.cancellation.is_cancelled:
                status = "cancelled"
        except asyncio.CancelledError:
            status = "cancelled"
            await hooks.emit(CANCEL_REQUESTED, {"orchestrator": "loop-streaming", "turn_count": turns, "state": "task"})
            await hooks.emit(CANCEL_COMPLETED, {
                "orchestrator": "loop-streaming", "turn_count": turns, "was_immediate": coordinator.cancellation.is_immediate,
            })
            raise
        except Exception:
            status = "error"
            raise
        finally:
            await hooks.emit("execution:end", {"response": "".join(parts), "status": status})
            await hooks.emit(ORCHESTRATOR_COMPLETE, {"orchestrator": "loop-streaming", "turn_count": turns, "status": status})
        return "".join(parts)

    async def _stream(self, prompt, context, providers, tools, hooks, coordinator):
        await context.add_message({"role": "user", "content": prompt})
        name, provider = next(iter(providers.items()))
        turn = 0
        while not coordinator.cancellation.is_cancelled:
            turn += 1
            yield turn
            while True:
                try:
                    await context.add_message({"role": "user", "content": self.steering.get_nowait()})
                except asyncio.QueueEmpty:
                    break
            asked = await hooks.emit(PROVIDER_REQUEST, {"provider": name, "iteration": turn})
            asked = await coordinator.process_hook_result(asked, "provider:request", "orchestrator")
            messages = await context.get_messages_for_request(provider=provider)
            for item in asked.context_injections if asked.action == "inject_context" else []:
                messages.append({"role": item.role, "content": item.content})
            response = await provider.complete(ChatRequest(
                messages=[Message(**m) for m in messages],
                tools=[ToolSpec(name=t.name, description=t.description, parameters=t.input_schema) for t in tools.values()],
            ))
            usage = response.usage.model_dump() if response.usage else None
            for index, block in enumerate(response.content):
                await hooks.emit(CONTENT_BLOCK_START, {
                    "block_type": block.type, "block_index": index, "total_blocks": len(response.content), "metadata": getattr(block, "raw", None),
                })
                await hooks.emit(CONTENT_BLOCK_END, {
                    "block_index": index, "total_blocks": len(response.content), "block": block.model_dump(), "usage": usage,
                })
            if coordinator.cancellation.is_immediate:
                break
            calls = provider.parse_tool_calls(response)
            stored = {"role": "assistant", "content": [b.model_dump() for b in response.content]}
            if calls:
                stored["tool_calls"] = [{"id": c.id, "tool": c.name, "arguments": c.arguments} for c in calls]
            await context.add_message(stored)
            if not calls:
                for word in "".join(b.text for b in response.content if b.type == "text").split(" "):
                    yield f"{word} "
                return
            done = await asyncio.gather(
                *(self._one(call, tools, hooks, coordinator, str(turn)) for call in calls), return_exceptions=True
            )
            for call, outcome in zip(calls, done):
                if isinstance(outcome, BaseException):
                    outcome = f"Error: {outcome!r}"
                await context.add_message({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": outcome})
        if coordinator.cancellation.is_cancelled:
            await hooks.emit(CANCEL_REQUESTED, {
                "orchestrator": "loop-streaming", "turn_count": turn, "state": str(coordinator.cancellation.state),
            })
            await coordinator.cancellation.trigger_callbacks()
            await hooks.emit(CANCEL_COMPLETED, {
                "orchestrator": "loop-streaming", "turn_count": turn, "was_immediate": coordinator.cancellation.is_immediate,
            })

    async def _one(self, call, tools, hooks, coordinator, group):
        if not hasattr(coordinator, "_tool_dispatch_contexts"):
            coordinator._tool_dispatch_contexts = {}
        task = asyncio.current_task()
        coordinator._tool_dispatch_contexts[task] = {"tool_call_id": call.id, "parallel_group_id": group}
        coordinator.cancellation.register_tool_start(call.id, call.name)
        details = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments, "parallel_group_id": group}
        try:
            before = await coordinator.process_hook_result(await hooks.emit(TOOL_PRE, details), "tool:pre", call.name)
            if before.action == "deny":
                return f"Denied by hook: {before.reason}"
            tool = tools.get(call.name)
            if tool is None:
                message = f"Tool '{call.name}' not found"
                await hooks.emit(TOOL_ERROR, {**details, "error": {"type": "RuntimeError", "msg": message}})
                return f"Error: {message}"
            result = await tool.execute(call.arguments)
            shown = result.model_dump()
            after = await hooks.emit(TOOL_POST, {**details, "result": shown})
            after = await coordinator.process_hook_result(after, "tool:post", call.name)
            changed = (after.data or {}).get("result") if after.action == "continue" else None
            if changed is not None and changed is not shown:
                import json

                return changed if isinstance(changed, str) else json.dumps(changed, sort_keys=True)
            return result.get_serialized_output()
        finally:
            coordinator._tool_dispatch_contexts.pop(task, None)
            coordinator.cancellation.register_tool_complete(call.id)
'''
)
