"""Which modules an agent at the terminal consists of: the default plan, and how options change a plan.

All policy of the command line is here. No module of the plan is imported.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs

from amplifier._internal.json import copy_json, visible_text
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
"""The first key that is set selects the provider."""

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
            "You look through files to answer one question of the agent that asks you. You change nothing. "
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
    "You are Amplifier, an assistant in a terminal. You work in the directory {directory} with the tools you are given. "
    "Look before you answer: read the files a question is about. Change nothing the user did not ask you to change. "
    "Answer briefly; Markdown is rendered."
)


@attrs.frozen(kw_only=True)
class AgentPlan:
    """A mount plan to run.

    Attributes:
        provider: The module id of the provider that will answer, where it is known.
        model: The model that the user named, as a later run of the same session names it.
        notes: Decisions made on the user's behalf that the user should know, and what is strange about the user's own plan.
        found: The instructions whose text is part of the system prompt.
    """

    plan: dict[str, Any]
    provider: str | None = None
    model: str | None = None
    notes: list[str] = attrs.field(factory=list)
    found: ProjectInstructions = attrs.field(factory=ProjectInstructions)

    def describe(self, known: SessionRecord, *, file: Path | None, backend: str) -> SessionRecord:
        """The record of a session that goes on with this plan."""
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
        file: The user's own plan; the default plan if absent.
        provider: The provider the user wants, by module id or without its ``provider-``.
        model: The model the user wants, as `amplifier.plan.read_model_name` reads it; without a provider in front, a model
            of the provider that is named elsewhere, or that its name belongs to.
        environment: Variables; if absent those of the process, with the keys of the keyring.
        directory: Where the agent works; the working directory of the process if absent.
        project_instructions: Give the model the instructions of the project, and the skills, with the default plan.
        configuration: What the user and the project have configured, for the default plan.

    Raises:
        CommandError: The file cannot be read, there is no such provider, or it cannot answer with that model.
        PlanError: The file's variables cannot be expanded, or the model cannot be read.
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
        found = find_instructions(folder) if project_instructions else ProjectInstructions()
        built = _default_plan(available, provider, variables, folder, found)
        changed = configured.apply(built.plan, variables)
        built = attrs.evolve(built, plan=changed, notes=[*built.notes, *configured.notes])
    else:
        built = _plan_from_file(file, available, provider, variables)
    built.notes.extend(problems)
    if model is None or named is None:
        return built
    return attrs.evolve(
        built,
        plan=_with_named_model(built, named, available, is_chosen=provider is not None),
        model=model,
    )


def with_storage_paths(plan: dict[str, Any], *, sessions: Path) -> dict[str, Any]:
    """The plan with the paths filled in that it leaves open: where the conversation and the events are kept."""
    # A template, so that child sessions, which inherit the plan, keep their events in their own folders.
    escaped = str(sessions).replace("{", "{{").replace("}", "}}")
    events = f"{escaped}/{{session_id}}/{EVENTS_FILE}"

    def with_log(entry: dict[str, Any]) -> dict[str, Any]:
        return (
            entry
            if "session_log_template" in entry["config"]
            else merge_plans({"config": {"path": events}}, entry)
        )

    filled = change_module(
        plan, "context-persistent", partial(merge_plans, {"config": {"path": str(sessions)}})
    )
    return change_module(filled, "hooks-logging", with_log)


def in_memory(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the plan of a session that keeps nothing on disk: its context is in memory, and its events are not logged."""
    plan = change_module(plan, "hooks-logging", lambda entry: None)
    return change_module(plan, "context-persistent", lambda entry: {"module": "context-simple"})


