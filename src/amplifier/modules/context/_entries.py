"""A stored message with what every view asks of it."""

from __future__ import annotations

from typing import Any, final

import attrs

SYSTEM_ROLES = frozenset({"system", "developer"})

STEERING = "steering"
"""The ``source``, in the metadata, of messages of the user while a turn runs: it is part of a turn, and begins none."""

NO_PROMPTS = frozenset({"hook", "answer_format", STEERING})
"""The ``source`` of messages with the role of the user that begin no turn."""


@final
@attrs.define(eq=False, kw_only=True)
class Entry:
    """One stored message, with what every view asks of it.

    Attributes:
        message: As a dict, which is never changed.
        position: In the conversation; -1 for what a compaction put in place of others.
        is_flat: Nothing in it has to be copied.
        tokens: What it takes of a budget, roughly.
        part: Positions of a call and all its results, this one included; for any other message only its own.
        answers: Positions of the messages whose tool calls it answers.
        is_orphan: It answers calls that no message made, so that no provider would accept it.
        is_system: It is an instruction, which no view leaves out.
        is_prompt: It is text of a user that begins a turn; results in a user's message do not, nor does what a hook injects.
        is_steering: It is text of a user in a turn that had begun before.
        is_pinned: Its metadata has ``pinned: true``.
        is_plan: It calls a tool that keeps the plan or the list of what is to be done, or answers such a call.
    """

    message: dict[str, Any]
    position: int = -1
    is_flat: bool = False
    tokens: int
    part: list[int] = attrs.field(factory=list)
    answers: tuple[int, ...] = ()
    is_orphan: bool = False
    is_system: bool = False
    is_prompt: bool = False
    is_steering: bool = False
    is_pinned: bool = False
    is_plan: bool = False
