"""Agents in a few lines: `agent` returns a session, and `run` and `run_sync` run one turn."""

from __future__ import annotations

import inspect
import itertools
import os
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Never, TypeAlias, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import attrs

from ._internal.reading import (
    Kind,
    anything,
    can_call,
    directory_name,
    list_each,
    mapping,
    option,
    read_arguments,
    seconds,
    show,
    text,
)
from .contracts import ApprovalQuestion, Provider, log_unanswered, question_for
from .contracts.cancellation import running_asyncio_loop
from .errors import NoOneToAskError, PlanError, SessionStateError
from .kernel import AmplifierSession
from .loading import ModuleLoader
from .plan import MODEL_EXAMPLES, merge_plans, read_model_name
from .plan.dicts import is_thing

__all__ = ["AgentOptions", "AgentSession", "Approve", "agent", "run", "run_sync"]

_T = TypeVar("_T")
# The tasks of an event loop ask one after another at the terminal.
_terminal_lock: anyio.lowlevel.RunVar[anyio.Lock] = anyio.lowlevel.RunVar("amplifier-asking")

Approve: TypeAlias = Literal["ask", "deny"] | Callable[[ApprovalQuestion], bool | Awaitable[bool]]
"""The decision about tool calls: ask at the terminal, deny all, or call a function."""

_Model: TypeAlias = str | Provider | Mapping[str, object]
_Backend: TypeAlias = Literal["asyncio", "trio"]
_Plan: TypeAlias = dict[str, Any]


class AgentOptions(TypedDict, total=False):
    """The keyword arguments of `agent`."""

    tools: Iterable[object] | None
    hooks: Iterable[object] | None
    mcp: Iterable[str | Mapping[str, object]] | None
    instructions: str | Path | Iterable[str | Path] | None
    approve: Approve | None
    approval_timeout: float | None
    budget: Mapping[str, object] | None
    memory: str | Path | None
    session_id: str | None
    plan: Mapping[str, object] | None


def agent(
    model: _Model,
    *,
    tools: Iterable[object] | None = None,
    hooks: Iterable[object] | None = None,
    mcp: Iterable[str | Mapping[str, object]] | None = None,
    instructions: str | Path | Iterable[str | Path] | None = None,
    approve: Approve | None = None,
    approval_timeout: float | None = None,
    budget: Mapping[str, object] | None = None,
    memory: str | Path | None = None,
    session_id: str | None = None,
    plan: Mapping[str, object] | None = None,
    name: str | None = None,
    description: str | None = None,
    **unknown: Never,
) -> AgentSession:
    """Return a session with a model and tools. Open it with ``async with``.

    The resulting mount plan is in ``session.config``.

    Args:
        model: ``"provider:model"``, such as ``"anthropic:claude-sonnet-4-5"``,
            ``"openai-compatible:MODEL@URL"`` or ``"offline"``. Or a provider, or its entry in a
            plan.
        tools: Functions, tools, other agents with a ``name`` and a ``description``, ids of modules,
            or entries as in a plan.
        hooks: Functions marked with `amplifier.on`, ids of modules, or entries as in a plan.
        mcp: MCP servers: commands to start, URLs, or entries as in the configuration of
            ``tool-mcp``.
        instructions: The system prompt, as texts and paths of text files. It replaces that of a
            conversation in ``memory``.
        approve: Ask before tool calls that may change something. ``"ask"`` asks at the terminal,
            ``"deny"`` denies them all. A function receives the `ApprovalQuestion` and returns True
            to allow the call. ``@tool(approve=False)`` and ``@tool(read_only=True)`` exempt a
            function.
        approval_timeout: Seconds to wait for an answer. The default is 300. Without an answer the
            call is denied.
        budget: Limits as in a plan, such as ``{"cost": 0.5}``.
        memory: A folder that keeps the conversation under ``session_id``, so that the next program
            continues it.
        session_id: The id of the session. With ``memory``, the default is ``"main"``.
        plan: Further parts of a plan, merged over the plan of the other arguments. Its providers,
            tools and hooks come after theirs.
        name: The agent's name as a sub-agent, among the ``tools`` of another agent.
        description: The tasks that another agent's model may give it.

    Raises:
        PlanError: An argument is invalid. The message states the expected values.
    """
    arguments = dict(locals())
    arguments |= arguments.pop("unknown")
    values = read_arguments(_Arguments, arguments, _SUBJECT)
    settings: _Plan = {"strict": True}
    loop: _Plan = {"module": "loop-streaming", "config": {}}
    if values.instructions:
        loop["config"]["system_prompt"] = values.instructions
    context: str | _Plan = "context-simple"
    if values.memory is not None:
        context = {"module": "context-persistent", "config": {"path": str(values.memory)}}
        session_id = session_id or "main"
    if values.budget is not None:
        settings["budget"] = values.budget
    config: _Plan = {
        "session": {"orchestrator": loop, "context": context, **settings},
        "providers": [values.model],
        "tools": values.tools,
        "hooks": values.hooks,
    }
    if values.mcp:
        config["tools"].append({"module": "tool-mcp", "config": {"servers": values.mcp}})
    # merge_plans() would replace the lists.
    for key in ("providers", "tools", "hooks"):
        if isinstance(values.plan.get(key), list | tuple | None):
            config[key].extend(values.plan.pop(key, None) or ())
    config = merge_plans(config, values.plan)
    # An invalid plan may have anything here. The session reports it.
    hooks = config["hooks"]
    is_own = isinstance(hooks, list) and "hooks-approval" in map(_module_of, hooks)
    if values.approval_timeout is not None and (is_own or values.approve is None):
        advice = "set it in the config of your hooks-approval" if is_own else "it needs approve="
        raise _error("approval_timeout", f"{advice}; got {values.approval_timeout:g}")
    if values.approve is not None and isinstance(hooks, list) and not is_own:
        approval: _Plan = {"module": "hooks-approval", "on_failure": "deny"}
        if values.approval_timeout is not None:
            approval["config"] = {"timeout": values.approval_timeout}
        hooks.append(approval)
    _add_sub_agents(config)
    system = None if values.approve is None else _Approvals(values.approve)
    session = AgentSession(config, session_id=session_id, approval_system=system)
    session.agent_name, session.agent_description = name, description
    return session


