"""pydantic's `ValidationError` where third-party code builds a model, our `ModelError` inside this package.

Published code catches pydantic's error, which cannot be inherited from; our own code catches `ModelError`. So it depends
on who called the constructor: code of the package ``amplifier`` gets ours, all other code gets pydantic's. Without pydantic
all code gets ours. Both are ValueErrors. Everything that can be wrong with a model leaves through the one constructor and
through the assignments to a `ToolResult`, so those are the places to step in.
"""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any, Final, TypeAlias

from amplifier.errors import ModelError
from amplifier.models import Model, ToolResult

_OUR_CODE: Final = "amplifier."
_NOT_OUR_CODE: Final = "amplifier.compat."
_init: Final = Model.__init__
_assign: Final = ToolResult.__setattr__

_Location: TypeAlias = tuple[str | int, ...]


def init(self: Model, /, *positional: Any, **keywords: Any) -> None:
    """The constructor of every model."""
    try:
        _init(self, *positional, **keywords)
    except ModelError as error:
        raise _for_caller(error) from None


def assign(self: ToolResult, name: str, value: Any) -> None:
    """An assignment to a checked model."""
    try:
        _assign(self, name, value)
    except ModelError as error:
        raise _for_caller(error) from None


def _for_caller(error: ModelError) -> ValueError:
    return error if is_called_by_us(sys._getframe(1)) else validation_error(error)


def is_called_by_us(frame: FrameType | None) -> bool:
    """Whether the code that built, changed or read the model is our own."""
    while frame is not None and _belongs_to_the_model(frame):
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__", _OUR_CODE))
    return name.startswith(_OUR_CODE) and not name.startswith(_NOT_OUR_CODE)


def _belongs_to_the_model(frame: FrameType) -> bool:
    if frame.f_code in (init.__code__, assign.__code__):
        return True
    in_models = str(frame.f_globals.get("__name__", "")).startswith("amplifier.models.")
    return in_models and frame.f_code.co_name in ("__init__", "__setattr__")


def validation_error(error: ModelError) -> ValueError:
    """Pydantic's form of one of our errors, or the error itself where pydantic is not installed."""
    try:
        from pydantic_core import PydanticCustomError, ValidationError  # noqa: PLC0415 — not a dependency of ours
    except ImportError:
        return error
    details: list[Any] = []
    for path, problem in error.problems:
        kind: Any
        kind, context = _published_kind(problem)
        location = _location(path)
        if kind is None:
            words, location = _published_words(error.subject, location, problem)
            kind = PydanticCustomError("value_error", "Value error, {problem}", {"problem": words})
        detail = {"type": kind, "loc": location, "input": None}
        details.append({**detail, "ctx": context} if context else detail)
    # What was given is part of the problem's text already; the value itself is gone by now.
    return ValidationError.from_exception_data(error.subject, details, hide_input=True)


def serialization_error(problem: str) -> ValueError:
    """Pydantic's error for a value that JSON cannot hold, or our own."""
    try:
        from pydantic_core import PydanticSerializationError  # noqa: PLC0415 — not a dependency of ours
    except ImportError:
        return ModelError([("", problem)], subject="cannot be written as JSON")
    return PydanticSerializationError(problem)


def _location(path: str) -> _Location:
    """``content[2].text`` as ``("content", 2, "text")``."""
    parts = re.findall(r"\[(\d+)\]|([^.\[\]]+)", path)
    return tuple(int(index) if index else name for index, name in parts)


def _published_words(subject: str, location: _Location, problem: str) -> tuple[str, _Location]:
    """A problem with the words that suites of published modules look for, and where it is reported there."""
    if problem.startswith("must be Decimal"):
        return f"cost_usd {problem}", location
    if problem.startswith("expected a currency code"):
        return f"currency must be a 3-letter code (ISO 4217): {problem}", location
    if subject == "ApprovalRequest" and location == ("timeout",):
        return f"Timeout must be positive or None: {problem}", ()
    return problem, location


# From the beginning of our sentences to the name pydantic has for the same; the first line that fits.
_KINDS: Final = (
    ("required, but missing", "missing"),
    ("expected str, got", "string_type"),
    ("expected int, got the str", "int_parsing"),
    ("expected int, got", "int_type"),
    ("expected float, got the str", "float_parsing"),
    ("expected float, got", "float_type"),
    ("expected bool, got the str", "bool_parsing"),
    ("expected bool, got", "bool_type"),
    ("expected dict, got", "dict_type"),
    ("expected list, got", "list_type"),
)


def _published_kind(problem: str) -> tuple[str | None, dict[str, Any]]:
    """The name pydantic has for a problem, and what it wants to know about it."""
    for beginning, kind in _KINDS:
        if problem.startswith(beginning):
            return kind, {}
    words = re.match(r"expected (?:one of )?(('[^']*'(?:, )?)+), got ", problem)
    if words is None:
        return None, {}
    first, _, last = words[1].rpartition(", ")
    return "literal_error", {"expected": f"{first} or {last}" if first else last}
