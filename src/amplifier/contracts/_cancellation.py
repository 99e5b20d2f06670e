"""Cancellation and failure of third-party code, and cancel scopes and the clock without AnyIO's lookup of the backend at every call.

Whoever calls third-party code (the kernel its handlers, a loop its tools and providers) uses `contained_failure` in an
``except BaseException`` around the call, so that neither ``sys.exit()`` in a tool nor the panic of a Rust extension nor a
``CancelledError`` that a tool met by awaiting a cancelled future ends more than that call. Real cancellation, Ctrl-C and the closing of a
generator pass through.

No backend is imported here: a backend that runs is already in ``sys.modules``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import anyio

from amplifier.errors import ContainedError, SpuriousCancellation


def contained_failure(exc: BaseException, who: str = "", *, can_wait: bool = True) -> Exception:
    """Return the failure that an exception out of third-party code amounts to.

    An ``Exception`` is returned as it is. A cancellation that no one requested, ``SystemExit`` and every other
    ``BaseException`` become an `amplifier.errors.ContainedError` whose ``__cause__`` is the exception.

    Args:
        exc: What the call raised. Call this in the task that made the call, before leaving the scopes around it.
        who: Whose code it was, in words; the text of a contained failure begins with it.
        can_wait: Whether the call may have waited. A cancellation reaches code where it waits, so one that comes out of code
            that cannot is never real.

    Raises:
        BaseException: ``exc`` itself when it is not the code's own: a real cancellation of the caller, KeyboardInterrupt or
            GeneratorExit, also inside a group.
    """
    if isinstance(exc, Exception):
        return exc
    if _must_pass(exc, can_wait):
        try:
            raise exc
        finally:
            del exc  # an exception whose traceback has a frame that names it is a reference cycle
    words = f"{who} raised" if who else "raised"
    if is_cancellation_type(exc):
        failure: ContainedError = SpuriousCancellation(
            f"{words} {type(exc).__name__} although nothing was cancelled; it may have awaited a future or task that was"
        )
    else:
        shown = text_of(exc)
        failure = ContainedError(f"{words} {type(exc).__name__}" + (f": {shown}" if shown else ""))
    failure.__cause__ = exc
    return failure


def text_of(exc: BaseException) -> str:
    """The text of an exception, even if its own ``__str__`` fails: that is third-party code as well."""
    try:
        return str(exc)
    except Exception as broken:  # noqa: BLE001 — see above
        return f"(its text cannot be shown: {type(broken).__name__})"


def is_real_cancellation(exc: BaseException) -> bool:
    """Whether the backend cancelled the current task, as opposed to code that raised the exception by itself.

    On asyncio any code can raise ``CancelledError``, or meet it by awaiting a future that was cancelled; on trio an old
    ``Cancelled`` can be raised again.
    """
    if not is_cancellation_type(exc):
        return False
    if anyio.current_effective_deadline() == -math.inf:  # a surrounding scope is cancelled
        return True
    if running_asyncio_loop() is None:
        return False
    return bool(sys.modules["asyncio"].current_task().cancelling())


def is_cancellation_type(exc: BaseException) -> bool:
    """Whether ``exc`` is any backend's cancellation, the running one's or the other's."""
    asyncio_module, trio_module = sys.modules.get("asyncio"), sys.modules.get("trio")
    return (asyncio_module is not None and isinstance(exc, asyncio_module.CancelledError)) or (
        trio_module is not None and isinstance(exc, trio_module.Cancelled)
    )


def running_asyncio_loop() -> Any:
    """The asyncio loop that runs this code, or None on trio.

    Trio may run inside an asyncio program (guest mode, ``trio.run`` in a callback, trio-asyncio): then both have a running
    loop, and sniffio's thread-local name, which trio sets around each of its steps, decides.
    """
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
    """A scope of the running backend.

    The same as ``anyio.CancelScope(…)``, which looks its backend up every time and, because it is then made through another
    class, is initialised twice. That is a fifth of what a short-lived scope costs.
    """
    on_asyncio = running_asyncio_loop() is not None
    try:
        return _scope_classes[on_asyncio](deadline=deadline, shield=shield)
    except KeyError:
        scope = anyio.CancelScope(deadline=deadline, shield=shield)
        _scope_classes[on_asyncio] = type(scope)
        return scope


def loop_clock() -> Callable[[], float]:
    """Return the clock of the running loop as a bare function.

    AnyIO's own looks up the backend at every call, and trio's the running loop.
    """
    loop = running_asyncio_loop()
    clock: Callable[[], float] = (
        sys.modules["trio"].lowlevel.current_clock().current_time if loop is None else loop.time
    )
    return clock


def current_time() -> float:
    """Return the time by the clock of the running loop."""
    return loop_clock()()
