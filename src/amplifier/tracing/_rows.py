"""What a trace consists of: rows, each with the events that it was made of, in a tree."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal, TypeAlias

import attrs

from ._log_lines import LogEvent, UnreadLine

RowKind: TypeAlias = Literal[
    "session", "turn", "model", "tool", "approval", "compaction", "hook", "cancel", "event", "message", "unread"
]
"""A session, a turn, a model call, a tool call, a question to the user, a compaction of what the model is shown, a failure or verdict of a hook, a cancellation, any other
event; a message of the transcript, if there is no event log; lines that cannot be read."""

RowStatus: TypeAlias = Literal["", "ok", "error", "denied", "cancelled", "open"]
"""Empty for what only happened; open for what has no end in the log: it runs, or its process was killed."""


@attrs.define(eq=False, kw_only=True)
class Row:
    """One row of a trace.

    Attributes:
        number: Its index in the trace.
        name: The tool, the provider and model, the event.
        text: What it is about in one line: the prompt, the input of a tool, the reason of a failure.
        parent: The index of the row that it belongs to.
        events: What it was made of, in the order of the log. Every line of a log belongs to exactly one row.
        start: Seconds since 1970.
        end: The same; None if it has no end in the log, or no duration.
        first_token: Seconds from the request to the first piece of the answer, if it was streamed.
        revision: Of the trace when the row was last changed.
    """

    number: int
    kind: RowKind
    name: str
    session_id: str
    text: str = ""
    parent: int | None = None
    events: list[LogEvent | UnreadLine] = attrs.field(factory=list)
    start: float | None = None
    end: float | None = None
    status: RowStatus = ""
    model: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cost: Decimal | None = None
    first_token: float | None = None
    revision: int = 0

    @property
    def seconds(self) -> float | None:
        """How long it took; None if that is not known. A clock that was set back gives 0."""
        return None if self.start is None or self.end is None else max(0.0, self.end - self.start)

    @property
    def has_duration(self) -> bool:
        """Whether it lasts, and is not just an event."""
        return self.kind in ("session", "turn", "model", "tool", "approval", "compaction")
