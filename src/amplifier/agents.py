"""An agent in a few lines: `agent` builds a mount plan and returns an ordinary session; `run` and `run_sync` ask it once.

There is one way underneath: what it made is in ``session.config``, and whatever it has no argument for goes into ``plan=``.
"""

from __future__ import annotations

import inspect
import itertools
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, Unpack, overload
from urllib.parse import urlsplit

import anyio
import anyio.lowlevel
import attrs

from ._spelling import suggestion
from .contracts import Provider
from .contracts._containment import running_asyncio_loop
from .errors import NoOneToAskError, PlanError, SessionStateError
from .kernel import AmplifierSession
from .loading import ModuleLoader
from .plan import merge_plans

__all__ = ["AgentOptions", "AgentSession", "Approve", "agent", "run", "run_sync"]

_T = TypeVar("_T")
_asking: anyio.lowlevel.RunVar[anyio.Lock] = anyio.lowlevel.RunVar("amplifier-asking")

Approve: TypeAlias = Literal["ask", "deny"] | Callable[[str], bool | Awaitable[bool]]
"""Who decides about tool calls: the person at the terminal, nobody, or a function of the question."""

_Model: TypeAlias = str | Provider | Mapping[str, Any]
_Backend: TypeAlias = Literal["asyncio", "trio"]


class AgentOptions(TypedDict, total=False):
    """The keyword arguments of `agent`."""

    tools: Iterable[Any]
    hooks: Iterable[Any]
    mcp: Iterable[str | Mapping[str, Any]]
    instructions: str | Path | Sequence[str | Path]
    approve: Approve | None
    budget: Mapping[str, Any] | None
    memory: str | Path | None
    session_id: str | None
    plan: Mapping[str, Any] | None


_MODELS = ("anthropic", "openai", "openai-compatible", "local", "offline", "mock")
_EXAMPLE = (
    "'anthropic:claude-sonnet-4-5', 'openai:gpt-5', 'openai-compatible:MODEL@URL', 'local:FILE.gguf' or 'offline'"
)


def agent(
    model: _Model,
    *,
    tools: Iterable[Any] = (),
    hooks: Iterable[Any] = (),
    mcp: Iterable[str | Mapping[str, Any]] = (),
    instructions: str | Path | Sequence[str | Path] = (),
    approve: Approve | None = None,
    budget: Mapping[str, Any] | None = None,
    memory: str | Path | None = None,
    session_id: str | None = None,
    plan: Mapping[str, Any] | None = None,
    name: str | None = None,
    description: str | None = None,
) -> AgentSession:
    """A session with this model and these tools; open it with ``async with``.

    Args:
        model: ``"provider:model"``, such as ``"anthropic:claude-sonnet-4-5"``; ``"openai-compatible:MODEL@URL"``,
            ``"local:FILE.gguf"``, ``"offline"``; a provider, or the entry of one as in a plan.
        tools: Functions, tools, other agents with a ``name`` and a ``description``, ids of modules or entries as in a plan.
        hooks: Functions marked with `amplifier.on`, ids of modules or entries as in a plan.
        mcp: MCP servers: commands to start, URLs, or entries as in the configuration of ``tool-mcp``.
        instructions: The system prompt: texts, and paths of files that hold one.
        approve: Ask before tool calls that may change something: ``"ask"`` at the terminal, ``"deny"`` all of them, or call a
            function with the question; True allows it.
        budget: Limits as in a plan, such as ``{"cost": 0.5}``.
        memory: A folder that keeps the conversation, under ``session_id``, so that the next program continues it.
        session_id: The id of the session; of a conversation with ``memory``, ``"main"`` otherwise.
        plan: Everything else, laid over what the other arguments make.
        name: Of this agent as a sub-agent, in the ``tools`` of another.
        description: What the other agent's model may give it to do.

    Raises:
        PlanError: An argument cannot be used; the message says what was expected.
    """
    settings: dict[str, Any] = {"strict": True}
    loop: dict[str, Any] = {"module": "loop-streaming", "config": {}}
    if prompt := _text_of(instructions):
        loop["config"]["system_prompt"] = prompt
    context: Any = "context-simple"
    if memory is not None:
        context = {"module": "context-persistent", "config": {"path": str(memory)}}
        session_id = session_id or "main"
    if budget is not None:
        settings["budget"] = dict(budget)
    servers = _servers(mcp)
    made: dict[str, Any] = {
        "session": {"orchestrator": loop, "context": context, **settings},
        "providers": [_provider(model)],
        "tools": [*tools, *([{"module": "tool-mcp", "config": {"servers": servers}}] if servers else ())],
        "hooks": list(hooks),
    }
    system = None
    if approve is not None:
        made["hooks"].append({"module": "hooks-approval", "on_failure": "deny"})
        system = _Approvals(approve)
    if plan is not None:
        made = merge_plans(made, plan)
    _add_sub_agents(made)
    session = AgentSession(made, session_id=session_id, approval_system=system)
    session.agent_name, session.agent_description = name, description
    return session


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
# tool-task runs them: each call forks the session, with the sub-agent's plan over it.

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
            agents[str(getattr(sub, "agent_name", ""))] = _overlay_of(sub, made.get("hooks") or [])
    if agents:
        config = {"agents": agents, "pass_events": True, "max_depth": _DEEPEST}
        tools = [entry for entry in given if not isinstance(entry, AmplifierSession)]
        made["tools"] = [*tools, {"module": "tool-task", "config": config}]


