"""Read a plan into a `MountPlan`, or into a list of all its problems."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from .._internal.json import format_path
from .._internal.reading import Kind, keys_of, read_record, read_value, show
from .._internal.spelling import did_you_mean, misspelt_key, suggestion
from ..errors import PlanError, Problem
from .dicts import id_of_thing, is_thing
from .spec import (
    DEFAULT_DEADLINES,
    Deadlines,
    ModuleSpec,
    MountPlan,
    SessionSettings,
    mapping,
    module_id,
    source,
)

_ROLES: Final = {"orchestrator": "loop-basic", "context": "context-simple"}
_LISTS: Final = ("providers", "tools", "hooks")
SECTIONS: Final = frozenset({"session", *_ROLES, *_LISTS, "agents", "$schema"})
# The kernel does not read this key, so a misspelling of it loses nothing.
_UNREAD: Final = frozenset({"$schema"})
# With a lower cutoff, "profile" would resemble "providers".
_SECTION_CUTOFF: Final = 0.75

_OF_ONE_SECTION: Final = {"instance_id": "providers", "on_failure": "hooks"}
SPEC_KEYS: Final = {
    section: {
        name: key
        for name, key in keys_of(ModuleSpec).items()
        if _OF_ONE_SECTION.get(name, section) == section
    }
    for section in ("session", *_LISTS)
}
_SETTINGS: Final = keys_of(SessionSettings)
SESSION_KEYS: Final = frozenset(_SETTINGS).union(*((role, f"{role}_source") for role in _ROLES))

_PLAN: Final = attrs.evolve(
    mapping, expected="a plan: a mapping with the sections session, providers, tools, hooks"
)
_SESSION: Final = attrs.evolve(mapping, expected="a mapping with orchestrator and context")
_MODULE: Final = attrs.evolve(mapping, expected="a module: its id, or a mapping with 'module'")
_ROLE_CONFIG: Final = attrs.evolve(mapping, expected="a mapping with 'config'")
_MODULES: Final = Kind("a list of modules", lambda value: isinstance(value, list | tuple))


def parse_plan(config: object, *, base_deadlines: Deadlines | None = None) -> MountPlan:
    """Read a plan.

    Args:
        config: The plan.
        base_deadlines: Deadlines of the parent session. They apply if the plan sets none.

    Raises:
        PlanError: The plan cannot be used. The error lists every problem.
    """
    reader = _Reader()
    plan = reader.read_safely(config, base_deadlines or DEFAULT_DEADLINES)
    if plan is None or reader.problems:
        raise PlanError(reader.problems)
    return plan


def check_plan(config: object) -> tuple[list[Problem], list[str]]:
    """Return all problems and all warnings of a plan. Never raises."""
    reader = _Reader()
    reader.read_safely(config, DEFAULT_DEADLINES)
    return reader.problems, reader.warnings


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of plans, for editors and documentation.

    It is the file ``mount-plan.schema.json`` of this package. Every plan without problems conforms
    to it. `check_plan` also checks rules that JSON Schema cannot express, such as unique names of
    provider instances.
    """
    schema: dict[str, Any] = json.loads(
        Path(__file__).with_name("mount-plan.schema.json").read_text(encoding="utf-8")
    )
    return schema


