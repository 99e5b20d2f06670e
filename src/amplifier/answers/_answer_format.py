"""What an answer has to look like, for the model as a schema and for the caller as a value, also while its text is still arriving."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

import attrs

from amplifier._json import format_path
from amplifier.errors import Problem, ResultError

T = TypeVar("T")

WRAPPER_KEY = "result"
"""Services accept only objects at the root of a schema; any other value is put into one under this key."""

_FENCED = re.compile(r"\A\s*```[\w-]*\n(.*?)\n?```\s*\Z", re.DOTALL)
_SHOWN = 2000


@attrs.frozen(kw_only=True)
class AnswerFormat(Generic[T]):
    """The format of the answer to one prompt; made by `answer_format`.

    Loops get it as the keyword ``answer_format``. They give the model the schema and return the answer as JSON text.

    Attributes:
        name: A short name of the type, for the request.
        description: What the type's docstring states; may be empty.
        schema: A JSON Schema whose root is an object.
        is_wrapped: The value is the member ``result`` of that object.
    """

    name: str
    description: str = ""
    schema: dict[str, Any]
    is_wrapped: bool
    _find_problems: Callable[[Any], Iterable[Problem]] = attrs.field(alias="find_problems", repr=False)
    _convert: Callable[[Any], T] = attrs.field(alias="convert", repr=False)

    def read_text(self, text: str) -> T:
        """Read an answer that is JSON text, perhaps in a Markdown code block.

        Raises:
            ResultError: It is no JSON, or does not fit.
        """
        fenced = _FENCED.match(text)
        try:
            value = json.loads(fenced.group(1) if fenced else text)
        except (ValueError, RecursionError) as error:
            shown = f"{text[:200]!r}" if text.strip() else "nothing"
            raise self._error([("$", f"expected JSON text, got {shown} ({error})")], text) from error
        return self.read_value(value)

    def read_value(self, value: Any) -> T:
        """Read an answer that is parsed JSON, such as the arguments of a tool call.

        Raises:
            ResultError: It does not fit.
        """
        problems = [(_path_of(path, self.is_wrapped), what) for path, what in self._find_problems(value)]
        if not problems:
            try:
                return self._convert(value[WRAPPER_KEY] if self.is_wrapped else value)
            except Exception as error:
                raise self._error(_problems_in(error, "$"), value) from error
        raise self._error(problems, value)

    def convert(self, value: Any, path: str) -> T:
        """The value, which fits the schema, as the type.

        Raises:
            ResultError: Only the type knows what is wrong with it.
        """
        try:
            return self._convert(value)
        except Exception as error:
            raise self._error(_problems_in(error, path), value) from error

    def _error(self, problems: Iterable[Problem], answer: Any) -> ResultError:
        text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False, default=str)
        return ResultError(problems, result_type=self.name, answer=text[:_SHOWN])


def _problems_in(error: Exception, path: str) -> list[Problem]:
    """What a type has against a value, below this path: an error of pydantic or msgspec, or one that the type's own code raised."""
    if isinstance(error, ResultError):
        return [(path + inner.removeprefix("$"), text) for inner, text in error.problems]
    listed = getattr(error, "errors", None)
    if callable(listed) and type(error).__module__.startswith("pydantic"):
        return [(path + _path_of(each["loc"], False).removeprefix("$"), each["msg"]) for each in listed()]
    text, _, inner = str(error).replace(" - at `key` in `$", " in a key - at `$").partition(" - at `$")
    is_own = not type(error).__module__.startswith("msgspec")
    return [(path + inner.rstrip("`"), f"{type(error).__name__}: {error}" if is_own else text)]


def _path_of(path: Iterable[Any], is_wrapped: bool) -> str:
    parts = list(path)
    return format_path(parts[1:] if is_wrapped and parts[:1] == [WRAPPER_KEY] else parts, "$")


# ── while it is arriving ──────────────────────────────────────────────────────────────────────────

_ALWAYS_BELOW = 2048
_GROWTH = 1.05


class PartialAnswer:
    """Collects the pieces of an answer and parses what has arrived.

    A long text is parsed again only when it has grown by a twentieth, so that the whole effort stays linear in its length.
    """

    def __init__(self, answer_format: AnswerFormat[Any]) -> None:
        self._format = answer_format
        self._text = ""
        self._next = 0.0
        self._last: Any = None

    def add(self, piece: str) -> bool:
        """Take the next piece; whether `value` has changed."""
        from jiter import from_json  # noqa: PLC0415 — of an extra

        self._text += piece
        if len(self._text) < self._next:
            return False
        self._next = 0 if len(self._text) < _ALWAYS_BELOW else len(self._text) * _GROWTH
        begin = self._text.find("{")
        if begin < 0:
            return False
        try:
            value = from_json(self._text[begin:].encode(errors="replace"), partial_mode="trailing-strings")
        except ValueError:
            return False
        if self._format.is_wrapped:
            value = value.get(WRAPPER_KEY) if isinstance(value, dict) else None
        changed = value is not None and value != self._last
        self._last = value if changed else self._last
        return changed

    @property
    def value(self) -> Any:
        """What has arrived so far, as JSON values; members that have not arrived are missing."""
        return self._last
