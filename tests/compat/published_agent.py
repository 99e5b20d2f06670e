"""An agent made of published-style modules, as text: two loops, a provider, four tools, five hook modules, a context.

Each does what its published counterpart does with the kernel's surface: the same calls, the same free attributes, the same
ways of cleaning up. They are written to a directory and loaded from there, by this kernel and by the published one.
"""

from __future__ import annotations

from pathlib import Path

from .published_loops import BASIC, STREAMING

PROVIDER = """
import asyncio

from amplifier_core import ConfigField, ModelInfo, ModuleCoordinator, ProviderInfo, TextContent, ToolCallContent
from amplifier_core.llm_errors import RateLimitError
from amplifier_core.message_models import ChatRequest, ChatResponse, TextBlock, ThinkingBlock, ToolCall, ToolCallBlock, Usage
from amplifier_core.utils.retry import RetryConfig, retry_with_backoff

__amplifier_module_type__ = "provider"
_slots = {}


class ScriptedChatResponse(ChatResponse):
    content_blocks: list[TextContent | ToolCallContent] | None = None
    text: str | None = None


async def mount(coordinator: ModuleCoordinator, config=None):
    provider = ScriptedProvider(coordinator, config or {})
    await coordinator.mount("providers", provider, name="scripted")

    async def cleanup():
        await provider.close()

    return cleanup


class ScriptedProvider:
    name = "scripted"
    api_label = "Scripted"

    def __init__(self, coordinator, config):
        self.coordinator = coordinator
        self.config = config
        self.priority = config.get("priority", 100)
        self.script = list(config.get("script", []))
        self.seen = []
        self.is_closed = False

    async def close(self):
        self.is_closed = True

    def get_info(self):
        return ProviderInfo(
            id="scripted", display_name="Scripted", credential_env_vars=["SCRIPTED_KEY"], capabilities=["tools"],
            defaults={"model": "m", "context_window": 1000, "max_output_tokens": 100},
            config_fields=[ConfigField(id="key", display_name="Key", prompt="Key?", field_type="secret", env_var="SCRIPTED_KEY")],
        )

    async def list_models(self):
        return [ModelInfo(id="m", display_name="M", context_window=1000, max_output_tokens=100, capabilities=["tools"])]

    async def complete(self, request: ChatRequest, **kwargs) -> ChatResponse:
        self.seen.append([message.model_dump() for message in request.messages])
        hooks = self.coordinator.hooks if hasattr(self.coordinator, "hooks") else None
        loop = asyncio.get_running_loop()
        slot = _slots.setdefault(id(loop), asyncio.Semaphore(2))
        if hooks:
            await hooks.emit("llm:request", {"provider": self.name, "message_count": len(request.messages)})

        async def on_retry(attempt, delay, error):
            await hooks.emit("provider:retry", {"provider": self.name, "attempt": attempt, "error": str(error)})

        async with slot:
            response = await retry_with_backoff(
                self._answer, RetryConfig(max_retries=2, initial_delay=0.0, max_delay=0.0, jitter=False), on_retry=on_retry
            )
        if hooks:
            await hooks.emit("llm:response", {"provider": self.name, "status": "ok", "usage": response.usage.model_dump()})
        return response

    async def _answer(self):
        step = self.script.pop(0) if self.script else "nothing left"
        if step == "busy":
            raise RateLimitError("busy", provider=self.name, status_code=429, retry_after=0.0)
        if step == "refused":
            raise RateLimitError("slow down", provider=self.name, status_code=429, retryable=False)
        for word in ("graceful", "immediate"):
            if isinstance(step, dict) and step.get("cancel") == word:
                getattr(self.coordinator.cancellation, f"request_{word}")()
                step = {name: value for name, value in step.items() if name != "cancel"} or "too late"
        usage = Usage(input_tokens=10, output_tokens=5, total_tokens=15, cost_usd="0.001")
        usage = usage.model_copy(update={"cost_unpriced_model": "m"})
        if isinstance(step, str):
            return ScriptedChatResponse(content=[TextBlock(text=step)], usage=usage, text=step, finish_reason="stop")
        number = len(self.seen)
        calls = [ToolCall(id=f"call-{number}-{i}", name=name, arguments=given) for i, (name, given) in enumerate(step.items())]
        blocks = [ToolCallBlock(id=c.id, name=c.name, input=c.arguments, visibility=None) for c in calls]
        thought = ThinkingBlock(thinking="let me see", signature="sig")
        return ScriptedChatResponse(content=[thought, *blocks], tool_calls=calls, usage=usage, finish_reason="tool_calls")

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or [])
"""

