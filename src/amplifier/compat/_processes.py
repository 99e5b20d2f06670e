"""End the processes that a published tool leaves behind when its call is cancelled."""

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
_KILL_TIMEOUT: Final = 2.0
"""Seconds to wait for a process after SIGKILL."""
_REAP_TIMEOUT: Final = 2.0
"""Seconds for an event loop to notice the end of a process that it started."""
_ITERATIONS_TO_CLOSE: Final = 5
"""Iterations of the event loop in which it then closes the pipes."""
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
_POLL_INTERVAL: Final = 0.01
_MAX_COMMAND_CHARS: Final = 120

_call: ContextVar[_Call | None] = ContextVar("amplifier_compat_tool_call", default=None)


# The published kernel never cancels a tool, so published tools end their commands only on their own
# timeout. From the first call of such a tool until the alias is uninstalled, ``subprocess.Popen``
# records the processes that are started in the context of a call, by asyncio, directly or in a
# worker thread. A cancelled call ends the ones that are alive, with their process groups and
# descendants, before its cancellation propagates. A call that returns leaves them alone, because
# the tool may intend that. Processes that have left both their group and their parents (daemons)
# aren't reached, and neither are those started without ``subprocess``.


def guard_tools(tools: object) -> None:
    """End the processes of third-party tools with their calls. Our tools do so themselves.

    Nothing is done on a system without process groups.
    """
    for name, tool in tools.items() if isinstance(tools, Mapping) and hasattr(os, "killpg") else ():
        # A budget wraps tools.
        if not is_built_in(type(getattr(tool, "__wrapped__", tool)).__module__):
            wrap_execute(tool, functools.partial(_guarded, name))


def wrap_execute(module: object, around: Callable[..., Awaitable[object]]) -> None:
    """Let every call of ``module.execute`` go through ``around(call, *args, **kwargs)``.

    A second call does nothing. Only an async method that the object's class defines is wrapped, so
    the replacement by a test stays as it is. The wrapper is also a method, so that a copy of the
    object calls itself and not the original.
    """
    method = getattr(module, "execute", None)
    if (
        not inspect.ismethod(method)
        or method.__self__ is not module
        or not inspect.iscoroutinefunction(method.__func__)
    ):
        return
    function: Any = method.__func__
    if hasattr(function, "is_around"):
        return

    @functools.wraps(function)
    async def calling(self: object, *args: object, **kwargs: object) -> object:
        return await around(functools.partial(function, self), *args, **kwargs)

    # The next call for this object reads it above.
    calling.is_around = True  # type: ignore[attr-defined]
    # Some objects don't accept attributes.
    with contextlib.suppress(AttributeError, TypeError):
        module.execute = MethodType(calling, module)  # type: ignore[attr-defined]


async def _guarded(
    tool: str, call: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object
) -> object:
    record = _Call(tool)
    with _recording(record):
        try:
            return await call(*args, **kwargs)
        except GeneratorExit:
            record.is_cancelled = True
            # Nothing can be awaited at this point.
            record.signal(_KILL)
            raise
        except BaseException as exc:
            if is_cancellation_type(exc):
                record.is_cancelled = True
                await record.end()
            raise
        finally:
            record.is_over = True


# ── started processes ────────────────────────────────────────────────────────────────────────────


class _Process:
    """A process that a tool started, with its descendants."""

    __slots__ = ("_group", "_is_of_the_loop", "_known", "popen")

    def __init__(self, popen: subprocess.Popen[Any], *, is_of_the_loop: bool) -> None:
        self.popen = popen
        self._is_of_the_loop = is_of_the_loop
        process = look_at(popen.pid)
        self._known: set[Process] = set() if process is None else {process}
        try:
            self._group = os.getpgid(popen.pid)
        # The process has already ended.
        except OSError:
            self._group = os.getpgrp()

    @property
    def is_alive(self) -> bool:
        """True if it, or a descendant that was seen, still runs.

        Nothing is reaped here, because the owner of the process waits for it.
        """
        return any(map(is_running, self._known))

    def signal(self, number: signal.Signals) -> None:
        """Signal the descendants of the process, and its group unless that is our own."""
        self._known |= {process for process in descendants(self.popen.pid) if process.is_alive}
        if self._group != os.getpgrp():
            send_to_group(self._group, number)
        for process in self._known:
            send_signal(process, number)

    def is_reaped(self) -> bool:
        """Return whether it was reaped: by the event loop that started it, or otherwise by us."""
        return (self.popen.returncode if self._is_of_the_loop else self.popen.poll()) is not None

    def __str__(self) -> str:
        args = self.popen.args
        command = " ".join(map(str, args)) if isinstance(args, list | tuple) else str(args)
        return f"{self.popen.pid} ({redact_text(command)[:_MAX_COMMAND_CHARS]})"


