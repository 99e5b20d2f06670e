"""Which fields of its payload a handler reads, as far as its code shows that beforehand.

A handler that reads ``data["tool_name"]`` and nothing else cannot notice that the rest of the payload is missing, so the rest need
not be copied for it. Whatever is not certain counts as reading everything.
"""

from __future__ import annotations

import sys
from dis import findlabels, haslocal, opmap, opname
from types import CodeType
from typing import Any
from weakref import ref

from ..runtime.stepping import function_of

_NEWEST = (3, 14)
"""The newest Python whose instructions are known here."""

_LONGEST = 20_000
"""Bytes of a function that is looked at, some hundreds of lines: longer ones would hold up the loop for milliseconds."""

_EXTENDED_ARG = opmap["EXTENDED_ARG"]
_SKIPPED = frozenset({opmap.get("CACHE"), opmap.get("PRECALL")})
_LOCALS = frozenset(opname[code] for code in haslocal)
_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW"})
_LOADS_TWO = frozenset({"LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST"})
_PUSHES_ONE = frozenset({*_LOADS, "LOAD_CONST", "LOAD_SMALL_INT"})
_MAKES_EMPTY = frozenset({"BUILD_MAP", "BUILD_LIST", "BUILD_TUPLE"})
_SUBSCRIPT_OPERATOR = 26
"""The argument of ``BINARY_OP`` that means a subscript, from Python 3.14 on."""

_LOOKS_AT_FRAMES = frozenset(
    {
        *("locals", "vars", "eval", "exec", "dir", "breakpoint", "set_trace", "embed", "interact", "f_locals"),
        *("_getframe", "_current_frames", "currentframe", "getouterframes", "stack", "tb_frame"),
    }
)


_Instruction = tuple[int, str, int]
"""Where it is in the code, its name and its argument."""

_known: dict[tuple[int, int], tuple[ref[CodeType], tuple[str, ...] | None]] = {}
"""What was found before, by the identity of the code: sessions register the same handlers again and again."""


def fields_read_by(handler: Any) -> tuple[str, ...] | None:
    """The top-level fields of the payload that a handler can read; None for all of them, also if that is not known.

    A debugger shows the payload as it is, so a handler that is registered under one gets all of it.
    """
    function = function_of(handler)
    if function is None or sys.version_info[:2] > _NEWEST or _is_debugged():
        return None
    code, position = function.__code__, 1 if function is handler else 2
    key = id(code), position
    known = _known.get(key)
    if known is not None and known[0]() is code:
        return known[1]
    fields = _fields_read(code, position)
    _known[key] = ref(code, lambda _: _known.pop(key, None)), fields
    return fields


def _is_debugged() -> bool:
    if sys.gettrace() is not None:
        return True
    return sys.version_info >= (3, 12) and sys.monitoring.get_tool(sys.monitoring.DEBUGGER_ID) is not None


def _fields_read(code: CodeType, position: int) -> tuple[str, ...] | None:
    """The fields that are read of the argument at this position."""
    if code.co_argcount <= position or code.co_varnames[position] in code.co_cellvars:
        return None
    if len(code.co_code) > _LONGEST or not _LOOKS_AT_FRAMES.isdisjoint(code.co_names):
        return None
    instructions = _instructions(code.co_code)
    fields: dict[str, None] = {}
    for place, (_, name, arg) in enumerate(instructions):
        if name in _LOCALS and position in _variables(name, arg):
            field = _field_read_at(code, instructions, place, position)
            if field is None:
                return None
            fields[field] = None
    return tuple(fields)


def _instructions(raw: bytes) -> list[_Instruction]:
    """As `dis.get_instructions`, which takes ten times as long."""
    found, extension = [], 0
    for at, code, arg in zip(range(0, len(raw), 2), raw[::2], raw[1::2], strict=True):
        if code == _EXTENDED_ARG:
            extension = (extension | arg) << 8
        elif code not in _SKIPPED:
            found.append((at, opname[code], extension | arg))
            extension = 0
    return found


def _variables(name: str, arg: int) -> tuple[int, ...]:
    """The numbers of the local variables that an instruction uses; newer Pythons have some that use two."""
    return (arg >> 4, arg & 15) if name.count("_FAST") == 2 else (arg,)


def _field_read_at(code: CodeType, instructions: list[_Instruction], place: int, position: int) -> str | None:
    """The one field that is read where the payload is used; None if it is used in any other way."""
    _, name, arg = instructions[place]
    if name not in _LOADS and (name not in _LOADS_TWO or arg >> 4 == position):
        return None  # otherwise the payload is now at the top of the stack, and nowhere else on it
    following = instructions[place + 1 : place + 5]
    return (
        _field_of_subscript(code, following)
        or _field_of_get(code, following)
        or _field_looked_for(code, instructions, place)
    )


def _field_of_subscript(code: CodeType, following: list[_Instruction]) -> str | None:
    """``data["field"]``."""
    match following:
        case [(_, "LOAD_CONST", constant), (_, "BINARY_SUBSCR", _), *_]:
            return _text(code, constant)
        case [(_, "LOAD_CONST", constant), (_, "BINARY_OP", operator), *_] if operator == _SUBSCRIPT_OPERATOR:
            return _text(code, constant)
    return None


def _field_of_get(code: CodeType, following: list[_Instruction]) -> str | None:
    """``data.get("field")``, or with a default that is a constant, a variable or an empty container."""
    match following:
        case [(_, "LOAD_METHOD", method), (_, "LOAD_CONST", constant), *call] if code.co_names[method] == "get":
            return _text(code, constant) if _is_call_of_get(call) else None
        case [(_, "LOAD_ATTR", method), (_, "LOAD_CONST", constant), *call] if (
            method & 1 and code.co_names[method >> 1] == "get"
        ):
            return _text(code, constant) if _is_call_of_get(call) else None
    return None


def _is_call_of_get(call: list[_Instruction]) -> bool:
    match call:
        case [(_, "CALL", 1), *_]:
            return True
        case [(_, name, arg), (_, "CALL", 2)]:
            return name in _PUSHES_ONE or (name in _MAKES_EMPTY and arg == 0)
    return False


def _field_looked_for(code: CodeType, instructions: list[_Instruction], place: int) -> str | None:
    """``"field" in data``."""
    match instructions[place - 1 : place + 2]:
        case [(_, "LOAD_CONST", constant), (at, load, _), (_, "CONTAINS_OP", _)] if load in _LOADS:
            is_jumped_to = at in findlabels(code.co_code)  # type: ignore[arg-type]  # the stubs ask for a function
            return None if is_jumped_to else _text(code, constant)
    return None


def _text(code: CodeType, constant: int) -> str | None:
    value = code.co_consts[constant]
    return value if type(value) is str else None
