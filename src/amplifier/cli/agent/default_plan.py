"""The default plan, and the options that change a plan. No module of the plan is imported."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from amplifier._internal.json import copy_json, visible_text
from amplifier._internal.programs import is_below
from amplifier._internal.spelling import suggestion
from amplifier.cli._exit_codes import CommandError
from amplifier.errors import PlanError
from amplifier.loading.discovery import BUILT_IN_SOURCE
from amplifier.loading.loader import missing_package
from amplifier.plan import (
    LOCAL_MODEL_ADVICE,
    ModelName,
    check_plan,
    expand_variables,
    family_provider,
    is_local_model,
    merge_plans,
    names_provider,
    read_model_name,
)
from amplifier.store import SessionRecord
from amplifier.store.sessions import EVENTS_FILE

from .configuration import Configuration, load_keys
from .plan_files import change_module, module_of, read_plan_file
from .project_instructions import ProjectInstructions, find_instructions

if TYPE_CHECKING:
    from amplifier.testing import CassetteMode

OFFLINE_PROVIDER: Final = "provider-offline"
API_KEYS: Final = {"ANTHROPIC_API_KEY": "provider-anthropic", "OPENAI_API_KEY": "provider-openai"}
"""Providers by their keys. The first key that is set selects the provider."""

DEFAULT_TOOLS: Final = (
    "tool-filesystem",
    "tool-search",
    "tool-todo",
    "tool-recall",
    "tool-bash",
    "tool-web",
    "tool-task",
)

AGENTS: Final[dict[str, Any]] = {
    "explorer": {
        "description": "Looks through many files, changes nothing, and reports what it found.",
        "instruction": (
            "You look through files to answer one question of the agent that asks you. "
            "You change nothing. "
            "Report what you found, where (path and line), and what you did not find."
        ),
        "tools": [
            {"module": "tool-filesystem", "config": {"read_only": True}},
            {"module": "tool-search"},
        ],
    }
}
"""The agents to which tool-task can delegate."""

SYSTEM_PROMPT: Final = (
    "You are Amplifier, an assistant in a terminal. "
    "You work in the directory {directory} with the tools you are given. "
    "Look before you answer: read the files a question is about. "
    "Change nothing the user did not ask you to change. "
    "Answer briefly; Markdown is rendered."
)


@attrs.frozen(kw_only=True)
class AgentPlan:
    """A mount plan to run.

    Attributes:
        plan: The mount plan.
        provider: The module id of the provider that will answer, or None if it isn't known.
        model: The model that the user named, for later runs of the session.
        notes: Warnings about decisions made for the user, and about the user's own plan.
        found: The instructions in the system prompt.
    """

    plan: dict[str, Any]
    provider: str | None = None
    model: str | None = None
    notes: list[str] = attrs.field(factory=list)
    found: ProjectInstructions = attrs.field(factory=ProjectInstructions)

    def describe(self, known: SessionRecord, *, file: Path | None, backend: str) -> SessionRecord:
        """Return the record of a session that continues with this plan."""
        plan = None if file is None else str(file.absolute())
        return attrs.evolve(
            known, provider=self.provider, model=self.model, plan=plan, backend=backend
        )


def build_plan(
    available: Collection[str],
    *,
    file: Path | None = None,
    provider: str | None = None,
    model: str | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    project_instructions: bool = True,
    configuration: Configuration | None = None,
) -> AgentPlan:
    """Build the plan of a run.

    Args:
        available: Module ids that can be loaded.
        file: The user's own plan, or None for the default plan.
        provider: The user's provider, as a module id with or without ``provider-``.
        model: The user's model, in a form that `amplifier.plan.read_model_name` reads. A model
            without a provider belongs to the provider named elsewhere, or to the one that its name
            suggests.
        environment: Variables. By default those of the process, with the keys of the keyring.
        directory: The folder of the agent. By default the process's working directory.
        project_instructions: True gives the model the project's instructions and skills, with the
            default plan.
        configuration: The user's and the project's configuration, for the default plan.

    Raises:
        CommandError: The file can't be read, the provider is unknown, or it can't answer with that
            model.
        PlanError: The file's variables can't be expanded, or the model can't be read.
    """
    problems = load_keys() if environment is None else []
    variables = os.environ if environment is None else environment
    configured = configuration or Configuration()
    if file is None and provider is None and not _names_provider(model, available):
        provider, model = configured.get("provider"), model or configured.get("model")
    named = _read_model(model, provider, available, is_default=file is None)
    provider = provider if named is None else named.provider or None
    if file is None:
        folder = directory or Path.cwd()
        instructions = find_instructions(folder) if project_instructions else ProjectInstructions()
        built = _default_plan(available, provider, variables, folder, instructions)
        changed = configured.apply(built.plan, variables)
        built = attrs.evolve(built, plan=changed, notes=[*built.notes, *configured.notes])
    else:
        built = _plan_from_file(file, available, provider, variables)
    origins = (value.origin for value in configured.values.values())
    files = [str(file.absolute())] if file is not None else [*dict.fromkeys(origins)]
    built = attrs.evolve(built, plan=_protecting(built.plan, files, directory or Path.cwd()))
    built.notes.extend(problems)
    if model is None or named is None:
        return built
    plan = _with_named_model(built, named, available, is_chosen=provider is not None)
    return attrs.evolve(built, plan=plan, model=model)


def _protecting(plan: dict[str, Any], files: list[str], directory: Path) -> dict[str, Any]:
    """Return the plan with protection for those of its files that the agent could change."""
    folders = {str(directory.absolute()), str(directory.resolve())}
    inside = [file for file in files if any(is_below(file, folder) for folder in folders)]
    session = plan.get("session")
    if not inside or not isinstance(session, dict):
        return plan
    changes = session.get("protected_places") or {}
    # The modules report errors in this section.
    if not isinstance(changes, dict) or not isinstance(known := changes.get("add", []), list):
        return plan
    added = {"protected_places": {**changes, "add": [*known, *inside]}}
    return {**plan, "session": {**session, **added}}


def with_storage_paths(plan: dict[str, Any], *, sessions: Path) -> dict[str, Any]:
    """Return the plan with paths for the conversation and the events, where it has none."""
    # Use a template, so that child sessions, which inherit the plan, use their own folders.
    escaped = str(sessions).replace("{", "{{").replace("}", "}}")
    events = f"{escaped}/{{session_id}}/{EVENTS_FILE}"

    def with_log(entry: dict[str, Any]) -> dict[str, Any]:
        if "session_log_template" in entry["config"]:
            return entry
        return merge_plans({"config": {"path": events}}, entry)

    with_path = partial(merge_plans, {"config": {"path": str(sessions)}})
    plan = change_module(plan, "context-persistent", with_path)
    return change_module(plan, "hooks-logging", with_log)


def in_memory(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan without storage: its context is in memory, and its events aren't logged."""
    plan = change_module(plan, "hooks-logging", lambda entry: None)
    return change_module(plan, "context-persistent", lambda entry: {"module": "context-simple"})


