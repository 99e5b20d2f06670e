"""The mount plan: what it may say, reading it, checking it, laying one over another.

A plan is a dict, as the embedder built it or a file gave it; nothing here reads files or environment variables. `parse_plan` turns
it into a `MountPlan` for the kernel, which sits above; below are only the errors and the JSON walk. All problems of a plan are
reported at once, each with its ``$.path``; what is merely odd (an unknown section) is a warning.

The plan's own structure is checked strictly. What stands inside a module's ``config``, inside ``metadata`` and ``agents`` is the
module's or the application's business: embedders pass live objects there (clients, callables, queues), so it is never
walked, copied, or made to be JSON — NaN, circles and any depth pass through by identity. Only operations that must
copy it (`merge_plans`, `expand_variables`) refuse circles and more than 1000 levels, naming the path.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, Literal, final

import attrs

from ._json import Frame, copy_json, format_path, rebuild
from .errors import ModelError, PlanError, Problem

__all__ = [
    "Deadlines",
    "ModuleSpec",
    "MountPlan",
    "check_plan",
    "expand_variables",
    "is_module_id",
    "merge_plans",
    "parse_plan",
    "plan_schema",
    "validate_module_id",
    "validate_session_id",
]

# ── ids ──────────────────────────────────────────────────────────────────────────────────────────

_MODULE_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
# No leading dot: such a name is hidden on most systems, and "." and ".." are directories.
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}")
_MODULE_ID_RULE = (
    "expected a module id: a lower-case letter, then lower-case letters, digits, '-' or '_', at most 64 in all"
)


def is_module_id(text: object) -> bool:
    """Whether this can be the id of a module: it becomes part of paths and package names, so the grammar is narrow."""
    return type(text) is str and _MODULE_ID.fullmatch(text) is not None


def validate_module_id(text: object) -> str:
    """Return the id, if it is one.

    Raises:
        PlanError: It is not; the message says what one looks like.
    """
    if type(text) is str and _MODULE_ID.fullmatch(text):
        return text
    raise PlanError([("", f"{_MODULE_ID_RULE}, got {_show(text)}")], subject="invalid module id")


def validate_session_id(text: object) -> str:
    """Return the session id, if it is one: it names files and appears in logs, so it can be neither path nor sentence.

    Raises:
        PlanError: It is not; the message says what one looks like.
    """
    if type(text) is str and _SESSION_ID.fullmatch(text):
        return text
    rule = "expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.'"
    raise PlanError([("", f"{rule}; got {_show(text)}")], subject="invalid session id")


# ── the plan as the kernel sees it ───────────────────────────────────────────────────────────────


@final
@attrs.frozen(kw_only=True)
class Deadlines:
    """Seconds the kernel waits for code it did not write; None means no limit, on purpose.

    Attributes:
        mount: Mounting one module.
        ready: ``on_session_ready`` of one module.
        hook: One hook handler; long, because an approval may wait inside one.
        contribution: One contributor of a channel.
        collection: All contributors of a channel together.
        cleanup: One cleanup.
        teardown: The whole closing of a session.
        turn: One turn.
    """

    mount: float | None = 120.0
    ready: float | None = 60.0
    hook: float | None = 300.0
    contribution: float | None = 10.0
    collection: float | None = 30.0
    cleanup: float | None = 10.0
    teardown: float | None = 30.0
    turn: float | None = None


@final
@attrs.define(kw_only=True)
class ModuleSpec:
    """One module the plan asks for.

    Attributes:
        module: The module's id.
        source: Where it comes from, for the source resolver; opaque to the kernel.
        config: The very dict the plan holds, or an empty one.
        instance_id: The name a provider is mounted under, when one module is mounted several times.
        on_failure: Whether a failing handler of this hook module is skipped or denies.
        path: Where in the plan it stands: ``$.tools[0]``.
    """

    module: str
    source: Any = None
    config: dict[str, Any] = attrs.Factory(dict)
    instance_id: str | None = None
    on_failure: Literal["continue", "deny"] = "continue"
    path: str = "$"


@final
@attrs.define(kw_only=True)
class MountPlan:
    """A plan that was read without problems.

    Attributes:
        orchestrator: The agent loop.
        context: The context manager.
        providers: Modules in the order they are mounted; likewise `tools` and `hooks`.
        agents: The application's own data, passed through.
        strict: Whether any failing module is fatal.
        deadlines: The plan's, over those inherited.
        injection_budget_per_turn: Tokens hooks may inject in one turn before a warning; None is no limit.
        injection_size_limit: Characters in one injection before an error; None is no limit.
        metadata: The application's own data, sent along with session events.
        raw: Whether session events carry the (redacted) plan.
        warnings: What is odd but not wrong, each beginning with its path.
    """

    orchestrator: ModuleSpec
    context: ModuleSpec
    providers: list[ModuleSpec]
    tools: list[ModuleSpec]
    hooks: list[ModuleSpec]
    agents: Any = None
    strict: bool = False
    deadlines: Deadlines = Deadlines()
    injection_budget_per_turn: int | None = None
    injection_size_limit: int | None = None
    metadata: Any = None
    raw: bool = False
    warnings: list[str] = attrs.Factory(list)


# ── reading ──────────────────────────────────────────────────────────────────────────────────────

_DEFAULTS: Final = Deadlines()
_DEADLINES: Final = tuple(field.name for field in attrs.fields(Deadlines))
_LISTS: Final = ("providers", "tools", "hooks")
_SECTIONS: Final = frozenset({"session", "orchestrator", "context", *_LISTS, "agents"})
_SESSION_KEYS: Final = frozenset(
    {"orchestrator", "context", "orchestrator_source", "context_source", "strict", "deadlines", "metadata", "raw"}
    | {"injection_budget_per_turn", "injection_size_limit"}
)
_SPEC_KEYS: Final = frozenset({"module", "source", "config"})
_SPEC_KEYS_OF: Final = {
    "providers": _SPEC_KEYS | {"instance_id"},
    "tools": _SPEC_KEYS,
    "hooks": _SPEC_KEYS | {"on_failure"},
    "session": _SPEC_KEYS,
}
# Paths of list entries are needed by every spec; formatting them anew costs more than the rest of reading one.
_ENTRY_PATHS: Final = {name: tuple(f"$.{name}[{index}]" for index in range(64)) for name in _LISTS}


def parse_plan(config: Any, *, base_deadlines: Deadlines | None = None) -> MountPlan:
    """Read a plan.

    Args:
        config: The plan, a dict.
        base_deadlines: Those of the parent session, which hold where the plan says nothing.

    Raises:
        PlanError: The plan cannot be used; every problem is listed.
    """
    reader = _Reader()
    plan = reader.read_safely(config, base_deadlines or _DEFAULTS)
    if plan is None or reader.problems:
        raise PlanError(reader.problems)
    return plan


def check_plan(config: Any) -> tuple[list[Problem], list[str]]:
    """All problems and all warnings of a plan; never raises."""
    reader = _Reader()
    reader.read_safely(config, _DEFAULTS)
    return reader.problems, reader.warnings


class _Reader:
    """Reads one plan and gathers what is wrong with it.

    Opening a session waits for this, so the ordinary path formats no text and makes no second pass.
    """

    __slots__ = ("problems", "warnings")

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def read_safely(self, config: Any, base: Deadlines) -> MountPlan | None:
        try:
            return self.read(config, base)
        # Keys and values are foreign objects: their __eq__, __hash__ and mapping methods are foreign code.
        except Exception as error:
            self.problem("$", f"the plan cannot be read: {type(error).__name__} from one of its objects")
            return None

    def problem(self, path: str, text: str) -> None:
        self.problems.append((path, text))

    def read(self, config: Any, base: Deadlines) -> MountPlan | None:
        if type(config) is not dict:
            config = self.mapping(config, "$", "a plan: a mapping with the sections session, providers, tools, hooks")
            if config is None:
                return None
        if not config:
            self.problem("$", "the plan is empty; session.orchestrator and session.context are required")
            return None
        if not config.keys() <= _SECTIONS:
            self.unknown(config, _SECTIONS, "$", "section")
        session = config.get("session")
        if type(session) is not dict:
            session = self.mapping(session, "$.session", "a mapping with orchestrator and context", missing={}) or {}
        if not session.keys() <= _SESSION_KEYS:
            self.unknown(session, _SESSION_KEYS, "$.session", "key")
        orchestrator = self.role(config, session, "orchestrator", "loop-basic")
        context = self.role(config, session, "context", "context-simple")
        get = session.get
        deadlines = get("deadlines")
        strict, raw = get("strict", False), get("raw", False)
        budget, size = get("injection_budget_per_turn"), get("injection_size_limit")
        if strict is not True and strict is not False:
            strict = self.flag("strict", strict)
        if raw is not True and raw is not False:
            raw = self.flag("raw", raw)
        if budget is not None:
            self.limit("injection_budget_per_turn", budget)
        if size is not None:
            self.limit("injection_size_limit", size)
        if deadlines is not None:
            base = self.deadlines(deadlines, base)
        providers = self.entries(config, "providers")
        tools = self.entries(config, "tools")
        hooks = self.entries(config, "hooks")
        if len(providers) > 1:
            self.instances(providers)
        if orchestrator is None or context is None:
            return None
        return MountPlan(
            orchestrator=orchestrator,
            context=context,
            providers=providers,
            tools=tools,
            hooks=hooks,
            agents=config.get("agents"),
            strict=strict,
            deadlines=base,
            injection_budget_per_turn=budget,
            injection_size_limit=size,
            metadata=get("metadata"),
            raw=raw,
            warnings=self.warnings,
        )

    def mapping(self, value: Any, path: str, expected: str, missing: Any = None) -> Any:
        """What is not exactly a dict: another mapping becomes one, None may stand for absence, the rest is wrong."""
        if value is None and missing is not None:
            return missing
        if issubclass(type(value), dict):
            return value
        if isinstance(value, Mapping):
            return dict(value)
        self.problem(path, f"expected {expected}; got {_show(value)}")
        return None

    def unknown(self, given: Mapping[Any, Any], known: frozenset[str], path: str, kind: str) -> None:
        for key in given:
            if key not in known:
                where = format_path([key], path)
                self.warnings.append(f"{where}: unknown {kind}, ignored{_nearest(key, known)}")

    # ── modules ──

    def role(self, config: dict[Any, Any], session: Any, name: str, example: str) -> ModuleSpec | None:
        """``session.orchestrator`` or ``session.context``: an id, whose config stands elsewhere, or a whole spec."""
        given = session.get(name)
        path = "$.session.orchestrator" if name == "orchestrator" else "$.session.context"
        if given is None:
            self.problem(
                path, f"session.{name} is required: the id of a module, such as {example!r}, or a mapping with one"
            )
            return None
        beside, source = config.get(name), session.get(f"{name}_source")
        if type(given) is not str:
            if source is not None:
                self.warnings.append(f"{path}_source: ignored, because session.{name} is a mapping; put 'source' there")
            if beside is not None:
                self.warnings.append(f"$.{name}: ignored, because session.{name} is a mapping; put 'config' there")
            return self.spec(given, "session", path)
        settings: Any = None
        if beside is not None:
            beside = self.mapping(beside, f"$.{name}", "a mapping with 'config'") or {}
            if not beside.keys() <= {"config"}:
                self.unknown(beside, frozenset({"config"}), f"$.{name}", "key")
            settings = beside.get("config")
            if settings is not None and type(settings) is not dict:
                settings = self.mapping(settings, f"$.{name}.config", "a mapping")
        if _MODULE_ID.fullmatch(given) is None:
            self.problem(path, f"{_MODULE_ID_RULE}; got {_show(given)}")
            return None
        return ModuleSpec(module=given, source=source, config={} if settings is None else settings, path=path)

    def entries(self, config: dict[Any, Any], section: str) -> list[ModuleSpec]:
        given = config.get(section)
        if given is None:
            return []
        if type(given) is not list and type(given) is not tuple:
            hint = "; wrap the one module in a list" if isinstance(given, Mapping) and "module" in given else ""
            self.problem(f"$.{section}", f"expected a list of modules; got {_show(given)}{hint}")
            return []
        paths = _ENTRY_PATHS[section]
        if len(given) > len(paths):
            paths = tuple(f"$.{section}[{index}]" for index in range(len(given)))
        specs = [self.spec(entry, section, path) for entry, path in zip(given, paths, strict=False)]
        return [spec for spec in specs if spec is not None]

    def spec(self, given: Any, section: str, path: str) -> ModuleSpec | None:
        if type(given) is not dict:
            if type(given) is str:
                given = {"module": given}
            else:
                given = self.mapping(given, path, "a module: its id, or a mapping with 'module'")
                if given is None:
                    return None
        known = _SPEC_KEYS_OF[section]
        if not given.keys() <= known:
            self.unknown(given, known, path, "key")
        module, config = given.get("module"), given.get("config")
        if type(module) is not str or _MODULE_ID.fullmatch(module) is None:
            if module is None:
                self.problem(f"{path}.module", "'module' is required: the id of the module to mount")
            else:
                self.problem(f"{path}.module", f"{_MODULE_ID_RULE}; got {_show(module)}")
            module = None
        if type(config) is not dict:
            config = self.mapping(config, f"{path}.config", "a mapping", missing={})
        instance_id, on_failure = None, "continue"
        if section == "providers":
            instance_id = given.get("instance_id")
            if instance_id is not None and (type(instance_id) is not str or not instance_id.strip()):
                self.problem(f"{path}.instance_id", f"expected a name; got {_show(instance_id)}")
                instance_id = None
        elif section == "hooks":
            on_failure = given.get("on_failure", "continue")
            if on_failure not in ("continue", "deny"):
                near = _nearest(on_failure, ("continue", "deny"))
                self.problem(f"{path}.on_failure", f"expected 'continue' or 'deny'; got {_show(on_failure)}{near}")
        if module is None:
            return None
        return ModuleSpec(
            module=module,
            source=given.get("source"),
            config=config,
            instance_id=instance_id,
            on_failure=on_failure,
            path=path,
        )

    def instances(self, providers: list[ModuleSpec]) -> None:
        """One entry per provider module may go without a name; no two may share one."""
        unnamed: dict[str, str] = {}
        named: dict[str, str] = {}
        for spec in providers:
            seen, key = (unnamed, spec.module) if spec.instance_id is None else (named, spec.instance_id)
            first = seen.setdefault(key, spec.path)
            if first is spec.path:
                continue
            if seen is unnamed:
                self.problem(
                    f"{spec.path}.instance_id",
                    f"{key!r} is mounted already at {first}; multi-instance providers require explicit 'instance_id's",
                )
            else:
                self.problem(f"{spec.path}.instance_id", f"{key!r} is the instance_id of {first} too; choose another")

    # ── session settings ──

    def flag(self, name: str, value: Any) -> bool:
        if value is not None:
            self.problem(f"$.session.{name}", f"expected true or false; got {_show(value)}")
        return False

    def limit(self, name: str, value: Any) -> None:
        if type(value) is not int or value < 0:
            self.problem(
                f"$.session.{name}", f"expected a whole number, 0 or more, or null for no limit; got {_show(value)}"
            )

    def deadlines(self, given: Any, base: Deadlines) -> Deadlines:
        given = self.mapping(given, "$.session.deadlines", f"a mapping of seconds by name ({', '.join(_DEADLINES)})")
        changes: dict[str, float | None] = {}
        for name, seconds in (given or {}).items():
            path = format_path([name], "$.session.deadlines")
            if name not in _DEADLINES:
                self.problem(path, f"unknown deadline; known are {', '.join(_DEADLINES)}{_nearest(name, _DEADLINES)}")
            elif seconds is None:
                changes[name] = None
            elif type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST_DEADLINE:
                self.problem(path, f"expected seconds, more than 0, or null for no limit; got {_show(seconds)}")
            else:
                changes[name] = float(seconds)
        return attrs.evolve(base, **changes) if changes else base


_LONGEST_DEADLINE = 1e10  # 300 years: above it the clocks of event loops lose their precision or overflow


def _show(value: object) -> str:
    """A short ``repr`` for messages; objects of foreign classes are named by their class only."""
    kind = type(value)
    if value is None or kind in (bool, float) or (kind is int and abs(value) < 10**18):  # type: ignore[operator]
        return repr(value)
    if kind is str:
        text = ascii(value)
        return text if len(text) <= 80 else f"{text[:77]}..."
    return f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {kind.__name__}"


def _nearest(name: object, known: Iterable[str]) -> str:
    near = get_close_matches(name.lower(), sorted(known), 1, 0.6) if type(name) is str and len(name) < 80 else []
    return f"; did you mean {near[0]!r}?" if near else ""


# ── merging and expanding ────────────────────────────────────────────────────────────────────────


def merge_plans(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one plan over another: mappings merge key by key at every depth, for all else (lists too) the overlay wins.

    Neither argument is changed, and the result shares no dict or list with them; other objects are shared.

    Raises:
        PlanError: An argument is no mapping, or holds itself, or is nested deeper than 1000 levels.
    """
    for name, plan in (("base", base), ("overlay", overlay)):
        if not isinstance(plan, Mapping):
            raise PlanError(
                [("$", f"expected the {name} to be a mapping; got {_show(plan)}")], subject="cannot merge plans"
            )
    merged: dict[str, Any] = _copy(dict(base), "$")
    pending: list[tuple[dict[str, Any], Mapping[str, Any], str]] = [(merged, overlay, "$")]
    for target, above, path in pending:
        for key, value in above.items():
            below, where = target.get(key), format_path([key], path)
            if type(below) is dict and issubclass(type(value), dict):
                pending.append((below, value, where))
            else:
                target[key] = _copy(value, where)
    return merged


