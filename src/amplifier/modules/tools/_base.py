"""What built-in tools share: a base class, and inputs that are declared once."""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import attrs

from amplifier.errors import PlanError
from amplifier.models import ToolResult

from .._shared.configuration import Kind, any_text, choice, flag, option, record, whole_number
from .._shared.failure import ToolFailure, failure_from_os, shown

__all__ = [
    "BuiltinTool",
    "NoOptions",
    "characters",
    "flag",
    "option",
    "path_name",
    "tool_input",
    "whole",
    "word",
]

logger = logging.getLogger("amplifier.modules.tools")

_MOST_PROBLEMS = 5


@attrs.frozen
class NoOptions:
    """There is nothing to configure; reading it reports the keys of a configuration."""


class BuiltinTool(ABC):
    """A tool with a fixed name, description and schema; subclasses do the work in `_run`.

    Attributes:
        repeatable: Whether a call that was cut off with its process may run again, see `amplifier.contracts.Tool`.
    """

    repeatable: ClassVar[bool | None] = None
    _name: str
    _description: str
    _input: Kind

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        return self._name

    @property
    def description(self) -> str:
        """What it does, as text for the model."""
        return self._description

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.get_schema()

    def get_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input, a copy."""
        return copy.deepcopy(dict(self._input.schema))

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - the contract's name
        """Check the input, do the work, and answer; only cancellation is raised."""
        values: dict[str, Any] = {}
        try:
            values = self._read_input(input)
            return await self._run(values)
        except ToolFailure as failure:
            return self._failed(failure)
        except OSError as error:
            return self._failed(failure_from_os(error, self._subject(values)))

    @abstractmethod
    async def _run(self, values: dict[str, Any]) -> ToolResult:
        """Do the work on input that fits the schema, defaults filled in.

        Raises:
            ToolFailure: It cannot be done.
            OSError: The same, reported by the system.
        """

    def _read_input(self, given: Any) -> dict[str, Any]:
        """The input with defaults filled in.

        Raises:
            ToolFailure: It does not fit the schema.
        """
        try:
            values: dict[str, Any] = self._input.read(given)
        except PlanError as error:
            problems = [
                f"{path.removeprefix('$').lstrip('.') or 'the input'}: {text}"
                for path, text in error.problems
            ]
            if len(problems) > _MOST_PROBLEMS:
                problems[_MOST_PROBLEMS:] = [f"and {len(problems) - _MOST_PROBLEMS} more problems"]
            raise ToolFailure("InvalidInput", "; ".join(problems)) from None
        return values

    def _subject(self, values: dict[str, Any]) -> str:
        return shown(str(values.get("file_path") or values.get("path") or ""))

    def _failed(self, failure: ToolFailure, output: Any = None) -> ToolResult:
        message = shown(str(failure), 4000)
        logger.info("tool %s: %s (%s)", self.name, message, failure.kind)
        return ToolResult(
            success=False, output=output, error={"message": message, "type": failure.kind}
        )


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────
# An input is declared once, by kinds of values: they check it, fill in defaults and describe it as a JSON Schema.


def tool_input(**members: Any) -> Kind:
    """An object with these members, each an `option`, and no others; read as a dict, without members that have no value."""
    made = record(attrs.make_class("Input", members, kw_only=True))
    for schema in made.schema["properties"].values():
        if schema.get("default", ...) is None:
            del schema["default"]

    def convert(given: Any) -> dict[str, Any]:
        values = attrs.asdict(made.convert(given), recurse=False)
        return {name: value for name, value in values.items() if value is not None}

    return attrs.evolve(made, convert=convert)


def characters(least: int = 0, most: int | None = None, **schema: Any) -> Kind:
    """A text of so many characters."""

    def convert(value: str) -> str:
        if len(value) < least:
            raise PlanError([("$", f"expected at least {least} characters, got {len(value)}")])
        if most is not None and len(value) > most:
            raise PlanError([("$", f"expected at most {most} characters, got {len(value)}")])
        return value

    limits = {name: limit for name, limit in (("minLength", least), ("maxLength", most)) if limit}
    return attrs.evolve(any_text, convert=convert, schema={"type": "string", **limits, **schema})


def word(*words: str) -> Kind:
    """One of some words."""
    return attrs.evolve(choice(*words), schema={"type": "string", "enum": list(words)})


def whole(least: int, most: int | None = None) -> Kind:
    """A whole number in a range; to JSON Schema 3.0 is one."""
    kind = whole_number(least, most)

    def accepts(value: Any) -> bool:
        return kind.accepts(
            int(value) if isinstance(value, float) and value.is_integer() else value
        )

    return attrs.evolve(kind, accepts=accepts, convert=int)


path_name = characters(1, 4096)