class _Reader:
    """Reads one plan and collects its problems."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def problem(self, path: str, text: str) -> None:
        self.problems.append((path, text))

    def value(self, kind: Kind, value: object, path: str) -> Any:
        return None if value is None else read_value(kind, value, path, self.problems)

    def read_safely(self, config: object, base: Deadlines) -> MountPlan | None:
        try:
            return self.read(config, base)
        # Keys and values may be foreign objects with methods that raise anything.
        except Exception as error:  # noqa: BLE001
            name = type(error).__name__
            self.problem("$", f"the plan cannot be read: {name} from one of its objects")
            return None

    def read(self, plan: object, base: Deadlines) -> MountPlan | None:
        config = read_value(_PLAN, plan, "$", self.problems)
        if config is None:
            return None
        if not config:
            required = "session.orchestrator and session.context are required"
            self.problem("$", f"the plan is empty; {required}")
            return None
        self.report_unknown(config, SECTIONS, "$", "section")
        session = self.value(_SESSION, config.get("session"), "$.session") or {}
        self.report_unknown(session, SESSION_KEYS, "$.session")
        roles: dict[str, Any] = {role: self.role(config, session, role) for role in _ROLES}
        raw = {key: value for key, value in session.items() if key in _SETTINGS}
        settings = {"deadlines": base, **read_record(_SETTINGS, raw, "$.session", self.problems)}
        # Deadlines that the plan leaves out are inherited.
        if (own := settings["deadlines"]) is not base:
            changes = {name: getattr(own, name) for name in raw["deadlines"] or ()}
            settings["deadlines"] = attrs.evolve(base, **changes)
        lists: dict[str, Any] = {
            section: self.entries(config.get(section), section) for section in _LISTS
        }
        if roles["orchestrator"] is None or roles["context"] is None:
            return None
        return MountPlan(
            agents=config.get("agents"), warnings=self.warnings, **roles, **lists, **settings
        )

    def report_unknown(
        self, record: Iterable[Any], known: Iterable[str], path: str, noun: str = "key"
    ) -> None:
        for key in record:
            if key not in known:
                self.unknown(key, known, path, noun)

    def unknown(self, key: object, known: Iterable[str], path: str, noun: str = "key") -> None:
        """Report a key that nothing reads. A misspelling is a problem, other keys are warnings."""
        read = frozenset(known) - _UNREAD
        where, meant = format_path([key], path), misspelt_key(key, read)
        if meant is None:
            hint = suggestion(key, read, cutoff=_SECTION_CUTOFF)
            self.warnings.append(f"{where}: unknown {noun}, ignored{hint}")
        else:
            hint = f"{did_you_mean(meant)} Rename or remove it: it would be ignored"
            self.problem(where, f"unknown {noun} {show(key)}; {hint}")

    # ── modules ──

    def role(
        self, config: Mapping[str, Any], session: Mapping[str, Any], name: str
    ) -> ModuleSpec | None:
        """Read ``session.orchestrator`` or ``session.context``.

        The value is a spec, or an id with its config in the section of the plan named after the
        role.
        """
        path, entry, section = f"$.session.{name}", session.get(name), config.get(name)
        pinned = self.value(source, session.get(f"{name}_source"), f"{path}_source")
        if entry is None:
            rule = f"the id of a module, such as {_ROLES[name]!r}, or a mapping with one"
            self.problem(path, f"session.{name} is required: {rule}")
            return None
        if not isinstance(entry, str):
            reason = f"ignored, because session.{name} is a mapping"
            if pinned is not None:
                self.warnings.append(f"{path}_source: {reason}; put 'source' there")
            if section is not None:
                self.warnings.append(f"$.{name}: {reason}; put 'config' there")
            return self.spec(entry, "session", path)
        settings = None
        if (section := self.value(_ROLE_CONFIG, section, f"$.{name}")) is not None:
            self.report_unknown(section, ("config",), f"$.{name}")
            settings = self.value(mapping, section.get("config"), f"$.{name}.config")
        module = read_value(module_id, entry, path, self.problems)
        if module is None:
            return None
        settings = {} if settings is None else settings
        return ModuleSpec(module=module, source=pinned, config=settings, path=path)

    def entries(self, value: object, section: str) -> list[ModuleSpec]:
        path = f"$.{section}"
        if isinstance(value, Mapping) and "module" in value:
            problem = f"expected {_MODULES.expected}, got {show(value)}"
            self.problem(path, f"{problem}; wrap the one module in a list")
            return []
        specs = []
        for index, entry in enumerate(self.value(_MODULES, value, path) or ()):
            if (spec := self.spec(entry, section, f"{path}[{index}]")) is not None:
                specs.append(spec)
        if section == "providers" and len(specs) > 1:
            self.check_instances(specs)
        return specs

    def spec(self, entry: Any, section: str, path: str) -> ModuleSpec | None:
        if isinstance(entry, str):
            module = read_value(module_id, entry, f"{path}.module", self.problems)
            return None if module is None else ModuleSpec(module=module, path=path)
        if type(entry) is not dict:
            if is_thing(entry):
                return ModuleSpec(module=id_of_thing(entry, section, path), path=path, thing=entry)
            if inspect.iscoroutine(entry):
                hint = "a coroutine; write the function itself, without (…)"
                self.problem(path, f"expected {_MODULE.expected}, got {hint}")
                return None
            if (entry := read_value(_MODULE, entry, path, self.problems)) is None:
                return None
        keys, module, thing = SPEC_KEYS[section], entry.get("module"), None
        if not isinstance(module, str):
            entry = dict(entry)
            if module is None:
                hint = "'module' is required: the id of the module to mount"
                self.problem(f"{path}.module", hint)
                entry.pop("module", None)
            elif is_thing(module):
                entry["module"], thing = id_of_thing(module, section, path), module
        values = read_record(
            keys, entry, path, self.problems, lambda key, _: self.unknown(key, keys, path)
        )
        return ModuleSpec(path=path, thing=thing, **values) if "module" in values else None

    def check_instances(self, providers: list[ModuleSpec]) -> None:
        """Check that instance ids are unique. One entry of each module may omit it."""
        unnamed: dict[str, str] = {}
        named: dict[str, str] = {}
        for spec in providers:
            if spec.instance_id is None:
                seen, key = unnamed, spec.module
            else:
                seen, key = named, spec.instance_id
            first = seen.setdefault(key, spec.path)
            if first is spec.path:
                continue
            rule = f"{key!r} is the instance_id of {first} too; choose another"
            if seen is unnamed:
                rule = (
                    f"{key!r} is mounted already at {first}; "
                    "multi-instance providers require explicit 'instance_id's"
                )
            self.problem(f"{spec.path}.instance_id", rule)