def _copy(value: Any, path: str) -> Any:
    try:
        return copy_json(value)
    except ModelError as error:
        raise PlanError(_below(path, error), subject="cannot merge plans") from None


def _below(path: str, error: ModelError) -> list[Problem]:
    return [(f"{path}{'.' if inner[:1] not in ('', '[') else ''}{inner}", text) for inner, text in error.problems]


_VARIABLE: Final = re.compile(
    r"(?P<escaped>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<default>:-[^{}]*+)?\}|(?P<malformed>\$\{)"
)


def expand_variables(plan: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Any]:
    """Copy a plan with ``${NAME}`` and ``${NAME:-default}`` replaced in every string value, at any depth.

    A separate step on purpose: the kernel never looks into the environment by itself. As in a shell, the default also
    serves a variable that is empty. ``$${`` stands for a plain ``${``; what was put in is not expanded again.

    Raises:
        PlanError: A variable is not set and has no default, or a reference is malformed; all of them are listed.
    """
    if not isinstance(plan, Mapping):
        raise PlanError([("$", f"expected a mapping; got {_show(plan)}")])
    problems: list[Problem] = []

    def expand(value: Any, frames: Sequence[Frame]) -> Any:
        if not issubclass(type(value), str) or "${" not in value:
            return value

        def replace(found: re.Match[str]) -> str:
            if found["escaped"]:
                return "${"
            name, default = found["name"], found["default"]
            text = env.get(name) if name else None
            if default is not None:
                return text or default[2:]
            if text is None:
                rule = "write ${NAME} or ${NAME:-default}, or $${ for a plain ${"
                shown = f"variable {name!r} is not set; set it or write ${{{name}:-default}}" if name else rule
                problems.append((format_path((frame.key() for frame in frames), "$"), shown))
            return text or ""

        return _VARIABLE.sub(replace, value)

    try:
        expanded: dict[str, Any] = rebuild(dict(plan), expand, subject="")
    except ModelError as error:
        problems += _below("$", error)
    if problems:
        raise PlanError(problems, subject="cannot expand the plan's variables")
    return expanded


