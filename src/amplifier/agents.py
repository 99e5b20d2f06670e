"""An agent in a few lines: `agent` builds a mount plan and returns an ordinary session; `run` and `run_sync` ask it once.

There is one way underneath: what it made is in ``session.config``, and whatever it has no argument for goes into ``plan=``.
"""

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
_asking: anyio.lowlevel.RunVar[anyio.Lock] = anyio.lowlevel.RunVar("amplifier-asking")

Approve: TypeAlias = Literal["ask", "deny"] | Callable[[ApprovalQuestion], bool | Awaitable[bool]]
"""Who decides about tool calls: the person at the terminal, no one, or a function of the question."""

_Model: TypeAlias = str | Provider | Mapping[str, Any]
_Backend: TypeAlias = Literal["asyncio", "trio"]


class AgentOptions(TypedDict, total=False):
    """The keyword arguments of `agent`."""

    tools: Iterable[Any] | None
    hooks: Iterable[Any] | None
    mcp: Iterable[str | Mapping[str, Any]] | None
    instructions: str | Path | Iterable[str | Path] | None
    approve: Approve | None
    approval_timeout: float | None
    budget: Mapping[str, Any] | None
    memory: str | Path | None
    session_id: str | None
    plan: Mapping[str, Any] | None


def agent(
    model: _Model,
    *,
    tools: Iterable[Any] | None = None,
    hooks: Iterable[Any] | None = None,
    mcp: Iterable[str | Mapping[str, Any]] | None = None,
    instructions: str | Path | Iterable[str | Path] | None = None,
    approve: Approve | None = None,
    approval_timeout: float | None = None,
    budget: Mapping[str, Any] | None = None,
    memory: str | Path | None = None,
    session_id: str | None = None,
    plan: Mapping[str, Any] | None = None,
    name: str | None = None,
    description: str | None = None,
    **unknown: Never,
) -> AgentSession:
    """A session with this model and these tools; open it with ``async with``.

    Args:
        model: ``"provider:model"``, such as ``"anthropic:claude-sonnet-4-5"``; ``"openai-compatible:MODEL@URL"``,
            ``"offline"``; a provider, or the entry of one as in a plan.
        tools: Functions, tools, other agents with a ``name`` and a ``description``, ids of modules or entries as in a plan.
        hooks: Functions marked with `amplifier.on`, ids of modules or entries as in a plan.
        mcp: MCP servers: commands to start, URLs, or entries as in the configuration of ``tool-mcp``.
        instructions: The system prompt: texts, and paths of files that hold one; also in a conversation that began with others.
        approve: Ask before tool calls that may change something: ``"ask"`` at the terminal, ``"deny"`` all of them, or call a
            function with the `ApprovalQuestion`; True allows it. ``@tool(approve=False)`` and ``@tool(read_only=True)`` take
            a function out.
        approval_timeout: Seconds to wait for an answer, 300 by default. No answer denies the call.
        budget: Limits as in a plan, such as ``{"cost": 0.5}``.
        memory: A folder that keeps the conversation, under ``session_id``, so that the next program continues it.
        session_id: The id of the session; of a conversation with ``memory``, ``"main"`` otherwise.
        plan: Everything else, laid over what the other arguments make; its providers, tools and hooks come after theirs.
        name: Of this agent as a sub-agent, in the ``tools`` of another.
        description: What the other agent's model may give it to do.

    Raises:
        PlanError: An argument cannot be used; the message says what was expected.
    """
    given = dict(locals())
    given |= given.pop("unknown")
    chosen = read_arguments(_Arguments, given, _SUBJECT)
    settings: dict[str, Any] = {"strict": True}
    loop: dict[str, Any] = {"module": "loop-streaming", "config": {}}
    if chosen.instructions:
        loop["config"]["system_prompt"] = chosen.instructions
    context: Any = "context-simple"
    if chosen.memory is not None:
        context = {"module": "context-persistent", "config": {"path": str(chosen.memory)}}
        session_id = session_id or "main"
    if chosen.budget is not None:
        settings["budget"] = chosen.budget
    made: dict[str, Any] = {
        "session": {"orchestrator": loop, "context": context, **settings},
        "providers": [chosen.model],
        "tools": chosen.tools,
        "hooks": chosen.hooks,
    }
    if chosen.mcp:
        made["tools"].append({"module": "tool-mcp", "config": {"servers": chosen.mcp}})
    for key in ("providers", "tools", "hooks"):  # what the plan lists comes after these
        if isinstance(chosen.plan.get(key), list | tuple | None):
            made[key].extend(chosen.plan.pop(key, None) or ())
    made = merge_plans(made, chosen.plan)
    hooks = made["hooks"]  # anything, if the plan is wrong
    is_own = isinstance(hooks, list) and "hooks-approval" in map(_module_of, hooks)
    if chosen.approval_timeout is not None and (is_own or chosen.approve is None):
        where = (
            "the timeout is in the config of your own hooks-approval"
            if is_own
            else "it needs approve="
        )
        raise _error("approval_timeout", f"{where}; got {chosen.approval_timeout:g}")
    if chosen.approve is not None and isinstance(hooks, list) and not is_own:
        config = (
            {}
            if chosen.approval_timeout is None
            else {"config": {"timeout": chosen.approval_timeout}}
        )
        hooks.append({"module": "hooks-approval", "on_failure": "deny", **config})
    _add_sub_agents(made)
    system = None if chosen.approve is None else _Approvals(chosen.approve)
    session = AgentSession(made, session_id=session_id, approval_system=system)
    session.agent_name, session.agent_description = name, description
    return session


