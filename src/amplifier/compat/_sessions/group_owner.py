"""A task that owns a session's task group, for sessions that are opened and closed by hand.

A task group must be entered and left by one task, and published code calls ``initialize()`` and ``cleanup()`` from any two.
The group therefore lives in a task of its own, which is started when the first module needs it (a structured mount, background work).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import anyio

from amplifier.contracts._containment import running_asyncio_loop
from amplifier.kernel.runtime.task_host import TaskHost


class Owner:
    """Opens the group on demand and closes it at the end."""

    __slots__ = ("_ended", "_failure", "_hosting", "_started", "_stop", "_task", "_waiting")

    def __init__(self, hosting: TaskHost) -> None:
        self._hosting = hosting
        self._started: anyio.Event | None = None
        self._stop: anyio.Event | None = None
        self._ended: anyio.Event | None = None
        self._task: Any = None
        self._failure: BaseException | None = None
        self._waiting: list[Callable[[], None]] = []

    async def start(self) -> None:
        """Have a task group, unless there is one."""
        if self._hosting.group is None:
            await self._begin().wait()

    def call_with_group(self, fn: Callable[[], None]) -> None:
        """Call ``fn`` as soon as there is a task group: now, or in a moment."""
        if self._hosting.group is not None:
            fn()
        else:
            self._waiting.append(fn)
            self._begin()

    async def settle(self) -> None:
        """Wait for a group that is being opened, so that what waits for it has begun."""
        if self._started is not None:
            await self._started.wait()

    def _begin(self) -> anyio.Event:
        if self._started is None:
            self._started, self._stop, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
            loop = running_asyncio_loop()
            if loop is not None:
                self._task = loop.create_task(self._own(), name="amplifier session owner")
            else:
                self._task = sys.modules["trio"].lowlevel.spawn_system_task(self._own)
        return self._started

    async def end(self) -> None:
        """Leave the group, in which nothing runs any more, and wait until it is left.

        Raises:
            BaseException: The error of background work that was started as fatal.
        """
        if self._stop is None or self._ended is None:
            return
        self._stop.set()
        await self._ended.wait()
        self._started = self._stop = self._ended = self._task = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    async def _own(self) -> None:
        assert self._started is not None
        assert self._stop is not None
        assert self._ended is not None
        ended = self._ended
        try:
            async with anyio.create_task_group() as group:
                self._hosting.use_group(group)
                while self._waiting:
                    self._waiting.pop(0)()
                self._started.set()
                await self._stop.wait()
        except BaseException as exc:  # noqa: BLE001 — raised again by `end`
            self._failure = exc
        finally:
            self._hosting.use_group(None)
            self._started.set()
            ended.set()
