"""Count suspensions, the yields of tasks to their event loop, and fire at the chosen one."""

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
    """Raised in tasks that don't end. It never leaves a trial."""


@final
@attrs.define(frozen=True, kw_only=True)
class TrialSettings:
    """The settings of one trial. Equal settings give equal trials.

    Attributes:
        mode: How cancellation is delivered, one of `MODES`.
        k: The suspension to hit, from 1. 0 runs without a fault.
        second: Number of suspensions until the second cancel. None cancels once.
        seed: Decides the order of equally runnable tasks.
        budget: Seconds on the trial's clock after which the scenario counts as hanging.
        max_steps: Suspensions after which the scenario counts as spinning.
        virtual: True if the trial's clock jumps over waiting.
        grace: Seconds between the scenario's end and the search for leftovers.
        loop_factory: Makes the asyncio loop. None uses the default one.
        eager_tasks: True if tasks start immediately on asyncio.
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
    """The outcome of one trial, before it is judged.

    Attributes:
        errors: Exceptions of the scenario, except the requested cancellation.
        swallowed: True if the unfinished root task accepted a native cancel and didn't end
            cancelled.
        hung: True if the budget ran out.
        stuck: The places where tasks were waiting when the budget ran out.
        elapsed: Seconds on the trial's clock.
        orphans: Tasks alive after the scenario ended.
        noise: Messages that the loop's exception handler received.
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
        k: The suspension to hit, or 0 for none.
        fire: Cancels the scenario.
        second: Number of suspensions between the first and the second time it fires.
        max_steps: Above this count the scenario is spinning and is killed.
        watch: Notified of every suspension.
        tasks: The scenario's unfinished tasks and their coroutines, in order of creation.
        count: Suspensions so far.
        fired: True if the k-th suspension was reached.
        delivered: True if the cancellation then arrived in the task. This is only known for a
            `Driven` coroutine.
        second_fired: True if the second cancel was fired too.
        stack: The user's frames at the k-th suspension.
        trace: The place of each suspension, recorded only if k is 0.
        spinning: True if `max_steps` was exceeded.
        spinning_at: The place of the suspension that exceeded `max_steps`.
        killing: True if tasks are killed from now on when they are resumed.
        closed: True if the scenario has ended, so that later suspensions aren't its own.
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
        """Count a yield of a task's coroutine, before the loop's next step."""
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
        """Release the trial's tasks, so that their garbage counts for this trial."""
        self.closed = True
        self.tasks.clear()
        self.fire = _nothing

    def stuck(self) -> tuple[str, ...]:
        """Return the places where unfinished tasks wait, oldest first, without duplicates."""
        return tuple(dict.fromkeys(where(coro) for coro in self.tasks.values()))


CURRENT_INJECTION: ContextVar[Injection | None] = ContextVar(
    "amplifier_cancel_everywhere", default=None
)
"""Set in the scenario's root task. All tasks of the scenario inherit it, which identifies them."""


@final
class Driven(Generic[T]):
    """Awaiting this drives a coroutine by hand and reports each of its suspensions.

    It passes yielded values to the event loop and the loop's answers to the coroutine, unchanged.
    This works for asyncio's futures and for trio's traps alike.
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
                return end.value  # type: ignore[no-any-return]
            injection.suspended(coro)
            answer = error = None
            try:
                answer = yield trap
            except GeneratorExit:
                coro.close()
                raise
            # All exceptions that the loop throws are for the coroutine.
            except BaseException as thrown:  # noqa: BLE001
                error = thrown
            # asyncio throws, and trio sends an outcome. Either may also be an awaited failure.
            arrived = error if error is not None else getattr(answer, "error", None)
            if injection.fired and isinstance(arrived, anyio.get_cancelled_exc_class()):
                injection.delivered = True


def kill(coro: Any) -> None:
    """Close a coroutine, even if it raises or yields again, and raise `Killed` in its place.

    Raises:
        Killed: Always.
    """
    # The code under test runs once more here, and may raise anything.
    with contextlib.suppress(Exception):
        coro.close()
    raise Killed


@final
@attrs.define(frozen=True, kw_only=True)
class CancelledAt:
    """The end of a call that `cancel_at` cancels at its k-th suspension.

    Attributes:
        fired: True if the call suspended k times. False means that every point has been tried.
        returned: True if the call returned a value although it was cancelled. This is legitimate if
            the rest of the call was shielded.
        swallowed: True if the cancellation was raised inside the call, and the call returned.
        value: The returned value.
        where: The innermost suspended user frame as ``file:line function``. Empty if not fired.
        suspensions: Number of suspensions in total.
        seconds: Duration of the call after the cancellation.
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
    """Call ``function(*args)`` and cancel it at its k-th suspension.

    Exceptions other than that cancellation propagate. To try every point of a call::

        for k in itertools.count(1):
            result = await cancel_at(k, tool.execute, {"path": "x"})
            if not result.fired:
                break
            assert_still_whole(tool)

    Args:
        k: The number of the suspension, from 1.
        function: An async function.
        args: Its arguments.
        native: True cancels a new task with ``Task.cancel()``, on asyncio only. False cancels the
            call in this task with a cancel scope.
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

    run = _cancelled_natively if native else _cancelled_by_scope
    value, returned = await run(call, fire_with)
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
        # This task itself is being cancelled.
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    return (None, False) if task.cancelled() else (task.result(), True)


def _nothing() -> None:
    """Do nothing, before an injection has a scenario and after its trial."""


# ── where a coroutine waits ──

_MACHINERY = frozenset(
    {"anyio", "asyncio", "concurrent", "contextlib", "outcome", "threading", "trio"}
)
"""Packages whose frames are not the user's code."""