def _module_of(entry: Any) -> Any:
    return entry.get("module") if isinstance(entry, Mapping) else entry


class AgentSession(AmplifierSession):
    """The session of an agent; an ordinary one, which another agent may have among its tools.

    Attributes:
        agent_name: As a sub-agent.
        agent_description: What a model may give it to do.
    """

    # Not `name` and `description`: with `execute` they would make it a tool of the contract.
    agent_name: str | None = None
    agent_description: str | None = None


# ── sub-agents ───────────────────────────────────────────────────────────────────────────────────
# tool-task runs them: each call forks the session, with the sub-agent's plan in place of its own.

_DEEPEST = 16


def _add_sub_agents(made: dict[str, Any]) -> None:
    """Replace the agents among the tools by a tool that delegates tasks to them."""
    given = made.get("tools")
    if not isinstance(given, list):
        return
    agents: dict[str, Any] = {}
    for at, sub in enumerate(given):
        if isinstance(sub, AmplifierSession):
            if problem := _unusable(sub, agents):
                raise _error(f"tools[{at}]", problem)
            plan = _with_hooks(sub.config, made.get("hooks") or [])
            agents[getattr(sub, "agent_name", "")] = {
                "description": getattr(sub, "agent_description", ""),
                "plan": plan,
            }
    if agents:
        config = {"agents": agents, "pass_events": True, "max_depth": _DEEPEST}
        tools = [entry for entry in given if not isinstance(entry, AmplifierSession)]
        made["tools"] = [*tools, {"module": "tool-task", "config": config}]


def _unusable(sub: AmplifierSession, agents: Mapping[str, Any]) -> str | None:
    name, description = getattr(sub, "agent_name", None), getattr(sub, "agent_description", None)
    if name is None or description is None:
        return (
            "a sub-agent needs words for the model that calls it, as in "
            f"agent(…, name='researcher', description='Finds facts.'); got name={name!r:.80}, description={description!r:.80}"
        )
    if name in agents:
        return f"two sub-agents have the name {name!r:.80}; give each its own"
    if sub.coordinator.approval_system is not None:
        return f"sub-agent {name!r:.80} has approve=…, but asks whom its parent asks: give approve= to the outer agent"
    context = sub.config["session"].get("context")
    if isinstance(context, dict) and context.get("module") == "context-persistent":
        return f"sub-agent {name!r:.80} has memory=…, but begins anew with every task: leave memory out"
    return None


