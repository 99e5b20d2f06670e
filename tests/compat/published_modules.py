"""Small modules in the published style, as text: they are written to a directory and loaded from there like third-party ones.

They use what the published ones use: asyncio by name, ``except asyncio.CancelledError`` with awaits in it, subclasses of
models with bare annotations, the coordinator's free attributes, cleanups that are sync or async.
"""

from __future__ import annotations

from pathlib import Path

LOOP = """
import asyncio
import logging

from amplifier_core import HookRegistry, ModuleCoordinator
from amplifier_core.events import (
    CANCEL_COMPLETED, CANCEL_REQUESTED, ORCHESTRATOR_COMPLETE, PROMPT_SUBMIT, PROVIDER_REQUEST, PROVIDER_RESPONSE,
    TOOL_POST, TOOL_PRE,
)
from amplifier_core.message_models import ChatRequest, Message, ToolSpec

logger = logging.getLogger(__name__)
__amplifier_module_type__ = "orchestrator"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("orchestrator", SmallLoop(config or {}))


class SmallLoop:
    def __init__(self, config):
        self.max_iterations = config.get("max_iterations", 10)
        self.waits = config.get("waits", False)

    async def execute(self, prompt, context, providers, tools, hooks: HookRegistry, coordinator=None, **kwargs) -> str:
        if coordinator is None:
            coordinator = ModuleCoordinator()
        submitted = await coordinator.process_hook_result(
            await hooks.emit(PROMPT_SUBMIT, {"prompt": prompt}), "prompt:submit", "orchestrator"
        )
        if submitted.action == "deny":
            return f"Operation denied: {submitted.reason}"
        await context.add_message({"role": "user", "content": prompt})
        provider = next(iter(providers.values()))
        final, turns = "", 0
        while turns < self.max_iterations:
            if coordinator.cancellation.is_cancelled:
                return await self._stopped(hooks, coordinator, turns)
            turns += 1
            await hooks.emit(PROVIDER_REQUEST, {"provider": provider.name, "iteration": turns})
            request = ChatRequest(
                messages=[Message(**m) for m in await context.get_messages_for_request(provider=provider)],
                tools=[ToolSpec(name=t.name, description=t.description, parameters=t.input_schema) for t in tools.values()],
            )
            response = await provider.complete(request, extended_thinking=False)
            if coordinator.cancellation.is_immediate:
                return await self._stopped(hooks, coordinator, turns)
            calls = provider.parse_tool_calls(response)
            await hooks.emit(
                PROVIDER_RESPONSE, {"provider": provider.name, "usage": response.usage, "tool_calls": bool(calls)}
            )
            blocks = [b.model_dump() for b in response.content if hasattr(b, "model_dump")]
            message = {"role": "assistant", "content": blocks}
            if calls:
                message["tool_calls"] = [{"id": c.id, "tool": c.name, "arguments": c.arguments} for c in calls]
            await context.add_message(message)
            if not calls:
                final = "".join(b.text for b in response.content if b.type == "text")
                break
            try:
                results = await asyncio.gather(*(self._call(c, tools, hooks, coordinator) for c in calls))
            except asyncio.CancelledError:
                for call in calls:
                    await context.add_message({"role": "tool", "tool_call_id": call.id, "content": "cancelled"})
                await self._stopped(hooks, coordinator, turns)
                await context.add_message({"role": "assistant", "content": "Stopped."})
                raise
            for call_id, content in results:
                await context.add_message({"role": "tool", "tool_call_id": call_id, "content": content})
        await hooks.emit(ORCHESTRATOR_COMPLETE, {"orchestrator": "loop-small", "turn_count": turns, "status": "success"})
        return final

    async def _stopped(self, hooks, coordinator, turns):
        state = str(coordinator.cancellation.state)
        await hooks.emit(CANCEL_REQUESTED, {"orchestrator": "loop-small", "state": state, "turn_count": turns})
        await coordinator.cancellation.trigger_callbacks()
        if self.waits:
            await asyncio.sleep(0)
        await hooks.emit(
            CANCEL_COMPLETED, {"orchestrator": "loop-small", "was_immediate": coordinator.cancellation.is_immediate}
        )
        await hooks.emit(ORCHESTRATOR_COMPLETE, {"orchestrator": "loop-small", "turn_count": turns, "status": "cancelled"})
        return ""

    async def _call(self, call, tools, hooks, coordinator):
        if not hasattr(coordinator, "_tool_dispatch_contexts"):
            coordinator._tool_dispatch_contexts = {}
        coordinator._tool_dispatch_contexts[asyncio.current_task()] = call.id
        coordinator.cancellation.register_tool_start(call.id, call.name)
        try:
            before = await hooks.emit(TOOL_PRE, {"tool_name": call.name, "tool_input": call.arguments})
            before = await coordinator.process_hook_result(before, "tool:pre", call.name)
            if before.action == "deny":
                return call.id, f"Denied by hook: {before.reason}"
            tool = tools.get(call.name)
            if tool is None:
                return call.id, f"Error: Tool '{call.name}' not found"
            result = await tool.execute(call.arguments)
            shown = result.to_dict() if hasattr(result, "to_dict") else result
            after = await hooks.emit(
                TOOL_POST, {"tool_name": call.name, "tool_input": call.arguments, "result": shown}
            )
            after = await coordinator.process_hook_result(after, "tool:post", call.name)
            changed = (after.data or {}).get("result", shown) if after.action == "continue" else shown
            return call.id, str(changed) if changed is not shown else result.get_serialized_output()
        finally:
            coordinator._tool_dispatch_contexts.pop(asyncio.current_task(), None)
            coordinator.cancellation.register_tool_complete(call.id)
"""