def with_recordings(
    plan: dict[str, Any], *, record: Path | None, replay: Path | None
) -> dict[str, Any]:
    """Return the plan of a run that records or replays the answers of its providers.

    The working directory is part of the system prompt. In the file it is a placeholder, so that a
    recording replays in another folder.
    """
    # Few runs record or replay.
    from amplifier.testing import Cassette  # noqa: PLC0415

    mode: CassetteMode = "none" if record is None else "once"
    return Cassette(
        record or replay or "", mode=mode, placeholders={"<directory>": str(Path.cwd())}
    ).plan(plan)


# ── the model that the user names ────────────────────────────────────────────────────────────────


def _names_provider(model: str | None, available: Collection[str]) -> bool:
    return model is not None and names_provider(model, available.__contains__)


def _read_model(
    model: str | None, provider: str | None, available: Collection[str], *, is_default: bool
) -> ModelName | None:
    """Read the model of ``-m``. The provider is empty if it is unknown.

    Raises:
        CommandError: The name can't be read, or its provider differs from ``-p``.
    """
    if model is None:
        return None
    if not _names_provider(model, available):
        if is_default and provider is None and is_local_model(model, available.__contains__):
            _read_full_name(model, available)
        family = family_provider(model) if is_default else None
        return ModelName(provider=provider or family or "", model=model)
    named = _read_full_name(model, available)
    _provider_id(named.provider, available)
    names = (named.provider, named.provider.removeprefix("provider-"))
    if provider is not None and provider not in names:
        raise CommandError(f"-p {provider} and -m {model} name two providers; leave out -p")
    return named


