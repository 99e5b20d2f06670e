"""What holds for every Protocol alike: checkable at run time, readable by tools, one public module."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from amplifier import contracts

PROTOCOLS = [value for value in vars(contracts).values() if getattr(value, "_is_protocol", False)]


def members(protocol: type) -> Iterator[tuple[str, object]]:
    for name, value in vars(protocol).items():
        function = value.fget if isinstance(value, property) else value
        if inspect.isfunction(function) and function.__doc__ is not None:
            yield name, function


MEMBERS = [
    (protocol, name, function) for protocol in PROTOCOLS for name, function in members(protocol)
]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocol_is_runtime_checkable(
    protocol: type,
) -> None:
    assert not isinstance(object(), protocol)
    assert isinstance(typing.get_type_hints(protocol), dict)


@pytest.mark.parametrize(("protocol", "name", "function"), MEMBERS)
def test_member_type_hints_are_complete(
    protocol: type, name: str, function: Callable[..., Any]
) -> None:
    hints = typing.get_type_hints(function)
    parameters = [name for name in inspect.signature(function).parameters if name != "self"]
    assert set(hints) == {*parameters, "return"}, f"{protocol.__name__}.{name}"


def test_type_hints_of_named_types_resolve() -> None:
    simple, structured = typing.get_args(contracts.MountFunction)
    assert (simple, structured) == (contracts.SimpleMount, contracts.StructuredMount)
    assert typing.get_args(simple)[0][0] is contracts.Coordinator
    assert set(typing.get_args(contracts.MountPoint)) == {
        "orchestrator",
        "context",
        "providers",
        "tools",
        "hooks",
        "module-source-resolver",
    }
