"""The tool contract: a capability that the model may call by name.

`Tool` is the Protocol, and `CLAUSES` are the rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias, runtime_checkable

import attrs

from amplifier.errors import ContractError
from amplifier.models import ToolResult

from ._clause import constructors, numbered


@runtime_checkable
class Tool(Protocol):
    """Interface of a tool for the orchestrator.

    A tool may also describe its input, with ``get_schema() -> dict`` or an attribute
    ``input_schema``. `tool_schema` reads either.

    An attribute ``repeatable`` declares whether a call that was interrupted together with its
    process may run again when the turn is resumed. If it is True, the call runs again. If it is
    False, it never does, and the model gets a result that reports the interruption. If it is None
    or missing, the user decides.

    A method ``async def reconcile(input, call)`` reports the state of such a call beforehand,
    and returns `Done`, `NotDone` or `Unknown`.

    `isinstance` checks member names only, and an orchestrator has ``execute`` too. The declared
    type of a module distinguishes them.
    """

    @property
    def name(self) -> str:
        """Name by which the model calls the tool."""

    @property
    def description(self) -> str:
        """Purpose and expected input of the tool, written for the model."""

    # Published tools call the parameter `input`.
    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002
        """Do the work.

        Args:
            input: Arguments as the model wrote them, unchecked.

        Returns:
            The result. A failure is a result too, with ``success=False`` and an ``error``.
        """


@attrs.frozen
class Done:
    """The call that was interrupted by the end of its process has had its effect.

    Attributes:
        result: The result for the model: a `ToolResult`, or the output of one.
    """

    result: Any = None

    @property
    def tool_result(self) -> ToolResult:
        """The result as the tool would have returned it."""
        result = self.result
        return result if isinstance(result, ToolResult) else ToolResult(output=result)


@attrs.frozen
class NotDone:
    """The call that was interrupted by the end of its process has had no effect. It runs now."""


@attrs.frozen
class Unknown:
    """The state of the interrupted call cannot be determined. Its ``repeatable`` decides."""


Reconciled: TypeAlias = Done | NotDone | Unknown
"""The result of the ``reconcile`` of a tool."""


def tool_schema(tool: object) -> dict[str, Any] | None:
    """Return the JSON Schema of a tool's input.

    Args:
        tool: A tool with ``input_schema`` (attribute, property or method) or ``get_schema()``.

    Returns:
        A copy of the outermost level, or None for a tool without a schema.

    Raises:
        ContractError: The schema cannot be read or is not a dict. The message names the tool.
    """
    for member in ("input_schema", "get_schema"):
        schema = _read_schema(tool, member)
        if schema:
            return schema
    return None


def _read_schema(tool: object, member: str) -> dict[str, Any]:
    name = getattr(tool, "name", None) or type(tool).__name__
    # The property or method is third-party code, which may fail in any way.
    try:
        value = getattr(tool, member, None)
        if callable(value):
            value = value()
    except Exception as error:
        expected = f"expected a JSON Schema as a dict, or no {member} at all"
        raise ContractError(
            f"tool {name!r}: {member} raised {error!r}; {expected}",
            module=str(name),
            clause="T7",
        ) from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        # An async get_schema leaves a coroutine that is never awaited. Closing it avoids a second,
        # misleading warning.
        close = getattr(value, "close", None)
        if hasattr(value, "__await__") and callable(close):
            close()
        found = f"{member} gave {type(value).__name__}, expected a JSON Schema as a dict"
        advice = f"return one from a plain (not async) {member}, or leave it out"
        raise ContractError(
            f"tool {name!r}: {found}; {advice}",
            module=str(name),
            clause="T7",
        )
    return dict(value)


def tool_repeatable(tool: object) -> bool | None:
    """Return True if an interrupted call to the tool may run again, None if it is not declared.

    Raises:
        ContractError: ``repeatable`` cannot be read, or is neither a bool nor None. The message
            names the tool.
    """
    name = getattr(tool, "name", None) or type(tool).__name__
    expected = "expected True, False or None"
    # The property is third-party code, which may fail in any way.
    try:
        value = getattr(tool, "repeatable", None)
    except Exception as error:
        message = f"tool {name!r}: repeatable raised {error!r}; {expected}"
        raise ContractError(message, module=str(name)) from error
    if value is None or isinstance(value, bool):
        return value
    raise ContractError(f"tool {name!r}: repeatable is {value!r:.80}; {expected}", module=str(name))


required, clarified, recommended, advised = constructors("tool contract", "tools")

# The texts are wrapped at 100 columns. The formatter would join them to longer lines.
# fmt: off
CLAUSES = numbered(
    T1=required(
        "The tool has a name, a description and an async execute(input).",
        hint="Give the tool a name, a description and async def execute(self, input).",
    ),
    T2=clarified(
        "The name is a non-empty string that stays the same for the life of the tool.",
        hint="Set the name once, in the constructor or on the class.",
        look_at=("name",),
    ),
    T3=clarified(
        "The description is a non-empty string that stays the same for the life of the tool.",
        hint="Set the description once, and write it for the model.",
        look_at=("description",),
    ),
    T4=required(
        "The tool is mounted at 'tools', unless mount declined by returning None.",
        hint='Call coordinator.mount("tools", tool) or return the tool from mount.',
        look_at=("mount",),
    ),
    T5=required(
        "execute returns a ToolResult for any JSON object, however wrong its keys and values.",
        law="L4",
        hint="Read every key with .get and test the value before you use it. Return a ToolResult "
        "on every path, and put a deadline on anything that may never end.",
    ),
    T6=required(
        "A failure is returned as success=False with an error, not raised.",
        law="L4",
        hint='Return ToolResult(success=False, error={"message": "..."}) instead of raising. '
        "success is True or False, and only a failure has an error.",
    ),
    T7=clarified(
        "A schema, if get_schema() or input_schema gives one, is a valid JSON Schema of an object "
        "and stays the same for the life of the tool.",
        hint='Return the same dict every time, with "type": "object", and try it with a JSON '
        "Schema validator.",
        look_at=("get_schema", "input_schema"),
    ),
    T8=clarified(
        "A schema is accurate: no input that it accepts is refused for a key, type or value that "
        "it does not name, although execute may accept more than the schema states.",
        hint="Name in the schema exactly the keys and types that execute reads, and list the keys "
        "it needs as required.",
        look_at=("get_schema", "input_schema", "execute"),
    ),
    T9=clarified(
        "The output and the error of every result are JSON.",
        law="L6",
        hint="Return only dicts, lists, strings, numbers, booleans and None.",
    ),
    T10=clarified(
        "Concurrent calls do not mix: each gets the result of its own input, no effect is lost, "
        "and a returned result does not change later.",
        law="L8",
        hint="Keep the state of one call in local variables, not on the tool. Guard state that "
        "spans an await with anyio.Lock, and return copies of state that later calls change.",
    ),
    T11=recommended(
        "The tool gives a JSON Schema of its input through get_schema() or input_schema.",
        hint="Add get_schema() with the JSON Schema of the input.",
    ),
    T12=recommended(
        "Input is checked before any work begins, so that a refused input has no effect.",
        hint="Check all of the input before the first side effect.",
    ),
    T13=recommended(
        "The tool reports through the logging module and prints nothing.",
        hint="Use logging.getLogger(__name__) instead of print.",
    ),
    T14=advised(
        "The name is snake_case and at most 64 characters long.",
        hint="Use lower-case words joined by underscores.",
    ),
    # A changed input would be stored as if the model had written it.
    T15=clarified(
        "execute does not change its input.",
        law="L5",
        hint="Copy the parts that you want to change, because the transcript keeps the original "
        "input.",
    ),
    # The call is made a second time after NotDone(), and never again after Done().
    T16=clarified(
        "A reconcile(input, call), if the tool has one, is right about a call with a killed "
        "process: it does not return NotDone() for a call that had its effect, nor Done() for one "
        "that was never made.",
        law="L5",
        hint="Store the idempotency_key of current_call() in the same step as the effect, look for "
        "it in reconcile, and return Unknown() when you can't find out.",
        look_at=("reconcile",),
    ),
)
# fmt: on
