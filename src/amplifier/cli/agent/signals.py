"""Signal handling: the effects of Ctrl-C and of signals that end a process."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from signal import Signals
from typing import Any, TypeVar

import anyio

from amplifier.cli._sessions import running_folder
from amplifier.cli.terminal.display import Display
from amplifier.loading.loader import require_backend
from amplifier.tracing import export_traces
from amplifier.tracing.running_commands import answer_task_requests

from .configuration import load_keys

T = TypeVar("T")

FORCE_EXIT_AFTER = 2.0
"""Seconds after "stop now" in which a further Ctrl-C is ignored; later ones end the process."""


def run_observed(
    function: Callable[[], Awaitable[T]],
    name: str,
    display: Display,
    *,
    backend: str,
    otel: str | None,
    is_server: bool = False,
) -> T:
    """Run a command with its keys, with traces, and with its tasks visible under a name.

    On asyncio, a server runs on uvloop, which its extra installs.
    """
    require_backend(backend)
    load_keys()
    with (
        answer_task_requests(running_folder(), name, backend, display.show_immediately),
        export_traces(otel, partial(display.notice, level="warning")),
    ):
        is_fast = is_server and backend == "asyncio" and find_spec("uvloop") is not None
        options = {"use_uvloop": True} if is_fast else {}
        return anyio.run(function, backend=backend, backend_options=options)


def handled_signals() -> list[Signals]:
    """Return the signals to handle, without those that the parent process ignores (nohup)."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


async def until_signal(
    serve: Callable[[], Awaitable[object]],
    stop: Callable[[], object] | None = None,
    handled: Sequence[Signals] | None = None,
) -> Signals | None:
    """Run a server until it ends or a signal arrives, and return the signal.

    Args:
        serve: Runs the server.
        stop: Called for the first signal to end the server. Without it, the first signal cancels
            the server. A second signal always cancels it.
        handled: The signals. By default those of `handled_signals`.
    """
    ended_by: list[Signals] = []
    problem: Exception | None = None
    with anyio.open_signal_receiver(*(handled or handled_signals())) as signals:
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                async for received in signals:
                    ended_by.append(received)
                    if stop is None or len(ended_by) > 1:
                        group.cancel_scope.cancel()
                    else:
                        stop()

            group.start_soon(watch)
            try:
                await serve()
            # Raise the error below, outside the task group, which would wrap it.
            except Exception as error:  # noqa: BLE001
                problem = error
            group.cancel_scope.cancel()
    if problem is not None:
        raise problem
    return ended_by[0] if ended_by else None


#     while …            Ctrl-C                                            SIGTERM, SIGHUP
#     a turn runs        1st: stop after the running step, 2nd: stop now   everything is cancelled,
#     the prompt waits   drop the line, on an empty line twice: leave      the session is closed,
#     anything else      everything is cancelled                           exit code 128 + signal
#
# A Ctrl-C pressed shortly after the ones that stopped a turn has no effect, because the user may
# press the key again before the turn has ended.
#
# Code that ignores its cancellation can't be ended from inside the process. So a Ctrl-C pressed
# seconds after "stop now" ends the process immediately, even if something is left behind.
class SignalHandler:
    """Decides the effect of a signal.

    Args:
        display: Shows the effect.

    Attributes:
        scope: The scope around the whole command.
        ended_by: The signal that ended the command, or None.
        before_exit: Called before the process ends immediately.
    """

    def __init__(self, display: Display) -> None:
        self._display = display
        self._token: Any = None
        self._on_interrupt: Callable[[], None] | None = None
        self._stopping_since: float | None = None
        # The time of the latest Ctrl-C that stopped a turn or followed shortly after one that did.
        self._interrupted_at = -math.inf
        self.scope: anyio.CancelScope = anyio.CancelScope()
        self.ended_by: Signals | None = None
        self.before_exit: Callable[[], None] = lambda: None

    async def watch(self, signals: AsyncIterator[Signals]) -> None:
        """Receive signals until cancelled."""
        async for received in signals:
            self.receive(received)

    def receive(self, received: Signals) -> None:
        """Handle one signal."""
        if received is not signal.SIGINT:
            self._end(received)
            return
        self._display.note_terminal_echo()
        if self._on_interrupt is not None:
            self._on_interrupt()
        elif self._token is not None:
            self.interrupt_turn()
        elif self.still_stops():
            pass
        elif self.ended_by is None:
            self._display.notice("Stopping. (Ctrl-C)")
            self._end(received)
        else:
            self._force_exit()

    @contextmanager
    def during_turn(self, token: Any) -> Iterator[None]:
        """Use a token to stop the turn that runs inside the block."""
        self._token = token
        self._stopping_since = None
        self._display.hint = ", Ctrl-C stops"
        try:
            yield
        finally:
            self._token = None

    @contextmanager
    def redirect_interrupts(self, receiver: Callable[[], None]) -> Iterator[None]:
        """Call ``receiver`` for Ctrl-C during a question."""
        before, self._on_interrupt = self._on_interrupt, receiver
        try:
            yield
        finally:
            self._on_interrupt = before

    def still_stops(self) -> bool:
        """Return whether the latest Ctrl-C followed shortly after those that stopped a turn."""
        now, before = time.monotonic(), self._interrupted_at
        self._interrupted_at = now if now - before < FORCE_EXIT_AFTER else -math.inf
        return self._interrupted_at == now

    def interrupt_turn(self) -> None:
        """Stop the running turn, if there is one: first gracefully, then immediately."""
        if self._token is None:
            return
        self._interrupted_at = time.monotonic()
        if self._token.is_immediate:
            self._force_exit()
        elif self._token.is_graceful:
            self._display.hint = ", stopping now"
            self._display.notice("Stopping now. (Ctrl-C)", "warning")
            self._stopping_since = time.monotonic()
            self._token.request_immediate(reason="Ctrl-C, twice")
        else:
            self._display.hint = ", stopping after this step"
            self._display.notice(
                "Stopping after the running step. Press Ctrl-C again to stop now.", "warning"
            )
            self._token.request_graceful(reason="Ctrl-C")

    def _end(self, received: Signals) -> None:
        self.ended_by = self.ended_by or received
        self._stopping_since = self._stopping_since or time.monotonic()
        self.scope.cancel()

    def _force_exit(self) -> None:
        since = self._stopping_since
        if since is not None and time.monotonic() - since < FORCE_EXIT_AFTER:
            return
        self._display.notice(
            "Leaving without waiting; something did not stop and may still be running.", "error"
        )
        self.before_exit()
        os._exit(128 + signal.SIGINT)
