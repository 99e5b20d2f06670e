"""Calls of models and tools: which one the running code is part of, and the steps that wrap them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import anyio
import attrs

CallKind: TypeAlias = Literal["model", "tool"]
"""What a loop calls: a model through a provider, or a tool."""


@attrs.frozen(kw_only=True)
class CurrentCall:
    """One model call or tool call of a turn.

    Attributes:
        kind: What is called.
        session_id: The session whose turn it belongs to.
        turn_number: The turn, counted from 1 over the conversation.
        iteration: The model call of the turn, counted from 1; tool calls have that of the answer that asked for them. 0 for a summary
            that a context asks for.
        call_id: Of a tool call, the id that the model gave it; of a model call, one made of turn and iteration.
        tool_name: The tool; None for a model call.
        parent: The call inside which this one is made; in a child session, the tool call that runs the child.
        is_answer: True for the call of a tool that the loop itself offers, such as that of a typed answer. It has no effect
            outside of the turn, so no one is asked about it.
    """

    kind: CallKind
    session_id: str
    turn_number: int
    iteration: int
    call_id: str
    tool_name: str | None = None
    parent: CurrentCall | None = None
    is_answer: bool = False


_current: ContextVar[CurrentCall | None] = ContextVar("amplifier_current_call", default=None)


def current_call() -> CurrentCall | None:
    """The call that the running code is part of; None outside of every call.

    Hooks, approval systems, tasks and worker threads (`anyio.to_thread`) that run on behalf of a call see it, too. A task that
    a call starts and leaves behind keeps seeing it. In a child session, code outside of the child's own calls sees the tool call
    of the parent session; `CurrentCall.session_id` distinguishes them.
    """
    return _current.get()


@contextmanager
def call_scope(call: CurrentCall) -> Iterator[CurrentCall]:
    """Make ``call`` the current one inside the block; for loops, and for whatever else calls tools or models.

    Args:
        call: Without a `CurrentCall.parent`, it gets the surrounding call as its parent.
    """
    if call.parent is None:
        call = attrs.evolve(call, parent=_current.get())
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)


def parent_call_id(session_id: str) -> str | None:
    """The id of the call of another session inside which this session runs, the innermost one."""
    call = _current.get()
    while call is not None and call.session_id == session_id:
        call = call.parent
    return None if call is None else call.call_id


CHILD_STEPS = "turn.child_steps"
"""The capability of a session whose calls are recorded: makes the step wrapper of a child session that the current call runs.

It takes a name for the child that is the same when the call is made again. A module that runs children registers the wrapper with the
child, and its own form of the capability, ``wrapper.of_child``, with it; then a call that was cut off can be made again, and the
child goes on where it was.
"""


# ── a call as the wrappers around it see it ──────────────────────────────────────────────────────


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
    _entered: anyio.Event = attrs.field(factory=anyio.Event, init=False, repr=False)

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
        self._entered.set()

    async def _wait_until_entered(self) -> None:
        if not self._entered.is_set():  # without a checkpoint
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
"""``async def wrapper(step, run)``: awaits ``run()`` and returns its result, or returns one that it kept from an earlier run. It may
await ``run()`` again only for a call whose tool is ``repeatable``.

The result is a `ChatResponse` for a model call, a `ToolResult` for a tool call. An error of a tool is a result, too; what ``run()``
raises ends the turn.
"""