def _module_of(entry: object) -> object:
    return entry.get("module") if isinstance(entry, Mapping) else entry


class AgentSession(AmplifierSession):
    """The session of an agent. Another agent may have it among its tools.

    Attributes:
        agent_name: The name as a sub-agent, or None.
        agent_description: The tasks that another agent's model may give it, or None.
    """

    # With the names `name` and `description`, and `execute`, it would be a tool of the contract.
    agent_name: str | None = None
    agent_description: str | None = None


# ── sub-agents ───────────────────────────────────────────────────────────────────────────────────

# tool-task runs them. Each call forks the session and replaces its plan by the sub-agent's.

_MAX_DEPTH = 16


def _add_sub_agents(plan: _Plan) -> None:
    """Replace the agents among the tools by a tool that delegates tasks to them."""
    entries = plan.get("tools")
    if not isinstance(entries, list):
        return
    agents: _Plan = {}
    for at, sub in enumerate(entries):
        if isinstance(sub, AmplifierSession):
            if problem := _sub_agent_problem(sub, agents):
                raise _error(f"tools[{at}]", problem)
            sub_plan = _with_hooks(sub.config, plan.get("hooks") or [])
            agents[getattr(sub, "agent_name", "")] = {
                "description": getattr(sub, "agent_description", ""),
                "plan": sub_plan,
            }
    if agents:
        config = {"agents": agents, "pass_events": True, "max_depth": _MAX_DEPTH}
        tools = [entry for entry in entries if not isinstance(entry, AmplifierSession)]
        plan["tools"] = [*tools, {"module": "tool-task", "config": config}]


def _sub_agent_problem(sub: AmplifierSession, agents: Mapping[str, object]) -> str | None:
    name, description = getattr(sub, "agent_name", None), getattr(sub, "agent_description", None)
    if name is None or description is None:
        return (
            "a sub-agent needs a name and a description for the model that calls it, as in "
            "agent(…, name='researcher', description='Finds facts.'); "
            f"got name={name!r:.80}, description={description!r:.80}"
        )
    if name in agents:
        return f"two sub-agents have the name {name!r:.80}; rename one of them"
    if sub.coordinator.approval_system is not None:
        return (
            f"sub-agent {name!r:.80} has approve=…, but its parent's approval applies; "
            "pass approve= to the outer agent"
        )
    context = sub.config["session"].get("context")
    if isinstance(context, dict) and context.get("module") == "context-persistent":
        return (
            f"sub-agent {name!r:.80} has memory=…, but each task begins a new conversation; "
            "omit memory"
        )
    return None


def _with_hooks(plan: _Plan, hooks: list[object]) -> _Plan:
    """Return the plan of a sub-agent with its parent's hooks before its own, at every depth.

    So the parent's gates decide about the calls of its sub-agents, too.
    """
    plan = merge_plans(plan, {})
    plan["hooks"] = [*hooks, *(entry for entry in plan.get("hooks") or [] if entry not in hooks)]
    for entry in plan.get("tools") or []:
        if isinstance(entry, dict) and _module_of(entry) == "tool-task":
            for sub in ((entry.get("config") or {}).get("agents") or {}).values():
                sub["plan"] = _with_hooks(sub["plan"], hooks)
    return plan


