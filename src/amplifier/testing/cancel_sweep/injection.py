"""Counting suspensions and firing at the chosen one; the same on every backend.

A *suspension* is one yield of one task to its event loop. `Injection` counts them over all tasks of a scenario and
fires once (or twice) at the chosen ones. How suspensions are observed and what "fire" means is defined by
`trio_trial` and `asyncio_trial`, and by `cancel_at` here, which cancels one call inside a loop that is already running. Where a coroutine waits is
described by the user's own lines, not those of the event loop below them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextvars import ContextVar
from pathlib import PurePath
from types import CodeType, FrameType, TracebackType
from typing import Any, Generic, TypeVar, final

import anyio
import attrs

from amplifier.testing.virtual_time import TimeWatch

UNKNOWN = "?"

T = TypeVar("T")


@final
class Killed(BaseException):
    """Thrown into tasks that refuse to end; never leaves a trial."""


@final
@attrs.define(frozen=True, kw_only=True)
class TrialSettings:
    """One trial, completely described: equal settings give equal trials.

    Attributes:
        mode: How cancellation is delivered; one of `MODES`.
        k: The suspension to hit, from 1; 0 runs without a fault.
        second: Cancel again so many suspensions later; None for never.
        seed: Decides the order in which equally runnable tasks go.
        budget: Seconds on the trial's clock after which it counts as hanging.
        max_steps: Suspensions after which it counts as spinning.
        virtual: Whether the trial's clock jumps over waiting.
        grace: Seconds between the scenario's end and the search for leftovers.
        loop_factory: Makes the asyncio loop; None for the usual one.
        eager_tasks: Tasks start at once on asyncio.
        watch: May hold the virtual clock on trio, and is notified of every suspension.
    """

    mode: str = ""
    k: int = 0
    second: int | None = None
    seed: int
    budget: float
    max_steps: int
    virtual: bool
    grace: float
    loop_factory: Callable[[], Any] | None = None
    eager_tasks: bool = False
    watch: TimeWatch | None = None


@final
@attrs.define(kw_only=True)
class TrialOutcome:
    """What one trial did, before it is judged.

    Attributes:
        errors: What came out of the scenario other than the cancellation that was asked for.
        swallowed: A native cancel was accepted by the unfinished root task, which then did not end cancelled.
        hung: The budget ran out; `stuck` lists where the tasks were waiting.
        elapsed: Seconds on the trial's clock.
        orphans: Tasks alive after the scenario ended.
        noise: What the loop's exception handler received.
    """

    errors: list[BaseException] = attrs.field(factory=list)
    swallowed: bool = False
    hung: bool = False
    stuck: tuple[str, ...] = ()
    elapsed: float = 0.0
    orphans: list[str] = attrs.field(factory=list)
    noise: list[str] = attrs.field(factory=list)


@final
@attrs.define(eq=False, kw_only=True)
class Injection:
    """Counts the suspensions of a scenario's tasks and fires at the k-th.

    Attributes:
        k: The suspension to hit; 0 for none.
        fire: Cancels the scenario.
        second: Fire again so many suspensions after the first time.
        max_steps: Above this count the scenario is spinning and is put to death.
        watch: Notified of every suspension.
        tasks: The scenario's unfinished tasks and their coroutines, in order of creation.
        count: Suspensions so far.
        fired: The k-th suspension was reached.
        delivered: After that the cancellation arrived in the task; only known where it is `Driven`.
        second_fired: The second one, too.
        stack: The user's frames at the k-th suspension.
        trace: Where each suspension happened; only kept when k is 0.
        spinning: `max_steps` was exceeded.
        killing: From now on tasks die when they are resumed.
        closed: The scenario has ended; later suspensions are not its own.
    """

    k: int
    fire: Callable[[], object]
    second: int | None = None
    max_steps: int | None = None
    watch: TimeWatch | None = None
    tasks: dict[Any, object] = attrs.field(factory=dict)
    count: int = 0
    fired: bool = False
    delivered: bool = False
    second_fired: bool = False
    stack: tuple[str, ...] = ()
    trace: list[str] = attrs.field(factory=list)
    spinning: bool = False
    spinning_at: str = UNKNOWN
    killing: bool = False
    closed: bool = False

    def suspended(self, coro: object) -> None:
        """Take note that a task has yielded, given its coroutine; called between its yield and its loop's next step."""
        if self.watch is not None:
            self.watch.on_turn()
        if self.closed:
            return
        self.count += 1
        if self.k == 0:
            self.trace.append(where(coro))
        elif self.count == self.k:
            self.stack = user_stack(coro)
            self.fired = True
            self.fire()
        elif self.second is not None and self.count == self.k + self.second:
            self.second_fired = True
            self.fire()
        if self.max_steps is not None and self.count > self.max_steps and not self.spinning:
            self.spinning_at = where(coro)
            self.spinning = self.killing = True

    def dismiss(self) -> None:
        """Let go of the trial and its tasks, so that their garbage is this trial's and not the next one's."""
        self.closed = True
        self.tasks.clear()
        self.fire = _nothing

    def stuck(self) -> tuple[str, ...]:
        """Where the unfinished tasks are waiting, oldest first, each place once."""
        return tuple(dict.fromkeys(where(coro) for coro in self.tasks.values()))