def with_recordings(
    plan: dict[str, Any], *, record: Path | None, replay: Path | None
) -> dict[str, Any]:
    """The plan of a run that records the answers of its providers, or takes them from a file.

    The working directory, which is part of the system prompt, is a placeholder in the file: a recording replays in another one.
    """
    from amplifier.testing import Cassette  # noqa: PLC0415  # few runs record or replay

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
    """Read what ``-m`` names; its provider is empty if nothing says which one it is.

    Raises:
        CommandError: It cannot be read, or names another provider than ``-p``.
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
    if provider is not None and provider not in (
        named.provider,
        named.provider.removeprefix("provider-"),
    ):
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
        CommandError: The provider that would answer cannot be asked for it.
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
        f"no provider is there for the model {model!r}: name it with the model, as in -m openai:{model}, or set the key of "
        "one: export ANTHROPIC_API_KEY=... or OPENAI_API_KEY=...; `amplifier models` lists what can be used"
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
    # Modules that this command relies on are pinned: for the system prompt, the files of a session, the gates and the agents.
    # Tools and providers are whatever is installed.
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
    """Return the configured ones, and those with a key."""
    load_keys()
    keyed = [module_id for variable, module_id in API_KEYS.items() if os.environ.get(variable)]
    keyed += [
        module_id
        for module_id in configuration.below("modules")
        if module_id.startswith("provider-")
    ]
    configured = [
        _provider_id(name, available)
        for name in (configuration.get("provider"),)
        if name is not None
    ]
    found = [each for each in (*configured, *keyed) if each in available]
    return [each for each in dict.fromkeys(found) if missing_package(each) is None]


def _provider_id(wanted: str, available: Collection[str]) -> str:
    for module_id in (wanted, f"provider-{wanted}"):
        if module_id.startswith("provider-") and module_id in available:
            return module_id
    if wanted in ("local", "provider-local"):
        raise CommandError(f"no provider {wanted!r} is installed; {LOCAL_MODEL_ADVICE}")
    known = sorted(
        name.removeprefix("provider-") for name in available if name.startswith("provider-")
    )
    meant = suggestion(wanted.removeprefix("provider-"), known)
    raise CommandError(
        f"no provider {wanted!r} is installed; there are: {', '.join(known) or 'none'}{meant}"
    )


# ── the user's own plan ─────────────────────────────────────────────────────────────────────────


def _plan_from_file(
    file: Path, available: Collection[str], wanted: str | None, variables: Mapping[str, str]
) -> AgentPlan:
    plan = expand_variables(read_plan_file(file), variables)
    notes = [
        visible_text(f"{file.name}: {warning}", multiline=False) for warning in check_plan(plan)[1]
    ]
    given = plan.get("providers")
    entries = given if isinstance(given, list) else []
    if wanted is None:
        return AgentPlan(
            plan=plan, provider=_names_of(entries[0])[0] or None if entries else None, notes=notes
        )
    for entry in entries:
        names = _names_of(entry)
        if wanted in names or f"provider-{wanted}" in names:
            # The wanted one goes first: a loop asks the first provider there is.
            ordered = [entry, *(other for other in entries if other is not entry)]
            return AgentPlan(plan={**plan, "providers": ordered}, provider=names[0], notes=notes)
    added = _provider_id(wanted, available)
    return AgentPlan(
        plan={**plan, "providers": [{"module": added}, *entries]}, provider=added, notes=notes
    )


def _names_of(entry: Any) -> list[str]:
    """The names of a provider's entry: its module id, then the id of its instance."""
    instance = entry.get("instance_id") if isinstance(entry, Mapping) else None
    return [str(name or "") for name in (module_of(entry), instance)]


# ── changing a plan ──────────────────────────────────────────────────────────────────────────────


def with_traces(plan: dict[str, Any]) -> dict[str, Any]:
    """The plan with the hook that traces, unless it has it."""
    tracing = {"module": "hooks-otel", "source": BUILT_IN_SOURCE}
    return change_module(plan, tracing["module"], lambda entry: entry, add=("hooks", tracing))


def with_budget(plan: dict[str, Any], *, cost: float | None, tokens: int | None) -> dict[str, Any]:
    """The plan with the limits that the user gave instead of its own."""
    given = {
        name: value for name, value in (("cost", cost), ("tokens", tokens)) if value is not None
    }
    is_plan = given and isinstance(plan.get("session"), dict)
    return merge_plans(plan, {"session": {"budget": given}}) if is_plan else plan


def _with_model(plan: dict[str, Any], model: str) -> dict[str, Any]:
    """The plan whose loop requests that model."""
    session = plan.get("session")
    loop = module_of(session.get("orchestrator") if isinstance(session, dict) else None)
    return change_module(plan, loop, partial(merge_plans, overlay={"config": {"model": model}}))
