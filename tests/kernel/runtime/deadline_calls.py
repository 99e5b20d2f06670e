"""Calls under a deadline, made the way the kernel makes them."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

from amplifier.kernel.runtime.deadlines import ReusableDeadline, run_bounded


class Calls(ReusableDeadline):
    """A group of which each call is made as dispatch makes it."""

    async def run(self, call: Awaitable[Any], seconds: float | None, label: object) -> Any:
        self.label = label
        self.arm(seconds, self.clock(), call)
        try:
            answer = await call
        except BaseException as exc:
            raise self.classify_exception(exc) from None
        if self.clock() >= self.until:
            raise self.reset_expired()
        return answer


class SingleCall:
    """The same by `run_bounded`, which knows no group."""

    async def run(self, call: Awaitable[Any], seconds: float | None, label: str) -> Any:
        return await run_bounded(call, seconds, label, None)

    def close(self) -> None:
        return None
