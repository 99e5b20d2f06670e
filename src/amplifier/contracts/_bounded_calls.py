"""Calls of third-party code whose failures are contained, with or without a deadline."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import anyio

from amplifier.errors import DeadlineExceeded, SpuriousCancellation

from .cancellation import cancel_scope, contained_failure, loop_clock

T = TypeVar("T")
P = ParamSpec("P")


@contextmanager
def contain_errors(who: str = "") -> Iterator[None]:
    """Contain the failures of third-party code inside the block, see `contained_failure`.

    Args:
        who: Whose code it is, in words. The text of a contained failure begins with it.

    Raises:
        Exception: The failure: as it was raised, or contained.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as exc:
        raise contained_failure(_strip_cancelled(exc), who) from exc


async def call_within(
    seconds: float | None,
    who: str,
    fn: Callable[P, Awaitable[T]],
    /,
    *args: P.args,
    **options: P.kwargs,
) -> T:
    """Await one call of third-party code under a deadline, and contain its failure.

    The call is cancelled at its deadline and awaited until it has unwound. A result that it
    returns in spite of that is returned.

    Args:
        seconds: The time it gets, or None for no limit.
        who: Whose code it is, in words, for the text of failures.
        fn: The code.
        args: Its arguments.
        options: Its named arguments.

    Raises:
        DeadlineExceeded: The deadline passed. Its ``operation`` is ``who``.
        Exception: The call's own failure: as it was raised, or contained.
    """
    scope = cancel_scope(math.inf if seconds is None else loop_clock()() + seconds)
    cause: BaseException | None = None
    try:
        with scope:
            return await fn(*args, **options)
    except Exception:
        raise
    except BaseException as exc:
        # Outside the scope, which takes its own cancellation out of groups first.
        failure = contained_failure(_strip_cancelled(exc), who)
        if not (scope.cancel_called and isinstance(failure, SpuriousCancellation)):
            raise failure from exc
        cause = exc
    try:
        given = seconds or 0.0
        raise DeadlineExceeded(
            f"{who} did not return within {given:g} s and was cancelled",
            operation=who,
            seconds=given,
        ) from cause
    finally:
        del cause  # an exception that names its own frame is a reference cycle


def _strip_cancelled(exc: BaseException) -> BaseException:
    """Return the errors of a group without its cancellations, or else one of the cancellations.

    A task group that fails while it is being cancelled raises such groups, on trio more often
    than on asyncio.
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