@overload
async def run(prompt: str, model: _Model, **options: Unpack[AgentOptions]) -> str: ...
@overload
async def run(
    prompt: str, model: _Model, *, result_type: type[_T], **options: Unpack[AgentOptions]
) -> _T: ...
async def run(
    prompt: str, model: _Model, *, result_type: Any = None, **options: Unpack[AgentOptions]
) -> Any:
    """Open an agent, run one turn, and close it.

    The model and options are those of `agent`, and ``result_type`` is that of ``session.execute``.
    A notebook can use ``await amplifier.run(prompt, model)``.
    """
    async with agent(model, **options) as session:
        return await session.execute(prompt, result_type=result_type)


@overload
def run_sync(
    prompt: str, model: _Model, *, backend: _Backend = ..., **options: Unpack[AgentOptions]
) -> str: ...
@overload
def run_sync(
    prompt: str,
    model: _Model,
    *,
    result_type: type[_T],
    backend: _Backend = ...,
    **options: Unpack[AgentOptions],
) -> _T: ...
def run_sync(prompt: str, model: _Model, *, backend: _Backend = "asyncio", **options: Any) -> Any:
    """Call `run` from a script without ``async``.

    Ctrl-C stops the turn, closes the agent and is raised.

    Raises:
        SessionStateError: An event loop is running already, as in a notebook.
    """
    if _is_loop_running():
        raise SessionStateError(
            "run_sync() starts an event loop, but one is running already, as in a notebook or an "
            "async function; write `await amplifier.run(...)` with the same arguments"
        )
    if backend not in ("asyncio", "trio") or find_spec(backend) is None:
        raise _error(
            "backend",
            f"expected 'asyncio', or 'trio' if that package is installed, got {backend!r:.100}",
        )
    return anyio.run(partial(run, prompt, model, **options), backend=backend)


def _is_loop_running() -> bool:
    try:
        return running_asyncio_loop() is not None or bool(anyio.lowlevel.current_token())
    except RuntimeError:
        return False


def _error(argument: str, text: str) -> PlanError:
    return PlanError([(argument, text)], subject=_SUBJECT)


# ── arguments ────────────────────────────────────────────────────────────────────────────────────

_SUBJECT = "invalid arguments of agent()"


def _problem(text: str) -> PlanError:
    return PlanError([("$", text)])


def _provider(model: object) -> object:
    if not isinstance(model, str):
        return model
    finder = ModuleLoader()
    return read_model_name(model, lambda module_id: finder.locate(module_id) is not None).entry


def _servers(entries: Iterable[object]) -> _Plan:
    """Return the MCP servers by name, as in the configuration of tool-mcp.

    A server without a name is named after its command or host.
    """
    servers: _Plan = {}
    for name, config in _each_server.convert(list(entries)):
        slug = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "server"
        names = itertools.chain([slug], (f"{slug}-{number}" for number in itertools.count(2)))
        servers[next(free for free in names if free not in servers)] = {"required": True, **config}
    return servers


def _server(entry: object) -> tuple[str, _Plan]:
    if isinstance(entry, Mapping):
        config = dict(entry)
        name = config.pop("name", None) or config.get("url") or config.get("command") or ""
        return (urlsplit(str(name)).hostname or Path(str(name)).stem), config
    parts = _split_command(entry)
    if not parts:
        raise _problem(f"expected a command, a URL or an entry as in tool-mcp, got {show(entry)}")
    if parts[0].startswith(("http://", "https://")):
        return urlsplit(parts[0]).hostname or "", {"url": parts[0]}
    return Path(parts[0]).stem, {"command": parts[0], "args": parts[1:]}


def _split_command(command: object) -> list[str]:
    try:
        return shlex.split(command) if isinstance(command, str) else []
    # A quotation mark isn't closed.
    except ValueError:
        return []


def _text_of(instructions: str | Path | Iterable[str | Path]) -> str:
    if isinstance(instructions, str | Path):
        parts = [_text.read(instructions)]
    else:
        parts = _each_text.convert(list(instructions))
    return "\n\n".join(text for part in parts if (text := part.strip()))


def _read(part: str | Path) -> str:
    if isinstance(part, str):
        if "\n" not in part and len(part) < 250 and Path(part).is_file():
            raise _problem(
                f"got the text {part!r}, which is the name of a file; "
                f"write Path({part!r}) to read the file"
            )
        return part
    try:
        return part.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _problem(f"{part} cannot be read: {error}") from error


