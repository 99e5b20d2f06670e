"""A sound loop of closures that honours hooks by hand and stores calls the way chat services do."""

import json

import anyio

from amplifier import ChatRequest, Message, ToolSpec

__amplifier_module_type__ = "orchestrator"

CANCELLED = "This call was interrupted."


class Stop(Exception):
    pass


def mount_point(config, coordinator):
    limit = int(config.get("max_steps") or 12)

    class Orchestrator:
        async def execute(self, prompt, context, providers, tools, hooks, coordinator=coordinator, **extra):
            owed = {}
            whispers = []
            status = "error"

            async def asked_first(event, data):
                result = await hooks.emit(event, data)
                if result.action == "ask_user" and not await approved(result):
                    return "deny", result.reason or "the user said no", data
                return result.action, result.reason, result.data or data, *([result] if result.action else [])

            async def approved(result):
                answer = await coordinator.approval_system.request_approval(
                    prompt=result.approval_prompt or "Allow?",
                    options=result.approval_options or ["Allow", "Deny"],
                    timeout=result.approval_timeout,
                    default=result.approval_default,
                )
                return answer == "Allow"

            def injected(result, into):
                if result.context_injection and result.ephemeral:
                    whispers.append(result)
                elif result.context_injection:
                    into.append({"role": result.context_injection_role, "content": result.context_injection})

            async def one(call, later):
                if coordinator.cancellation.is_cancelled:
                    return "Not started."
                data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": call.arguments}
                action, reason, data, *rest = await asked_first("tool:pre", data)
                if action == "deny":
                    return f"Denied. {reason}"
                for result in rest:
                    injected(result, later)
                try:
                    result = await tools[call.name].execute(data["tool_input"])
                    text = result.get_serialized_output()
                except Exception as error:
                    await hooks.emit("tool:error", {**data, "error": str(error)})
                    return f"Failed: {type(error).__name__}: {error}"
                told = await hooks.emit(
                    "tool:post", {**data, "tool_result": {"output": text, "success": result.success}}
                )
                if told.action == "deny":
                    return f"Failed: withheld, {told.reason}"
                injected(told, later)
                return told.data["tool_result"]["output"] if told.data else text

            async def request(provider):
                result = await hooks.emit("provider:request", {"provider": provider.name})
                if result.action == "deny":
                    raise Stop(result.reason)
                extra = []
                injected(result, extra)
                for message in extra:
                    await context.add_message(message)
                messages = await context.get_messages_for_request(provider=provider)
                for each in whispers:
                    if each.append_to_last_tool_result and messages[-1]["role"] == "tool":
                        messages[-1]["content"] += "\n" + each.context_injection
                    else:
                        messages.append({"role": each.context_injection_role, "content": each.context_injection})
                whispers.clear()
                request = [Message(**message) for message in messages]
                return ChatRequest(messages=request, tools=offered(tools) or None)

            async def store(call, text):
                await context.add_message({"role": "tool", "tool_call_id": call.id, "content": text})
                del owed[call.id]

            async def turn():
                first = await hooks.emit("prompt:submit", {"prompt": prompt})
                if first.action == "deny":
                    raise Stop(first.reason)
                await context.add_message({"role": "user", "content": prompt})
                provider = next(iter(providers.values()))
                text = ""
                for _ in range(limit):
                    if coordinator.cancellation.is_cancelled:
                        break
                    asked = await request(provider)
                    try:
                        response = await provider.complete(asked)
                    except Exception as error:
                        await hooks.emit("provider:error", {"provider": provider.name, "error": repr(error)})
                        raise
                    await hooks.emit("provider:response", {"provider": provider.name})
                    calls = list(response.tool_calls or ())
                    kept = [vars_of(block) for block in response.content]
                    text = "".join(block["text"] for block in kept if block["type"] == "text")
                    if all(block["type"] in ("text", "tool_call") for block in kept):
                        kept = text
                    message = {"role": "assistant", "content": kept}
                    if calls:
                        message["tool_calls"] = [
                            {"id": c.id, "function": {"name": c.name, "arguments": json.dumps(c.arguments)}}
                            for c in calls
                        ]
                    with anyio.CancelScope(shield=True):
                        await context.add_message(message)
                        owed.update({call.id: call for call in calls})
                    await hooks.emit("content_block:delta", {"block_index": 0, "delta": text})
                    later = []
                    for call in calls:
                        await store(call, await one(call, later))
                    for message in later:
                        await context.add_message(message)
                    if not calls:
                        break
                await hooks.emit("prompt:complete", {"prompt": prompt})
                return text

            try:
                await hooks.emit("execution:start", {"prompt": prompt})
                answer = await turn()
                status = "completed"
            except Stop as stop:
                answer, status = f"Stopped: {stop}", "completed"
            except anyio.get_cancelled_exc_class():
                status = "cancelled"
                raise
            finally:
                with anyio.move_on_after(3, shield=True):
                    for call in list(owed.values()):
                        await store(call, CANCELLED)
                    await hooks.emit("execution:end", {"status": status})
                    await hooks.emit("orchestrator:complete", {"status": status})
            return answer

    return Orchestrator()


def vars_of(block):
    from amplifier import to_dict

    return to_dict(block)


def offered(tools):
    """The tools as a request offers them."""
    return [
        ToolSpec(name=name, description=tool.description, parameters=tool.get_schema()) for name, tool in tools.items()
    ]


async def mount(coordinator, config):
    await coordinator.mount("session", mount_point(config, coordinator), name="orchestrator")

    async def cleanup():
        pass

    return cleanup
