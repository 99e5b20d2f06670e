"""Ctrl-C at every point of the kernel's code: runs a scenario again and again, each time interrupted somewhere else.

CPython runs a signal handler when a function is entered, after a call and before a loop goes round, so these are the points. The
handler that runs is the one that the backend has installed, with the interrupted frame: on trio it raises only where nothing is protected,
and otherwise in the main task at its next wait; under ``asyncio.run`` the first Ctrl-C cancels the main task and the second one raises.
``asyncio-bare`` has no such handler, as under a server with signal handlers of its own: the first one raises.

Time is virtual and nothing here waits for anything outside: when no task can go on and there is no timer, the scenario hangs.
"""

from __future__ import annotations

import asyncio
import dis
import gc
import logging
import math
import selectors
import signal
import sys
import threading
import warnings
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import attrs
import trio

import amplifier.kernel
from amplifier.kernel.runtime.frames import forget_frames

BACKENDS = ("trio", "asyncio", "asyncio-bare")

_KERNEL = str(Path(amplifier.kernel.__file__).parent)
_ANYIO = str(Path(anyio.__file__).parent)
"""On trio the kernel also protects the code of AnyIO that it calls: half a scope entered is a corrupted stack. On asyncio nothing can."""

_BREAKERS = frozenset(
    code
    for name, code in dis.opmap.items()
    if name.startswith(("CALL", "PRECALL", "JUMP_BACKWARD", "POP_JUMP_BACKWARD"))
) - {dis.opmap.get("JUMP_BACKWARD_NO_INTERRUPT")}
"""Instructions after which CPython looks for signals."""

_UNFINISHED = frozenset({dis.opmap["CALL"], dis.opmap["GET_AWAITABLE"]})
"""What follows on half a call, and on one that only made a coroutine."""

_RESUME, _AFTER_AWAIT = dis.opmap["RESUME"], 2
"""It also does when a function is entered, or a generator goes on after a ``yield``, but not when a coroutine goes on after an ``await``."""

_LONGEST = 5_000.0
"""Virtual seconds; every deadline of a scenario together is far below."""


class Hang(Exception):
    """No task can go on and no timer is set, or time runs away."""