def _read_full_name(model: str, available: Collection[str]) -> ModelName:
    try:
        return read_model_name(model, available.__contains__)
    except PlanError as error:
        raise CommandError(f"the model {model!r}: {error.problems[0][1]}") from None


_ANY_NAME: Final = "provider-openai-compatible"
"""The provider whose models may have a colon in their names, such as ``llama3:8b``."""


def _with_named_model(
    built: AgentPlan, named: ModelName, available: Collection[str], *, is_chosen: bool
) -> dict[str, Any]:
    """Return the plan with the model that the user named.

    Raises:
        CommandError: The provider that would answer doesn't have that model.
    """
    plan = built.plan
    if named.model is not None:
        if ":" in named.model and not is_chosen and built.provider != _ANY_NAME:
            _provider_id(named.model.partition(":")[0], available)
        if built.provider == OFFLINE_PROVIDER:
            raise CommandError(_no_provider(named.model))
        plan = _with_model(plan, named.model)
    if not named.config:
        return plan
    return change_module(
        plan, named.provider, partial(merge_plans, overlay={"config": named.config})
    )


def _no_provider(model: str) -> str:
    return (
        f"no provider is there for the model {model!r}: "
        f"name it with the model, as in -m openai:{model}, or set the key of one: "
        "export ANTHROPIC_API_KEY=... or OPENAI_API_KEY=...; "
        "`amplifier models` lists the available ones"
    )


# ── the default plan ─────────────────────────────────────────────────────────────────────────────


def _default_plan(
    available: Collection[str],
    wanted: str | None,
    variables: Mapping[str, str],
    directory: Path,
    instructions: ProjectInstructions,
) -> AgentPlan:
    provider, notes = _choose_provider(available, wanted, variables)
    system_prompt = "\n\n".join(
        filter(None, [SYSTEM_PROMPT.format(directory=directory), instructions.text])
    )
    tools = [
        module_id
        for module_id in DEFAULT_TOOLS
        if module_id in available and missing_package(module_id) is None
    ]
    # Modules that this command relies on are pinned: for the system prompt, the files of a session,
    # the gates and the agents. Tools and providers are the installed ones.
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
                "config": {"system_prompt": system_prompt},
            },
            "context": {
                "module": "context-persistent",
                "source": BUILT_IN_SOURCE,
                "config": {"durable_turns": True},
            },
        },
        "providers": [{"module": provider}],
        "tools": [
            {"module": module_id, "source": BUILT_IN_SOURCE}
            if module_id == "tool-task"
            else {"module": module_id}
            for module_id in tools
        ],
        "hooks": [hook for hook in hooks if hook["module"] in available],
    }
    if "tool-task" in tools:
        plan["agents"] = copy_json(AGENTS)
    if instructions.outside:
        roots = {
            "allowed_paths": [str(directory), *instructions.outside],
            "writable_paths": [str(directory)],
        }
        plan["tools"] = [
            {**tool, "config": roots} if tool["module"] == "tool-filesystem" else tool
            for tool in plan["tools"]
        ]
    return AgentPlan(
        plan=plan, provider=provider, notes=[*notes, *instructions.problems], found=instructions
    )


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


