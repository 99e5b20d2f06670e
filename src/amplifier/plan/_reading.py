"""From the plan as it was given to a `MountPlan`, or to a list of everything that is wrong with it."""

from __future__ import annotations

import inspect
import json
from collections.abc import Container, Mapping
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
_NOT_MISSED: Final = frozenset(
    {"$schema"}
)  # the kernel does not read it, so a misspelling of it loses nothing
_SIMILAR: Final = 0.75  # lower, and "profile" resembles "providers"

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
_BESIDE: Final = attrs.evolve(mapping, expected="a mapping with 'config'")
_MODULES: Final = Kind("a list of modules", lambda value: isinstance(value, list | tuple))


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


def plan_schema() -> dict[str, Any]:
    """The shape of a plan as JSON Schema (2020-12), for editors and documentation: the file ``mount-plan.schema.json`` of this package.

    Whatever `check_plan` finds no problem in keeps it. It covers what JSON Schema can express; the uniqueness of provider
    instances, for one, only `check_plan` knows.
    """
    schema: dict[str, Any] = json.loads(
        Path(__file__).with_name("mount-plan.schema.json").read_text(encoding="utf-8")
    )
    return schema


class _Reader:
    """Reads one plan and gathers what is wrong with it."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[str] = []

    def problem(self, path: str, text: str) -> None:
        self.problems.append((path, text))

    def value(self, kind: Kind, value: Any, path: str) -> Any:
        return None if value is None else read_value(kind, value, path, self.problems)

    def read_safely(self, config: Any, base: Deadlines) -> MountPlan | None:
        try:
            return self.read(config, base)
        # Keys and values are foreign objects: their __eq__, __hash__ and mapping methods are foreign code.
        except Exception as error:  # noqa: BLE001
            self.problem(
                "$", f"the plan cannot be read: {type(error).__name__} from one of its objects"
            )
            return None

    def read(self, config: Any, base: Deadlines) -> MountPlan | None:
        config = read_value(_PLAN, config, "$", self.problems)
        if config is None:
            return None
        if not config:
            self.problem(
                "$", "the plan is empty; session.orchestrator and session.context are required"
            )
            return None
        self.report_unknown(config, SECTIONS, "$", "section")
        session = self.value(_SESSION, config.get("session"), "$.session") or {}
        self.report_unknown(session, SESSION_KEYS, "$.session")
        roles: dict[str, Any] = {role: self.role(config, session, role) for role in _ROLES}
        given = {key: value for key, value in session.items() if key in _SETTINGS}
        settings = {"deadlines": base, **read_record(_SETTINGS, given, "$.session", self.problems)}
        if (
            "deadlines" in given
        ):  # those that are given apply to this session, the others are inherited
            names = given["deadlines"] or () if settings["deadlines"] is not base else ()
            settings["deadlines"] = attrs.evolve(
                base, **{name: getattr(settings["deadlines"], name) for name in names}
            )
        lists: dict[str, Any] = {
            section: self.entries(config.get(section), section) for section in _LISTS
        }
        if roles["orchestrator"] is None or roles["context"] is None:
            return None
        return MountPlan(
            agents=config.get("agents"), warnings=self.warnings, **roles, **lists, **settings
        )

    def report_unknown(
        self, given: Mapping[Any, Any], known: Container[str], path: str, noun: str = "key"
    ) -> None:
        for key in given:
            if key not in known:
                self.unknown(key, known, path, noun)

    def unknown(self, key: Any, known: Any, path: str, noun: str = "key") -> None:
        """A key that nothing reads: a misspelling is a problem, because its value would be lost; others are warnings."""
        read = frozenset(known) - _NOT_MISSED
        where, meant = format_path([key], path), misspelt_key(key, read)
        if meant is None:
            self.warnings.append(
                f"{where}: unknown {noun}, ignored{suggestion(key, read, cutoff=_SIMILAR)}"
            )
        else:
            hint = f"{did_you_mean(meant)} Rename or remove it: it would be ignored"
            self.problem(where, f"unknown {noun} {show(key)}; {hint}")

    # ── modules ──

    def role(self, config: dict[Any, Any], session: dict[Any, Any], name: str) -> ModuleSpec | None:
        """``session.orchestrator`` or ``session.context``: an id, whose config is in a section of its own, or a whole spec."""
        path, given, beside = f"$.session.{name}", session.get(name), config.get(name)
        pinned = self.value(source, session.get(f"{name}_source"), f"{path}_source")
        if given is None:
            rule = f"the id of a module, such as {_ROLES[name]!r}, or a mapping with one"
            self.problem(path, f"session.{name} is required: {rule}")
            return None
        if not isinstance(given, str):
            if pinned is not None:
                self.warnings.append(
                    f"{path}_source: ignored, because session.{name} is a mapping; put 'source' there"
                )
            if beside is not None:
                self.warnings.append(
                    f"$.{name}: ignored, because session.{name} is a mapping; put 'config' there"
                )
            return self.spec(given, "session", path)
        settings = None
        if (beside := self.value(_BESIDE, beside, f"$.{name}")) is not None:
            self.report_unknown(beside, ("config",), f"$.{name}")
            settings = self.value(mapping, beside.get("config"), f"$.{name}.config")
        module = read_value(module_id, given, path, self.problems)
        if module is None:
            return None
        return ModuleSpec(
            module=module, source=pinned, config={} if settings is None else settings, path=path
        )

    def entries(self, given: Any, section: str) -> list[ModuleSpec]:
        if isinstance(given, Mapping) and "module" in given:
            self.problem(
                f"$.{section}",
                f"expected {_MODULES.expected}, got {show(given)}; wrap the one module in a list",
            )
            return []
        found = []
        for index, entry in enumerate(self.value(_MODULES, given, f"$.{section}") or ()):
            if (spec := self.spec(entry, section, f"$.{section}[{index}]")) is not None:
                found.append(spec)
        if section == "providers" and len(found) > 1:
            self.instances(found)
        return found

    def spec(self, given: Any, section: str, path: str) -> ModuleSpec | None:
        if isinstance(given, str):
            module = read_value(module_id, given, f"{path}.module", self.problems)
            return None if module is None else ModuleSpec(module=module, path=path)
        if type(given) is not dict:
            if is_thing(given):
                return ModuleSpec(module=id_of_thing(given, section, path), path=path, thing=given)
            if inspect.iscoroutine(given):
                what = "a coroutine; write the function itself, without (…)"
                self.problem(path, f"expected {_MODULE.expected}, got {what}")
                return None
            if (given := read_value(_MODULE, given, path, self.problems)) is None:
                return None
        keys, module, thing = SPEC_KEYS[section], given.get("module"), None
        if not isinstance(module, str):
            given = dict(given)
            if module is None:
                self.problem(
                    f"{path}.module", "'module' is required: the id of the module to mount"
                )
                given.pop("module", None)
            elif is_thing(module):
                given["module"], thing = id_of_thing(module, section, path), module
        values = read_record(
            keys, given, path, self.problems, lambda key, _: self.unknown(key, keys, path)
        )
        return ModuleSpec(path=path, thing=thing, **values) if "module" in values else None

    def instances(self, providers: list[ModuleSpec]) -> None:
        """One entry per provider module may go without a name; no two may share one."""
        unnamed: dict[str, str] = {}
        named: dict[str, str] = {}
        for spec in providers:
            seen, key = (
                (unnamed, spec.module) if spec.instance_id is None else (named, spec.instance_id)
            )
            first = seen.setdefault(key, spec.path)
            if first is spec.path:
                continue
            rule = f"{key!r} is the instance_id of {first} too; choose another"
            if seen is unnamed:
                rule = f"{key!r} is mounted already at {first}; multi-instance providers require explicit 'instance_id's"
            self.problem(f"{spec.path}.instance_id", rule)
