"""Run calls at the same time, and describe failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

from amplifier.contracts import contain_errors, contained_failure


async def run_together(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Run calls at the same time. The first failure cancels the others.

    Raises:
        BaseException: The error of one call, unchanged.
        ExceptionGroup: The errors of several calls.
    """
    # No failure propagates out of a child task. On asyncio, KeyboardInterrupt and SystemExit would
    # end the event loop there, and a task group would wrap other errors.
    failures: list[BaseException] = []

    async def run(call: Callable[[], Awaitable[None]]) -> None:
        try:
            with contain_errors():
                await call()
        except GeneratorExit as exc:
            failures.append(exc)
            # This coroutine may be closing, with no event loop left to cancel anything.
            raise
        except anyio.get_cancelled_exc_class():
            raise
        # The caller's task raises it below.
        except BaseException as exc:  # noqa: BLE001
            failures.append(exc)
            group.cancel_scope.cancel()

    try:
        try:
            async with anyio.create_task_group() as group:
                for call in calls:
                    group.start_soon(run, call)
        except BaseException as exc:
            # No call raised this. It is a cancellation, or a Ctrl-C that reached this waiting task.
            if not failures:
                if not isinstance(exc, BaseExceptionGroup) or len(exc.exceptions) > 1:
                    raise
                failures.extend(exc.exceptions)
        if failures:
            raise _combine_failures(failures)
    finally:
        # Break the reference cycle with the traceback.
        failures.clear()


def text_of(error: Exception) -> str:
    """Return the message of an exception, even if its ``__str__`` is foreign code that fails."""
    try:
        return str(error) or type(error).__name__
    # `contained_failure` re-raises cancellations and Ctrl-C.
    except BaseException as exc:  # noqa: BLE001
        broken = contained_failure(exc)
        return f"{type(error).__name__} (its text cannot be shown: {type(broken).__name__})"


def _combine_failures(failures: list[BaseException]) -> BaseException:
    """Return the exception to raise for all failures: Ctrl-C, the only error, or a group."""
    if len(failures) == 1:
        return failures[0]
    errors = [failure for failure in failures if isinstance(failure, Exception)]
    if len(errors) == len(failures):
        return ExceptionGroup(f"{len(errors)} calls failed", errors)
    first = next(failure for failure in failures if not isinstance(failure, Exception))
    first.__cause__ = _combine_failures([failure for failure in failures if failure is not first])
    return first
