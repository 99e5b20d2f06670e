"""Whether the code of a function waits: what is said to wait for nothing ends with its first step."""

from __future__ import annotations

import asyncio
import functools
import types
from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from amplifier.kernel.runtime.stepping import never_waits


async def numbers() -> AsyncIterator[int]:
    yield 1


@asynccontextmanager
async def managed() -> AsyncIterator[None]:
    yield


async def nothing() -> None:
    pass


async def branches() -> int:
    with memoryview(b"12") as view:
        return sum(number for number in view if number) if view else len([each + 1 for each in view])


async def awaits() -> None:
    await nothing()


async def awaits_rarely() -> None:
    if numbers is None:
        await nothing()


async def iterates() -> None:
    async for _ in numbers():
        pass


async def enters() -> None:
    async with managed():
        pass


async def collects() -> list[int]:
    return [number async for number in numbers()]


async def collects_in_a_group() -> list[int]:
    async with asyncio.TaskGroup():
        return [1]


def plain() -> None:
    pass


def passes_on() -> Any:
    return awaits()


@types.coroutine
def generator_based() -> Generator[None, None, None]:
    yield


class Handlers:
    async def method(self) -> None:
        pass

    async def awaiting_method(self) -> None:
        await nothing()

    async def __call__(self) -> None:
        pass


class Proxy:
    """Forwards everything to a method, and waits."""

    def __init__(self, method: Any) -> None:
        self._method = method

    def __getattr__(self, name: str) -> Any:
        return getattr(self._method, name)

    async def __call__(self) -> None:
        await awaits()


@pytest.mark.parametrize("function", [nothing, branches, Handlers().method, Handlers.method])
def test_an_async_function_without_an_await_never_waits(function):
    assert never_waits(function)
    given = [] if function is not Handlers.method else [Handlers()]
    with pytest.raises(StopIteration):
        function(*given).send(None)


@pytest.mark.parametrize(
    "function",
    [
        awaits,
        awaits_rarely,
        iterates,
        enters,
        collects,
        collects_in_a_group,
        Handlers().awaiting_method,
        numbers,
        generator_based,
        plain,
        passes_on,
        lambda: (nothing(),)[0],
        functools.partial(nothing),
        functools.wraps(nothing)(awaits),
        Handlers(),
        Proxy(Handlers().method),
        asyncio.sleep,
        len,
        None,
    ],
)
def test_what_may_wait_or_is_not_known_is_not_said_to_never_wait(function):
    assert not never_waits(function)
