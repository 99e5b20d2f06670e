"""Runs one async function on one backend only, for what exists on that backend alone, such as a native cancel.

The call, or a test with the decorator, is an ordinary ``def test_…`` to pytest, so a test of asyncio's own ways needs no skip on trio. Time is virtual.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio

from amplifier.testing.virtual_time import virtual_backend

T = TypeVar("T")


def run_on(backend: str, main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run ``main(*args)`` on ``"asyncio"`` or ``"trio"`` in virtual time; a wait of an hour fails the test."""
    name, options = virtual_backend(backend)

    async def bounded() -> T:
        with anyio.fail_after(3600):
            return await main(*args)

    return anyio.run(bounded, backend=name, backend_options=options)


def run_on_asyncio(main: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Run ``main(*args)`` as asyncio's main task, without any cancel scope around it."""
    name, options = virtual_backend("asyncio")
    return anyio.run(main, *args, backend=name, backend_options=options)


def on_asyncio(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Make a test of an async function that is about asyncio's own ways: it is asyncio's main task."""

    @functools.wraps(test)
    def alone(**given: Any) -> None:
        run_on_asyncio(functools.partial(test, **given))

    return alone


async def loop_turns(count: int = 3) -> None:
    """Let everything that is runnable on asyncio run, ``count`` times; no time passes."""
    for _ in range(count):
        await asyncio.sleep(0)