CURRENT_INJECTION: ContextVar[Injection | None] = ContextVar(
    "amplifier_cancel_everywhere", default=None
)
"""Set in the scenario's root task and inherited by every task it starts: that is how we know them."""


@final
class Driven(Generic[T]):
    """Awaiting this drives a coroutine by hand and reports each of its suspensions.

    What the coroutine yields goes to the event loop unchanged and what the loop answers goes back in, so neither
    notices; this holds for asyncio's futures and for trio's traps alike.
    """

    def __init__(self, coro: Coroutine[Any, Any, T], injection: Injection) -> None:
        self._coro = coro
        self._injection = injection

    def __await__(self) -> Generator[Any, Any, T]:
        coro, injection = self._coro, self._injection
        answer: Any = None
        error: BaseException | None = None
        while True:
            if injection.killing:
                kill(coro)
            try:
                trap = coro.send(answer) if error is None else coro.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]  # a coroutine's return value travels untyped
            injection.suspended(coro)
            answer = error = None
            try:
                answer = yield trap
            except GeneratorExit:
                coro.close()
                raise
            except BaseException as thrown:  # noqa: BLE001 — whatever the loop throws belongs to the coroutine, not to us
                error = thrown
            # asyncio throws, trio sends an outcome; either may also be the failure of what was awaited.
            arrived = error if error is not None else getattr(answer, "error", None)
            if injection.fired and isinstance(arrived, anyio.get_cancelled_exc_class()):
                injection.delivered = True


def kill(coro: Any) -> None:
    """Close a coroutine that may refuse it and raise `Killed` in its place.

    Raises:
        Killed: Always.
    """
    # The code under test runs once more here and may raise anything, or yield and so refuse to be closed.
    with contextlib.suppress(Exception):
        coro.close()
    raise Killed


@final
@attrs.define(frozen=True, kw_only=True)
class CancelledAt:
    """How a call ended that was to be cancelled at its k-th suspension.

    Attributes:
        fired: It did suspend k times; False means that every point has been tried.
        returned: It returned a value, though cancelled; legitimate if all it had left to do was shielded.
        swallowed: The cancellation was raised inside the call, which returned all the same.
        value: What it returned.
        where: The innermost user frame that was suspended, ``file:line function``; empty if not fired.
        suspensions: How many times it suspended in all.
        seconds: How long it went on after the cancellation.
    """

    fired: bool
    returned: bool
    swallowed: bool = False
    value: object = None
    where: str = ""
    suspensions: int = 0
    seconds: float = 0.0


async def cancel_at(
    k: int,
    function: Callable[..., Coroutine[Any, Any, object]],
    *args: object,
    native: bool = False,
) -> CancelledAt:
    """Call ``function(*args)`` and cancel it at the k-th time it suspends.

    Exceptions other than that cancellation propagate. To try every point of a call::

        for k in itertools.count(1):
            result = await cancel_at(k, tool.execute, {"path": "x"})
            if not result.fired:
                break
            assert_still_whole(tool)

    Args:
        k: From 1.
        function: Returns a coroutine.
        args: Its arguments.
        native: Cancel by ``Task.cancel()``, in a task of its own; on asyncio only. Otherwise by a cancel scope, in this
            task.
    """
    if k < 1:
        raise ValueError(f"k: found {k!r}, expected a number from 1 up")
    fired_at: list[float] = []
    injection = Injection(k=k, fire=_nothing)
    call = Driven(function(*args), injection)

    def fire_with(cancel: Callable[[], object]) -> None:
        def fire() -> None:
            fired_at.append(time.monotonic())
            cancel()

        injection.fire = fire

    value, returned = await (_cancelled_natively if native else _cancelled_by_scope)(
        call, fire_with
    )
    return CancelledAt(
        fired=injection.fired,
        returned=returned,
        swallowed=returned and injection.delivered,
        value=value,
        where=injection.stack[-1] if injection.stack else "",
        suspensions=injection.count,
        seconds=time.monotonic() - fired_at[0] if fired_at else 0.0,
    )


