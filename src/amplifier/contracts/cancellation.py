"""Cancellation and failures of third-party code, and fast cancel scopes and clocks."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import anyio

from amplifier.errors import ContainedError, SpuriousCancellation

# Callers of third-party code (the kernel of handlers, a loop of tools and providers) use
# `contained_failure` in an ``except BaseException`` around the call. Then a ``sys.exit()`` in a
# tool, the panic of a Rust extension, or the CancelledError of a cancelled future that a tool has
# awaited ends that call only. A real cancellation, KeyboardInterrupt and GeneratorExit pass
# through.
#
# No backend is imported here. A backend that runs is already in ``sys.modules``.


def contained_failure(exc: BaseException, who: str = "", *, can_wait: bool = True) -> Exception:
    """Return the failure that an exception out of third-party code amounts to.

    An ``Exception`` is returned as it is. A cancellation that no one requested, ``SystemExit`` and
    every other ``BaseException`` become an `amplifier.errors.ContainedError` whose ``__cause__`` is
    the exception.

    Args:
        exc: The exception. Call this in the task that made the call, before exiting the scopes
            around it.
        who: The name of the code, with which the text of a contained failure begins.
        can_wait: False if the call could not await anything. A cancellation reaches code only at an
            await, so in that case it can't be real.

    Raises:
        BaseException: ``exc`` itself if it isn't the code's own: a real cancellation of the
            caller, KeyboardInterrupt or GeneratorExit, even inside a group.
    """
    if isinstance(exc, Exception):
        return exc
    if _must_pass(exc, can_wait):
        try:
            raise exc
        finally:
            # Break the reference cycle with the traceback.
            del exc
    prefix = f"{who} raised" if who else "raised"
    if is_cancellation_type(exc):
        failure: ContainedError = SpuriousCancellation(
            f"{prefix} {type(exc).__name__} although nothing was cancelled; it may have awaited a "
            "future or task that was"
        )
    else:
        text = text_of(exc)
        failure = ContainedError(f"{prefix} {type(exc).__name__}" + (f": {text}" if text else ""))
    failure.__cause__ = exc
    return failure


def text_of(exc: BaseException) -> str:
    """Return the text of an exception, even if its ``__str__`` fails."""
    try:
        return str(exc)
    except Exception as broken:  # noqa: BLE001 — foreign code
        return f"(its text cannot be shown: {type(broken).__name__})"


def is_real_cancellation(exc: BaseException) -> bool:
    """Return whether ``exc`` comes from a cancellation of the current task by the backend.

    On asyncio any code can raise ``CancelledError``, or get it by awaiting a cancelled future. On
    trio an old ``Cancelled`` can be raised again.
    """
    if not is_cancellation_type(exc):
        return False
    # A surrounding scope is cancelled.
    if anyio.current_effective_deadline() == -math.inf:
        return True
    if running_asyncio_loop() is None:
        return False
    return bool(sys.modules["asyncio"].current_task().cancelling())


def is_cancellation_type(exc: BaseException) -> bool:
    """Return whether ``exc`` is a cancellation of either backend, whichever is running."""
    asyncio_module, trio_module = sys.modules.get("asyncio"), sys.modules.get("trio")
    if asyncio_module is not None and isinstance(exc, asyncio_module.CancelledError):
        return True
    return trio_module is not None and isinstance(exc, trio_module.Cancelled)


def running_asyncio_loop() -> Any:
    """Return the asyncio loop that runs this code, or None on trio."""
    # Trio may run inside an asyncio program: in guest mode, by ``trio.run`` in a callback, or
    # with trio-asyncio. Then both have a running loop, and sniffio's thread-local name decides,
    # which trio sets around each of its steps.
    modules = sys.modules
    if "asyncio" not in modules:
        return None
    if "sniffio" in modules and modules["sniffio"].thread_local.name == "trio":
        return None
    try:
        return modules["asyncio"].get_running_loop()
    except RuntimeError:
        return None


def _must_pass(exc: BaseException, can_wait: bool) -> bool:
    if isinstance(exc, BaseExceptionGroup):
        return any(_must_pass(inner, can_wait) for inner in exc.exceptions)
    if isinstance(exc, KeyboardInterrupt | GeneratorExit):
        return True
    return can_wait and is_real_cancellation(exc)


# ── scopes and clock ──────────────────────────────────────────────────────────────────────────────


_scope_classes: dict[bool, type[anyio.CancelScope]] = {}


def cancel_scope(deadline: float = math.inf, *, shield: bool = False) -> anyio.CancelScope:
    """Return a cancel scope of the running backend, as ``anyio.CancelScope(…)`` does."""
    # `anyio.CancelScope` looks up the backend every time and is initialised twice, because it is
    # made through another class. That is a fifth of the cost of a short-lived scope.
    on_asyncio = running_asyncio_loop() is not None
    try:
        return _scope_classes[on_asyncio](deadline=deadline, shield=shield)
    except KeyError:
        scope = anyio.CancelScope(deadline=deadline, shield=shield)
        _scope_classes[on_asyncio] = type(scope)
        return scope


def loop_clock() -> Callable[[], float]:
    """Return the clock of the running loop as a plain function."""
    # AnyIO's function looks up the backend at every call, and trio's looks up the running loop.
    loop = running_asyncio_loop()
    clock: Callable[[], float] = (
        sys.modules["trio"].lowlevel.current_clock().current_time if loop is None else loop.time
    )
    return clock


def current_time() -> float:
    """Return the current time of the running loop's clock."""
    return loop_clock()()
