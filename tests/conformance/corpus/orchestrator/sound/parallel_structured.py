"""A sound loop with parallel tools, limited by a semaphore; a structured mount; results travel as objects."""

from contextlib import asynccontextmanager

import anyio

from amplifier import ChatRequest, Message, ToolResult, ToolSpec

__amplifier_module_type__ = "orchestrator"


class ParallelLoop:
    def __init__(self, coordinator, max_calls, width):
        self.coordinator = coordinator
        self.max_calls = max_calls
        self.slots = anyio.Semaphore(width)

    async def execute(self, *, prompt, context, providers, tools, hooks):
        outcome = {"status": "error", "response": ""}
        await hooks.emit("execution:start", {"prompt": prompt})
        try:
            outcome["response"] = await self.converse(prompt, context, providers, tools, hooks)
            stopped = self.coordinator.cancellation.is_cancelled
            outcome["status"] = "cancelled" if stopped else "completed"
        except anyio.get_cancelled_exc_class():
            outcome["status"] = "cancelled"
            raise
        finally:
            await hooks.emit("execution:end", dict(outcome))
            await hooks.emit("orchestrator:complete", {"orchestrator": "loop-parallel", "turn_count": 1, **outcome})
        return outcome["response"]

    async def converse(self, prompt, context, providers, tools, hooks):
        verdict = await hooks.emit("prompt:submit", {"prompt": prompt})
        if verdict.action == "deny":
            return verdict.reason or "denied"
        await context.add_message({"role": "user", "content": prompt})
        provider, ephemeral, response = list(providers.values())[0], [], None
        for iteration in range(self.max_calls):
            if self.coordinator.cancellation.is_cancelled:
                break
            verdict = await hooks.emit("provider:request", {"provider": provider.name, "iteration": iteration})
            verdict = await self.coordinator.process_hook_result(verdict, "provider:request", "loop-parallel")
            if verdict.action == "deny":
                return verdict.reason or "denied"
            ephemeral += verdict.context_injections
            request = await self.request(context, provider, tools, ephemeral)
            ephemeral = []
            try:
                response = await provider.complete(request)
            except Exception as error:
                await hooks.emit("provider:error", {"provider": provider.name, "error": {"message": str(error)}})
                raise
            await hooks.emit("content_block:start", {"block_type": "text", "block_index": 0})
            calls = response.tool_calls or []
            if not calls:
                await context.add_message({"role": "assistant", "content": response.content})
                await hooks.emit("provider:response", {"response": response, "usage": response.usage})
                break
            ephemeral = await self.answer_calls(context, hooks, tools, response, calls)
        await hooks.emit("prompt:complete", {"prompt": prompt})
        return "\n".join(block.text for block in response.content if hasattr(block, "text")) if response else ""

    async def request(self, context, provider, tools, ephemeral):
        messages = await context.get_messages_for_request(None, provider)
        for item in ephemeral:
            if item.append_to_last_tool_result and messages[-1]["role"] == "tool":
                messages[-1]["content"] += "\n\n" + item.content
            else:
                messages.append({"role": item.role, "content": item.content})
        return ChatRequest(messages=[Message(**message) for message in messages], tools=offered(tools) or None)

    async def answer_calls(self, context, hooks, tools, response, calls):
        results = [None] * len(calls)
        said = []
        stored = 0

        async def use(index):
            async with self.slots:
                results[index] = await self.use(calls[index], tools, hooks, said)

        with anyio.CancelScope(shield=True):
            await context.add_message({"role": "assistant", "content": response.content})
        try:
            await hooks.emit("provider:response", {"response": response, "usage": response.usage})
            async with anyio.create_task_group() as group:
                for index in range(len(calls)):
                    group.start_soon(use, index)
            for call, result in zip(calls, results, strict=True):
                await context.add_message(as_message(call, result))
                stored += 1
        except BaseException:
            with anyio.CancelScope(shield=True):
                for index in range(stored, len(calls)):
                    lost = ToolResult(success=False, error={"message": "interrupted"})
                    await context.add_message(as_message(calls[index], results[index] or lost))
            raise
        ephemeral = []
        for verdict, event in said:
            left = await self.coordinator.process_hook_result(verdict, event, "loop-parallel")
            ephemeral += left.context_injections
        return ephemeral

    async def use(self, call, tools, hooks, said):
        if self.coordinator.cancellation.is_cancelled:
            return ToolResult(success=False, error={"message": "stopped before it began"})
        about = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": dict(call.arguments)}
        verdict = await hooks.emit("tool:pre", about)
        if verdict.action == "ask_user":
            verdict = await self.coordinator.process_hook_result(verdict, "tool:pre", "loop-parallel")
        if verdict.action == "deny":
            return ToolResult(success=False, error={"message": f"denied: {verdict.reason}"})
        said.append((verdict, "tool:pre"))
        given = verdict.data["tool_input"] if verdict.action == "modify" else call.arguments
        try:
            result = await tools[call.name].execute(given)
        except Exception as error:
            await hooks.emit("tool:error", {**about, "error": {"type": type(error).__name__, "message": str(error)}})
            return ToolResult(success=False, error={"message": f"{type(error).__name__}: {error}"})
        if not isinstance(result, ToolResult):
            result = ToolResult(success=True, output=str(result))
        verdict = await hooks.emit("tool:post", {**about, "tool_input": given, "tool_result": result})
        if verdict.action == "deny":
            return ToolResult(success=False, error={"message": f"withheld: {verdict.reason}"})
        said.append((verdict, "tool:post"))
        return verdict.data["tool_result"] if verdict.action == "modify" else result


def as_message(call, result):
    return {"role": "tool", "tool_call_id": call.id, "content": result.get_serialized_output()}


def offered(tools):
    """The tools as a request offers them."""
    return [
        ToolSpec(name=name, description=tool.description, parameters=tool.get_schema()) for name, tool in tools.items()
    ]


@asynccontextmanager
async def mount(coordinator, config):
    loop = ParallelLoop(coordinator, config.get("max_calls", 40), config.get("width", 4))
    coordinator.mount("orchestrator", loop)
    yield loop
