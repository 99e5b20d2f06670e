"""Processes that a published tool starts and leaves behind when its call is cancelled.

The published kernel never cancels a tool, so published tools end their commands on their own timeout only. From the first call of
such a tool until the alias is uninstalled, ``subprocess.Popen`` records the processes that are started in the context of a call, by
asyncio, directly or in a worker thread. A cancelled call ends those that are still alive, with their process groups and descendants,
before its cancellation goes on; a call that returns leaves them alone, because the tool may intend that. Processes that have left
both their group and their parents (daemons) are not reached, and neither are those started without ``subprocess``.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MethodType
from typing import Any, Final

import anyio
import anyio.lowlevel

from amplifier._internal.json import redact_text
from amplifier._internal.processes import (
    Process,
    descendants,
    is_running,
    look_at,
    send_signal,
    send_to_group,
)
from amplifier.contracts.cancellation import is_cancellation_type
from amplifier.loading.importing import is_built_in

logger = logging.getLogger("amplifier_core.tools")

GRACE: Final = 0.3
"""Seconds between SIGTERM and SIGKILL."""
_KILLING: Final = 2.0
"""Seconds to wait for a process that was sent SIGKILL."""
_REAPING: Final = 2.0
"""Seconds for an event loop to notice that a process of its own has ended."""
_TURNS: Final = 5
"""Iterations of the event loop that it then takes to close the pipes."""
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
_LOOK: Final = 0.01
_MOST_SHOWN: Final = 120

_call: ContextVar[_Call | None] = ContextVar("amplifier_compat_tool_call", default=None)


def guard_tools(tools: Any) -> None:
    """End the processes of third-party tools with their calls; ours do so themselves. Without process groups nothing is done."""
    for name, tool in tools.items() if isinstance(tools, Mapping) and hasattr(os, "killpg") else ():
        # A budget wraps tools.
        if not is_built_in(type(getattr(tool, "__wrapped__", tool)).__module__):
            put_around(tool, functools.partial(_guarded, name))


def put_around(thing: Any, around: Callable[..., Awaitable[Any]]) -> None:
    """Have every call of ``thing.execute`` go through ``around(call, *args, **kwargs)``; repeating it does nothing.

    Only an async method that the object's class defines is wrapped: what a test has put there stays as it is. The wrapper
    is a method as well, so that a copy of the object calls itself and not the original.
    """
    method = getattr(thing, "execute", None)
    if (
        not inspect.ismethod(method)
        or method.__self__ is not thing
        or not inspect.iscoroutinefunction(method.__func__)
    ):
        return
    function: Any = method.__func__
    if hasattr(function, "is_around"):
        return

    @functools.wraps(function)
    async def calling(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await around(functools.partial(function, self), *args, **kwargs)

    calling.is_around = True  # type: ignore[attr-defined]  # read above, by the next call for this object
    with contextlib.suppress(AttributeError, TypeError):  # not every object takes attributes
        thing.execute = MethodType(calling, thing)  # type: ignore[attr-defined]  # mypy takes it for an object since the comparison


async def _guarded(
    tool: str, call: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any
) -> Any:
    noted = _Call(tool)
    with _noting(noted):
        try:
            return await call(*args, **kwargs)
        except GeneratorExit:
            noted.is_cancelled = True
            noted.signal(_KILL)  # nothing can be awaited any more
            raise
        except BaseException as exc:
            if is_cancellation_type(exc):
                noted.is_cancelled = True
                await noted.end()
            raise
        finally:
            noted.is_over = True


# ── what was started ─────────────────────────────────────────────────────────────────────────────


class _Process:
    """A process that a tool started, with what descends from it."""

    __slots__ = ("_group", "_is_of_the_loop", "_known", "popen")

    def __init__(self, popen: subprocess.Popen[Any], *, is_of_the_loop: bool) -> None:
        self.popen = popen
        self._is_of_the_loop = is_of_the_loop
        seen = look_at(popen.pid)
        self._known: set[Process] = set() if seen is None else {seen}
        try:
            self._group = os.getpgid(popen.pid)
        except OSError:  # it has ended already
            self._group = os.getpgrp()

    @property
    def is_alive(self) -> bool:
        """Whether it, or what was seen to descend from it, still runs. Nothing is reaped here: the owner of the process waits for it."""
        return any(map(is_running, self._known))

    def signal(self, number: signal.Signals) -> None:
        """Signal its group, unless that is our own, and whatever descends from it."""
        self._known |= {seen for seen in descendants(self.popen.pid) if seen.is_alive}
        if self._group != os.getpgrp():
            send_to_group(self._group, number)
        for known in self._known:
            send_signal(known, number)

    def is_reaped(self) -> bool:
        """Whether its end was waited for: by the event loop for its own processes, by us for others."""
        return (self.popen.returncode if self._is_of_the_loop else self.popen.poll()) is not None

    def __str__(self) -> str:
        args = self.popen.args
        words = " ".join(map(str, args)) if isinstance(args, list | tuple) else str(args)
        return f"{self.popen.pid} ({redact_text(words)[:_MOST_SHOWN]})"


class _Call:
    """One call of a tool and the processes that were started in it.

    Attributes:
        is_over: It has returned; what it left running may go on.
        is_cancelled: It was cancelled; what a worker thread of it was about to start ends at once.
    """

    __slots__ = ("_processes", "_tool", "is_cancelled", "is_over")

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._processes: list[_Process] = []
        self.is_over = False
        self.is_cancelled = False

    def note(self, popen: subprocess.Popen[Any], starter: str) -> None:
        """Record a process; the name of the Python module that started it shows whether it belongs to the event loop."""
        if self.is_over and not self.is_cancelled:
            return
        process = _Process(
            popen, is_of_the_loop=starter.startswith(("asyncio.", "trio.", "uvloop"))
        )
        self._processes.append(process)
        if self.is_cancelled:
            logger.warning(
                "tool %r was cancelled while it started process %s; it is ended",
                self._tool,
                process,
            )
            process.signal(_KILL)

    def signal(self, number: signal.Signals) -> list[_Process]:
        """Signal those that are alive; returns them."""
        alive = [process for process in self._processes if process.is_alive]
        for process in alive:
            process.signal(number)
        return alive

    async def end(self) -> None:
        """End what is alive, and wait until it is gone; bounded, also while being cancelled."""
        left = self.signal(signal.SIGTERM)
        if not left:
            return
        named = ", ".join(map(str, left))
        logger.warning(
            "tool %r was cancelled and left processes running: %s; they are ended",
            self._tool,
            named,
        )
        with anyio.CancelScope(shield=True):
            await _until(lambda: not any(process.is_alive for process in left), GRACE)
            for process in left:  # also those that have ended: others may be in their groups
                process.signal(_KILL)
            await _until(lambda: not any(process.is_alive for process in left), _KILLING)
            await _until(lambda: all(process.is_reaped() for process in left), _REAPING)
            for _ in range(_TURNS):
                await anyio.lowlevel.checkpoint()
        stubborn = ", ".join(str(process) for process in left if process.is_alive)
        if stubborn:
            logger.error(
                "tool %r: processes %s do not end although they were killed", self._tool, stubborn
            )


async def _until(is_so: Callable[[], bool], seconds: float) -> None:
    with anyio.move_on_after(seconds):
        while not is_so():  # noqa: ASYNC110 — the system reports the end of direct children only
            await anyio.sleep(_LOOK)


# ── noting what is started ───────────────────────────────────────────────────────────────────────

_original: Final[Any] = subprocess.Popen.__init__


@functools.wraps(_original)
def _noted_start(self: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
    _original(self, *args, **kwargs)
    call = _call.get()
    if call is not None:
        try:
            call.note(self, str(sys._getframe(1).f_globals.get("__name__")))
        except Exception:  # the process runs; a failure to record it must not fail the tool
            logger.exception("a process of a tool could not be recorded")


@contextmanager
def _noting(call: _Call) -> Iterator[None]:
    """Record what is started in this context, and in its worker threads even when the call is over."""
    if subprocess.Popen.__init__ is _original:
        subprocess.Popen.__init__ = _noted_start  # type: ignore[method-assign]  # taken back by `stop_noting`
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def stop_noting() -> None:
    """Restore ``Popen``; part of uninstalling the alias."""
    if subprocess.Popen.__init__ is _noted_start:
        subprocess.Popen.__init__ = _original  # type: ignore[method-assign]
