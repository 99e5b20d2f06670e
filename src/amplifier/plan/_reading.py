"""From the plan as it was given to a `MountPlan`, or to a list of everything that is wrong with it.

The plan's own structure is checked strictly. A module's ``config``, ``metadata`` and ``agents`` belong to
the module or the application: embedders pass live objects there (clients, callables, queues), so it is
never walked, copied, or made to be JSON — NaN, circles and any depth pass through by identity. Only operations that
must copy it (`merge_plans`, `expand_variables`) refuse circles and more than 1000 levels, naming the path.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs

from .._json import format_path
from .._spelling import cut_short, did_you_mean, misspelt, suggestion
from ..errors import PlanError, Problem
from ._budget import BUDGET_KEYS, read_budget
from ._names import MODULE_ID_RULE, has_id_form, show
from ._spec import DEADLINE_NAMES, DEFAULT_DEADLINES, LONGEST_DEADLINE, BudgetLimits, Deadlines, ModuleSpec, MountPlan

_ROLES: Final = {
    "orchestrator": ("$.session.orchestrator", "orchestrator_source", "loop-basic"),
    "context": ("$.session.context", "context_source", "context-simple"),
}
_LISTS: Final = ("providers", "tools", "hooks")
_SECTIONS: Final = frozenset({"session", "orchestrator", "context", *_LISTS, "agents", "$schema"})
_NOT_MISSED: Final = frozenset({"$schema"})  # the kernel does not read it, so a misspelling of it loses nothing
_SESSION_KEYS: Final = frozenset(
    {"orchestrator", "context", "orchestrator_source", "context_source", "strict", "deadlines", "metadata", "raw"}
    | {"injection_budget_per_turn", "injection_size_limit", "budget"}
)
_SPEC_EXTRAS: Final = {"session": "module", "providers": "instance_id", "tools": "module", "hooks": "on_failure"}
_SPEC_KEYS: Final = {name: frozenset({"module", "source", "config", extra}) for name, extra in _SPEC_EXTRAS.items()}
_SIMILAR: Final = 0.75  # lower, and "profile" resembles "providers"
# Paths of list entries are needed by every spec; formatting them anew costs more than the rest of reading one.
_ENTRY_PATHS: Final = {name: tuple(f"$.{name}[{index}]" for index in range(64)) for name in _LISTS}


def parse_plan(config: Any, *, base_deadlines: Deadlines | None = None) -> MountPlan:
    """Read a plan.

    Args:
        config: The plan, a dict.
        base_deadlines: Those of the parent session, which apply where the plan has none.

    Raises:
        PlanError: The plan cannot be used; every problem is listed.
    """
    reader = _Reader()
    plan = reader.read_safely(config, base_deadlines or DEFAULT_DEADLINES)
    if plan is None or reader.problems:
        raise PlanError(reader.problems)
    return plan


def check_plan(config: Any) -> tuple[list[Problem], list[str]]:
    """All problems and all warnings of a plan; never raises."""
    reader = _Reader()
    reader.read_safely(config, DEFAULT_DEADLINES)
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
        except Exception as error:  # noqa: BLE001
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
        orchestrator = self.role(config, session, "orchestrator")
        context = self.role(config, session, "context")
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
        limits = get("budget")
        if limits is not None:
            limits = self.budget(limits)
        providers = self.entries(config, "providers")
        if len(providers) > 1:
            self.instances(providers)
        tools = self.entries(config, "tools")
        hooks = self.entries(config, "hooks")
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
            budget=limits,
            metadata=get("metadata"),
            raw=raw,
            warnings=self.warnings,
        )

    def mapping(self, value: Any, path: str, expected: str, missing: Any = None) -> Any:
        """What is not exactly a dict: another mapping becomes one, None may mean absence, the rest is wrong."""
        if value is None and missing is not None:
            return missing
        if issubclass(type(value), dict):
            return value
        if isinstance(value, Mapping):
            return dict(value)
        self.problem(path, f"expected {expected}; got {show(value)}")
        return None

    def unknown(self, given: Mapping[Any, Any], known: frozenset[str], path: str, kind: str) -> None:
        """Keys that nothing reads: a misspelling is a problem, because its value would be lost; others are warnings."""
        read = known - _NOT_MISSED
        for key in given:
            if key not in known:
                where, meant = format_path([key], path), misspelt(key, read) or cut_short(key, read)
                if meant is None:
                    hint = suggestion(key, read, cutoff=_SIMILAR)
                    self.warnings.append(f"{where}: unknown {kind}, ignored{hint}")
                else:
                    hint = f"{did_you_mean(meant)} Rename or remove it: it would be ignored"
                    self.problem(where, f"unknown {kind} {show(key)}; {hint}")

    # ── modules ──

    def role(self, config: dict[Any, Any], session: Any, name: str) -> ModuleSpec | None:
        """``session.orchestrator`` or ``session.context``: an id, whose config is in a section of its own, or a whole spec."""
        given = session.get(name)
        path, source_key, example = _ROLES[name]
        if given is None:
            self.problem(
                path, f"session.{name} is required: the id of a module, such as {example!r}, or a mapping with one"
            )
            return None
        beside, source = config.get(name), session.get(source_key)
        if source is not None:
            self.pin(source, f"$.session.{source_key}")
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
        if not has_id_form(given):
            self.problem(path, f"{MODULE_ID_RULE}; got {show(given)}")
            return None
        return ModuleSpec(module=given, source=source, config={} if settings is None else settings, path=path)

    def entries(self, config: dict[Any, Any], section: str) -> list[ModuleSpec]:
        given = config.get(section)
        if given is None:
            return []
        if type(given) is not list and type(given) is not tuple:
            hint = "; wrap the one module in a list" if isinstance(given, Mapping) and "module" in given else ""
            self.problem(f"$.{section}", f"expected a list of modules; got {show(given)}{hint}")
            return []
        paths, specs = _ENTRY_PATHS[section], []
        if len(given) > len(paths):
            paths = tuple(f"$.{section}[{index}]" for index in range(len(given)))
        index = 0  # enumerate() and zip() cost a tenth of reading a short list
        for entry in given:
            spec = self.spec(entry, section, paths[index])
            index += 1  # noqa: SIM113
            if spec is not None:
                specs.append(spec)
        return specs

    def spec(self, given: Any, section: str, path: str) -> ModuleSpec | None:
        if type(given) is not dict:
            if type(given) is str:
                given = {"module": given}
            else:
                given = self.mapping(given, path, "a module: its id, or a mapping with 'module'")
                if given is None:
                    return None
        known = _SPEC_KEYS[section]
        if not given.keys() <= known:
            self.unknown(given, known, path, "key")
        module, config = given.get("module"), given.get("config")
        if type(module) is not str or not has_id_form(module):
            if module is None:
                self.problem(f"{path}.module", "'module' is required: the id of the module to mount")
            else:
                self.problem(f"{path}.module", f"{MODULE_ID_RULE}; got {show(module)}")
            module = None
        if type(config) is not dict:
            config = self.mapping(config, f"{path}.config", "a mapping", missing={})
        instance_id: str | None = None
        on_failure: Any = "continue"
        if section == "providers":
            instance_id = given.get("instance_id")
            if instance_id is not None and (type(instance_id) is not str or not instance_id.strip()):
                self.problem(f"{path}.instance_id", f"expected a name; got {show(instance_id)}")
                instance_id = None
        elif section == "hooks":
            on_failure = given.get("on_failure")
            if on_failure is None:
                on_failure = "continue"
            elif on_failure not in ("continue", "deny"):
                near = suggestion(on_failure, ("continue", "deny"))
                self.problem(f"{path}.on_failure", f"expected 'continue' or 'deny'; got {show(on_failure)}{near}")
        source = given.get("source")
        if source is not None:
            self.pin(source, f"{path}.source")
        if module is None:
            return None
        return ModuleSpec(
            module=module,
            source=source,
            config=config,
            instance_id=instance_id,
            on_failure=on_failure,
            path=path,
        )

    def pin(self, source: Any, path: str) -> None:
        """A source that pins a distribution has to name it; any other form is up to the resolver."""
        if type(source) is dict and source.keys() == {"distribution"}:
            name = source["distribution"]
            if type(name) is not str or not name.strip():
                self.problem(
                    f"{path}.distribution", f"expected the name of an installed distribution; got {show(name)}"
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
            rule = f"{key!r} is the instance_id of {first} too; choose another"
            if seen is unnamed:
                rule = (
                    f"{key!r} is mounted already at {first}; multi-instance providers require explicit 'instance_id's"
                )
            self.problem(f"{spec.path}.instance_id", rule)

    # ── session settings ──

    def flag(self, name: str, value: Any) -> bool:
        if value is not None:
            self.problem(f"$.session.{name}", f"expected true or false; got {show(value)}")
        return False

    def limit(self, name: str, value: Any) -> None:
        if type(value) is not int or value < 0:
            rule = "expected a whole number, 0 or more, or null for no limit"
            self.problem(f"$.session.{name}", f"{rule}; got {show(value)}")

    def budget(self, given: Any) -> BudgetLimits | None:
        path = "$.session.budget"
        given = self.mapping(given, path, f"a mapping of limits by name ({', '.join(BUDGET_KEYS)})")
        return None if given is None else read_budget(given, path, self.problem)

    def deadlines(self, given: Any, base: Deadlines) -> Deadlines:
        given = self.mapping(
            given, "$.session.deadlines", f"a mapping of seconds by name ({', '.join(DEADLINE_NAMES)})"
        )
        changes: dict[str, float | None] = {}
        for name, seconds in (given or {}).items():
            path = format_path([name], "$.session.deadlines")
            if name not in DEADLINE_NAMES:
                self.problem(
                    path, f"unknown deadline; known are {', '.join(DEADLINE_NAMES)}{suggestion(name, DEADLINE_NAMES)}"
                )
            elif seconds is None:
                changes[name] = None
            elif type(seconds) not in (int, float) or not 0 < seconds <= LONGEST_DEADLINE:
                self.problem(path, f"expected seconds, more than 0, or null for no limit; got {show(seconds)}")
            else:
                changes[name] = float(seconds)
        return attrs.evolve(base, **changes) if changes else base
