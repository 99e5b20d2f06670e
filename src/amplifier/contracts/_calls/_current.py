"""Which model call or tool call the running code is part of."""

from __future__ import annotations

from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from typing import Literal, TypeAlias

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
        iteration: The model call of the turn, counted from 1; tool calls have that of the answer that asked for them.
        call_id: Of a tool call, the id that the model gave it; of a model call, one made of turn and iteration.
        tool_name: The tool; None for a model call.
        parent: The call inside which this one is made; in a child session, the tool call that runs the child.
    """

    kind: CallKind
    session_id: str
    turn_number: int
    iteration: int
    call_id: str
    tool_name: str | None = None
    parent: CurrentCall | None = None


_current: ContextVar[CurrentCall | None] = ContextVar("amplifier_current_call", default=None)


def current_call() -> CurrentCall | None:
    """The call that the running code is part of; None outside of every call.

    Hooks, approval systems, tasks and worker threads (`anyio.to_thread`) that run on behalf of a call see it, too. A task that
    a call starts and leaves behind keeps seeing it. In a child session, code outside of the child's own calls sees the tool call
    of the parent session; `CurrentCall.session_id` distinguishes them.
    """
    return _current.get()


class _CallScope:
    """Written out, because one around every model call and tool call made of a generator takes three times as long."""

    __slots__ = ("_call", "_token")

    _token: Token[CurrentCall | None]

    def __init__(self, call: CurrentCall) -> None:
        self._call = call

    def __enter__(self) -> CurrentCall:
        outer = _current.get()
        if outer is not None and self._call.parent is None:
            self._call = attrs.evolve(self._call, parent=outer)
        self._token = _current.set(self._call)
        return self._call

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def call_scope(call: CurrentCall) -> AbstractContextManager[CurrentCall, None]:
    """Make ``call`` the current one inside the block; for loops, and for whatever else calls tools or models.

    Args:
        call: Without a `CurrentCall.parent`, it gets the surrounding call as its parent.
    """
    return _CallScope(call)


def parent_call_id(session_id: str) -> str | None:
    """The id of the call of another session inside which this session runs, the innermost one."""
    call = _current.get()
    while call is not None and call.session_id == session_id:
        call = call.parent
    return None if call is None else call.call_id
