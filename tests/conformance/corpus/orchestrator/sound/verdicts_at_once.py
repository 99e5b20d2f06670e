"""A sound loop that has every verdict carried out at once, so that injections stand between a call and its result."""

import anyio

from amplifier import ChatRequest, Message, ToolSpec, to_dict

__amplifier_module_type__ = "orchestrator"


class PlainLoop:
    max_iterations = 10

    async def execute(self, prompt, context, providers, tools, hooks, coordinator=None, **kwargs):
        self.context, self.hooks, self.coordinator, self.tools = context, hooks, coordinator, tools
        self.ephemeral, self.unanswered = [], []
        provider_name = list(providers.keys())[0]
        provider = providers[provider_name]
        status = "completed"
        final = ""
        try:
            await hooks.emit("execution:start", {"prompt": prompt})
            submitted = await self.emit("prompt:submit", {"prompt": prompt})
            if submitted.action == "deny":
                return "Denied."
            await context.add_message({"role": "user", "content": prompt})
            for iteration in range(self.max_iterations):
                if self.must_stop():
                    status = "cancelled"
                    break
                allowed = await self.emit("provider:request", {"provider": provider_name, "iteration": iteration})
                if allowed.action == "deny":
                    return allowed.reason or "Denied."
                request = ChatRequest(messages=await self.messages(provider), tools=self.specs())
                response = await provider.complete(request)
                await hooks.emit("provider:response", {"provider": provider_name, "response": to_dict(response)})
                calls = provider.parse_tool_calls(response)
                with anyio.CancelScope(shield=True):
                    await context.add_message({"role": "assistant", "content": to_dict(response)["content"]})
                    self.unanswered = calls
                for block in response.content:
                    await hooks.emit("content_block:end", {"block": to_dict(block)})
                final = "".join(b.text for b in response.content if b.type == "text")
                if not self.unanswered:
                    break
                while self.unanswered:
                    content = await self.call(self.unanswered[0])
                    await self.reply(content)
            await hooks.emit("prompt:complete", {"prompt": prompt, "response_preview": final[:50]})
            return final
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            with anyio.CancelScope(shield=True):
                while self.unanswered:
                    await self.reply("[cancelled]")
            raise
        except Exception as error:
            status = "error"
            await hooks.emit("provider:error", {"provider": provider_name, "error": str(error)})
            raise
        finally:
            await hooks.emit("execution:end", {"response": final, "status": status})
            await hooks.emit("orchestrator:complete", {"orchestrator": "plain", "turn_count": 1, "status": status})

    async def reply(self, content):
        call = self.unanswered[0]
        await self.context.add_message({"role": "tool", "tool_call_id": call.id, "content": content})
        self.unanswered = self.unanswered[1:]

    def must_stop(self):
        return bool(self.coordinator and self.coordinator.cancellation.is_cancelled)

    async def emit(self, event, data):
        result = await self.hooks.emit(event, data)
        if self.coordinator:
            result = await self.coordinator.process_hook_result(result, event, "plain")
        if result.action == "inject_context":
            self.ephemeral.append((result.context_injection_role, result.context_injection))
        return result

    async def messages(self, provider):
        stored = await self.context.get_messages_for_request(provider=provider)
        extra, self.ephemeral = self.ephemeral, []
        return [*(Message(**m) for m in stored), *(Message(role=role, content=text) for role, text in extra)]

    async def call(self, call):
        if self.must_stop():
            return "[not run: stopping]"
        data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
        before = await self.emit("tool:pre", data)
        if before.action in ("deny", "ask_user"):
            return f"[denied: {before.reason}]"
        tool = self.tools.get(call.name)
        if not tool:
            return f"[no tool called {call.name}]"
        data["tool_input"] = (before.data or data)["tool_input"]
        try:
            result = await tool.execute(data["tool_input"])
            text = result.get_serialized_output()
        except Exception as error:
            await self.hooks.emit("tool:error", {**data, "error": str(error)})
            return f"[error: {error}]"
        after = await self.emit("tool:post", {**data, "result": text})
        if after.action == "deny":
            return f"[withheld: {after.reason}]"
        return (after.data or {}).get("result", text)

    def specs(self):
        return [ToolSpec(name=n, description=t.description, parameters=t.input_schema) for n, t in self.tools.items()]


async def mount(coordinator, config):
    loop = PlainLoop()
    await coordinator.mount("session", loop, name="orchestrator")
    return loop
