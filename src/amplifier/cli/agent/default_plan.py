"""Which modules an agent at the terminal is made of: the default plan, and how options change a plan. All policy of the room is here.

Above: the commands that run or show a plan. Below: the plan's own reader. Nothing here imports a module of the plan.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import attrs

from amplifier._json import copy_json
from amplifier.cli.core.exit_codes import CommandError
from amplifier.loading import is_built_in
from amplifier.plan import expand_variables, merge_plans

from .plan_files import read_plan_file

__all__ = ["AgentPlan", "build_plan", "missing_package", "with_storage_paths"]

BUILT_IN_SOURCE: Final = "builtin"
"""The source that pins a module of this package, where another distribution may provide the id as well."""

OFFLINE_PROVIDER: Final = "provider-offline"
API_KEYS: Final = {"ANTHROPIC_API_KEY": "provider-anthropic", "OPENAI_API_KEY": "provider-openai"}
"""Whose key is there decides which model is asked, in this order."""

EVENTS_FILE: Final = "events.jsonl"

DEFAULT_TOOLS: Final = ("tool-filesystem", "tool-search", "tool-todo", "tool-bash", "tool-web", "tool-task")

REQUIRED_PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "provider-anthropic": ("anthropic", "anthropic"),
    "provider-openai": ("openai", "openai"),
    "provider-openai-compatible": ("openai", "openai"),
    "provider-local": ("xllamacpp", "local"),
    "tool-web": ("truststore", "web"),
}
"""Built-in modules that need a package of an extra: the package's import name, and the extra."""

AGENTS: Final = {
    "explorer": {
        "description": "Looks through many files, changes nothing, and reports what it found.",
        "instruction": (
            "You look through files to answer one question of the agent that asks you. You change nothing. "
            "Report what you found, where (path and line), and what you did not find."
        ),
        "tools": [{"module": "tool-filesystem", "config": {"read_only": True}}, {"module": "tool-search"}],
    }
}
"""Whom tool-task can ask: the user's own work is done by the agent the user talks to."""

SYSTEM_PROMPT: Final = (
    "You are Amplifier, an assistant in a terminal. You work in the directory {directory} with the tools you are given. "
    "Look before you answer: read the files a question is about. Change nothing the user did not ask you to change. "
    "Answer briefly, in plain text."
)


@attrs.frozen(kw_only=True)
class AgentPlan:
    """A plan to run.

    Attributes:
        plan: The mount plan.
        provider: The module id of the provider that will be asked, where it is known.
        notes: What was decided on the user's behalf and is worth telling.
    """

    plan: dict[str, Any]
    provider: str | None = None
    notes: list[str] = attrs.field(factory=list)


def missing_package(module_id: str) -> tuple[str, str] | None:
    """The package a built-in module lacks on this machine and the extra that brings it; None if it lacks nothing or is not used."""
    package, extra = REQUIRED_PACKAGES.get(module_id, ("", "")) if is_built_in(module_id) else ("", "")
    return (package, extra) if package and find_spec(package) is None else None


