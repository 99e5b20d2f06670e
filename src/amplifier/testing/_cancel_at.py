"""One cancellation at one suspension, inside a loop that is already running.

The small sibling of `cancel_everywhere`, for checks that are async functions themselves: it works on both backends and
sees only the suspensions of the one task it runs in, not those of tasks started by it, and judges nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, final

import anyio
import attrs

from amplifier.testing._injection import Driven, Injection

__all__ = ["CancelledAt", "cancel_at"]


@final
@attrs.define(frozen=True, kw_only=True)
class CancelledAt:
    """How a call ended that was to be cancelled at its k-th suspension.

    Attributes:
        fired: It did suspend k times; False means that every point has been tried.
        returned: It returned a value, though cancelled; legitimate if all it had left to do was shielded.
        value: What it returned.
        where: The innermost user frame that was suspended, ``file:line function``; empty if not fired.
    """

    fired: bool
    returned: bool
    value: object = None
    where: str = ""


async def cancel_at(k: int, function: Callable[..., Coroutine[Any, Any, object]], *args: object) -> CancelledAt:
    """Call ``function(*args)`` in this task and cancel it, by scope, at the k-th time it suspends.

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
    """
    if k < 1:
        raise ValueError(f"k: found {k!r}, expected a number from 1 up")
    value: object = None
    returned = False
    with anyio.CancelScope() as scope:
        injection = Injection(k=k, fire=scope.cancel)
        value = await Driven(function(*args), injection)
        returned = True
    where = injection.stack[-1] if injection.stack else ""
    return CancelledAt(fired=injection.fired, returned=returned, value=value, where=where)
