"""A loop that leaves a task behind which counts for ever."""

import asyncio
import json
import logging

import anyio

from amplifier import ChatRequest, HookResult, Message, ToolSpec, to_dict

__amplifier_module_type__ = "orchestrator"
__amplifier_backends__ = ("asyncio",)

log = logging.getLogger(__name__)


class GatherLoop:
    name = "loop-gather"

    def __init__(self, coordinator, rounds):
        self._coordinator = coordinator
        self._rounds = rounds
        self._lock = asyncio.Lock()

    async def execute(self, prompt, context, providers, tools, hooks, **_):
        async with self._lock:
            await hooks.emit("execution:start", {"prompt": prompt})
            status, text = "error", ""
            try:
                text = await self._talk(prompt, context, next(iter(providers.items())), tools, hooks)
                status = "completed"
                return text
            except asyncio.CancelledError:
                status = "cancelled"
                raise
            finally:
                await hooks.emit("execution:end", {"response": text, "status": status})
                await hooks.emit("orchestrator:complete", {"orchestrator": self.name, "status": status})

    async def _talk(self, prompt, context, chosen, tools, hooks):
        name, provider = chosen
        gate = await self._settle(await hooks.emit("prompt:submit", {"prompt": prompt}), "prompt:submit")
        if gate.action == "deny":
            return ""
        await context.add_message({"role": "user", "content": [{"type": "text", "text": prompt}]})
        once = list(gate.context_injections)
        specs = [ToolSpec(name=n, description=t.description, parameters=t.get_schema()) for n, t in tools.items()]
        words = ""
        for round_number in range(1, self._rounds + 1):
            if self._coordinator.cancellation.is_graceful:
                return words
            gate = await hooks.emit("provider:request", {"provider": name, "iteration": round_number})
            gate = await self._settle(gate, "provider:request")
            if gate.action == "deny":
                return words
            view = await context.get_messages_for_request()
            once += gate.context_injections
            view += [{"role": item.role, "content": item.content} for item in once]
            once = []
            try:
                response = await provider.complete(ChatRequest(messages=[Message(**m) for m in view], tools=specs))
            except Exception as error:
                log.warning("the provider %s failed: %s", name, error)
                await hooks.emit("provider:error", {"provider": name, "error": {"type": type(error).__name__}})
                raise
            await hooks.emit("provider:response", {"provider": name, "usage": to_dict(response.usage)})
            words = " ".join(block.text for block in response.content if block.type == "text")
            for number, block in enumerate(response.content):
                await hooks.emit("content_block:start", {"block_index": number, "block_type": block.type})
                await hooks.emit("content_block:end", {"block_index": number, "block": to_dict(block)})
            calls = provider.parse_tool_calls(response)
            if not calls:
                await context.add_message({"role": "assistant", "content": [to_dict(b) for b in response.content]})
                break
            once = await self._tools(context, tools, hooks, response, calls)
        await hooks.emit("prompt:complete", {"prompt": prompt, "length": len(words)})
        return words

    async def _tools(self, context, tools, hooks, response, calls):
        message = {"role": "assistant", "content": [to_dict(block) for block in response.content]}
        message["tool_calls"] = [{"id": c.id, "tool": c.name, "arguments": json.dumps(c.arguments)} for c in calls]
        with anyio.CancelScope(shield=True):
            await context.add_message(message)
        answered, heard = [], []
        try:
            texts = await asyncio.gather(*(self._tool(call, tools, hooks, heard) for call in calls))
            for call, text in zip(calls, texts, strict=True):
                await context.add_message({"role": "tool", "tool_call_id": call.id, "content": text})
                answered.append(call.id)
        finally:
            with anyio.CancelScope(shield=True):
                for call in calls[len(answered) :]:
                    text = "Error: interrupted."
                    await context.add_message({"role": "tool", "tool_call_id": call.id, "content": text})
        whispers = []
        for verdict, event in heard:
            whispers += (await self._settle(verdict, event)).context_injections
        return whispers

    async def _tool(self, call, tools, hooks, heard):
        if self._coordinator.cancellation.is_graceful:
            return "Error: stopped before it began."
        event = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        gate = await hooks.emit("tool:pre", event)
        if gate.action == "ask_user":
            gate = await self._settle(gate, "tool:pre")
        if gate.action == "deny":
            return f"Error: refused. {gate.reason}"
        heard.append((gate, "tool:pre"))
        tool = tools.get(call.name)
        if tool is None:
            await hooks.emit("tool:error", {**event, "error": "unknown tool"})
            return f"Error: unknown tool {call.name}."
        given = (gate.data or event).get("tool_input", call.arguments)
        try:
            result = await tool.execute(given)
            shown = {"success": result.success, "output": result.output, "error": result.error}
        except Exception as error:
            await hooks.emit("tool:error", {**event, "error": {"type": type(error).__name__, "message": str(error)}})
            return f"Error: {type(error).__name__} {error}"
        gate = await hooks.emit("tool:post", {**event, "tool_input": given, "result": shown, "tool_result": shown})
        if gate.action == "deny":
            return f"Error: the result is withheld. {gate.reason}"
        heard.append((gate, "tool:post"))
        return json.dumps((gate.data or {}).get("result", shown), default=str)

    async def _settle(self, verdict, event):
        if verdict.action == "continue":
            return HookResult()
        return await self._coordinator.process_hook_result(verdict, event, self.name)


async def mount(coordinator, config):
    loop = GatherLoop(coordinator, config.get("rounds", 30))
    await coordinator.mount("orchestrator", loop)

    async def tick():
        while True:
            await asyncio.sleep(0.1)

    loop.ticking = asyncio.create_task(tick())
    return lambda: None