FILES = """
from pathlib import Path

from amplifier_core import ModuleCoordinator, ToolResult
from amplifier_core.events import ARTIFACT_READ, ARTIFACT_WRITE

__amplifier_module_type__ = "tool"


async def mount(coordinator: ModuleCoordinator, config=None):
    root = coordinator.get_capability("session.working_dir") or (config or {}).get("working_dir", ".")
    for tool in (ReadTool(coordinator, root), WriteTool(coordinator, root)):
        await coordinator.mount("tools", tool, name=tool.name)


class ReadTool:
    name = "read_file"
    description = "Reads a file."

    def __init__(self, coordinator, root):
        self.coordinator, self.root = coordinator, Path(root)

    @property
    def input_schema(self):
        return {"type": "object", "properties": {"file_path": {"type": "string"}}, "required": ["file_path"]}

    async def execute(self, input: dict) -> ToolResult:
        name = input.get("file_path")
        if not name:
            return ToolResult(success=False, error={"message": "file_path is required"})
        path = self.root / name
        if not path.exists():
            return ToolResult(success=False, error={"message": f"File not found: {name}"})
        text = path.read_text(encoding="utf-8")
        await self.coordinator.hooks.emit(ARTIFACT_READ, {"path": name, "bytes": len(text.encode())})
        numbered = "\\n".join(f"{number:6d}\\t{line}" for number, line in enumerate(text.splitlines(), 1))
        return ToolResult(success=True, output={"file_path": name, "content": numbered, "total_lines": len(text.splitlines())})


class WriteTool(ReadTool):
    name = "write_file"
    description = "Writes a file."

    @property
    def input_schema(self):
        return {"type": "object", "properties": {"file_path": {"type": "string"}, "content": {"type": "string"}}}

    async def execute(self, input: dict) -> ToolResult:
        name, content = input.get("file_path"), input.get("content")
        if not name or content is None:
            return ToolResult(success=False, error={"message": "file_path and content are required"})
        (self.root / name).write_text(content, encoding="utf-8")
        await self.coordinator.hooks.emit(ARTIFACT_WRITE, {"path": name, "bytes": len(content.encode())})
        return ToolResult(success=True, output={"file_path": name, "bytes": len(content.encode())})
"""

BASH = """
import asyncio

from amplifier_core import ModuleCoordinator, ToolResult

__amplifier_module_type__ = "tool"


async def mount(coordinator: ModuleCoordinator, config=None):
    tool = BashTool(coordinator, config or {})
    await coordinator.mount("tools", tool, name=tool.name)
    return tool.close


class BashTool:
    name = "bash"
    description = "Runs a command."
    input_schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

    def __init__(self, coordinator, config):
        self.coordinator = coordinator
        self.timeout = config.get("timeout", 30)
        self.pids = []
        self.is_closed = False

    def close(self):
        self.is_closed = True

    async def execute(self, input: dict) -> ToolResult:
        command = input.get("command")
        if not command:
            return ToolResult(success=False, error={"message": "Command is required"})
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        self.pids.append(process.pid)
        started = self.coordinator.get_capability("test.started")
        if started is not None:
            started()
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), timeout=self.timeout)
        except asyncio.TimeoutError:
            process.kill()
            await process.communicate()
            return ToolResult(success=False, error={"message": f"Command timed out after {self.timeout} seconds"})
        except asyncio.CancelledError:
            process.kill()
            await process.communicate()
            raise
        return ToolResult(
            success=process.returncode == 0,
            output={"stdout": stdout.decode(), "stderr": stderr.decode(), "returncode": process.returncode},
        )
"""

SEARCH = """
import re
from pathlib import Path

from amplifier_core import ModuleCoordinator, ToolResult

__amplifier_module_type__ = "tool"


async def mount(coordinator: ModuleCoordinator, config=None):
    root = coordinator.get_capability("session.working_dir") or "."
    await coordinator.mount("tools", GrepTool(root))


class GrepTool:
    name = "grep"
    description = "Finds lines."
    input_schema = {"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]}

    def __init__(self, root):
        self.root = Path(root)

    async def execute(self, input: dict) -> ToolResult:
        try:
            pattern = re.compile(input["pattern"])
        except (KeyError, re.error) as error:
            return ToolResult(success=False, error={"message": f"Bad pattern: {error}"})
        found = []
        for path in sorted(self.root.glob("*.txt")):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                if pattern.search(line):
                    found.append({"file": path.name, "line_number": number, "content": line})
        return ToolResult(success=True, output={"pattern": input["pattern"], "results": found, "total_matches": len(found)})
"""

