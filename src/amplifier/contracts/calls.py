"""Calls to models and tools: the current call of the running code, and steps with wrappers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeAlias

import anyio
import attrs

CallKind: TypeAlias = Literal["model", "tool"]
"""The kind of a call: to a model through a provider, or to a tool."""


@attrs.frozen(kw_only=True)
class CurrentCall:
    """One model call or tool call of a turn.

    Attributes:
        kind: Kind of the call.
        session_id: Id of the session of the turn.
        turn_number: Number of the turn in the conversation, counted from 1.
        iteration: Number of the model call in the turn, counted from 1. A tool call has the number
            of the answer that requested it. 0 means a summary for a context.
        call_id: For a tool call, the model's id. For a model call, an id made from the turn and the
            iteration.
        tool_name: Name of the tool, or None for a model call.
        parent: The surrounding call. In a child session, the tool call that runs the child.
        is_answer: True for a call to a tool that the loop itself offers, such as the one for a
            typed answer. The call has no effect outside of the turn, so it needs no approval.
    """

    kind: CallKind
    session_id: str
    turn_number: int
    iteration: int
    call_id: str
    tool_name: str | None = None
    parent: CurrentCall | None = None
    is_answer: bool = False

    @property
    def idempotency_key(self) -> str:
        """A key of this call for services that execute every key once, the same in a resumed turn.

        It has 64 hexadecimal digits. They are derived from session, turn and call id, because call
        ids are unique only inside a conversation. A child session has a new id every time, so its
        keys are derived from the calls that run the child.
        """
        origin = self.session_id if self.parent is None else self.parent.idempotency_key
        parts = [origin, self.turn_number, self.call_id]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


_current: ContextVar[CurrentCall | None] = ContextVar("amplifier_current_call", default=None)


def current_call() -> CurrentCall | None:
    """Return the call that the running code is part of, or None outside of every call.

    Hooks, approval systems, tasks and worker threads (`anyio.to_thread`) that run on behalf of a
    call have the same one. A task that outlives its call keeps it. In a child session, code outside
    of the child's own calls gets the tool call of the parent session. `CurrentCall.session_id`
    distinguishes them.
    """
    return _current.get()


@contextmanager
def call_scope(call: CurrentCall) -> Iterator[CurrentCall]:
    """Make ``call`` the current one inside the block.

    Loops use this, and so does all other code that calls tools or models.

    Args:
        call: The call. Without a `CurrentCall.parent`, its parent becomes the surrounding call.
    """
    if call.parent is None:
        call = attrs.evolve(call, parent=_current.get())
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)


def parent_call_id(session_id: str) -> str | None:
    """Return the id of the innermost call of another session that runs this session, or None."""
    call = _current.get()
    while call is not None and call.session_id == session_id:
        call = call.parent
    return None if call is None else call.call_id


CHILD_STEPS = "turn.child_steps"
"""Name of the capability that makes the step wrapper of a child session in the current call.

A session offers it if its calls are recorded. Its argument is a name for the child that stays the
same when the call is repeated. A module that runs children registers the wrapper with the child,
together with the capability of the child, ``wrapper.of_child``. An interrupted call can then be
repeated, and the child continues where it was.
"""


# ── steps ────────────────────────────────────────────────────────────────────────────────────────


@attrs.define(kw_only=True, eq=False)
class Step:
    """One model call or tool call for step wrappers. A loop makes it for `Coordinator.run_step`.

    Attributes:
        call: The call.
        arguments: A `ChatRequest` for a model, or the input of a tool as the model wrote it.
        is_resumed: True in a resumed turn that was interrupted before this call had a result.
        was_started: Whether the call of a resumed step had started, or None if unknown. A wrapper
            with this information sets it before it calls ``run``.
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
        """Kind of the call."""
        return self.call.kind

    @property
    def key(self) -> str:
        """Name of the step, unique in its session and the same when the turn is resumed."""
        return f"{self.call.turn_number}/{self.call.iteration}/{self.call.call_id}"

    def before_start(self, fn: Callable[[], Awaitable[None]]) -> None:
        """Await ``fn()`` after every gate, right before the tool or the model is called.

        If it raises, nothing is called and the turn ends with that error.
        """
        self._before_start.append(fn)

    async def start(self) -> None:
        """Await the functions registered with `before_start`. `Coordinator.run_step` calls this."""
        for fn in self._before_start:
            await fn()

    async def wait_for_previous(self) -> None:
        """Wait until the wrappers of the previous step of the group have been entered."""
        if self._previous is not None:
            await self._previous._wait_until_entered()

    async def wait_for_group(self) -> None:
        """Mark this step as entered, and wait until every step of the group is."""
        self.leave_order()
        # The last step is entered after all others.
        if self._last is not None:
            await self._last._wait_until_entered()

    def leave_order(self) -> None:
        """Let the next step of the group enter its wrappers."""
        self._entered.set()

    async def _wait_until_entered(self) -> None:
        # Event.wait() would be a checkpoint even when the event is set.
        if not self._entered.is_set():
            await self._entered.wait()


def ordered_steps(steps: Iterable[Step]) -> list[Step]:
    """Group steps that run at the same time, and return the group.

    `Coordinator.run_step` enters the wrappers of a group one after another in this order, and runs
    none of the calls before all wrappers have been entered. An engine that counts steps then gets
    the same order in every run. Every step of a group must be passed to `run_step` in its own task.
    """
    group = list(steps)
    for previous, step in zip([None, *group], group, strict=False):
        step._previous, step._last = previous, group[-1]
    return group


StepWrapper: TypeAlias = Callable[[Step, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""``async def wrapper(step, run)``: awaits ``run()`` and returns its result.

It may return a stored result of an earlier run instead. It may await ``run()`` again only if the
tool is ``repeatable``. The result is a `ChatResponse` for a model call and a `ToolResult` for a
tool call. An error of a tool is a result too. An exception of ``run()`` ends the turn.
"""
