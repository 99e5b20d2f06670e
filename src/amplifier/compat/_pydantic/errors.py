"""pydantic's `ValidationError` where third-party code builds a model, our `ModelError` inside this package.

Published code catches pydantic's error, which cannot be inherited from; our own code catches `ModelError`. So it depends
on who called the constructor: code of the package ``amplifier`` gets ours, all other code gets pydantic's. Without pydantic
all code gets ours. Both are ValueErrors. Everything that can be wrong with a model leaves through `Coercion.finish`, so
that is the one place to step in, and a model that is right pays nothing.
"""

from __future__ import annotations

import re
import sys
from types import FrameType
from typing import Any, Final, TypeAlias

from amplifier.errors import ModelError
from amplifier.models._definition.base import Coercion

GENERATED: Final = "<generated __init__ of "
_OUR_CODE: Final = "amplifier."
_NOT_OUR_CODE: Final = "amplifier.compat."
_finish: Final = Coercion.finish

_Location: TypeAlias = tuple[str | int, ...]


def convert_errors() -> None:
    """From now on, raise what the caller expects."""
    Coercion.finish = _finish_for_caller  # type: ignore[method-assign]  # restored by keep_errors


def keep_errors() -> None:
    """From now on, raise ours."""
    Coercion.finish = _finish  # type: ignore[method-assign]


def _finish_for_caller(self: Coercion, subject: str) -> None:
    try:
        _finish(self, subject)
    except ModelError as error:
        if is_called_by_us(sys._getframe(1)):
            raise
        raise validation_error(error) from None


def is_called_by_us(frame: FrameType | None) -> bool:
    """Whether the code that built, changed or read the model is our own."""
    while frame is not None and _belongs_to_the_model(frame):
        frame = frame.f_back
    name = "" if frame is None else str(frame.f_globals.get("__name__", _OUR_CODE))
    return name.startswith(_OUR_CODE) and not name.startswith(_NOT_OUR_CODE)


def _belongs_to_the_model(frame: FrameType) -> bool:
    code = frame.f_code
    if code.co_filename.startswith(GENERATED):
        return True
    in_models = str(frame.f_globals.get("__name__", "")).startswith("amplifier.models.")
    return in_models and code.co_name in ("__init__", "__setattr__")


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