PROVIDER = """
import asyncio

from amplifier_core import ModelInfo, ModuleCoordinator, ProviderInfo, TextContent
from amplifier_core.message_models import ChatRequest, ChatResponse, TextBlock, ToolCall, ToolCallBlock, Usage

__amplifier_module_type__ = "provider"


class SmallChatResponse(ChatResponse):
    content_blocks: list[TextContent] | None = None
    text: str | None = None


async def mount(coordinator: ModuleCoordinator, config: dict | None = None):
    provider = SmallProvider(coordinator, config or {})
    await coordinator.mount("providers", provider, name="small")

    async def cleanup():
        provider.closed = True

    return cleanup


class SmallProvider:
    name = "small"

    def __init__(self, coordinator, config):
        self.coordinator = coordinator
        self.script = list(config.get("script", []))
        self.requests = []
        self.closed = False

    def get_info(self):
        return ProviderInfo(id="small", display_name="Small", defaults={"model": "s"})

    async def list_models(self):
        return [ModelInfo(id="s", display_name="S", context_window=1000, max_output_tokens=100)]

    async def complete(self, request: ChatRequest, **kwargs) -> ChatResponse:
        self.requests.append(request)
        step = self.script.pop(0) if self.script else "done"
        if step == "immediate":
            self.coordinator.cancellation.request_immediate()
            step = "too late"
        if step == "graceful":
            self.coordinator.cancellation.request_graceful()
            step = {"echo": {"text": "last"}}
        if step == "wait":
            await asyncio.sleep(3600)
        if step == "fail":
            from amplifier_core.llm_errors import RateLimitError

            raise RateLimitError("slow down", provider="small", retryable=False)
        usage = Usage(input_tokens=10, output_tokens=5, total_tokens=15).model_copy(update={"cost_unpriced_model": "s"})
        if isinstance(step, str):
            return SmallChatResponse(content=[TextBlock(text=step)], usage=usage, text=step)
        calls = [ToolCall(id=f"call-{len(self.requests)}-{i}", name=n, arguments=a) for i, (n, a) in enumerate(step.items())]
        blocks = [ToolCallBlock(id=c.id, name=c.name, input=c.arguments) for c in calls]
        return SmallChatResponse(content=[TextBlock(text="calling"), *blocks], tool_calls=calls, usage=usage)

    def parse_tool_calls(self, response):
        return response.tool_calls or []
"""