@attrs.frozen
class Point:
    """A place in the kernel's code where a signal can be handled."""

    file: str
    line: int
    function: str
    offset: int
    caller: int
    """The line that called it, for code of AnyIO: which of the kernel's scopes it is."""

    is_entry: bool = False
    """Whether the function has just been entered."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


class Interrupter:
    """Counts the points that the main thread passes and sends Ctrl-C at some of them."""

    def __init__(self, at: Sequence[int], backend: str) -> None:
        self._at = frozenset(at)
        self._roots = (_KERNEL, _ANYIO) if backend == "trio" else (_KERNEL,)
        self._last: dict[FrameType, int] = {}
        self._returned_to: FrameType | None = None
        self.points: list[Point] = []
        self.hits: list[Point] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)
            sys.setprofile(None)
            self._last.clear()  # frames hold the sessions
            self._returned_to = None

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._roots):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        code = frame.f_code.co_code
        if code[frame.f_lasti] == _RESUME and code[frame.f_lasti + 1] & 3 < _AFTER_AWAIT:
            self._pass(frame, is_entry=True)
        self._last.pop(frame, None)
        return self._step

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            before = self._last.get(frame)
            self._last[frame] = frame.f_lasti
            code = frame.f_code.co_code
            is_over = code[frame.f_lasti] not in _UNFINISHED and frame is not self._returned_to
            self._returned_to = None
            if before is not None and code[before] in _BREAKERS and is_over:
                self._pass(frame)
        elif event == "return":
            self._last.pop(frame, None)
            self._returned_to = (
                frame.f_back
            )  # the points of a call of the kernel's own are inside of it
        return self._step

    def _pass(self, frame: FrameType, *, is_entry: bool = False) -> None:
        code = frame.f_code
        file = code.co_filename.removeprefix(_KERNEL + "/").removeprefix(
            str(Path(_ANYIO).parent) + "/"
        )
        is_kernel = code.co_filename.startswith(_KERNEL) or frame.f_back is None
        caller = 0 if is_kernel else frame.f_back.f_lineno
        self.points.append(
            Point(file, frame.f_lineno, code.co_qualname, frame.f_lasti, caller, is_entry)
        )
        if len(self.points) - 1 in self._at:
            self.hits.append(self.points[-1])
            if len(self.hits) < len(self._at):
                sys.setprofile(self._go_on)
            handler: Any = signal.getsignal(signal.SIGINT)
            handler(signal.SIGINT, frame)

    def _go_on(self, frame: FrameType, event: str, arg: Any) -> None:
        """Trace again what runs: a trace function that has raised is dropped, a profile function is not."""
        sys.setprofile(None)
        if sys.gettrace() is not None:  # the handler has not raised
            return
        self._last.clear()
        sys.settrace(self._enter)
        outer: FrameType | None = frame
        while outer is not None:
            if outer.f_code.co_filename.startswith(self._roots):
                outer.f_trace, outer.f_trace_opcodes, outer.f_trace_lines = self._step, True, False
            outer = outer.f_back
        if event == "call":
            self._enter(frame, event, arg)


# ── loops that never wait for real ───────────────────────────────────────────────────────────────


class _Clock(trio.abc.Clock):
    def __init__(self) -> None:
        self._now = 0.0
        self._polls = 0

    def start_clock(self) -> None:
        pass

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self._polls += 1
        if deadline <= self._now:
            self._polls = 0
        elif self._polls > 3:  # nothing has come from another thread or a signal
            if deadline == math.inf or deadline > _LONGEST:
                raise Hang
            self._now = deadline
            self._polls = 0
        return 0.0


class _Selector(selectors.DefaultSelector):
    loop: _Loop
    _idle = 0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout != 0:
            self._idle += 1
            if self._idle > 3:
                self._idle = 0
                if timeout is None or self.loop.now > _LONGEST:
                    raise Hang
                self.loop.now += timeout
        else:
            self._idle = 0
        return ready


class _Loop(asyncio.SelectorEventLoop):
    now = 0.0

    def __init__(self) -> None:
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now


# ── one trial ────────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Trial:
    """What one run has left."""

    points: list[Point] = attrs.field(factory=list)
    hits: list[Point] = attrs.field(factory=list)
    error: BaseException | None = None
    logged: list[str] = attrs.field(factory=list)
    warned: list[str] = attrs.field(factory=list)
    noise: list[str] = attrs.field(factory=list)

    def problems(self) -> Iterator[str]:
        if self.error is not None and type(self.error) is not KeyboardInterrupt:
            yield f"it raised {self.error!r}, caused by {self.error.__cause__ or self.error.__context__!r}"
        yield from self.noise

    def names(self, words: str) -> bool:
        """Whether something was reported about it."""
        return any(words in text for text in (*self.logged, *self.warned))


class _Kept(logging.Handler):
    def __init__(self, kept: list[str]) -> None:
        super().__init__()
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(record.getMessage())


@contextmanager
def _listening(trial: Trial) -> Iterator[None]:
    handler, root = _Kept(trial.logged), logging.getLogger("amplifier")
    propagates, hook = root.propagate, sys.unraisablehook
    root.addHandler(handler)
    root.propagate = False
    sys.unraisablehook = lambda seen: trial.warned.append(f"{seen.exc_value!r} in {seen.object!r}")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
            while caught:  # with a warning goes the coroutine that it is about, and with that perhaps another one
                trial.warned.append(str(caught.pop(0).message))
    finally:
        sys.unraisablehook = hook
        root.removeHandler(handler)
        root.propagate = propagates


def interrupted(
    scenario: Callable[[], Awaitable[object]],
    backend: str,
    at: Sequence[int] | None,
    let_go: Callable[[], None],
) -> Trial:
    """Run a scenario with Ctrl-C at the points of these numbers, counted from its beginning.

    Args:
        scenario: What to run.
        backend: One of `BACKENDS`.
        at: The numbers; None to count no points, which takes a tenth of the time.
        let_go: Drops what the scenario used. The collector then finds the rest, so that it is reported here and not in another test.
    """
    assert threading.current_thread() is threading.main_thread()
    trial = Trial()
    interrupter = Interrupter(at or (), backend)

    async def main() -> None:
        with nullcontext() if at is None else interrupter.watching():
            await scenario()

    run = {"trio": _run_on_trio, "asyncio": _run_on_asyncio, "asyncio-bare": _run_bare}[backend]
    answer = signal.signal(signal.SIGINT, signal.default_int_handler)
    gc.freeze()  # so that collecting takes no longer than the trial
    with _listening(trial):
        try:
            run(main, trial)
        except BaseException as exc:
            trial.error = exc
            forget_frames([exc])  # they hold the sessions
        finally:
            sys.settrace(None)
            let_go()
            held = signal.signal(signal.SIGINT, answer)
            trial.noise += [
                "Ctrl-C is still held off" for _ in "x" if held is not signal.default_int_handler
            ]
            gc.collect()
            gc.unfreeze()
    trial.points, trial.hits = interrupter.points, interrupter.hits
    return trial


def _run_on_trio(main: Callable[[], Awaitable[None]], trial: Trial) -> None:
    try:
        trio.run(main, clock=_Clock())
    except trio.TrioInternalError as exc:
        raise (exc.__cause__ or exc) from None


def _note(trial: Trial, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    task = context.get("future")
    is_main = (
        isinstance(task, asyncio.Task)
        and task.get_coro().__qualname__ == "interrupted.<locals>.main"
    )
    if is_main and isinstance(context.get("exception"), KeyboardInterrupt):
        return  # the program's own end: a Ctrl-C that met another task left the loop, so asyncio asks nobody how this one ended
    trial.noise.append(str(context))


def _run_on_asyncio(main: Callable[[], Any], trial: Trial) -> None:
    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.get_loop().set_exception_handler(partial(_note, trial))
        runner.run(main())


def _run_bare(main: Callable[[], Any], trial: Trial) -> None:
    """As `asyncio.run` without its handler."""
    loop = _Loop()
    loop.set_exception_handler(partial(_note, trial))
    asyncio.set_event_loop(loop)
    try:
        try:
            loop.run_until_complete(main())
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def chosen_points(points: Sequence[Point], start: int = 0) -> list[int]:
    """The first and the last time that each place is passed."""
    first: dict[Point, int] = {}
    last: dict[Point, int] = {}
    for number, point in enumerate(points):
        if number >= start:
            first.setdefault(point, number)
            last[point] = number
    return sorted({*first.values(), *last.values()})


def scope_points(points: Sequence[Point], numbers: Sequence[int]) -> list[int]:
    """Those at which a cancel scope or a task group is being entered or left."""
    ways = ("Scope.__enter__", "Scope.__exit__", "Group.__aenter__", "Group.__aexit__")
    return [number for number in numbers if points[number].function.endswith(ways)]


def spread(numbers: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly."""
    if len(numbers) <= count:
        return list(numbers)
    return [numbers[index * len(numbers) // count] for index in range(count)]