def available_providers(available: Collection[str], configuration: Configuration) -> list[str]:
    """Return the usable providers that are configured or have a key."""
    load_keys()
    name = configuration.get("provider")
    providers = [] if name is None else [_provider_id(name, available)]
    providers += [module_id for variable, module_id in API_KEYS.items() if os.environ.get(variable)]
    modules = configuration.below("modules")
    providers += [module_id for module_id in modules if module_id.startswith("provider-")]
    return [
        module_id
        for module_id in dict.fromkeys(providers)
        if module_id in available and missing_package(module_id) is None
    ]


def _provider_id(wanted: str, available: Collection[str]) -> str:
    for module_id in (wanted, f"provider-{wanted}"):
        if module_id.startswith("provider-") and module_id in available:
            return module_id
    if wanted in ("local", "provider-local"):
        raise CommandError(f"no provider {wanted!r} is installed; {LOCAL_MODEL_ADVICE}")
    known = sorted(
        name.removeprefix("provider-") for name in available if name.startswith("provider-")
    )
    advice = suggestion(wanted.removeprefix("provider-"), known)
    raise CommandError(
        f"no provider {wanted!r} is installed; there are: {', '.join(known) or 'none'}{advice}"
    )


# ── the user's own plan ─────────────────────────────────────────────────────────────────────────


def _plan_from_file(
    file: Path, available: Collection[str], wanted: str | None, variables: Mapping[str, str]
) -> AgentPlan:
    plan = expand_variables(read_plan_file(file), variables)
    notes = [
        visible_text(f"{file.name}: {warning}", multiline=False) for warning in check_plan(plan)[1]
    ]
    providers = plan.get("providers")
    entries = providers if isinstance(providers, list) else []
    if wanted is None:
        first = _names_of(entries[0])[0] or None if entries else None
        return AgentPlan(plan=plan, provider=first, notes=notes)
    for entry in entries:
        names = _names_of(entry)
        if wanted in names or f"provider-{wanted}" in names:
            # Put the entry first, because loops call the first provider.
            ordered = [entry, *(other for other in entries if other is not entry)]
            return AgentPlan(plan={**plan, "providers": ordered}, provider=names[0], notes=notes)
    added = _provider_id(wanted, available)
    plan = {**plan, "providers": [{"module": added}, *entries]}
    return AgentPlan(plan=plan, provider=added, notes=notes)


def _names_of(entry: object) -> list[str]:
    """Return the names of a provider's entry: its module id, then the id of its instance."""
    instance = entry.get("instance_id") if isinstance(entry, Mapping) else None
    return [str(name or "") for name in (module_of(entry), instance)]


# ── changing a plan ──────────────────────────────────────────────────────────────────────────────


def with_traces(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan with the hook for traces."""
    tracing = {"module": "hooks-otel", "source": BUILT_IN_SOURCE}
    return change_module(plan, tracing["module"], lambda entry: entry, add=("hooks", tracing))


def with_budget(plan: dict[str, Any], *, cost: float | None, tokens: int | None) -> dict[str, Any]:
    """Return the plan with the user's limits in place of its own."""
    options = {"cost": cost, "tokens": tokens}
    limits = {name: value for name, value in options.items() if value is not None}
    if not limits or not isinstance(plan.get("session"), dict):
        return plan
    return merge_plans(plan, {"session": {"budget": limits}})


def _with_model(plan: dict[str, Any], model: str) -> dict[str, Any]:
    """Return the plan with a loop that requests that model."""
    session = plan.get("session")
    loop = module_of(session.get("orchestrator") if isinstance(session, dict) else None)
    return change_module(plan, loop, partial(merge_plans, overlay={"config": {"model": model}}))