def _unusable(sub: AmplifierSession, agents: Mapping[str, Any]) -> str | None:
    name, description = getattr(sub, "agent_name", None), getattr(sub, "agent_description", None)
    if not all(isinstance(text, str) and text.strip() for text in (name, description)):
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


def _overlay_of(sub: AmplifierSession, hooks: list[Any]) -> dict[str, Any]:
    """The plan of a sub-agent, for `AmplifierSession.fork`, with the hooks of its parent before its own: its gates hold for both."""
    plan = merge_plans(sub.config, {"session": {}})
    orchestrator = plan["session"]["orchestrator"]
    if isinstance(orchestrator, dict):  # so that it does not inherit the parent's
        orchestrator["config"] = {"system_prompt": None, **(orchestrator.get("config") or {})}
    _put_before(plan, hooks)
    return {"description": getattr(sub, "agent_description", ""), **plan}


def _put_before(plan: dict[str, Any], hooks: list[Any]) -> None:
    plan["hooks"] = [*hooks, *(entry for entry in plan.get("hooks") or [] if entry not in hooks)]
    for entry in plan.get("tools") or []:
        if isinstance(entry, dict) and entry.get("module") == "tool-task":
            for below in ((entry.get("config") or {}).get("agents") or {}).values():
                _put_before(below, hooks)


@overload
async def run(prompt: str, model: _Model, **options: Unpack[AgentOptions]) -> str: ...
@overload
async def run(prompt: str, model: _Model, *, result_type: type[_T], **options: Unpack[AgentOptions]) -> _T: ...
async def run(prompt: str, model: _Model, *, result_type: Any = None, **options: Unpack[AgentOptions]) -> Any:
    """Ask an agent once: open it, run one turn and close it; in a notebook ``await amplifier.run(prompt, model)``.

    The model and options are those of `agent`, ``result_type`` is that of ``session.execute``.
    """
    async with agent(model, **options) as session:
        return await session.execute(prompt, result_type=result_type)


