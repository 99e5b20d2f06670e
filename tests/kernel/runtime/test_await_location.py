from __future__ import annotations

import types
from collections.abc import AsyncIterator, Generator
from typing import Any

import anyio
import pytest
import trio

from amplifier.kernel.runtime.frames import where_suspended
from tests.kernel.backends_alone import run_on


@types.coroutine
def pause() -> Generator[None, None, None]:
    yield


async def inner() -> None:
    await pause()


async def outer() -> None:
    await inner()


def suspended(coroutine: Any) -> Any:
    coroutine.send(None)
    return coroutine


def line_of(function: Any, offset: int) -> str:
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno + offset} in {code.co_qualname}"


def test_innermost_await_has_file_line_function():
    coroutine = suspended(outer())
    # A generator-based coroutine is as good a place as any other: `pause` itself is at its yield.
    assert where_suspended(coroutine) == line_of(pause, 2)
    coroutine.close()


def test_unstarted_coroutine_is_at_first_line():
    coroutine = outer()
    assert where_suspended(coroutine) == line_of(outer, 0)
    coroutine.close()


def test_finished_or_opaque_awaitable_is_unknown():
    coroutine = outer()
    coroutine.close()
    assert [where_suspended(thing) for thing in (coroutine, None, object(), 3)] == ["unknown"] * 4


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_event_loop_frames_are_hidden(backend):
    async def module_code() -> None:
        await anyio.sleep(30)

    async def main() -> str:
        seen = ""
        coroutine = module_code()

        async def look() -> None:
            nonlocal seen
            await anyio.lowlevel.checkpoint()
            seen = where_suspended(coroutine)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await coroutine
        return seen

    assert run_on(backend, main) == line_of(module_code, 1)


@pytest.mark.parametrize("folder", ["anyio", "trio", "asyncio"])
def test_module_in_backend_named_folder_is_shown(folder):
    source = "async def handler(pause):\n    await pause()\n"
    namespace: dict[str, Any] = {"__name__": "my_hooks"}
    exec(compile(source, f"/srv/{folder}/my_hooks.py", "exec"), namespace)

    @types.coroutine
    def backend_pause() -> Generator[None, None, None]:
        yield

    # The awaitable below is anyio's own, judging by its globals.
    machinery = types.FunctionType(backend_pause.__code__, {"__name__": "anyio._core._eventloop"})
    coroutine = suspended(namespace["handler"](types.coroutine(machinery)))
    assert where_suspended(coroutine) == f"/srv/{folder}/my_hooks.py:2 in handler"
    coroutine.close()


def test_asynchronous_generator_is_inspected():
    async def numbers() -> AsyncIterator[int]:
        await pause()
        yield 1

    generator = numbers()
    step = generator.__anext__()
    step.send(None)  # type: ignore[attr-defined]
    assert where_suspended(generator) == line_of(pause, 2)
    step.close()  # type: ignore[attr-defined]


def test_endless_chain_is_abandoned():
    class Endless:
        def __init__(self) -> None:
            self.cr_await = self

    assert where_suspended(Endless()) == "unknown"


def test_iterated_async_generator_is_unseen():
    async def numbers() -> AsyncIterator[int]:
        await pause()
        yield 1

    async def reader() -> None:
        async for _ in numbers():
            pass

    # `async for` awaits a built-in object that does not show the generator behind it.
    coroutine = suspended(reader())
    assert where_suspended(coroutine) == f"{line_of(reader, 1)}, inside an asynchronous generator"
    coroutine.close()


def test_trio_shows_iterated_async_generator():
    async def numbers() -> AsyncIterator[int]:
        await anyio.sleep(30)
        yield 1

    async def reader() -> None:
        async for _ in numbers():
            pass

    async def main() -> str:
        coroutine, seen = reader(), ""
        task = trio.lowlevel.current_task()

        async def look() -> None:
            nonlocal seen
            await anyio.lowlevel.checkpoint()
            seen = where_suspended(coroutine, task)
            group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(look)
            await coroutine
        return seen

    assert run_on("trio", main) == line_of(numbers, 1)