# ── schema ───────────────────────────────────────────────────────────────────────────────────────


def plan_schema() -> dict[str, Any]:
    """The shape of a plan as JSON Schema (2020-12), for editors and documentation.

    It says what JSON Schema can say; the uniqueness of provider instances, for one, only `check_plan` knows.
    """
    module_id = {"type": "string", "pattern": f"^{_MODULE_ID.pattern}$"}
    flag = {"type": ["boolean", "null"], "default": False}
    limit = {"type": ["integer", "null"], "minimum": 0}
    mapping = {"type": ["object", "null"]}
    seconds = {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": _LONGEST_DEADLINE}
    deadlines = {name: {**seconds, "default": getattr(_DEFAULTS, name)} for name in _DEADLINES}
    extras: dict[str, dict[str, Any]] = {
        "role": {},
        "providers": {"instance_id": {"type": ["string", "null"], "pattern": r"\S"}},
        "tools": {},
        "hooks": {"on_failure": {"enum": ["continue", "deny"], "default": "continue"}},
    }
    specs = {
        name: {
            "type": "object",
            "required": ["module"],
            "properties": {"module": module_id, "config": mapping, **extra},
        }
        for name, extra in extras.items()
    }
    role = {"anyOf": [module_id, specs.pop("role")]}
    session = {
        "orchestrator": role,
        "context": role,
        "strict": flag,
        "raw": flag,
        "injection_budget_per_turn": limit,
        "injection_size_limit": limit,
        "deadlines": {**mapping, "properties": deadlines, "additionalProperties": False},
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Amplifier mount plan",
        "type": "object",
        "required": ["session"],
        "properties": {
            "session": {"type": "object", "required": ["orchestrator", "context"], "properties": session},
            "orchestrator": {**mapping, "properties": {"config": mapping}},
            "context": {**mapping, "properties": {"config": mapping}},
            **{
                name: {"type": ["array", "null"], "items": {"anyOf": [module_id, spec]}} for name, spec in specs.items()
            },
        },
    }