class _Call:
    """One call of a tool and the processes that were started in it.

    Attributes:
        is_over: True after its return. Processes that it left running may continue.
        is_cancelled: True if it was cancelled. A process that one of its worker threads starts
            later is ended at once.
    """

    __slots__ = ("_processes", "_tool", "is_cancelled", "is_over")

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._processes: list[_Process] = []
        self.is_over = False
        self.is_cancelled = False

    def add(self, popen: subprocess.Popen[Any], starter: str) -> None:
        """Record a process. It belongs to the event loop if the module ``starter`` does."""
        if self.is_over and not self.is_cancelled:
            return
        process = _Process(
            popen, is_of_the_loop=starter.startswith(("asyncio.", "trio.", "uvloop"))
        )
        self._processes.append(process)
        if self.is_cancelled:
            logger.warning(
                "tool %r was cancelled while it started process %s, which is ended",
                self._tool,
                process,
            )
            process.signal(_KILL)

    def signal(self, number: signal.Signals) -> list[_Process]:
        """Signal the processes that are alive, and return them."""
        alive = [process for process in self._processes if process.is_alive]
        for process in alive:
            process.signal(number)
        return alive

    async def end(self) -> None:
        """End the processes that are alive, and wait for their end, within bounds and shielded."""
        left = self.signal(signal.SIGTERM)
        if not left:
            return
        names = ", ".join(map(str, left))
        logger.warning(
            "tool %r was cancelled and left processes running, which are ended: %s",
            self._tool,
            names,
        )
        with anyio.CancelScope(shield=True):
            await _until(lambda: not any(process.is_alive for process in left), GRACE)
            # This includes those that have ended, because others may be in their groups.
            for process in left:
                process.signal(_KILL)
            await _until(lambda: not any(process.is_alive for process in left), _KILL_TIMEOUT)
            await _until(lambda: all(process.is_reaped() for process in left), _REAP_TIMEOUT)
            for _ in range(_ITERATIONS_TO_CLOSE):
                await anyio.lowlevel.checkpoint()
        alive = ", ".join(str(process) for process in left if process.is_alive)
        if alive:
            logger.error("tool %r: processes are still alive after SIGKILL: %s", self._tool, alive)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    with anyio.move_on_after(seconds):
        # The system reports the end of direct children only.
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(_POLL_INTERVAL)


# ── recording ────────────────────────────────────────────────────────────────────────────────────

_original: Final[Any] = subprocess.Popen.__init__


@functools.wraps(_original)
def _recorded_start(self: subprocess.Popen[Any], *args: object, **kwargs: object) -> None:
    _original(self, *args, **kwargs)
    call = _call.get()
    if call is not None:
        try:
            call.add(self, str(sys._getframe(1).f_globals.get("__name__")))
        # The process is running, and a failure to record it must not fail the tool.
        except Exception:
            logger.exception("a process of a tool could not be recorded")


@contextmanager
def _recording(call: _Call) -> Iterator[None]:
    """Record the processes of this context, and those of its worker threads even after the call."""
    if subprocess.Popen.__init__ is _original:
        # `stop_recording` restores it.
        subprocess.Popen.__init__ = _recorded_start  # type: ignore[method-assign]
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)


def stop_recording() -> None:
    """Restore ``Popen``, when the alias is uninstalled."""
    if subprocess.Popen.__init__ is _recorded_start:
        subprocess.Popen.__init__ = _original  # type: ignore[method-assign]
