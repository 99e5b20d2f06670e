"""One tool at a time, two tries for errors that may pass, text held back until the answer is whole.

A result is ticked off before it is stored.
"""

import json

import anyio
import anyio.lowlevel

from amplifier import ChatRequest, HookResult, LLMError, Message, to_dict

__amplifier_module_type__ = "orchestrator"


class RetryLoop:
    def __init__(self, coordinator, max_calls, pause):
        self._coordinator = coordinator
        self._max_calls = max_calls
        self._pause = pause

    async def execute(self, *, prompt, context, providers, tools, hooks, coordinator=None):
        coordinator = coordinator or self._coordinator
        status, answer = "error", ""
        try:
            await hooks.emit("execution:start", {"prompt": prompt})
            answer = await self._turn(prompt, context, providers, tools, hooks, coordinator)
            status = "completed"
        except BaseException as error:
            status = "cancelled" if isinstance(error, anyio.get_cancelled_exc_class()) else "error"
            raise
        finally:
            with anyio.CancelScope(shield=True):
                await hooks.emit("execution:end", {"status": status, "response": answer})
                await hooks.emit("orchestrator:complete", {"status": status})
        return answer

    async def _turn(self, prompt, context, providers, tools, hooks, coordinator):
        verdict = await self._settled(hooks, coordinator, "prompt:submit", {"prompt": prompt}, [])
        if verdict.action == "deny":
            return f"Refused: {verdict.reason}"
        await context.add_message({"role": "user", "content": prompt})
        name, provider = next(iter(providers.items()))
        text, notes = "", []
        for _ in range(self._max_calls):
            if coordinator.cancellation.is_cancelled:
                return text
            verdict = await self._settled(hooks, coordinator, "provider:request", {"provider": name}, notes)
            if verdict.action == "deny":
                return f"Refused: {verdict.reason}"
            response = await self._complete(context, provider, name, hooks, notes)
            await hooks.emit("content_block:end", {"block_index": 0, "total_blocks": len(response.content)})
            text = "".join(getattr(block, "text", "") or "" for block in response.content if block.type == "text")
            calls = response.tool_calls or []
            stored = {"role": "assistant", "content": [to_dict(block) for block in response.content]}
            owed = [call.id for call in calls]
            try:
                with anyio.CancelScope(shield=True):
                    await context.add_message(stored)
                await hooks.emit("provider:response", {"provider": name, "response": to_dict(response)})
                later = []
                for call in calls:
                    content = await self._use(call, tools, hooks, coordinator, later)
                    with anyio.CancelScope(shield=True):
                        owed.remove(call.id)
                    await anyio.lowlevel.checkpoint()
                    await context.add_message({"role": "tool", "tool_call_id": call.id, "content": content})
            except BaseException:
                with anyio.CancelScope(shield=True):
                    for each in owed:
                        await context.add_message({"role": "tool", "tool_call_id": each, "content": "interrupted"})
                raise
            for event, verdict in later:
                left = await coordinator.process_hook_result(verdict, event, "retry-loop")
                notes.extend(left.context_injections)
            if not calls:
                break
        await hooks.emit("prompt:complete", {"prompt": prompt})
        return text

    async def _settled(self, hooks, coordinator, event, data, notes) -> HookResult:
        verdict = await coordinator.process_hook_result(await hooks.emit(event, data), event, "retry-loop")
        notes.extend(verdict.context_injections)
        return verdict

    async def _complete(self, context, provider, name, hooks, notes):
        messages = await context.get_messages_for_request(None, provider)
        for note in notes:
            if note.append_to_last_tool_result and messages[-1]["role"] == "tool":
                messages[-1]["content"] = str(messages[-1]["content"]) + "\n" + note.content
            else:
                messages.append({"role": note.role, "content": note.content})
        notes.clear()
        request = ChatRequest(messages=[Message(**message) for message in messages])
        try:
            return await provider.complete(request)
        except LLMError as error:
            await hooks.emit("provider:error", {"provider": name, "error": str(error)})
            raise
        except Exception as error:
            await hooks.emit("provider:error", {"provider": name, "error": repr(error)})
            raise

    async def _use(self, call, tools, hooks, coordinator, later):
        if coordinator.cancellation.is_cancelled:
            return "not started, the turn is ending"
        data = {"tool_name": call.name, "tool_call_id": call.id, "tool_input": json.loads(json.dumps(call.arguments))}
        verdict = await hooks.emit("tool:pre", data)
        if verdict.action == "ask_user":
            verdict = await coordinator.process_hook_result(verdict, "tool:pre", "retry-loop")
        if verdict.action == "deny":
            return f"denied: {verdict.reason}"
        later.append(("tool:pre", verdict))
        if verdict.action == "modify":
            data = {**data, "tool_input": verdict.data["tool_input"]}
        coordinator.cancellation.register_tool_start(call.id, call.name)
        try:
            if call.name not in tools:
                raise LookupError(f"no tool {call.name}")
            result = await tools[call.name].execute(data["tool_input"])
            output = result.get_serialized_output()
        except Exception as error:
            await hooks.emit("tool:error", {**data, "error": {"type": type(error).__name__, "msg": str(error)}})
            return f"error: {error}"
        finally:
            coordinator.cancellation.register_tool_complete(call.id)
        told = await hooks.emit("tool:post", {**data, "tool_result": to_dict(result)})
        if told.action == "deny":
            return f"error: {told.reason}"
        later.append(("tool:post", told))
        if told.action == "modify":
            changed = told.data["tool_result"]
            return changed["output"] if isinstance(changed, dict) else str(changed)
        return output


async def mount(coordinator, config):
    loop = RetryLoop(coordinator, config.get("max_calls", 15), config.get("pause", 0.0))
    await coordinator.mount("session", loop, name="orchestrator")

    async def cleanup():
        loop._pause = 0.0

    return cleanup
