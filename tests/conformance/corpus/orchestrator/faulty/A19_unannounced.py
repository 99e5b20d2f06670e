"""A loop that emits an event of its own and tells nobody that there is one."""

import logging
from contextlib import AsyncExitStack

import anyio

from amplifier import ChatRequest, Message, ToolResult, ToolSpec, to_dict

__amplifier_module_type__ = "orchestrator"

logger = logging.getLogger("planner")
EVENTS = ["planner:planned", "planner:summing_up"]


class Planner:
    def __init__(self, coordinator, config):
        self.coordinator = coordinator
        self.steps = config.get("steps", 8)

    async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
        async with AsyncExitStack() as stack:
            turn = Turn(self, prompt, context, providers, tools, hooks)
            stack.push_async_exit(turn.leave)
            await hooks.emit("execution:start", {"prompt": prompt})
            return await turn.run()


class Turn:
    def __init__(self, loop, prompt, context, providers, tools, hooks):
        self.loop, self.prompt, self.context, self.hooks, self.tools = loop, prompt, context, hooks, tools
        self.coordinator = loop.coordinator
        self.name, self.provider = next(iter(providers.items()))
        self.owed, self.done, self.whispers, self.answer = [], {}, [], ""

    async def leave(self, kind, error, trace):
        status = "completed"
        if kind is not None:
            status = "error" if issubclass(kind, Exception) else "cancelled"
        elif self.coordinator.cancellation.is_cancelled:
            status = "cancelled"
        with anyio.CancelScope(shield=True):
            await self.pay()
            await self.hooks.emit("execution:end", {"response": self.answer, "status": status})
            await self.hooks.emit("orchestrator:complete", {"orchestrator": "planner", "status": status})
        return False

    async def run(self):
        verdict = await self.settle("prompt:submit", {"prompt": self.prompt})
        if verdict.action == "deny":
            return f"I may not: {verdict.reason}"
        await self.context.add_message({"role": "user", "content": self.prompt})
        plan = await self.ask("Make a short plan first.", tools=False)
        if plan is None:
            return self.answer
        await self.hooks.emit("planner:planned", {"blocks": len(plan.content)})
        for _ in range(self.loop.steps):
            if self.coordinator.cancellation.is_cancelled:
                return self.answer
            response = await self.ask(None, tools=True)
            if response is None:
                return self.answer
            if not response.tool_calls:
                break
            await self.use(response.tool_calls)
        else:
            await self.hooks.emit("planner:summing_up", {})
            await self.ask("Sum up.", tools=False)
        await self.hooks.emit("prompt:complete", {"prompt": self.prompt, "length": len(self.answer)})
        return self.answer

    async def ask(self, aside, tools):
        if self.coordinator.cancellation.is_cancelled:
            return None
        verdict = await self.settle("provider:request", {"provider": self.name})
        if verdict.action == "deny":
            return None
        messages = [Message(**each) for each in await self.context.get_messages_for_request()]
        messages += [Message(role="user", content=text) for text in self.whispers]
        if aside:
            messages.insert(0, Message(role="system", content=aside))
        self.whispers = []
        specs = [ToolSpec(name=n, parameters=t.get_schema()) for n, t in self.tools.items()] if tools else None
        try:
            response = await self.provider.complete(ChatRequest(messages=messages, tools=specs))
        except Exception as error:
            logger.info("%s failed: %r", self.name, error)
            await self.hooks.emit("provider:error", {"provider": self.name, "error": str(error)})
            raise
        blocks = [to_dict(block) for block in response.content]
        calls = list(response.tool_calls or [])
        with anyio.CancelScope(shield=True):
            await self.context.add_message({"role": "assistant", "content": blocks})
            self.owed, self.done = calls, {}
        await self.hooks.emit("provider:response", {"provider": self.name})
        for index, block in enumerate(blocks):
            await self.hooks.emit("content_block:start", {"block_index": index, "block_type": block["type"]})
        self.answer = "".join(block["text"] for block in blocks if block["type"] == "text")
        return response

    async def use(self, calls):
        heard = []
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(self.use_one, call, heard)
        await self.pay()
        for event, verdict in heard:
            await self.carry_out(event, verdict)

    async def pay(self):
        """Store all results of the answer at once."""
        if not self.owed:
            return
        lost = ToolResult(success=False, error={"message": "It did not come to an end."})
        blocks = []
        for call in self.owed:
            result = self.done.get(call.id, lost)
            text = result if isinstance(result, str) else result.get_serialized_output()
            blocks.append({"type": "tool_result", "tool_call_id": call.id, "output": text})
        with anyio.CancelScope(shield=True):
            await self.context.add_message({"role": "tool", "content": blocks})
            self.owed = []

    async def use_one(self, call, heard):
        self.done[call.id] = "Cancelled."
        if self.coordinator.cancellation.is_cancelled:
            self.done[call.id] = "Not begun, because of a stop."
            return
        about = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": dict(call.arguments)}
        verdict = await self.hooks.emit("tool:pre", about)
        if verdict.action == "ask_user":
            verdict = await self.coordinator.process_hook_result(verdict, "tool:pre", "planner")
        if verdict.action == "deny":
            self.done[call.id] = f"Denied: {verdict.reason}"
            return
        heard.append(("tool:pre", verdict))
        if verdict.data and "tool_input" in verdict.data:
            about["tool_input"] = verdict.data["tool_input"]
        try:
            result = await self.tools[call.name].execute(about["tool_input"])
            text = result.get_serialized_output()
        except KeyError as error:
            text = f"KeyError: {error}"
            if call.name in self.tools:
                await self.hooks.emit("tool:error", {**about, "error": text})
            self.done[call.id] = text
            return
        except Exception as error:
            await self.hooks.emit("tool:error", {**about, "error": repr(error)})
            self.done[call.id] = f"{type(error).__name__}: {error}"
            return
        self.done[call.id] = text
        verdict = await self.hooks.emit("tool:post", {**about, "result": text, "tool_result": text})
        if verdict.action == "deny":
            self.done[call.id] = f"Withheld: {verdict.reason}"
            return
        heard.append(("tool:post", verdict))
        self.done[call.id] = (verdict.data or {}).get("result", text)

    async def settle(self, event, data):
        return await self.carry_out(event, await self.hooks.emit(event, data))

    async def carry_out(self, event, verdict):
        verdict = await self.coordinator.process_hook_result(verdict, event, "planner")
        self.whispers += [each.content for each in verdict.context_injections]
        return verdict


async def mount(coordinator, config):
    coordinator.mount("orchestrator", Planner(coordinator, config))
