"""Slips of a module's own code: an AttributeError, NameError or TypeError that no line expects."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

from attrs import define, field

from amplifier.conformance.target.locate import Target, parsed

_SLIPS = (AttributeError, NameError, TypeError)
_Try = ast.Try | ast.TryStar
_Trace = Callable[[FrameType, str, Any], Any]


# An error counts if the line itself made it and did not raise it by hand, and if neither that
# function nor a caller in the module handles it by name. `except Exception` does not count as
# handling by name. Two kinds do not count. A special method such as `__getattr__` may owe its
# caller the error, and a broad handler may replace a test for None.
@define(eq=False)
class SlipDetector:
    """Collects the slips of a module's lines, including slips that a broad handler swallows.

    Attributes:
        slips: The line and the error of each slip, in order.
    """

    _target: Target
    slips: list[tuple[str, BaseException]] = field(factory=list, init=False)
    _own: dict[str, bool] = field(factory=dict, init=False)
    _expected: list[BaseException] = field(factory=list, init=False)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch everything that runs in the body, in new threads as well."""
        before = sys.gettrace()
        sys.settrace(self._enter)
        threading.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(before)
            threading.settrace(before)
            expected = {id(error) for error in self._expected}
            self.slips = [slip for slip in self.slips if id(slip[1]) not in expected]
            self._expected.clear()

    def _enter(self, frame: FrameType, event: str, argument: Any) -> _Trace | None:
        file = frame.f_code.co_filename
        if file not in self._own:
            self._own[file] = self._target.owns(file)
        if not self._own[file]:
            return None
        frame.f_trace_lines = False
        return self._observe

    def _observe(self, frame: FrameType, event: str, argument: Any) -> _Trace:
        if event == "exception":
            kind, error, trace = argument
            if issubclass(kind, _SLIPS) and isinstance(error, BaseException):
                self._classify(frame, error, is_here=trace is None or trace.tb_next is None)
        return self._observe

    def _classify(self, frame: FrameType, error: BaseException, *, is_here: bool) -> None:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if _is_special(frame.f_code.co_name) or _is_about_none(error):
            return
        names = {base.__name__ for base in type(error).__mro__ if issubclass(base, _SLIPS)}
        if _expects(file, line, frozenset(names)) or (is_here and _raises(file, line)):
            self._expected.append(error)
        elif is_here and all(error is not known for _, known in self.slips):
            self.slips.append((self._target.location_at(file, line), error))


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in ("__init__", "__call__")


def _is_about_none(error: BaseException) -> bool:
    if isinstance(error, AttributeError):
        return error.obj is None and error.name is not None
    return isinstance(error, TypeError) and "NoneType" in str(error)


@cache
def _statements(file: str) -> tuple[ast.stmt, ...]:
    tree = parsed(Path(file))
    return tuple(node for node in ast.walk(tree) if isinstance(node, ast.stmt)) if tree else ()


def _spans(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", line + 1)
    return bool(first <= line <= (getattr(node, "end_lineno", None) or first))


@cache
def _raises(file: str, line: int) -> bool:
    """Return True if a line raises its error by hand, or asserts."""
    return any(
        isinstance(node, ast.Raise | ast.Assert) and _spans(node, line)
        for node in _statements(file)
    )


@cache
def _expects(file: str, line: int, names: frozenset[str]) -> bool:
    """Return True if a handler around a line names one of the errors."""
    for node in _statements(file):
        if isinstance(node, _Try) and any(_spans(inner, line) for inner in node.body):
            caught = [handler.type for handler in node.handlers]
        elif isinstance(node, ast.With | ast.AsyncWith) and _spans(node, line):
            caught = [
                argument
                for item in node.items
                if isinstance(item.context_expr, ast.Call)
                for argument in item.context_expr.args
            ]
        else:
            continue
        if any(_is_named(kind, names) for kind in caught):
            return True
    return False


def _is_named(kind: ast.expr | None, names: frozenset[str]) -> bool:
    """Return True for one of the names, or for a constant, which may be a tuple of errors."""
    parts = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    for part in parts:
        name = getattr(part, "attr", getattr(part, "id", None))
        if name in names or (isinstance(name, str) and name.isupper()):
            return True
    return False
