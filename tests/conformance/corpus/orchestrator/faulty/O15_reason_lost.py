"""A loop as a small machine of steps; tools run side by side; every verdict goes through the coordinator.

The model is not told why a call was denied.
"""

import logging

import anyio

from amplifier import ChatRequest, Message, ToolSpec, to_dict

__amplifier_module_type__ = "orchestrator"
logger = logging.getLogger("stepper")


class Denied(Exception):
    """The turn may not go on; the text is the answer."""


class Turn:
    def __init__(self, loop, prompt, context, provider, tools, hooks):
        self.loop = loop
        self.coordinator = loop.coordinator
        self.prompt = prompt
        self.context = context
        self.provider = provider
        self.tools = tools
        self.hooks = hooks
        self.whispers = []
        self.text = ""
        self.steps = 0

    @property
    def stopped(self):
        return self.coordinator.cancellation.is_cancelled

    async def judge(self, event, data):
        verdict = await self.hooks.emit(event, data)
        verdict = await self.coordinator.process_hook_result(verdict, event, "stepper")
        self.whispers.extend(verdict.context_injections or [])
        return verdict

    async def run(self):
        verdict = await self.judge("prompt:submit", {"prompt": self.prompt})
        if verdict.action == "deny":
            raise Denied(verdict.reason or "the prompt was refused")
        await self.context.add_message({"role": "user", "content": self.prompt})
        while self.steps < self.loop.limit and not self.stopped:
            self.steps += 1
            calls = await self.ask()
            if not calls:
                break
        await self.hooks.emit("prompt:complete", {"prompt": self.prompt, "response": self.text})
        return self.text

    async def ask(self):
        verdict = await self.judge("provider:request", {"provider": self.provider.name, "iteration": self.steps})
        if verdict.action == "deny":
            raise Denied(verdict.reason or "the request was refused")
        request = await self.request()
        try:
            response = await self.provider.complete(request)
        except Exception as error:
            await self.hooks.emit("provider:error", {"provider": self.provider.name, "error": str(error)})
            raise
        for index, block in enumerate(response.content):
            if block.type == "text":
                await self.hooks.emit("content_block:delta", {"block_index": index, "delta": block.text})
        calls = list(self.provider.parse_tool_calls(response))
        self.text = "\n".join(b.text for b in response.content if b.type == "text")
        message = {"role": "assistant", "content": [to_dict(b) for b in response.content]}
        if calls:
            message["tool_calls"] = [{"id": c.id, "name": c.name, "arguments": c.arguments} for c in calls]
        results = {}
        said = []
        with anyio.CancelScope(shield=True):
            await self.context.add_message(message)
        try:
            await self.hooks.emit("provider:response", {"provider": self.provider.name, "usage": response.usage})
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(self.answer, call, results, said)
        finally:
            with anyio.CancelScope(shield=True):
                for call in calls:
                    text = results.get(call.id, "This call was interrupted.")
                    await self.context.add_message(
                        {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": text}
                    )
        for event, verdict in said:
            left = await self.coordinator.process_hook_result(verdict, event, "stepper")
            self.whispers.extend(left.context_injections or [])
        return calls

    async def request(self):
        messages = await self.context.get_messages_for_request(provider=self.provider)
        whispers, self.whispers = self.whispers, []
        for each in whispers:
            if each.append_to_last_tool_result and messages and messages[-1].get("role") == "tool":
                messages[-1] = {**messages[-1], "content": f"{messages[-1]['content']}\n{each.content}"}
            else:
                messages.append({"role": each.role, "content": each.content})
        specs = []
        for tool in self.tools.values():
            schema = getattr(tool, "input_schema", None) or (tool.get_schema() if hasattr(tool, "get_schema") else {})
            specs.append(ToolSpec(name=tool.name, description=tool.description, parameters=schema))
        return ChatRequest(messages=[Message(**m) for m in messages], tools=specs or None)

    async def answer(self, call, results, said):
        if self.stopped:
            results[call.id] = "Not run: the turn was stopped."
            return
        about = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        verdict = await self.hooks.emit("tool:pre", about)
        if verdict.action == "ask_user":
            verdict = await self.coordinator.process_hook_result(verdict, "tool:pre", "stepper")
        if verdict.action == "deny":
            results[call.id] = "Denied."
            return
        if verdict.action == "inject_context":
            said.append(("tool:pre", verdict))
        given = (verdict.data or about).get("tool_input", call.arguments)
        tool = self.tools.get(call.name)
        if tool is None:
            results[call.id] = f"Error: there is no tool {call.name!r}"
            await self.hooks.emit("tool:error", {**about, "error": {"message": "unknown tool"}})
            return
        try:
            result = await tool.execute(given)
            output = result.get_serialized_output()
        except Exception as error:
            logger.warning("tool %s failed", call.name, exc_info=True)
            results[call.id] = f"Error: {type(error).__name__}: {error}"
            await self.hooks.emit("tool:error", {**about, "error": {"message": str(error)}})
            return
        results[call.id] = output
        verdict = await self.hooks.emit("tool:post", {**about, "tool_input": given, "tool_result": to_dict(result)})
        if verdict.action == "deny":
            results[call.id] = f"Error: withheld: {verdict.reason}"
            return
        if verdict.action == "inject_context":
            said.append(("tool:post", verdict))
        changed = (verdict.data or {}).get("tool_result")
        if verdict.action == "modify" and changed is not None:
            results[call.id] = str(changed.get("output")) if isinstance(changed, dict) else str(changed)


class Stepper:
    def __init__(self, coordinator, config):
        self.coordinator = coordinator
        self.limit = config.get("max_iterations", 25)
        self.preferred = config.get("default_provider")

    async def execute(self, prompt, context, providers, tools, hooks, **_):
        provider = providers.get(self.preferred) or next(iter(providers.values()))
        turn = Turn(self, prompt, context, provider, tools, hooks)
        status = "error"
        await hooks.emit("execution:start", {"prompt": prompt})
        try:
            answer = await turn.run()
            status = "cancelled" if turn.stopped else "completed"
            return answer
        except Denied as denied:
            status = "completed"
            return str(denied)
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            await hooks.emit("execution:end", {"status": status, "response": turn.text})
            await hooks.emit(
                "orchestrator:complete", {"orchestrator": "stepper", "turn_count": turn.steps, "status": status}
            )


async def mount(coordinator, config):
    loop = Stepper(coordinator, config or {})
    await coordinator.mount("orchestrator", loop)
    return loop
