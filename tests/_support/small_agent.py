"""The smallest agent that can be broken: modules made of plain functions, a plan over them, ways to stop it and count.

For tests of the kernel as a whole. Everything is mounted in process, so a fault is a few lines in the test itself.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from amplifier import AmplifierSession, ModuleLoader, ToolResult

if TYPE_CHECKING:
    import pytest  # for its type only: child processes use this file, too, and start faster without

Mount = Any
"""What `ModuleLoader.register` takes: a mount function, or an object that has one."""


@attrs.frozen
class Turn:
    """What an orchestrator is given for one turn."""

    prompt: str
    context: Any
    providers: dict[str, Any]
    tools: dict[str, Any]
    hooks: Any
    coordinator: Any


Body = Callable[[Turn], Awaitable[Any]]


class Loop:
    """An orchestrator whose turn is a function."""

    def __init__(self, body: Body) -> None:
        self._body = body

    async def execute(
        self,
        prompt: str,
        context: Any,
        providers: dict[str, Any],
        tools: dict[str, Any],
        hooks: Any,
        coordinator: Any,
    ) -> Any:
        return await self._body(Turn(prompt, context, providers, tools, hooks, coordinator))


class Memory:
    """A context manager that keeps everything."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    async def add_message(self, message: Any) -> None:
        self.messages.append(message)

    async def get_messages(self) -> list[Any]:
        return list(self.messages)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any = None
    ) -> list[Any]:
        return list(self.messages)

    async def set_messages(self, messages: list[Any]) -> None:
        self.messages = list(messages)

    async def clear(self) -> None:
        self.messages = []


class Echo:
    """A tool that gives back what it got."""

    description = "Gives back its input."

    def __init__(self, name: str = "echo") -> None:
        self.name = name

    async def execute(self, input: Any) -> ToolResult:  # noqa: A002  # the contract's name
        return ToolResult(output=input)


def mounting(instance: Any, cleanup: Callable[[], Any] | None = None) -> Mount:
    """A mount function that returns an instance and, if there is one, registers its cleanup."""

    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        if cleanup is not None:
            coordinator.register_cleanup(cleanup)
        return instance

    return mount


async def repeat_prompt(turn: Turn) -> str:
    return turn.prompt


def agent(
    body: Body = repeat_prompt,
    *,
    orchestrator: Mount = None,
    context: Mount = None,
    providers: Mapping[str, Mount] | None = None,
    tools: Mapping[str, Mount] | None = None,
    hooks: Mapping[str, Mount] | None = None,
    session: Mapping[str, Any] | None = None,
    **options: Any,
) -> AmplifierSession:
    """A session, not opened yet, whose modules are the given mount functions by id."""
    modules: dict[str, Mount] = {
        "loop-small": orchestrator or mounting(Loop(body)),
        "context-small": context or mounting(Memory()),
    }
    plan: dict[str, Any] = {
        "session": {"orchestrator": "loop-small", "context": "context-small", **(session or {})}
    }
    for section, given in (("providers", providers), ("tools", tools), ("hooks", hooks)):
        plan[section] = [{"module": module_id} for module_id in given or ()]
        modules.update(given or {})
    return AmplifierSession(plan, loader=ModuleLoader(modules=modules), **options)


def heard(session: AmplifierSession, *events: str) -> list[tuple[str, dict[str, Any]]]:
    """The list that fills with every event of these names (all of them, if none is named)."""
    log: list[tuple[str, dict[str, Any]]] = []

    def note(event: str, data: dict[str, Any]) -> None:
        if event in events or not events:
            log.append((event, data))

    session.coordinator.hooks.register("*", note, priority=-1000, name="listener of the test")
    return log


# ── stopping ─────────────────────────────────────────────────────────────────────────────────────


def on_asyncio() -> bool:
    return anyio.get_cancelled_exc_class() is asyncio.CancelledError


async def give_up_after(
    seconds: float, how: str, fn: Callable[..., Awaitable[Any]], *args: Any
) -> None:
    """Call something and cancel it from outside.

    Args:
        seconds: When.
        how: ``"scope"``, or ``"native"`` for what ``asyncio.wait_for`` and web servers do; on trio there is only one
            kind of cancellation.
        fn: What to call.
        args: Its arguments.
    """
    if how == "native" and on_asyncio():
        with suppress(TimeoutError):
            await asyncio.wait_for(_coroutine(fn, args), seconds)
        return
    with anyio.move_on_after(seconds):
        await fn(*args)


async def _coroutine(fn: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> Any:
    return await fn(*args)


@contextmanager
def takes(seconds: float) -> Iterator[None]:
    """What is inside takes so long on the clock of the loop."""
    began = anyio.current_time()
    yield
    took = anyio.current_time() - began
    assert abs(took - seconds) <= 1e-6 * seconds, f"it took {took} s, expected {seconds} s"


def let_time_pass(seconds: float) -> None:
    """Move the virtual clock under code that blocks its thread."""
    if on_asyncio():
        asyncio.get_running_loop()._advance(seconds, 0.0)  # type: ignore[attr-defined]
    else:
        import trio.lowlevel

        trio.lowlevel.current_clock().jump(seconds)  # type: ignore[attr-defined]


# ── counting ─────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Count:
    """How often something happened; unlike seconds, the same on every machine."""

    count: int = 0


def counted_scopes(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Counts the cancel scopes of the running backend that are entered from now on."""
    scopes = Count()
    kind = type(anyio.CancelScope())
    real = kind.__enter__

    def counting(scope: Any) -> Any:
        scopes.count += 1
        return real(scope)

    monkeypatch.setattr(kind, "__enter__", counting)
    return scopes


_ONCE_PER_SECOND = (time.gmtime, time.strftime)
"""What the kernel's timestamp calls only when the clock has reached another second."""


@contextmanager
def counted_calls() -> Iterator[Count]:
    """Counts the calls of Python and C functions in this thread.

    Neither the clock nor the garbage collector changes the count: formatting a new second is not counted, and no
    collection runs, with the callbacks and finalizers it would call.
    """
    calls = Count()

    def note(frame: FrameType, what: str, argument: Any) -> None:
        if what == "call" or (what == "c_call" and argument not in _ONCE_PER_SECOND):
            calls.count += 1

    before = sys.getprofile()
    was_collecting = gc.isenabled()
    gc.disable()
    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(before)
        if was_collecting:
            gc.enable()
