"""Steps: a model call or tool call as the wrappers around it see it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeAlias

import anyio
import attrs

from ._current import CallKind, CurrentCall


@attrs.define(kw_only=True, eq=False)
class Step:
    """One model call or tool call as step wrappers see it; made by a loop, for `Coordinator.run_step`.

    Attributes:
        call: Which call it is.
        arguments: What it is called with: a `ChatRequest` for a model, the input for a tool, as the model wrote it.
        is_resumed: The turn was cut off when this call had no result yet, and goes on now.
        was_started: Of a resumed step, whether the call itself had begun; None where that is not known. A wrapper that knows
            it sets it, before it calls ``run``.
    """

    call: CurrentCall
    arguments: Any
    is_resumed: bool = False
    was_started: bool | None = None
    _before_start: list[Callable[[], Awaitable[None]]] = attrs.field(factory=list, init=False)
    _previous: Step | None = attrs.field(default=None, init=False, repr=False)
    _last: Step | None = attrs.field(default=None, init=False, repr=False)
    _is_entered: bool = attrs.field(default=False, init=False, repr=False)
    _entered: anyio.Event | None = attrs.field(default=None, init=False, repr=False)  # made by the first one who waits

    @property
    def kind(self) -> CallKind:
        """What is called."""
        return self.call.kind

    @property
    def key(self) -> str:
        """A name of this step that is the same when the turn is resumed, unique in its session."""
        return f"{self.call.turn_number}/{self.call.iteration}/{self.call.call_id}"

    def before_start(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Have ``fn()`` awaited when every gate has let the call pass, right before the tool or the model is called.

        If it raises, nothing is called and the turn ends with that error.
        """
        self._before_start.append(fn)

    async def start(self) -> None:
        """Await what was registered with `before_start`; `Coordinator.run_step` does so."""
        for fn in self._before_start:
            await fn()

    async def wait_for_previous(self) -> None:
        """Wait until the wrappers of the step before this one in its group have been entered."""
        if self._previous is not None:
            await self._previous._wait_until_entered()

    async def wait_for_group(self) -> None:
        """Note that the wrappers of this step have been entered, and wait for those of all steps of its group."""
        self.leave_order()
        if self._last is not None:  # which is entered after all others
            await self._last._wait_until_entered()

    def leave_order(self) -> None:
        """Let the next step of the group in."""
        self._is_entered = True
        if self._entered is not None:
            self._entered.set()

    async def _wait_until_entered(self) -> None:
        if not self._is_entered:
            self._entered = self._entered or anyio.Event()
            await self._entered.wait()


def ordered_steps(steps: Iterable[Step]) -> list[Step]:
    """Make steps that run at the same time one group.

    `Coordinator.run_step` enters the wrappers of a group one after another in this order, and runs none of the calls before the
    wrappers of all of them have been entered. An engine that counts steps then sees the same order in every run. All steps of a
    group have to be given to `run_step`, each in a task of its own.
    """
    group = list(steps)
    for previous, step in zip([None, *group], group, strict=False):
        step._previous, step._last = previous, group[-1]
    return group


StepWrapper: TypeAlias = Callable[[Step, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""``async def wrapper(step, run)``: awaits ``run()`` once and returns its result, or returns one that it kept from an earlier run.

The result is a `ChatResponse` for a model call, a `ToolResult` for a tool call. An error of a tool is a result, too; what ``run()``
raises ends the turn.
"""
