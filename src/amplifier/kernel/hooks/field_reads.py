"""Which fields of its payload a handler reads, as far as its code shows that beforehand.

A handler that reads ``data["tool_name"]`` and nothing else cannot notice that the rest of the payload is missing, so the rest need
not be copied for it. Whatever is not certain counts as reading everything.
"""

from __future__ import annotations

import dis
import sys
from dis import Instruction
from functools import lru_cache
from types import CodeType, FunctionType, MethodType
from typing import Any

_LOADS = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW"})
_LOADS_LAST_OF_TWO = frozenset(
    {"LOAD_FAST_LOAD_FAST", "LOAD_FAST_BORROW_LOAD_FAST_BORROW", "STORE_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST_BORROW"}
)
_PUSHES_ONE = frozenset(
    {"LOAD_CONST", "LOAD_SMALL_INT", "LOAD_FAST", "LOAD_FAST_BORROW", "BUILD_MAP", "BUILD_LIST", "BUILD_TUPLE"}
)
_LOOKS_AT_FRAMES = frozenset(
    [
        "locals",
        "vars",
        "eval",
        "exec",
        "dir",
        "breakpoint",
        "set_trace",
        "_getframe",
        "currentframe",
        "stack",
        "f_locals",
    ]
)


def fields_read_by(handler: Any) -> tuple[str, ...] | None:
    """The top-level fields of the payload that a handler can read; None for all of them, also if that is not known.

    A debugger shows the payload as it is, so under one every handler gets all of it.
    """
    if type(handler) is FunctionType:
        code, at = handler.__code__, 1
    elif type(handler) is MethodType and type(handler.__func__) is FunctionType:
        code, at = handler.__func__.__code__, 2
    else:
        return None
    return None if _is_debugged() else _fields_read(code, at)


def _is_debugged() -> bool:
    if sys.gettrace() is not None:
        return True
    return sys.version_info >= (3, 12) and sys.monitoring.get_tool(sys.monitoring.DEBUGGER_ID) is not None


@lru_cache(maxsize=4096)
def _fields_read(code: CodeType, at: int) -> tuple[str, ...] | None:
    """The fields that are read of the argument at this position."""
    if code.co_argcount <= at or not _LOOKS_AT_FRAMES.isdisjoint(code.co_names):
        return None
    payload = code.co_varnames[at]
    if payload in code.co_cellvars:
        return None
    instructions = [each for each in dis.get_instructions(code) if each.opname != "PRECALL"]
    fields: dict[str, None] = {}
    for place, instruction in enumerate(instructions):
        if not _uses(instruction, payload):
            continue
        field = _field_read_at(instructions, place, payload)
        if field is None:
            return None
        fields[field] = None
    return tuple(fields)


def _uses(instruction: Instruction, payload: str) -> bool:
    if instruction.opcode not in dis.haslocal:
        return False
    names = instruction.argval
    return payload in names if isinstance(names, tuple) else names == payload or not isinstance(names, str)


def _field_read_at(instructions: list[Instruction], place: int, payload: str) -> str | None:
    """The one field that is read where the payload is used; None if it is used in any other way."""
    if not _loads(instructions[place], payload):
        return None
    following = instructions[place + 1 : place + 5]
    for field in (_field_of_subscript(following), _field_of_get(following), _field_looked_for(instructions, place)):
        if field is not None:
            return field
    return None


def _loads(instruction: Instruction, payload: str) -> bool:
    """Whether the payload, and nothing else of it, is now at the top of the stack."""
    if instruction.opname in _LOADS:
        return bool(instruction.argval == payload)
    if instruction.opname not in _LOADS_LAST_OF_TWO:
        return False
    first, last = instruction.argval
    return bool(last == payload and first != payload)


def _field_of_subscript(following: list[Instruction]) -> str | None:
    """``data["field"]``."""
    match following:
        case [Instruction(opname="LOAD_CONST", argval=str(field)), Instruction(opname=opname, argrepr=shown), *_]:
            is_subscript = opname == "BINARY_SUBSCR" or (opname == "BINARY_OP" and shown == "[]")
            return field if is_subscript else None
    return None


def _field_of_get(following: list[Instruction]) -> str | None:
    """``data.get("field")``, or with a default that is a constant, a variable or an empty container."""
    match following:
        case [
            Instruction(opname="LOAD_METHOD" | "LOAD_ATTR", argval="get"),
            Instruction(opname="LOAD_CONST", argval=str(field)),
            *call,
        ]:
            return field if _is_call_of_get(call) else None
    return None


def _is_call_of_get(call: list[Instruction]) -> bool:
    match call:
        case [Instruction(opname="CALL", arg=1), *_]:
            return True
        case [Instruction(opname=opname, arg=arg), Instruction(opname="CALL", arg=2)]:
            return opname in _PUSHES_ONE and not (opname.startswith("BUILD") and arg)
    return False


def _field_looked_for(instructions: list[Instruction], place: int) -> str | None:
    """``"field" in data``."""
    before, load, after = instructions[place - 1], instructions[place], instructions[place + 1]
    follows_directly = load.opname in _LOADS and not load.is_jump_target
    is_search = follows_directly and before.opname == "LOAD_CONST" and after.opname == "CONTAINS_OP"
    return before.argval if is_search and isinstance(before.argval, str) else None