_MAX_DETAIL = 240

_UNSTABLE = (
    (re.compile(r"0x[0-9a-fA-F]+"), "0x…"),
    (re.compile(r"\bTask-\d+"), "Task-…"),
    (re.compile(r"\bThread-\d+"), "Thread-…"),
    (re.compile(r"\bfd=\d+"), "fd=…"),
)


def user_stack(awaitable: object) -> tuple[str, ...]:
    """Return the user's frames of a suspended await chain, outermost first.

    Each is ``file:line function``. If the chain has no user frame, return its innermost frame.
    """
    frames = list(_frames_below(awaitable))
    user_frames = [frame for frame in frames if not _is_machinery(frame)]
    return tuple(_place(frame.f_code, frame.f_lineno) for frame in user_frames or frames[-1:])


_MAX_CHAIN = 500
"""Maximum number of awaits to follow. A longer chain is a loop of wrappers."""

_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_AWAITS = ("cr_await", "gi_yieldfrom", "ag_await")
_OPAQUE = frozenset({"anext_awaitable", "async_generator_asend", "async_generator_athrow"})


def _frames_below(awaitable: object) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and its async generators, outermost first."""
    for _ in range(_MAX_CHAIN):
        if awaitable is None:
            return
        frame = _first(getattr(awaitable, name, None) for name in _FRAMES)
        if isinstance(frame, FrameType):
            yield frame
        if type(awaitable).__name__ in _OPAQUE:
            # The awaitable has no attribute that leads to its generator, so use the garbage
            # collector. The user needs the line inside the generator to repeat a trial.
            awaitable = _first(
                referent
                for referent in gc.get_referents(awaitable)
                if hasattr(referent, "ag_frame") or type(referent).__name__ in _OPAQUE
            )
        else:
            awaitable = _first(getattr(awaitable, name, None) for name in _AWAITS)


def _first(objects: Iterable[object]) -> object:
    return next((item for item in objects if item is not None), None)


def where(awaitable: object) -> str:
    """Return the innermost of the user's frames, or `UNKNOWN`."""
    stack = user_stack(awaitable)
    return stack[-1] if stack else UNKNOWN


def raised_at(traceback: TracebackType | None) -> str:
    """Return the innermost user frame of a traceback, or `UNKNOWN`."""
    place = UNKNOWN
    while traceback is not None:
        if not _is_machinery(traceback.tb_frame):
            place = _place(traceback.tb_frame.f_code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return place


def tidy(text: object) -> str:
    """Return one bounded line without addresses and counters, so that equal runs compare equal."""
    line = " ".join(str(text).split())
    for pattern, replacement in _UNSTABLE:
        line = pattern.sub(replacement, line)
    return line if len(line) <= _MAX_DETAIL else line[: _MAX_DETAIL - 1] + "…"


def _is_machinery(frame: FrameType) -> bool:
    module = str(frame.f_globals.get("__name__", ""))
    return module.rpartition(".")[0] == __package__ or module.partition(".")[0] in _MACHINERY


def _place(code: CodeType, line: int) -> str:
    file = "/".join(PurePath(code.co_filename).parts[-2:])
    function = code.co_qualname.rpartition("<locals>.")[2]
    return f"{file}:{line} {function}"
