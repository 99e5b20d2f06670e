"""Cancel scopes and the clock of the running backend, without AnyIO's lookup of the backend at every call.

Neither backend is imported here: a backend that runs is already in ``sys.modules``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import anyio

from ._containment import running_asyncio_loop

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
    """The running loop's clock as a bare function; AnyIO's looks the backend up at every call, trio's the running loop."""
    loop = running_asyncio_loop()
    clock: Callable[[], float] = (
        sys.modules["trio"].lowlevel.current_clock().current_time if loop is None else loop.time
    )
    return clock
