"""The tool contract: a capability that the model may call by name.

`Tool` is the Protocol, `CLAUSES` are the rules. A schema is optional, so `isinstance` does not ask for it;
`tool_schema` finds it under either of the two names in use.
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
    """What the orchestrator needs of a tool.

    A tool may also describe its input by ``get_schema() -> dict`` or by an attribute ``input_schema``. By an attribute
    ``repeatable`` it declares what happens to a call that was cut off with its process when the turn is resumed: True, it runs
    again; False, never, and the model gets a result that reports the interruption; None or no such attribute, the user is asked.
    Before that, a method ``async def reconcile(input, call)`` is asked what became of the call: `Done`, `NotDone` or `Unknown`.
    `isinstance` looks at member names only: a tool passes for an orchestrator, since both have ``execute``. What a module is
    follows from its declared type.
    """

    @property
    def name(self) -> str:
        """The name the model calls it by."""

    @property
    def description(self) -> str:
        """What it does and what it expects, written for the model."""

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 - published tools call it that
        """Do the work.

        Args:
            input: The arguments as the model wrote them; not checked yet.

        Returns:
            The result; a failure is a result too, with ``success=False`` and an ``error``.
        """


@attrs.frozen
class Done:
    """A call that was cut off with its process has had its effect.

    Attributes:
        result: What the model gets: a `ToolResult`, or the output of one.
    """

    result: Any = None

    @property
    def tool_result(self) -> ToolResult:
        """The result as the tool would have returned it."""
        return self.result if isinstance(self.result, ToolResult) else ToolResult(output=self.result)


@attrs.frozen
class NotDone:
    """A call that was cut off with its process has had no effect, and runs now."""


@attrs.frozen
class Unknown:
    """Whether a call that was cut off with its process has had its effect cannot be found out: its ``repeatable`` decides."""


Reconciled: TypeAlias = Done | NotDone | Unknown
"""What the ``reconcile`` of a tool returns."""


def tool_schema(tool: object) -> dict[str, Any] | None:
    """Return the JSON Schema of a tool's input, whichever way the tool gives it.

    Args:
        tool: A tool with ``input_schema`` (attribute, property or method) or ``get_schema()``.

    Returns:
        A copy of the outermost level, or None when the tool describes nothing.

    Raises:
        ContractError: The schema cannot be had or is not a dict; the message names the tool.
    """
    for member in ("input_schema", "get_schema"):
        schema = _read_schema(tool, member)
        if schema:
            return schema
    return None


def _read_schema(tool: object, member: str) -> dict[str, Any]:
    name = getattr(tool, "name", None) or type(tool).__name__
    # Foreign code: a property or method of the tool's author, which may fail in any way.
    try:
        value = getattr(tool, member, None)
        if callable(value):
            value = value()
    except Exception as error:
        raise ContractError(
            f"tool {name!r}: {member} raised {error!r}; expected a JSON Schema as a dict, or no {member} at all",
            module=str(name),
            clause="T7",
        ) from error
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        # An async get_schema leaves a coroutine that is never awaited; closing it avoids a second, misleading warning.
        close = getattr(value, "close", None)
        if hasattr(value, "__await__") and callable(close):
            close()
        raise ContractError(
            f"tool {name!r}: {member} gave {type(value).__name__}, expected a JSON Schema as a dict; "
            f"return one from a plain (not async) {member}, or leave it out",
            module=str(name),
            clause="T7",
        )
    return dict(value)


def tool_repeatable(tool: object) -> bool | None:
    """Return whether a call of this tool may run again after it was cut off; None if the tool does not declare it.

    Raises:
        ContractError: ``repeatable`` cannot be read or is neither a bool nor None; the message names the tool.
    """
    name = getattr(tool, "name", None) or type(tool).__name__
    expected = "expected True, False or None"
    # Foreign code: a property of the tool's author, which may fail in any way.
    try:
        value = getattr(tool, "repeatable", None)
    except Exception as error:
        raise ContractError(f"tool {name!r}: repeatable raised {error!r}; {expected}", module=str(name)) from error
    if value is None or isinstance(value, bool):
        return value
    raise ContractError(f"tool {name!r}: repeatable is {value!r:.80}; {expected}", module=str(name))


required, clarified, recommended, advised = constructors("tool contract", "tools")

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
        "Any JSON object given to execute gets a ToolResult back, however wrong its keys and values.",
        law="L4",
        hint="Read every key with .get and test what you got before you use it; return a ToolResult on every path, and put a "
        "deadline on what may never end.",
    ),
    T6=required(
        "A failure is returned as success=False with an error, not raised.",
        law="L4",
        hint='Return ToolResult(success=False, error={"message": "..."}) instead of raising; success is True or False, and only '
        "a failure has an error.",
    ),
    T7=clarified(
        "A schema, if get_schema() or input_schema gives one, is a valid JSON Schema of an object and stays "
        "the same for the life of the tool.",
        hint='Return the same dict every time, with "type": "object", and try it with a JSON Schema validator.',
        look_at=("get_schema", "input_schema"),
    ),
    T8=clarified(
        "A schema is accurate: an input that it accepts is not refused for its shape, for want of another"
        " key, type or value than it names; accepting more than it states is allowed.",
        hint="Name in the schema exactly the keys and types that execute reads, and those it cannot do without as "
        "required.",
        look_at=("get_schema", "input_schema", "execute"),
    ),
    T9=clarified(
        "The output and the error of every result are JSON.",
        law="L6",
        hint="Turn what you return into dicts, lists, strings, numbers, booleans and None.",
    ),
    T10=clarified(
        "Concurrent calls do not mix: each gets the result of its own input, no effect is lost, and a result "
        "does not change once it is given.",
        law="L8",
        hint="Keep what belongs to one call in local variables, not on the tool; guard what spans an await with anyio.Lock, and "
        "return copies of what later calls change.",
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
        "What the tool has to report goes to the logging module; nothing is printed.",
        hint="Use logging.getLogger(__name__) instead of print.",
    ),
    T14=advised(
        "The name is snake_case and at most 64 characters long.", hint="Use lower-case words joined by underscores."
    ),
    T15=clarified(  # a changed input is stored as if the model had written it
        "execute does not change the input it was given.",
        law="L5",
        hint="Copy what you want to change; the transcript keeps the input you were given.",
    ),
)