def _with_hooks(plan: dict[str, Any], hooks: list[Any]) -> dict[str, Any]:
    """The plan of a sub-agent with the hooks of its parent before its own, at every depth: gates of the parent hold for it."""
    plan = merge_plans(plan, {})
    plan["hooks"] = [*hooks, *(entry for entry in plan.get("hooks") or [] if entry not in hooks)]
    for entry in plan.get("tools") or []:
        if isinstance(entry, dict) and _module_of(entry) == "tool-task":
            for below in ((entry.get("config") or {}).get("agents") or {}).values():
                below["plan"] = _with_hooks(below["plan"], hooks)
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
    """Ask an agent once: open it, run one turn and close it; in a notebook ``await amplifier.run(prompt, model)``.

    The model and options are those of `agent`, ``result_type`` is that of ``session.execute``.
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
    """`run` for a script without ``async``; Ctrl-C stops the turn, closes the agent and is raised.

    Raises:
        SessionStateError: An event loop runs here already, as in a notebook.
    """
    if _is_loop_running():
        raise SessionStateError(
            "run_sync() starts an event loop of its own, and one is running here, as in a notebook or an async function; "
            "write `await amplifier.run(...)` with the same arguments"
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


# ── what the arguments become in a plan ──────────────────────────────────────────────────────────

_SUBJECT = "agent() cannot be made"


def _problem(text: str) -> PlanError:
    return PlanError([("$", text)])


def _provider(model: Any) -> Any:
    if not isinstance(model, str):
        return model
    finder = ModuleLoader()
    return read_model_name(model, lambda module_id: finder.locate(module_id) is not None).entry


def _servers(entries: Any) -> dict[str, Any]:
    """MCP servers by name, as tool-mcp is configured: their own, or one made of the command or the host."""
    servers: dict[str, Any] = {}
    for name, config in _each_server.convert(list(entries)):
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "server"
        names = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        servers[next(free for free in names if free not in servers)] = {"required": True, **config}
    return servers


def _server(entry: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, Mapping):
        config = dict(entry)
        named = config.pop("name", None) or config.get("url") or config.get("command") or ""
        return (urlsplit(str(named)).hostname or Path(str(named)).stem), config
    words = _words(entry)
    if not words:
        raise _problem(f"expected a command, a URL or an entry as in tool-mcp, got {show(entry)}")
    if words[0].startswith(("http://", "https://")):
        return urlsplit(words[0]).hostname or "", {"url": words[0]}
    return Path(words[0]).stem, {"command": words[0], "args": words[1:]}


def _words(command: Any) -> list[str]:
    try:
        return shlex.split(command) if isinstance(command, str) else []
    except ValueError:  # a quotation that does not end
        return []


def _text_of(instructions: Any) -> str:
    is_one = isinstance(instructions, str | Path)
    parts = [_text.read(instructions)] if is_one else _each_text.convert(list(instructions))
    return "\n\n".join(text for part in parts if (text := part.strip()))


def _read(part: Any) -> str:
    if isinstance(part, str):
        if "\n" not in part and len(part) < 250 and Path(part).is_file():
            raise _problem(
                f"got the text {part!r}, which is a file; write Path({part!r}) for what it holds"
            )
        return part
    try:
        return str(part.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise _problem(f"{part} cannot be read: {error}") from error


def _is_list(given: Any) -> bool:
    return isinstance(given, Iterable) and not isinstance(given, str | bytes | Mapping)


def _is_text(part: Any) -> bool:
    return isinstance(part, str | Path)


def _is_model(given: Any) -> bool:
    return isinstance(given, str | Mapping) or is_thing(given)


def _is_approval(given: Any) -> bool:
    return given in ("ask", "deny") or (
        callable(given) and can_call(given, ApprovalQuestion(text=""))
    )


def _modules(expected: str) -> Callable[[Any], list[Any]]:
    def read_entry(entry: Any) -> Any:
        if isinstance(entry, str | Mapping | AmplifierSession) or is_thing(entry):
            return entry
        if inspect.iscoroutine(entry):  # a function that was called: the plan has a sentence for it
            return entry
        raise _problem(f"expected {expected}; got {show(entry)}")

    each = list_each("entries", attrs.evolve(anything, convert=read_entry))
    return lambda entries: list(each.convert(list(entries)))


_OF_TOOLS = (
    "a function, an object with name, description and execute(input), an agent with a name and a description, or the id of "
    "a module"
)
_OF_HOOKS = "a function marked with @on, as in @on('tool:pre'), or the id of a module"


def _listed(what: str, convert: Callable[[Any], Any] = list) -> Any:
    return option(Kind(f"a list of {what}", _is_list, convert), attrs.Factory(partial(convert, ())))


_text = Kind("text or the path of a file", _is_text, _read)
_each_text = list_each("texts", _text)
_each_server = list_each("servers", attrs.evolve(anything, convert=_server))
_texts = Kind(
    "text, the path of a file, or a list of both",
    lambda given: _is_text(given) or _is_list(given),
    _text_of,
)


@attrs.frozen(kw_only=True)
class _Arguments:
    """Those of `agent`, as they go into a plan."""

    model: Any = option(
        Kind(f"{MODEL_EXAMPLES}, a provider or the entry of one", _is_model, _provider)
    )
    tools: list[Any] = _listed(
        "functions, tools, agents and ids of modules, such as [weather]", _modules(_OF_TOOLS)
    )
    hooks: list[Any] = _listed(
        "functions marked with @on and ids of modules, such as [watch]", _modules(_OF_HOOKS)
    )
    mcp: dict[str, Any] = _listed(
        "commands, URLs and entries as in tool-mcp, such as ['uvx server']", _servers
    )
    instructions: str = option(_texts, "")
    approve: Approve | None = option(
        Kind("'ask', 'deny' or a function of the question", _is_approval, words=("ask", "deny")),
        None,
    )
    approval_timeout: float | None = option(seconds, None)
    budget: dict[str, Any] | None = option(
        attrs.evolve(mapping, expected="limits by name, such as {'cost': 0.5}"), None
    )
    memory: Path | None = option(directory_name, None)
    session_id: Any = option(anything, None)
    plan: dict[str, Any] = option(
        attrs.evolve(mapping, expected="sections of a plan by name"), attrs.Factory(dict)
    )
    name: str | None = option(text, None)
    description: str | None = option(text, None)


@attrs.define(eq=False)
class _Approvals:
    """The approval system of an agent: a function of the question."""

    approve: Approve

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        """Ask, and return one of the options."""
        question = question_for(prompt, timeout)
        with log_unanswered(question):
            return "Allow once" if await self._is_allowed(question) else "Deny"

    async def _is_allowed(self, question: ApprovalQuestion) -> bool:
        if self.approve == "deny":
            return False
        if self.approve == "ask":
            return await _ask_at_terminal(question.text)
        answer: Any = self.approve(question)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, bool):  # "n" would be true
            raise TypeError(
                f"the function approve= has to return True or False; got {answer!r:.100}"
            )
        return answer


async def _ask_at_terminal(prompt: str) -> bool:
    if not sys.stdin.isatty():
        raise NoOneToAskError(
            "approve='ask' needs a terminal; pass a function that decides instead"
        )
    if (asking := _asking.get(None)) is None:
        _asking.set(asking := anyio.Lock())
    async with asking:
        print(f"{prompt} [y/N] ", end="", flush=True)  # noqa: T201 — the question
        await anyio.wait_readable(
            sys.stdin
        )  # a terminal is readable when a line is there, or a part of one and Ctrl-D
        answer = os.read(
            sys.stdin.fileno(), 4096
        )  # `readline` would block the event loop until the line ends, and Ctrl-C with it
        return answer.strip().lower() in (b"y", b"yes")