TODO = """
from amplifier_core import ModuleCoordinator, ToolResult

__amplifier_module_type__ = "tool"


async def mount(coordinator: ModuleCoordinator, config=None):
    tool = TodoTool(coordinator)
    coordinator.todo_state = []
    coordinator.mount_points["tools"][tool.name] = tool


class TodoTool:
    name = "todo"
    description = "Keeps a list."
    input_schema = {"type": "object", "properties": {"action": {"enum": ["create", "list"]}, "todos": {"type": "array"}}}

    def __init__(self, coordinator):
        self.coordinator = coordinator

    async def execute(self, input: dict) -> ToolResult:
        action = input.get("action")
        if action == "create":
            self.coordinator.todo_state = list(input.get("todos", []))
            return ToolResult(success=True, output={"status": "created", "count": len(self.coordinator.todo_state)})
        if action == "list":
            return ToolResult(success=True, output={"todos": self.coordinator.todo_state})
        return ToolResult(success=False, error={"message": f"Unknown action: {action}"})
"""

APPROVAL = """
import asyncio
import logging

from amplifier_core import ApprovalRequest, ApprovalResponse, HookResult, ModuleCoordinator
from amplifier_core.events import APPROVAL_DENIED, APPROVAL_GRANTED, APPROVAL_REQUIRED

__amplifier_module_type__ = "hook"
logger = logging.getLogger(__name__)


async def mount(coordinator: ModuleCoordinator, config=None):
    hooks = coordinator.get("hooks")
    if not hooks:
        return None
    hook = ApprovalHook(config or {}, hooks, coordinator)
    coordinator.register_capability("approval.register_provider", hook.register_provider)
    unregister = hooks.register("tool:pre", hook.handle_tool_pre, priority=-10, name="approval_hook")

    def cleanup():
        unregister()

    return cleanup


class ApprovalHook:
    def __init__(self, config, hooks, coordinator):
        self.guarded = set(config.get("guarded", ["bash"]))
        self.hooks, self.coordinator = hooks, coordinator
        self.timeout = config.get("timeout")
        self.provider = None

    def register_provider(self, provider):
        self.provider = provider

    async def handle_tool_pre(self, event, data):
        name = data.get("tool_name", "unknown")
        if name not in self.guarded:
            return HookResult(action="continue")
        request = ApprovalRequest(tool_name=name, action=f"Execute {name}", details=data.get("tool_input", {}), risk_level="high")
        await self.hooks.emit(APPROVAL_REQUIRED, {"tool_name": name, "action": request.action, "risk_level": request.risk_level})
        if self.provider is None:
            return HookResult(action="deny", reason="No approval provider available")
        try:
            answer = self.provider.request_approval(request)
            response = await (asyncio.wait_for(answer, self.timeout) if self.timeout else answer)
        except asyncio.TimeoutError:
            response = ApprovalResponse(approved=False, reason="Approval timed out")
        decided = APPROVAL_GRANTED if response.approved else APPROVAL_DENIED
        await self.hooks.emit(decided, {"tool_name": name, "reason": response.reason})
        self.coordinator.session_state.setdefault("approvals", []).append(name)
        if response.approved:
            return HookResult(action="continue")
        return HookResult(action="deny", reason=response.reason or "Not approved")
"""

REDACTION = """
import re

from amplifier_core import HookRegistry, HookResult, ModuleCoordinator
from amplifier_core.events import ALL_EVENTS

__amplifier_module_type__ = "hook"
SECRET = re.compile(r"sk-[a-z0-9]{6,}")


def scrub(value):
    if isinstance(value, dict):
        return {key: scrub(member) for key, member in value.items()}
    if isinstance(value, list):
        return [scrub(member) for member in value]
    return SECRET.sub("[REDACTED:SECRET]", value) if isinstance(value, str) else value


async def mount(coordinator: ModuleCoordinator, config=None):
    async def redact(event, data):
        clean = scrub(data)
        if clean == data:
            return HookResult(action="continue")
        return HookResult(action="modify", data=clean)

    events = [event for event in ALL_EVENTS if event.partition(":")[0] in {"tool", "prompt", "llm", "provider"}]
    removers = [coordinator.hooks.on(event, redact, priority=10, name="hooks-redaction") for event in events]

    def cleanup():
        for remove in removers:
            remove()

    return cleanup
"""