def _is_list(value: object) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)


def _is_text(part: object) -> bool:
    return isinstance(part, str | Path)


def _is_model(value: object) -> bool:
    return isinstance(value, str | Mapping) or is_thing(value)


def _is_approval(value: object) -> bool:
    return value in ("ask", "deny") or (
        callable(value) and can_call(value, ApprovalQuestion(text=""))
    )


def _modules(expected: str) -> Callable[[Iterable[object]], list[object]]:
    def read_entry(entry: object) -> object:
        if isinstance(entry, str | Mapping | AmplifierSession) or is_thing(entry):
            return entry
        # The function was called. The error of the plan gives advice about that.
        if inspect.iscoroutine(entry):
            return entry
        raise _problem(f"expected {expected}; got {show(entry)}")

    entries_kind = list_each("entries", attrs.evolve(anything, convert=read_entry))
    return lambda entries: list(entries_kind.convert(list(entries)))


_TOOL_ENTRY = (
    "a function, an object with name, description and execute(input), an agent with a name and a "
    "description, or the id of a module"
)
_HOOK_ENTRY = "a function marked with @on, as in @on('tool:pre'), or the id of a module"


def _listed(entries: str, convert: Callable[[Iterable[object]], object]) -> Any:
    kind = Kind(f"a list of {entries}", _is_list, convert)
    return option(kind, attrs.Factory(partial(convert, ())))


_text = Kind("text or the path of a file", _is_text, _read)
_each_text = list_each("texts", _text)
_each_server = list_each("servers", attrs.evolve(anything, convert=_server))
_texts = Kind(
    "text, the path of a file, or a list of both",
    lambda value: _is_text(value) or _is_list(value),
    _text_of,
)


@attrs.frozen(kw_only=True)
class _Arguments:
    """The arguments of `agent`, converted for a plan."""

    model: object = option(
        Kind(f"{MODEL_EXAMPLES}, a provider or the entry of one", _is_model, _provider)
    )
    tools: list[object] = _listed(
        "functions, tools, agents and ids of modules, such as [weather]", _modules(_TOOL_ENTRY)
    )
    hooks: list[object] = _listed(
        "functions marked with @on and ids of modules, such as [watch]", _modules(_HOOK_ENTRY)
    )
    mcp: _Plan = _listed(
        "commands, URLs and entries as in tool-mcp, such as ['uvx server']", _servers
    )
    instructions: str = option(_texts, "")
    approve: Approve | None = option(
        Kind("'ask', 'deny' or a function of the question", _is_approval, words=("ask", "deny")),
        None,
    )
    approval_timeout: float | None = option(seconds, None)
    budget: _Plan | None = option(
        attrs.evolve(mapping, expected="limits by name, such as {'cost': 0.5}"), None
    )
    memory: Path | None = option(directory_name, None)
    session_id: object = option(anything, None)
    plan: _Plan = option(
        attrs.evolve(mapping, expected="sections of a plan by name"), attrs.Factory(dict)
    )
    name: str | None = option(text, None)
    description: str | None = option(text, None)


@attrs.define(eq=False)
class _Approvals:
    """The approval system of an agent."""

    approve: Approve

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Return the option that was chosen."""
        question = question_for(prompt, timeout)
        with log_unanswered(question):
            return "Allow once" if await self._is_allowed(question) else "Deny"

    async def _is_allowed(self, question: ApprovalQuestion) -> bool:
        if self.approve == "deny":
            return False
        if self.approve == "ask":
            return await _ask_at_terminal(question.text)
        answer: object = self.approve(question)
        if inspect.isawaitable(answer):
            answer = await answer
        # A text such as "n" would be true.
        if not isinstance(answer, bool):
            raise TypeError(f"the function approve= must return True or False; got {answer!r:.100}")
        return answer


async def _ask_at_terminal(prompt: str) -> bool:
    if not sys.stdin.isatty():
        raise NoOneToAskError(
            "approve='ask' needs a terminal; pass a function that decides instead"
        )
    if (lock := _terminal_lock.get(None)) is None:
        _terminal_lock.set(lock := anyio.Lock())
    async with lock:
        print(f"{prompt} [y/N] ", end="", flush=True)  # noqa: T201
        # A terminal becomes readable after a line, or after Ctrl-D. `readline` would block the
        # event loop, and Ctrl-C, until the end of the line.
        await anyio.wait_readable(sys.stdin)
        answer = os.read(sys.stdin.fileno(), 4096)
        return answer.strip().lower() in (b"y", b"yes")
