"""A sound loop that runs tools one after another and leaves verdicts to the coordinator."""

import anyio

from amplifier import ChatRequest, HookResult, Message, ToolResult, to_dict

__amplifier_module_type__ = "orchestrator"


class Loop:
    def __init__(self, config):
        self.limit = config.get("max_iterations", 25)
        self.default = config.get("default_provider")

    async def execute(self, prompt, context, providers, tools, hooks, coordinator=None, **kwargs):
        status = "error"
        self.open = []
        try:
            await hooks.emit("execution:start", {"prompt": prompt})
            text = await self.turn(prompt, context, providers, tools, hooks, coordinator)
            status = "completed"
            return text
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                for call in list(self.open):
                    await self.store_result(context, call, "The turn ended before this tool did.")
            await hooks.emit("execution:end", {"response": "", "status": status})
            await hooks.emit("orchestrator:complete", {"orchestrator": "loop-plain", "status": status})

    async def turn(self, prompt, context, providers, tools, hooks, coordinator):
        verdict = await self.ask_hooks(hooks, coordinator, "prompt:submit", {"prompt": prompt})
        if verdict.action == "deny":
            return f"Not allowed: {verdict.reason}"
        await context.add_message({"role": "user", "content": prompt})
        name = self.default if self.default in providers else next(iter(providers))
        provider, text, whispers = providers[name], "", []
        for number in range(self.limit):
            if stopping(coordinator):
                break
            verdict = await self.ask_hooks(hooks, coordinator, "provider:request", {"provider": name})
            if verdict.action == "deny":
                return f"Not allowed: {verdict.reason}"
            whispers += verdict.context_injections
            messages = await context.get_messages_for_request(provider=provider)
            messages += [{"role": each.role, "content": each.content} for each in whispers]
            whispers = []
            request = ChatRequest(messages=[Message(**message) for message in messages])
            try:
                response = await provider.complete(request)
            except Exception as error:
                await hooks.emit("provider:error", {"provider": name, "error": repr(error)})
                raise
            await hooks.emit("provider:response", {"provider": name, "iteration": number})
            calls = provider.parse_tool_calls(response)
            await self.store_answer(context, response, calls)
            text = "".join(block.text for block in response.content if block.type == "text")
            for index, block in enumerate(response.content):
                await hooks.emit("content_block:end", {"block_index": index, "block": to_dict(block)})
            if not calls:
                break
            later = []
            for call in calls:
                told = await self.run_tool(call, tools, hooks, coordinator, later)
                await self.store_result(context, call, told)
            for verdict, event in later:
                if coordinator is not None:
                    verdict = await coordinator.process_hook_result(verdict, event, "loop-plain")
                whispers += verdict.context_injections
        await hooks.emit("prompt:complete", {"prompt": prompt, "response_preview": text[:100]})
        return text

    async def ask_hooks(self, hooks, coordinator, event, data):
        verdict = await hooks.emit(event, data)
        if coordinator is not None:
            verdict = await coordinator.process_hook_result(verdict, event, "loop-plain")
        return verdict

    async def run_tool(self, call, tools, hooks, coordinator, later):
        if stopping(coordinator):
            return "Error: not run, because the user wants to stop."
        data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        verdict = await hooks.emit("tool:pre", data)
        if verdict.action == "ask_user":
            verdict = HookResult(action="deny", reason="nobody can be asked")
            if coordinator is not None:
                verdict = await coordinator.process_hook_result(await hooks_said(verdict, data), "tool:pre", "loop-plain")
        return verdict

    async def store_answer(self, context, response, calls):
        message = {"role": "assistant", "content": [to_dict(block) for block in response.content]}
        if calls:
            message["tool_calls"] = [to_dict(call) for call in calls]
        with anyio.CancelScope(shield=True):
            await context.add_message(message)
            self.open = list(calls)

    async def store_result(self, context, call, told):
        await context.add_message({"role": "tool", "tool_call_id": call.id, "name": call.name, "content": told})
        self.open.remove(call)


def stopping(coordinator):
    return coordinator is not None and coordinator.cancellation.is_cancelled


async def mount(coordinator, config):
    await coordinator.mount("orchestrator", Loop(config))