LOGGING = """
from amplifier_core import HookResult, ModuleCoordinator
from amplifier_core.events import ALL_EVENTS

__amplifier_module_type__ = "hook"


async def mount(coordinator: ModuleCoordinator, config=None):
    log = coordinator.get_capability("test.log")
    if log is None:
        log = []
    removers = []

    async def record(event, data):
        log.append((event, dict(data)))
        return HookResult(action="continue")

    def listen(event):
        removers.append(coordinator.hooks.register(event, record, priority=1000, name="hooks-logging"))

    coordinator.register_capability("test.listen", listen)
    for event in [*ALL_EVENTS, "session:config"]:
        listen(event)

    def cleanup():
        for remove in removers:
            remove()

    return cleanup


async def on_session_ready(coordinator):
    listen = coordinator.get_capability("test.listen")
    known = set(ALL_EVENTS)
    for events in await coordinator.collect_contributions("observability.events"):
        for event in events:
            if event not in known:
                known.add(event)
                listen(event)
    coordinator.session_state["announced"] = sorted(known - set(ALL_EVENTS))
"""

REMINDER = """
from amplifier_core import HookResult, ModuleCoordinator
from amplifier_core.events import PROVIDER_REQUEST

__amplifier_module_type__ = "hook"


async def mount(coordinator: ModuleCoordinator, config=None):
    async def remind(event, data):
        todos = getattr(coordinator, "todo_state", None)
        if not todos:
            return HookResult(action="continue")
        lines = "\\n".join(f"- {todo['content']}" for todo in todos)
        return HookResult(
            action="inject_context", context_injection=f"<system-reminder>\\n{lines}\\n</system-reminder>",
            context_injection_role="user", ephemeral=True, suppress_output=True, append_to_last_tool_result=True,
        )

    coordinator.hooks.register(PROVIDER_REQUEST, remind, priority=10, name="hooks-todo-reminder")
"""

STATUS = """
from amplifier_core import HookResult, ModuleCoordinator

__amplifier_module_type__ = "hook"


async def mount(coordinator: ModuleCoordinator, config=None):
    async def inject(event, data):
        kind = "child" if coordinator.parent_id else "root"
        return HookResult(
            action="inject_context", context_injection=f"session: {kind}", context_injection_role="user", ephemeral=True,
        )

    return coordinator.hooks.register("provider:request", inject, priority=0, name="hooks-status-context")
"""

CONTEXT = """
from amplifier_core import ModuleCoordinator

__amplifier_module_type__ = "context"


async def mount(coordinator: ModuleCoordinator, config=None):
    await coordinator.mount("context", SimpleContextManager())


class SimpleContextManager:
    def __init__(self):
        self.messages = []

    async def add_message(self, message):
        self.messages.append(message)

    async def get_messages_for_request(self, token_budget=None, provider=None):
        if hasattr(provider, "get_info"):
            assert provider.get_info().defaults.get("context_window", 1000) > 0
        return [dict(message) for message in self.messages]

    async def get_messages(self):
        return list(self.messages)

    async def set_messages(self, messages):
        self.messages = list(messages)

    async def clear(self):
        self.messages = []
"""

AGENT = {
    "loop-basic": BASIC,
    "loop-streaming": STREAMING,
    "context-simple": CONTEXT,
    "provider-scripted": PROVIDER,
    "tool-filesystem": FILES,
    "tool-bash": BASH,
    "tool-search": SEARCH,
    "tool-todo": TODO,
    "hooks-approval": APPROVAL,
    "hooks-redaction": REDACTION,
    "hooks-logging": LOGGING,
    "hooks-todo-reminder": REMINDER,
    "hooks-status-context": STATUS,
}


def write_agent(directory: Path) -> dict[str, Path]:
    """Write all modules below a directory, each in the layout of a published repository; gives their directories by id."""
    return {
        module_id: write_package(directory, module_id, source)
        for module_id, source in AGENT.items()
    }


def write_package(directory: Path, module_id: str, source: str) -> Path:
    """Write one module in the layout of a published repository; gives its root."""
    root = directory / f"amplifier-module-{module_id}"
    package = root / f"amplifier_module_{module_id.replace('-', '_')}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source, encoding="utf-8")
    return root


def agent_plan(loop: str, script: list[object], **session: object) -> dict[str, object]:
    """A mount plan with everything in it."""
    hooks = (
        "hooks-logging",
        "hooks-redaction",
        "hooks-approval",
        "hooks-todo-reminder",
        "hooks-status-context",
    )
    tools = ("tool-filesystem", "tool-bash", "tool-search", "tool-todo")
    return {
        "session": {
            "orchestrator": {"module": loop},
            "context": {"module": "context-simple"},
            **session,
        },
        "providers": [
            {"module": "provider-scripted", "config": {"script": script, "api_key": "hidden"}}
        ],
        "tools": [{"module": module} for module in tools],
        "hooks": [{"module": module} for module in hooks],
    }
