"""The base class of built-in tools, and kinds of values with which they declare their inputs."""

from __future__ import annotations

import copy
import logging
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import attrs

from amplifier._internal.json import JSON
from amplifier.errors import PlanError
from amplifier.models import ToolResult

from .._shared.configuration import Kind, any_text, choice, flag, option, record, whole_number
from .._shared.failure import ToolFailure, failure_from_os, shown

__all__ = [
    "BuiltinTool",
    "NoOptions",
    "characters",
    "flag",
    "one_of",
    "option",
    "path_name",
    "tool_input",
    "whole",
]

logger = logging.getLogger("amplifier.modules.tools")

_MAX_PROBLEMS = 5


@attrs.frozen
class NoOptions:
    """The options of a tool that has none. Reading them reports unknown keys."""


class BuiltinTool(ABC):
    """A tool with a fixed name, description and schema. Subclasses do the work in `_run`.

    Attributes:
        repeatable: True if a call may run again after its process ended in the middle of it. See
            `amplifier.contracts.Tool`.
    """

    repeatable: ClassVar[bool | None] = None
    _name: str
    _description: str
    _input: Kind

    @property
    def name(self) -> str:
        """The name that the model uses in its calls."""
        return self._name

    @property
    def description(self) -> str:
        """The description for the model."""
        return self._description

    @property
    def input_schema(self) -> dict[str, Any]:
        """The JSON Schema of the input."""
        return self.get_schema()

    def get_schema(self) -> dict[str, Any]:
        """Return a copy of the JSON Schema of the input."""
        return copy.deepcopy(dict(self._input.schema))

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's
        """Check the input and do the work. Failures are results. Only cancellation is raised."""
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
        """Do the work on input that fits the schema, with defaults filled in.

        Raises:
            ToolFailure: The call failed.
            OSError: The system reported an error.
        """

    def _read_input(self, payload: object) -> dict[str, Any]:
        """Return the input with defaults filled in.

        Raises:
            ToolFailure: The input doesn't fit the schema.
        """
        try:
            values: dict[str, Any] = self._input.read(payload)
        except PlanError as error:
            problems = [
                f"{path.removeprefix('$').lstrip('.') or 'the input'}: {text}"
                for path, text in error.problems
            ]
            if len(problems) > _MAX_PROBLEMS:
                problems[_MAX_PROBLEMS:] = [f"and {len(problems) - _MAX_PROBLEMS} more problems"]
            raise ToolFailure("InvalidInput", "; ".join(problems)) from None
        return values

    def _subject(self, values: dict[str, Any]) -> str:
        return shown(str(values.get("file_path") or values.get("path") or ""))

    def _failed(self, failure: ToolFailure, output: JSON = None) -> ToolResult:
        message = shown(str(failure), 4000)
        logger.info("tool %s: %s (%s)", self.name, message, failure.kind)
        return ToolResult(
            success=False, output=output, error={"message": message, "type": failure.kind}
        )


# ── inputs ───────────────────────────────────────────────────────────────────────────────────────
# An input is declared once. The kinds of its values check it, fill in defaults and describe it as a
# JSON Schema.


def tool_input(**members: Any) -> Kind:
    """Accept an object with the given members and no others.

    The object becomes a dict, which leaves out members without a value.

    Args:
        members: The members by name, each an `option`.
    """
    kind = record(attrs.make_class("Input", members, kw_only=True))
    for schema in kind.schema["properties"].values():
        if schema.get("default", ...) is None:
            del schema["default"]

    def convert(payload: object) -> dict[str, Any]:
        values = attrs.asdict(kind.convert(payload), recurse=False)
        return {name: value for name, value in values.items() if value is not None}

    return attrs.evolve(kind, convert=convert)


def characters(minimum: int = 0, maximum: int | None = None, **schema: JSON) -> Kind:
    """Accept a text of a certain length. ``schema`` adds to its JSON Schema."""

    def convert(value: str) -> str:
        if len(value) < minimum:
            raise PlanError([("$", f"expected at least {minimum} characters, got {len(value)}")])
        if maximum is not None and len(value) > maximum:
            raise PlanError([("$", f"expected at most {maximum} characters, got {len(value)}")])
        return value

    limits = {"minLength": minimum, "maxLength": maximum}
    set_limits = {name: limit for name, limit in limits.items() if limit}
    return attrs.evolve(
        any_text, convert=convert, schema={"type": "string", **set_limits, **schema}
    )


def one_of(*words: str) -> Kind:
    """Accept one of some words."""
    return attrs.evolve(choice(*words), schema={"type": "string", "enum": list(words)})


def whole(minimum: int, maximum: int | None = None) -> Kind:
    """Accept a whole number in a range. As in JSON Schema, 3.0 counts as a whole number."""
    kind = whole_number(minimum, maximum)

    def accepts(value: object) -> bool:
        return kind.accepts(
            int(value) if isinstance(value, float) and value.is_integer() else value
        )

    return attrs.evolve(kind, accepts=accepts, convert=int)


path_name = characters(1, 4096)