TOOL = """
import asyncio

from amplifier_core import ModuleCoordinator, ToolResult

__amplifier_module_type__ = "tool"


async def mount(coordinator: ModuleCoordinator, config=None):
    coordinator.todo_state = []
    await coordinator.mount("tools", Shell(coordinator), name="shell")
    coordinator.mount_points["tools"]["echo"] = Echo()
    coordinator.mount_points["tools"]["pause"] = Pause(coordinator)


class Echo:
    name = "echo"
    description = "Gives back what it got."
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}

    async def execute(self, input: dict) -> ToolResult:
        return ToolResult(success=True, output={"text": input.get("text"), "n": 1})


class Pause:
    name = "pause"
    description = "Waits for ever."
    input_schema = {"type": "object", "properties": {}}

    def __init__(self, coordinator):
        self.coordinator = coordinator

    async def execute(self, input: dict) -> ToolResult:
        started = self.coordinator.get_capability("test.started")
        if started is None:
            return ToolResult(success=True, output="not today")
        started()
        await asyncio.sleep(3600)


class Shell:
    name = "shell"
    description = "Runs a command."
    input_schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

    def __init__(self, coordinator):
        self.coordinator = coordinator

    async def execute(self, input: dict) -> ToolResult:
        command = input.get("command")
        if not command:
            return ToolResult(success=False, error={"message": "no command"})
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        self.coordinator.todo_state.append(process.pid)
        started = self.coordinator.get_capability("test.started")
        if started is not None:
            started()
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout=30)
        except (asyncio.CancelledError, asyncio.TimeoutError):
            process.kill()
            await process.wait()
            raise
        return ToolResult(success=process.returncode == 0, output={"stdout": out.decode(), "code": process.returncode})
"""

CONTEXT = """
from amplifier_core import ModuleCoordinator

__amplifier_module_type__ = "context"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("context", ListContext())


class ListContext:
    def __init__(self):
        self.messages = []

    async def add_message(self, message):
        self.messages.append(message)

    async def get_messages_for_request(self, token_budget=None, provider=None):
        return list(self.messages)

    async def get_messages(self):
        return list(self.messages)

    async def set_messages(self, messages):
        self.messages = list(messages)

    async def clear(self):
        self.messages = []
"""

HOOKS = """
import asyncio

from amplifier_core import HookRegistry, HookResult, ModuleCoordinator
from amplifier_core.events import TOOL_POST, TOOL_PRE

__amplifier_module_type__ = "hook"
WATCHED = [
    HookRegistry.SESSION_START, "prompt:submit", "provider:request", "provider:response", TOOL_PRE, TOOL_POST,
    "cancel:requested", "cancel:completed", "orchestrator:complete", HookRegistry.SESSION_END,
]


async def mount(coordinator: ModuleCoordinator, config=None):
    config = config or {}
    log = coordinator.get_capability("test.log")
    coordinator.register_contributor("observability.events", "hooks-small", lambda: ["small:seen"])

    async def gate(event, data):
        if data.get("tool_name") in config.get("ask", []):
            return HookResult(action="ask_user", approval_prompt=f"Run {data['tool_name']}?")
        return HookResult(action="continue")

    async def redact(event, data):
        result = data.get("result")
        if config.get("redact") and isinstance(result, str):
            return HookResult(action="modify", data={**data, "result": result.replace("secret", "[REDACTED]")})
        return HookResult(action="continue")

    async def record(event, data):
        if config.get("slow"):
            await asyncio.sleep(0)
        log.append((event, data))
        return HookResult(action="continue", metadata={"ignored": True})

    removers = [coordinator.hooks.register(TOOL_PRE, gate, priority=5, name="gate")]
    removers.append(coordinator.hooks.on(TOOL_POST, redact, priority=10, name="redact"))
    removers += [coordinator.hooks.register(event=e, handler=record, priority=1000, name="log") for e in WATCHED]

    def cleanup():
        for remove in removers:
            remove()

    return cleanup


async def on_session_ready(coordinator):
    coordinator.session_state["ready"] = sorted(coordinator.get("tools"))
"""

MODULES = {
    "loop-small": LOOP,
    "provider-small": PROVIDER,
    "tool-shell": TOOL,
    "context-list": CONTEXT,
    "hooks-small": HOOKS,
}


def write_modules(directory: Path, name: str = "small") -> dict[str, Path]:
    """Write all modules below a directory, each in the layout of a published repository.

    Args:
        directory: Where to.
        name: Makes the packages' names unique: one process imports a name from one place only.

    Returns:
        The module ids, with ``name`` in them, and their directories.
    """
    written = {}
    for module_id, source in MODULES.items():
        unique = f"{module_id}-{name}"
        written[unique] = write_package(directory, unique, source)
    return written


def write_package(directory: Path, module_id: str, source: str) -> Path:
    """Write one module in the layout of a published repository; gives its root."""
    root = directory / f"amplifier-module-{module_id}"
    package = root / f"amplifier_module_{module_id.replace('-', '_')}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source, encoding="utf-8")
    return root
