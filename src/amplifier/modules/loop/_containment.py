"""Calls that run at the same time, and the text of failures.

`Coordinator.call_within` and `contain_errors` contain what a single call raises.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio

from amplifier.contracts import contain_errors, contained_failure


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
            with contain_errors():
                await call()
        except GeneratorExit as exc:
            failures.append(exc)
            raise  # this coroutine may be being closed; then there is no loop to cancel anything in
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as exc:  # noqa: BLE001 — raised below, in the caller's task
            failures.append(exc)
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
