"""A loop that runs the tools of an answer in parallel.

Planted: mount puts the loop at the mount point "hooks".
"""

import json

import anyio

from amplifier import ChatRequest, Message, ToolSpec, to_dict

__amplifier_module_type__ = "orchestrator"


class Loop:
    def __init__(self, coordinator, config):
        self.coordinator = coordinator
        self.limit = config.get("max_iterations", 12)
        self.default = config.get("default_provider")

    async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
        turn = Turn(self, context, tools, hooks)
        status = "error"
        try:
            await hooks.emit("execution:start", {"prompt": prompt})
            text = await turn.run(prompt, providers)
            status = "cancelled" if turn.stopping() else "completed"
            return text
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await turn.store_results()
                finally:
                    await hooks.emit("execution:end", {"response": turn.text, "status": status})
                    await hooks.emit("orchestrator:complete", {"orchestrator": "table", "status": status})


class Turn:
    def __init__(self, loop, context, tools, hooks):
        self.loop, self.context, self.tools, self.hooks = loop, context, tools, hooks
        self.coordinator = loop.coordinator
        self.calls, self.results, self.verdicts, self.asides, self.text = [], {}, {}, [], ""

    def stopping(self):
        return self.coordinator.cancellation.is_cancelled

    async def run(self, prompt, providers):
        verdict = await self.hooks.emit("prompt:submit", {"prompt": prompt})
        prompt = (verdict.data or {}).get("prompt", prompt)
        if (await self.carry_out(verdict, "prompt:submit")).action == "deny":
            return f"The prompt was refused: {verdict.reason}"
        await self.context.add_message({"role": "user", "content": prompt})
        name = self.loop.default if self.loop.default in providers else next(iter(providers))
        for iteration in range(self.loop.limit):
            if self.stopping():
                break
            about = {"provider": name, "iteration": iteration}
            verdict = await self.carry_out(await self.hooks.emit("provider:request", about), "provider:request")
            if verdict.action == "deny":
                return f"The request was refused: {verdict.reason}"
            if self.stopping():
                break
            await self.ask(name, providers[name])
            if not self.calls:
                break
            await self.run_tools()
            await self.store_results()
        await self.hooks.emit("prompt:complete", {"prompt": prompt, "length": len(self.text)})
        return self.text

    async def ask(self, name, provider):
        messages = await self.context.get_messages_for_request(provider=provider)
        messages = [Message(**each) for each in [*messages, *self.asides]]
        self.asides = []
        try:
            response = await provider.complete(ChatRequest(messages=messages, tools=self.specs() or None))
            calls = provider.parse_tool_calls(response)
        except Exception as error:
            await self.hooks.emit("provider:error", {"provider": name, "error": str(error)})
            raise
        blocks = [to_dict(block) for block in response.content]
        message = {"role": "assistant", "content": blocks}
        if calls:
            message["tool_calls"] = [to_dict(call) for call in calls]
        with anyio.CancelScope(shield=True):
            await self.context.add_message(message)
            self.calls, self.results, self.verdicts = list(enumerate(calls)), {}, {}
        self.text = "".join(block.get("text") or "" for block in blocks if block["type"] == "text")
        await self.hooks.emit("provider:response", {"provider": name, "tool_calls": len(calls)})
        for index, block in enumerate(blocks):
            await self.hooks.emit("content_block:end", {"block_index": index, "block": block})

    def specs(self):
        found = []
        for name, tool in self.tools.items():
            schema = tool.get_schema() if hasattr(tool, "get_schema") else getattr(tool, "input_schema", None)
            found.append(ToolSpec(name=name, description=tool.description, parameters=schema or {"type": "object"}))
        return found

    async def run_tools(self):
        async with anyio.create_task_group() as group:
            for index, call in self.calls:
                group.start_soon(self.run_tool, index, call)

    async def run_tool(self, index, call):
        if self.stopping():
            self.results[index] = "Error: not started, the turn is being stopped"
            return
        about = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        verdict = await self.hooks.emit("tool:pre", about)
        about["tool_input"] = (verdict.data or about).get("tool_input", call.arguments)
        if verdict.action == "ask_user":
            verdict = await self.coordinator.process_hook_result(verdict, "tool:pre", "table")
            self.asides += as_messages(verdict)
        else:
            self.verdicts[index, "tool:pre"] = verdict
        if verdict.action == "deny":
            self.results[index] = f"Error: denied: {verdict.reason}"
            return
        if self.stopping():
            self.results[index] = "Error: not started, the turn is being stopped"
            return
        try:
            result = await self.tools[call.name].execute(about["tool_input"])
            text = result.get_serialized_output()
        except Exception as error:
            self.results[index] = f"Error: {type(error).__name__}: {error}"
            await self.hooks.emit("tool:error", {**about, "error": str(error)})
            return
        self.results[index] = text
        verdict = await self.hooks.emit("tool:post", {**about, "tool_result": text, "result": text})
        self.verdicts[index, "tool:post"] = verdict
        if verdict.action == "deny":
            self.results[index] = f"Error: withheld: {verdict.reason}"
            return
        new = verdict.data or {}
        self.results[index] = (
            new.get("result", text) if new.get("result", text) != text else new.get("tool_result", text)
        )

    async def store_results(self):
        with anyio.CancelScope(shield=True):
            while self.calls:
                index, call = self.calls[0]
                text = self.results.get(index, "Error: cancelled before it ended")
                content = text if isinstance(text, str) else json.dumps(text, default=str)
                await self.context.add_message(
                    {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": content}
                )
                del self.calls[0]
        for (index, event), verdict in sorted(self.verdicts.items(), key=lambda item: item[0][0]):
            await self.carry_out(verdict, event)
        self.verdicts = {}

    async def carry_out(self, verdict, event):
        verdict = await self.coordinator.process_hook_result(verdict, event, "table")
        self.asides += as_messages(verdict)
        return verdict


def as_messages(verdict):
    if verdict.action != "inject_context":
        return []
    return [{"role": each.role, "content": each.content} for each in verdict.context_injections if each.ephemeral]


async def mount(coordinator, config):
    await coordinator.mount("hooks", Loop(coordinator, config))