def build_plan(
    available: Collection[str],
    *,
    file: Path | None = None,
    provider: str | None = None,
    model: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> AgentPlan:
    """Make the plan of a run.

    Args:
        available: Module ids that can be loaded.
        file: The user's own plan; the default plan if absent.
        provider: The provider the user wants, by module id or without its ``provider-``.
        model: The model the user wants.
        environment: Variables; those of the process if absent.

    Raises:
        CommandError: The file cannot be read, or there is no such provider.
        PlanError: The file's variables cannot be expanded.
    """
    variables = os.environ if environment is None else environment
    if file is None:
        made = _default(available, provider, variables)
    else:
        made = _from_file(file, available, provider, variables)
    if model is not None:
        made = attrs.evolve(made, plan=_with_model(made.plan, model))
    return made


def with_storage_paths(plan: dict[str, Any], *, sessions: Path) -> dict[str, Any]:
    """The plan with the places filled in that it leaves open: where the conversation and the events are kept."""
    placed = merge_plans(plan, {})
    session = placed.get("session")
    if isinstance(session, dict) and "context" in session:
        session["context"] = _with_default(session.get("context"), "context-persistent", "path", str(sessions))
    hooks = placed.get("hooks")
    if isinstance(hooks, list):
        # A template, so that child sessions, which inherit the plan, keep their events in their own folders.
        events = f"{_without_places(str(sessions))}/{{session_id}}/{EVENTS_FILE}"
        placed["hooks"] = [
            _with_default(entry, "hooks-logging", "path", events, unless=("session_log_template",)) for entry in hooks
        ]
    return placed


# ── the default plan ─────────────────────────────────────────────────────────────────────────────


def _default(available: Collection[str], wanted: str | None, variables: Mapping[str, str]) -> AgentPlan:
    provider, notes = _choose_provider(available, wanted, variables)
    tools = [module_id for module_id in DEFAULT_TOOLS if module_id in available and missing_package(module_id) is None]
    # Pinned is what this command relies on: the system prompt, the files of a session, the gates, the agents below. Tools and
    # providers are whatever is installed.
    hooks: list[dict[str, Any]] = [
        {"module": "hooks-redaction", "source": BUILT_IN_SOURCE, "on_failure": "deny"},
        {"module": "hooks-approval", "source": BUILT_IN_SOURCE, "on_failure": "deny"},
        {"module": "hooks-logging", "source": BUILT_IN_SOURCE},
    ]
    plan: dict[str, Any] = {
        "session": {
            "orchestrator": {
                "module": "loop-streaming",
                "source": BUILT_IN_SOURCE,
                "config": {"system_prompt": SYSTEM_PROMPT.format(directory=Path.cwd())},
            },
            "context": {"module": "context-persistent", "source": BUILT_IN_SOURCE},
        },
        "providers": [{"module": provider}],
        "tools": [
            {"module": module_id, "source": BUILT_IN_SOURCE} if module_id == "tool-task" else {"module": module_id}
            for module_id in tools
        ],
        "hooks": [hook for hook in hooks if hook["module"] in available],
    }
    if "tool-task" in tools:
        plan["agents"] = copy_json(AGENTS)
    return AgentPlan(plan=plan, provider=provider, notes=notes)


def _choose_provider(
    available: Collection[str], wanted: str | None, variables: Mapping[str, str]
) -> tuple[str, list[str]]:
    if wanted is not None:
        return _provider_id(wanted, available), []
    notes: list[str] = []
    for variable, module_id in API_KEYS.items():
        if not variables.get(variable):
            continue
        missing = missing_package(module_id)
        if module_id in available and missing is None:
            return module_id, notes
        if missing is not None:
            notes.append(
                f"{variable} is set but {missing[0]} is not installed, so {module_id} is not used; "
                f"install it with: pip install 'amplifier[{missing[1]}]'"
            )
    return OFFLINE_PROVIDER, notes


def _provider_id(wanted: str, available: Collection[str]) -> str:
    for module_id in (wanted, f"provider-{wanted}"):
        if module_id.startswith("provider-") and module_id in available:
            return module_id
    known = sorted(name.removeprefix("provider-") for name in available if name.startswith("provider-"))
    raise CommandError(f"no provider {wanted!r} is installed; there are: {', '.join(known) or 'none'}")


# ── a plan of the user's ─────────────────────────────────────────────────────────────────────────


def _from_file(file: Path, available: Collection[str], wanted: str | None, variables: Mapping[str, str]) -> AgentPlan:
    plan = expand_variables(read_plan_file(file), variables)
    if wanted is None:
        return AgentPlan(plan=plan, provider=_first_provider(plan))
    given = plan.get("providers")
    entries = list(given) if isinstance(given, list) else []
    for entry in entries:
        names = _names_of(entry)
        if wanted in names or f"provider-{wanted}" in names:
            # The wanted one goes first: a loop asks the first provider there is.
            ordered = [entry, *(other for other in entries if other is not entry)]
            return AgentPlan(plan={**plan, "providers": ordered}, provider=names[0])
    added = _provider_id(wanted, available)
    return AgentPlan(plan={**plan, "providers": [{"module": added}, *entries]}, provider=added)


def _names_of(entry: Any) -> list[str]:
    """What a provider's entry can be called by: its module id, then its instance's name."""
    if isinstance(entry, str):
        return [entry]
    if not isinstance(entry, Mapping):
        return [""]
    return [str(entry.get("module") or ""), str(entry.get("instance_id") or "")]


def _first_provider(plan: Mapping[str, Any]) -> str | None:
    providers = plan.get("providers")
    return _names_of(providers[0])[0] or None if isinstance(providers, list) and providers else None


# ── changing a plan ──────────────────────────────────────────────────────────────────────────────


def _with_model(plan: dict[str, Any], model: str) -> dict[str, Any]:
    """The loop asks for a model by name; a provider that runs one itself has to know which before it starts."""
    entries = plan.get("providers")
    if isinstance(entries, list):
        plan = {**plan, "providers": [_with_default(entry, "provider-local", "model", model) for entry in entries]}
    return _with_loop_config(plan, {"model": model})


def _with_loop_config(plan: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    session = plan.get("session")
    loop = session.get("orchestrator") if isinstance(session, dict) else None
    if isinstance(loop, str):
        loop = {"module": loop}
    if not isinstance(session, dict) or not isinstance(loop, dict):
        return plan  # wrong already; whoever opens it says how
    return merge_plans(plan, {"session": {"orchestrator": merge_plans(loop, {"config": config})}})


def _without_places(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def _with_default(entry: Any, module_id: str, key: str, value: str, unless: tuple[str, ...] = ()) -> Any:
    """A plan's entry for one module with a config value that it does not have itself; any other entry as it is."""
    spec = {"module": entry} if isinstance(entry, str) else entry
    if not isinstance(spec, dict) or spec.get("module") != module_id:
        return entry
    config = spec.get("config")
    if config is not None and (not isinstance(config, dict) or any(other in config for other in unless)):
        return entry
    return {**spec, "config": {key: value, **(config or {})}}