_FireWith = Callable[[Callable[[], object]], None]


async def _cancelled_by_scope(call: Driven[object], fire_with: _FireWith) -> tuple[object, bool]:
    with anyio.CancelScope() as scope:
        fire_with(scope.cancel)
        return await call, True
    return None, False


async def _cancelled_natively(call: Driven[object], fire_with: _FireWith) -> tuple[object, bool]:
    async def run() -> object:
        return await call

    task = asyncio.get_running_loop().create_task(run())
    fire_with(task.cancel)
    try:
        await asyncio.wait([task])
    finally:
        if not task.done():  # we are being cancelled ourselves
            task.cancel()
            await asyncio.wait([task])
    return (None, False) if task.cancelled() else (task.result(), True)


def _nothing() -> None:
    """What an injection fires before it has something to fire, and when its trial is over."""


# ── where a coroutine waits ──

_MACHINERY = frozenset(
    {"anyio", "asyncio", "concurrent", "contextlib", "outcome", "threading", "trio"}
)
"""Packages whose frames show an author nothing about his own code."""

_LONGEST_DETAIL = 240

_UNSTABLE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"\bTask-\d+"), "Task-…"),
    (re.compile(r"\bThread-\d+"), "Thread-…"),
    (re.compile(r"\bfd=\d+"), "fd=…"),
)


def user_stack(awaitable: object) -> tuple[str, ...]:
    """The user's frames of a suspended await chain as ``file:line function``, outermost first.

    Falls back to the innermost frame of any kind when the chain holds no user frame at all.
    """
    frames = list(_frames_below(awaitable))
    mine = [frame for frame in frames if not _is_machinery(frame)]
    return tuple(_spot(frame.f_code, frame.f_lineno) for frame in mine or frames[-1:])


_LONGEST_CHAIN = 500
"""Awaits of one task that are looked at. A longer chain is a loop of wrappers."""

_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITS = ("cr_await", "gi_yieldfrom", "ag_await")
_OPAQUE = frozenset({"anext_awaitable", "async_generator_asend", "async_generator_athrow"})


def _frames_below(awaitable: object) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine, outermost first, also those of asynchronous generators."""
    for _ in range(_LONGEST_CHAIN):
        if awaitable is None:
            return
        frame = _first(getattr(awaitable, name, None) for name in _FRAMES)
        if isinstance(frame, FrameType):
            yield frame
        if type(awaitable).__name__ in _OPAQUE:
            # It has no attribute that leads to its generator, so the garbage collector is asked. To
            # repeat a trial, an author needs the line inside his generator.
            awaitable = _first(
                referent
                for referent in gc.get_referents(awaitable)
                if hasattr(referent, "ag_frame") or type(referent).__name__ in _OPAQUE
            )
        else:
            awaitable = _first(getattr(awaitable, name, None) for name in _AWAITS)


def _first(objects: Iterable[object]) -> object:
    return next((found for found in objects if found is not None), None)


def where(awaitable: object) -> str:
    """The innermost of the user's frames, or `UNKNOWN`."""
    stack = user_stack(awaitable)
    return stack[-1] if stack else UNKNOWN


def raised_at(traceback: TracebackType | None) -> str:
    """The innermost user frame of a traceback, or `UNKNOWN`."""
    spot = UNKNOWN
    while traceback is not None:
        if not _is_machinery(traceback.tb_frame):
            spot = _spot(traceback.tb_frame.f_code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return spot


def tidy(text: object) -> str:
    """One line of bounded length without addresses and counters, so that equal runs give equal reports."""
    line = " ".join(str(text).split())
    for pattern, replacement in _UNSTABLE:
        line = pattern.sub(replacement, line)
    return line if len(line) <= _LONGEST_DETAIL else line[: _LONGEST_DETAIL - 1] + "…"


def _is_machinery(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.rpartition(".")[0] == __package__ or module.partition(".")[0] in _MACHINERY


def _spot(code: CodeType, line: int) -> str:
    file = "/".join(PurePath(code.co_filename).parts[-2:])
    function = code.co_qualname.rpartition("<locals>.")[2]
    return f"{file}:{line} {function}"
