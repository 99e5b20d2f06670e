"""Contains failures of third-party code: whatever it raises leaves as an ``Exception`` that names it.

KeyboardInterrupt, GeneratorExit and real cancellation pass, see `amplifier.contracts.contained_failure`.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from amplifier.contracts import contained_failure
from amplifier.contracts._cancellation import cancel_scope, loop_clock
from amplifier.errors import SpuriousCancellation


class Overran(Exception):
    """A call did not return before its deadline; stays inside the turn."""


@contextmanager
def contained(who: str) -> Iterator[None]:
    """Around a call into one module, by its name."""
    try:
        yield
    except Exception:
        raise
    except BaseException as exc:
        raise contained_failure(_own_part(exc), who) from exc


async def call_within(seconds: float | None, who: str, fn: Callable[..., Awaitable[Any]], *args: Any) -> Any:
    """Await ``fn(*args)``, for at most ``seconds``.

    Raises:
        Overran: The deadline passed.
        Exception: What the call raised, or a `ContainedError` that names ``who``.
    """
    scope = cancel_scope(math.inf if seconds is None else loop_clock()() + seconds)
    try:
        with scope:
            return await fn(*args)
    except Exception:
        raise
    except BaseException as exc:  # outside of the scope, which takes its own cancellation out of groups first
        failure = contained_failure(_own_part(exc), who)
        is_late = scope.cancel_called and isinstance(failure, SpuriousCancellation)
        raise (Overran() if is_late else failure) from exc
    raise Overran


async def run_together(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run calls at the same time; the first failure cancels the others.

    No failure leaves through a child task: on asyncio KeyboardInterrupt and SystemExit would end the whole event loop
    there, and a task group would wrap the rest.

    Raises:
        BaseException: What one call raised, unchanged.
        ExceptionGroup: What several raised.
    """
    failures: list[BaseException] = []

    async def run(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        except GeneratorExit as exc:
            failures.append(exc)
            raise  # this coroutine may be being closed; then there is no loop to cancel anything in
        except BaseException as exc:  # noqa: BLE001 — raised below, in the caller's task
            failures.append(_carried(exc))
            group.cancel_scope.cancel()

    try:
        try:
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(run, call)
        except BaseException as exc:
            if not failures:  # no call raised it: a cancellation, or Ctrl-C that reached this task while it waited
                if not isinstance(exc, BaseExceptionGroup) or len(exc.exceptions) > 1:
                    raise
                failures.extend(exc.exceptions)
        if failures:
            raise _one_of(failures)
    finally:
        failures.clear()  # an exception that names its own frame is a reference cycle


def text_of(error: Exception) -> str:
    """The message of an exception, even if its own ``__str__`` fails: that is third-party code as well."""
    try:
        return str(error) or type(error).__name__
    except BaseException as exc:  # noqa: BLE001 — contained_failure() raises what must pass
        broken = contained_failure(exc)
        return f"{type(error).__name__} (its text cannot be shown: {type(broken).__name__})"


def _own_part(exc: BaseException) -> BaseException:
    """Of a group that holds cancellations, the other errors, else one of the cancellations.

    A task group that fails while it is being cancelled raises such groups, on trio more often than on asyncio.
    """
    if not isinstance(exc, BaseExceptionGroup):
        return exc
    cancelled, rest = exc.split(anyio.get_cancelled_exc_class())
    if rest is not None or cancelled is None:
        return rest or exc
    leaf: BaseException = cancelled
    while isinstance(leaf, BaseExceptionGroup):
        leaf = leaf.exceptions[0]
    return leaf


def _carried(exc: BaseException) -> BaseException:
    """The failure that leaves a child task by hand; a real cancellation is raised instead."""
    try:
        return contained_failure(_own_part(exc))
    except anyio.get_cancelled_exc_class():
        raise
    except BaseException as passing:  # noqa: BLE001 — Ctrl-C; raised in the caller's task
        return passing


def _one_of(failures: list[BaseException]) -> BaseException:
    """The one exception to raise for all failures: Ctrl-C before anything else, one error as itself, several as a group."""
    if len(failures) == 1:
        return failures[0]
    errors = [failure for failure in failures if isinstance(failure, Exception)]
    if len(errors) == len(failures):
        return ExceptionGroup(f"{len(errors)} calls failed", errors)
    first = next(failure for failure in failures if not isinstance(failure, Exception))
    first.__cause__ = _one_of([failure for failure in failures if failure is not first])
    return first
