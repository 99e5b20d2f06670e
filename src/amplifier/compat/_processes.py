"""Processes that a published tool starts and leaves behind when its call is cancelled.

The published kernel never cancels a tool, so published tools end their commands on their own timeout only. While such a call runs,
``subprocess.Popen`` notes what is started in its context, asyncio's subprocesses and those of worker threads included. A call that is
cancelled ends those that are still alive, with their process groups and descendants, before its cancellation goes on; a call that
returns leaves them alone, because a tool may mean to. What has left both its group and its parents (a daemon) is not reached, and
neither is what is started without ``subprocess``.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

import anyio
import attrs

from amplifier._json import redact_text
from amplifier.contracts._containment import is_cancellation_type

from ._methods import put_around

logger = logging.getLogger("amplifier_core.tools")

GRACE: Final = 0.3
"""Seconds between asking the processes to end and killing them."""
_KILLING: Final = 2.0
"""Seconds after which a process that does not even die of SIGKILL is given up."""
_REAPING: Final = 0.5
"""Seconds for whoever started a process to notice that it has ended."""
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
_LOOK: Final = 0.01
_MOST_SHOWN: Final = 120

_call: ContextVar[_Call | None] = ContextVar("amplifier_compat_tool_call", default=None)


def guard_tools(tools: Any) -> None:
    """See to the processes of every tool that is not ours; ours see to their own."""
    for name, tool in tools.items() if isinstance(tools, Mapping) else ():
        if not type(tool).__module__.startswith("amplifier."):
            put_around(tool, "execute", functools.partial(_guarded, name), key="processes")


async def _guarded(tool: str, call: Callable[[], Awaitable[Any]]) -> Any:
    noted = _Call(tool)
    with _noting(noted):
        try:
            return await call()
        except GeneratorExit:
            noted.signal(_KILL)  # nothing can be awaited any more
            raise
        except BaseException as exc:
            if is_cancellation_type(exc):
                await noted.end()
            raise
        finally:
            noted.is_over = True


# ── what was started ─────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class _Seen:
    """A process at one moment; id and birth together belong to no other."""

    pid: int
    born: str
    state: str = attrs.field(eq=False)
    parent: int = attrs.field(eq=False)

    @property
    def is_alive(self) -> bool:
        """Whether it can still do anything; a zombie cannot."""
        return self.state not in ("Z", "X", "x")


def _look_at(pid: int) -> _Seen | None:
    """What ``/proc`` says about a process; where there is none, a process that can be signalled runs."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return _Seen(pid, "", "R", 0)
    # The program's name stands in brackets and may hold spaces and brackets itself.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Seen(pid, fields[19].decode(), fields[0].decode(), int(fields[1]))


class _Process:
    """A process that a tool started, with what descends from it."""

    __slots__ = ("_family", "_first", "_group", "popen")

    def __init__(self, popen: subprocess.Popen[Any]) -> None:
        self.popen = popen
        self._first = _look_at(popen.pid)
        self._family: set[_Seen] = set()
        try:
            self._group = os.getpgid(popen.pid)
        except OSError:  # it has ended already
            self._group = os.getpgrp()

    @property
    def is_alive(self) -> bool:
        """Whether it, or what was seen to descend from it, still runs. Nobody is reaped here: its owner waits for it."""
        known = {self._first, *self._family} - {None}
        return any((now := _look_at(one.pid)) == one and now.is_alive for one in known if one is not None)

    def signal(self, number: signal.Signals) -> None:
        """Signal its group, unless that is our own, and whatever descends from it."""
        self._family |= _descendants(self.popen.pid)
        if self._group != os.getpgrp():
            with contextlib.suppress(OSError):  # nobody is in it any more
                os.killpg(self._group, number)
        for one in [self._first, *self._family]:
            if one is not None and _look_at(one.pid) == one:
                with contextlib.suppress(OSError):  # gone, or another user's
                    os.kill(one.pid, number)

    def __str__(self) -> str:
        args = self.popen.args
        words = " ".join(map(str, args)) if isinstance(args, list | tuple) else str(args)
        return f"{self.popen.pid} ({redact_text(words)[:_MOST_SHOWN]})"


def _descendants(pid: int) -> set[_Seen]:
    by_parent: dict[int, list[_Seen]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        if (seen := _look_at(int(entry.name))) is not None:
            by_parent.setdefault(seen.parent, []).append(seen)
    found: set[_Seen] = set()
    pending = [pid]
    while pending:
        children = by_parent.get(pending.pop(), [])
        found.update(children)
        pending += [child.pid for child in children]
    return found


class _Call:
    """One call of a tool and the processes that were started in it."""

    __slots__ = ("_processes", "_tool", "is_over")

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._processes: list[_Process] = []
        self.is_over = False

    def note(self, popen: subprocess.Popen[Any]) -> None:
        if not self.is_over:
            self._processes.append(_Process(popen))

    def signal(self, number: signal.Signals) -> list[_Process]:
        """Signal those that are alive; gives them."""
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
        logger.warning("tool %r was cancelled and left processes running: %s; they are ended", self._tool, named)
        with anyio.CancelScope(shield=True):
            await _until(lambda: not any(process.is_alive for process in left), GRACE)
            for process in left:  # also those that have ended: others may be in their groups
                process.signal(_KILL)
            await _until(lambda: not any(process.is_alive for process in left), _KILLING)
            # Whoever started them waits for them, as asyncio does in a moment; what nobody waits for is reaped here.
            await _until(lambda: all(process.popen.returncode is not None for process in left), _REAPING)
        for process in left:
            process.popen.poll()
        stubborn = ", ".join(str(process) for process in left if process.is_alive)
        if stubborn:
            logger.error("tool %r: processes %s do not end although they were killed", self._tool, stubborn)


async def _until(is_so: Callable[[], bool], seconds: float) -> None:
    with anyio.move_on_after(seconds):
        while not is_so():  # noqa: ASYNC110 — the system tells of no end but that of its own children
            await anyio.sleep(_LOOK)


# ── noting what is started ───────────────────────────────────────────────────────────────────────

_lock: Final = threading.Lock()
_running: Final[list[_Call]] = []
_original: Final[Any] = subprocess.Popen.__init__


@functools.wraps(_original)
def _noted_start(self: subprocess.Popen[Any], *args: Any, **kwargs: Any) -> None:
    _original(self, *args, **kwargs)
    call = _call.get()
    if call is not None:
        call.note(self)


@contextmanager
def _noting(call: _Call) -> Iterator[None]:
    """Note what is started in this context. Popen is as it always was when no such call runs."""
    with _lock:
        if not _running and subprocess.Popen.__init__ is _original:
            subprocess.Popen.__init__ = _noted_start  # type: ignore[method-assign]  # taken back below
        _running.append(call)
    token = _call.set(call)
    try:
        yield
    finally:
        _call.reset(token)
        with _lock:
            _running.remove(call)
            if not _running and subprocess.Popen.__init__ is _noted_start:
                subprocess.Popen.__init__ = _original  # type: ignore[method-assign]
