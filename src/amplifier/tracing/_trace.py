"""The trace of a session and its child sessions: a tree of rows, made line by line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, final

from ._log_lines import LogEvent, UnreadLine, read_line
from ._rows import Row, RowKind
from ._session_rows import SessionRows

__all__ = ["Trace"]


@final
class Trace:
    """What a session did. Add the lines of its log, and of those of its child sessions, in any number of steps.

    Whatever the lines hold, adding them does not raise, and every line that is not blank is in exactly one row.

    Args:
        session_id: The session it is about.

    Attributes:
        rows: In the order in which they began to be known; `walk` has them as a tree.
        revision: Grows with every change; see `Row.revision`.
        notes: What a reader has to know: a missing log, lines that cannot be read.
    """

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.rows: list[Row] = []
        self.revision: int = 0
        self.notes: list[str] = []
        self._sessions: dict[str, SessionRows] = {}
        self._calls: dict[tuple[str, str], list[Row]] = {}
        self._waiting: dict[tuple[str, str], list[Row]] = {}
        self._lines = 0
        self._unread: Row | None = None

    def __repr__(self) -> str:
        return f"<Trace of {self.session_id!r}: {self._lines} lines, {len(self.rows)} rows>"

    @property
    def lines(self) -> int:
        """How many lines were added."""
        return self._lines

    # ── adding ──

    def add_lines(self, lines: Iterable[bytes]) -> None:
        """Add lines of a log in their order; blank ones are left out."""
        for line in lines:
            if line.strip():
                self.add(read_line(line, self._lines + 1))

    def add(self, line: LogEvent | UnreadLine) -> None:
        """Add one line that was read."""
        self._lines += 1
        if isinstance(line, UnreadLine):
            self._add_unread(line)
            return
        self._unread = None
        session = self._session_of(line)
        session.add(line)
        row = session.row
        if line.at is not None:
            row.start = line.at if row.start is None else min(row.start, line.at)
            row.end = line.at if row.end is None else max(row.end, line.at)
            self._mark(row)

    def add_messages(self, messages: Iterable[Mapping[str, Any]], texts: Sequence[str]) -> None:
        """Add a conversation, for a session without an event log.

        Args:
            messages: As the context keeps them.
            texts: Each in one line.
        """
        for message, text in zip(messages, texts, strict=True):
            data = dict(message)
            at = self._lines + 1
            event = LogEvent(number=at, name="message", session_id=self.session_id, at=None, level="", data=data)
            self._lines += 1
            name = " ".join(str(part) for part in (data.get("role"), data.get("name")) if part)[:200]
            self._new_row("message", name, event, self._session_of(event).row, text=text)

    def add_steps(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Add the step journal of a turn that runs or was cut off: which of its calls were started and finished."""
        for record in records:
            step, call_id = record.get("step"), record.get("call")
            if step not in ("started", "finished") or not isinstance(call_id, str):
                continue
            event = LogEvent(
                number=self._lines + 1,
                name=f"journal:{step}",
                session_id=self.session_id,
                at=None,
                level="",
                data=dict(record),
            )
            self._lines += 1
            calls = self._calls.get((self.session_id, call_id))
            if not calls:
                session = self._session_of(event).row
                self._new_row(
                    "tool", call_id[:200], event, session, text=f"in the step journal: {step}"
                ).status = "open"
            else:
                self._touch(calls[-1], event)

    def _add_unread(self, line: UnreadLine) -> None:
        """Consecutive lines with the same problem share a row."""
        row = self._unread
        if row is not None and row.text == line.reason:
            row.events.append(line)
            row.name = f"{len(row.events)} lines not read"
            self._mark(row)
            return
        row = Row(number=len(self.rows), kind="unread", name="1 line not read", session_id="", text=line.reason)
        row.events.append(line)
        row.status = "error"
        self.rows.append(row)
        self._mark(row)
        self._unread = row

    def _session_of(self, event: LogEvent) -> SessionRows:
        found = self._sessions.get(event.session_id)
        if found is None:
            name = event.session_id[:200] or "no session id"
            row = Row(number=len(self.rows), kind="session", name=name, session_id=event.session_id, status="open")
            self.rows.append(row)
            self._mark(row)
            found = SessionRows(row, self._new_row, self._touch, self._mark, self._adopt)
            self._sessions[event.session_id] = found
            for child in self._waiting.pop((event.session_id, ""), []):
                self._attach(child, row)
        if found.row.parent is None:
            self._find_parent(found.row, event)
        return found

    def _find_parent(self, row: Row, event: LogEvent) -> None:
        parent_id, call_id = event.text("parent_id"), event.text("parent_call_id")
        if not parent_id:
            return
        calls = self._calls.get((parent_id, call_id), [])
        begun = [call for call in calls if event.at is None or call.start is None or call.start <= event.at]
        if begun:
            self._attach(row, begun[-1])  # a provider may use an id twice
            return
        if call_id:
            self._wait((parent_id, call_id), row)
        if parent_id in self._sessions:
            self._attach(row, self._sessions[parent_id].row)
        else:
            self._wait((parent_id, ""), row)

    def _wait(self, for_what: tuple[str, str], row: Row) -> None:
        waiting = self._waiting.setdefault(for_what, [])
        if row not in waiting:
            waiting.append(row)

    def _adopt(self, session_id: str, call_id: str, row: Row) -> None:
        self._calls.setdefault((session_id, call_id), []).append(row)
        for child in self._waiting.pop((session_id, call_id), []):
            self._attach(child, row)

    def _attach(self, child: Row, parent: Row) -> None:
        """Put a session below a row, unless the log lies and that row is below the session."""
        above: Row | None = parent
        while above is not None:
            if above is child:
                return
            above = None if above.parent is None else self.rows[above.parent]
        child.parent = parent.number
        self._mark(child)

    def _new_row(self, kind: RowKind, name: str, event: LogEvent, parent: Row, *, text: str = "") -> Row:
        row = Row(
            number=len(self.rows),
            kind=kind,
            name=name,
            session_id=event.session_id,
            text=text,
            parent=parent.number,
            start=event.at,
        )
        row.events.append(event)
        self.rows.append(row)
        self._mark(row)
        return row

    def _touch(self, row: Row, event: LogEvent) -> None:
        row.events.append(event)
        if row.start is None:
            row.start = event.at
        self._mark(row)

    def _mark(self, row: Row) -> None:
        self.revision += 1
        row.revision = self.revision

    # ── reading ──

    def walk(self) -> Iterator[tuple[Row, int]]:
        """Every row with its depth, each before the rows below it, in the order in which they began to be known."""
        below: dict[int | None, list[Row]] = {}
        for row in self.rows:
            below.setdefault(row.parent, []).append(row)
        waiting = [(row, 0) for row in reversed(below.get(None, []))]
        while waiting:
            row, depth = waiting.pop()
            yield row, depth
            waiting += [(child, depth + 1) for child in reversed(below.get(row.number, []))]