@overload
def run_sync(prompt: str, model: _Model, *, backend: _Backend = ..., **options: Unpack[AgentOptions]) -> str: ...
@overload
def run_sync(
    prompt: str, model: _Model, *, result_type: type[_T], backend: _Backend = ..., **options: Unpack[AgentOptions]
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
        raise _error("backend", f"expected 'asyncio', or 'trio' if that package is installed, got {backend!r:.100}")
    return anyio.run(partial(run, prompt, model, **options), backend=backend)


def _is_loop_running() -> bool:
    try:
        return running_asyncio_loop() is not None or bool(anyio.lowlevel.current_token())
    except RuntimeError:
        return False


def _error(argument: str, text: str) -> PlanError:
    return PlanError([(argument, text)], subject="agent() cannot be made")


def _provider(model: Any) -> Any:
    if not isinstance(model, str):
        return model
    name, _, rest = model.partition(":")
    if name not in _MODELS and (not rest or ModuleLoader().locate(f"provider-{name}") is None):
        meant = suggestion(name, frozenset(_MODELS))
        raise _error("model", f"expected 'provider:model', such as {_EXAMPLE}, got {model!r:.100}{meant}")
    if name in ("offline", "mock"):
        return {"module": f"provider-{name}"}
    if not rest:
        raise _error("model", f"expected a model after {name!r}, as in {_EXAMPLE}, got {model!r:.100}")
    if name == "local":
        return {"module": "provider-local", "config": {"model_path": rest}}
    config = {"default_model": rest}
    if name == "openai-compatible":
        chosen, _, url = rest.partition("@")
        if not chosen or not url:
            raise _error("model", f"expected 'openai-compatible:MODEL@URL', got {model!r:.100}")
        config = {"default_model": chosen, "base_url": url}
    return {"module": f"provider-{name}", "config": config}


def _servers(entries: Any) -> dict[str, Any]:
    """MCP servers by name, as tool-mcp is configured: their own, or one made of the command or the host."""
    if isinstance(entries, str | Mapping):
        raise _error("mcp", f"expected a list of commands, URLs and entries, got {entries!r:.100}")
    servers: dict[str, Any] = {}
    for at, entry in enumerate(entries):
        name, config = _server(f"mcp[{at}]", entry)
        plain = re.sub(r"[^A-Za-z0-9_-]+", "-", name).strip("-") or "server"
        names = itertools.chain([plain], (f"{plain}-{number}" for number in itertools.count(2)))
        servers[next(free for free in names if free not in servers)] = config
    return servers


def _server(where: str, entry: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(entry, Mapping):
        config = dict(entry)
        named = config.pop("name", None) or config.get("url") or config.get("command") or ""
        return (urlsplit(str(named)).hostname or Path(str(named)).stem), config
    words = _words(entry) if isinstance(entry, str) else []
    if not words:
        raise _error(where, f"expected a command, a URL or an entry as in tool-mcp, got {entry!r:.100}")
    if words[0].startswith(("http://", "https://")):
        return urlsplit(words[0]).hostname or "", {"url": words[0]}
    return Path(words[0]).stem, {"command": words[0], "args": words[1:]}


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quotation that does not end
        return []


def _text_of(instructions: Any) -> str:
    if isinstance(instructions, str | Path):
        instructions = [instructions]
    parts = [_read(part) if isinstance(part, Path) else str(part) for part in instructions]
    return "\n\n".join(text for part in parts if (text := part.strip()))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _error("instructions", f"{path} cannot be read: {error}") from error


@attrs.define(eq=False)
class _Approvals:
    """The approval system of an agent: a function of the question."""

    approve: Approve

    async def request_approval(self, prompt: str, options: list[str], timeout: float, default: str) -> str:
        """Ask, and return one of the options."""
        return "Allow once" if await self._is_allowed(prompt) else "Deny"

    async def _is_allowed(self, prompt: str) -> bool:
        if self.approve == "deny":
            return False
        if self.approve == "ask":
            return await _ask_at_terminal(prompt)
        answer: Any = self.approve(prompt)
        if inspect.isawaitable(answer):
            answer = await answer
        if not isinstance(answer, bool):  # "n" would be true
            raise TypeError(f"the function approve= has to return True or False; got {answer!r:.100}")
        return answer


async def _ask_at_terminal(prompt: str) -> bool:
    if not sys.stdin.isatty():
        raise NoOneToAskError("approve='ask' needs a terminal; pass a function that decides instead")
    if (asking := _asking.get(None)) is None:
        _asking.set(asking := anyio.Lock())
    async with asking:
        print(f"{prompt} [y/N] ", end="", flush=True)  # noqa: T201 — the question
        await anyio.wait_readable(sys.stdin)  # a terminal is readable when a line is there
        return sys.stdin.readline().strip().lower() in ("y", "yes")
