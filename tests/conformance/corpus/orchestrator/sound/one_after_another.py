"""A sound loop that runs tools one after another and leaves verdicts to the coordinator."""

import anyio

from amplifier import ChatRequest, HookResult, Message, ToolSpec, to_dict

__amplifier_module_type__ = "orchestrator"


class Loop:
    def __init__(self, config):
        self.limit = config.get("max_iterations", 25)
        self.default = config.get("default_provider")

    async def execute(self, prompt, context, providers, tools, hooks, coordinator=None, **kwargs):
        turn = Turn(context, tools, hooks, coordinator)
        name = self.default if self.default in providers else next(iter(providers))
        status = "error"
        try:
            await hooks.emit("execution:start", {"prompt": prompt})
            text = await turn.run(prompt, name, providers[name], self.limit)
            status = "completed"
            return text
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                for call in list(turn.open):
                    await turn.answer(call, "Error: the turn ended before this tool did.")
            await hooks.emit("execution:end", {"response": turn.text, "status": status})
            await hooks.emit("orchestrator:complete", {"orchestrator": "loop-plain", "status": status})


class Turn:
    def __init__(self, context, tools, hooks, coordinator):
        self.context, self.tools, self.hooks, self.coordinator = context, tools, hooks, coordinator
        self.open, self.whispers, self.text = [], [], ""

    def stopping(self):
        return self.coordinator is not None and self.coordinator.cancellation.is_cancelled

    async def run(self, prompt, name, provider, limit):
        verdict = await self.ask("prompt:submit", {"prompt": prompt})
        if verdict.action == "deny":
            return f"Not allowed: {verdict.reason}"
        await self.context.add_message({"role": "user", "content": prompt})
        for _ in range(limit):
            if self.stopping():
                break
            verdict = await self.ask("provider:request", {"provider": name})
            if verdict.action == "deny":
                return f"Not allowed: {verdict.reason}"
            response = await self.complete(name, provider)
            calls = provider.parse_tool_calls(response)
            await self.remember(response, calls)
            if not calls:
                break
            kept = []
            for call in calls:
                await self.answer(call, await self.use(call, kept))
            for verdict, event in kept:
                await self.settle(verdict, event)
        await self.hooks.emit("prompt:complete", {"prompt": prompt, "response_preview": self.text[:100]})
        return self.text

    async def complete(self, name, provider):
        messages = await self.context.get_messages_for_request(provider=provider)
        messages += self.whispers
        self.whispers = []
        try:
            specs = offered(self.tools) or None
            response = await provider.complete(
                ChatRequest(messages=[Message(**each) for each in messages], tools=specs)
            )
        except Exception as error:
            await self.hooks.emit("provider:error", {"provider": name, "error": repr(error)})
            raise
        await self.hooks.emit("provider:response", {"provider": name})
        for index, block in enumerate(response.content):
            await self.hooks.emit("content_block:end", {"block_index": index, "block": to_dict(block)})
        self.text = "".join(block.text for block in response.content if block.type == "text")
        return response

    async def remember(self, response, calls):
        message = {"role": "assistant", "content": [to_dict(block) for block in response.content]}
        if calls:
            message["tool_calls"] = [to_dict(call) for call in calls]
        with anyio.CancelScope(shield=True):
            await self.context.add_message(message)
            self.open = list(calls)

    async def use(self, call, kept):
        if self.stopping():
            return "Error: not run, because somebody wants to stop."
        data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        verdict = await self.hooks.emit("tool:pre", data)
        if verdict.action == "ask_user":
            verdict = await self.approve(verdict)
        if verdict.action == "deny":
            return f"Error: denied: {verdict.reason}"
        kept.append((verdict, "tool:pre"))
        if call.name not in self.tools:
            return f"Error: there is no tool {call.name}."
        given = (verdict.data or data)["tool_input"]
        try:
            result = await self.tools[call.name].execute(given)
            told = result.get_serialized_output()
        except Exception as error:
            await self.hooks.emit("tool:error", {**data, "error": repr(error)})
            return f"Error: {error!r}"
        verdict = await self.hooks.emit("tool:post", {**data, "tool_input": given, "tool_result": told})
        if verdict.action == "deny":
            return f"Error: withheld: {verdict.reason}"
        kept.append((verdict, "tool:post"))
        return (verdict.data or {}).get("tool_result", told)

    async def approve(self, verdict):
        if self.coordinator is None:
            return HookResult(action="deny", reason="nobody can be asked")
        return await self.coordinator.process_hook_result(verdict, "tool:pre", "loop-plain")

    async def ask(self, event, data):
        verdict = await self.hooks.emit(event, data)
        return await self.settle(verdict, event)

    async def settle(self, verdict, event):
        if self.coordinator is not None:
            verdict = await self.coordinator.process_hook_result(verdict, event, "loop-plain")
        if verdict.action == "inject_context":
            self.whispers += [{"role": each.role, "content": each.content} for each in verdict.context_injections]
        return verdict

    async def answer(self, call, told):
        message = {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": told}
        await self.context.add_message(message)
        self.open.remove(call)


def offered(tools):
    """The tools as a request offers them."""
    return [
        ToolSpec(name=name, description=tool.description, parameters=tool.get_schema()) for name, tool in tools.items()
    ]


async def mount(coordinator, config):
    await coordinator.mount("orchestrator", Loop(config))
