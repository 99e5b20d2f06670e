"""What one turn did, gathered from its events: the text, the tool calls, the usage; and its JSON form.

Scripts rely on the JSON form, which docs/reference/cli.md describes.
"""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypeAlias

import attrs

from amplifier.errors import BudgetExceeded
from amplifier.events import PROVIDER_REQUEST, PROVIDER_RESPONSE
from amplifier.models import TextDelta, ToolFinished, ToolStarted, TurnEvent

from .exit_codes import Exit

__all__ = ["Outcome", "ToolUse", "TurnRecord", "TurnStatus", "as_json"]

AGENT_TOOL = "task"
"""The tool that starts child sessions; their tool calls are not counted here."""

TurnStatus: TypeAlias = Literal["success", "error", "cancelled"]
_EXIT_CODES = {"success": Exit.OK, "error": Exit.FAILED, "cancelled": Exit.INTERRUPTED}


@attrs.define
class ToolUse:
    """One tool call.

    Attributes:
        started_at: Seconds, of the monotonic clock.
        success: None while it runs.
    """

    tool: str
    arguments: dict[str, Any]
    started: str
    started_at: float
    ended_at: float | None = None
    success: bool | None = None
    result: Any = None

    @property
    def seconds(self) -> float:
        """How long it took, or has been running."""
        return (time.monotonic() if self.ended_at is None else self.ended_at) - self.started_at


@attrs.define
class TurnRecord:
    """What the events of a turn report.

    Attributes:
        unfinished: What was streamed of an answer that is not complete.
    """

    tools: dict[str, ToolUse] = attrs.field(factory=dict)
    began_at: float = attrs.field(factory=time.monotonic)
    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal | None = None
    model: str | None = None
    provider: str | None = None
    unfinished: str = ""

    def add(self, event: TurnEvent) -> None:
        """Add one event."""
        if isinstance(event, TextDelta):
            self.unfinished += event.text
        elif isinstance(event, ToolStarted):
            self.tools[event.tool_call_id] = ToolUse(event.tool_name, event.tool_input, _now(), time.monotonic())
        elif isinstance(event, ToolFinished):
            self._finish(event)
        elif event.name == PROVIDER_REQUEST:
            self.unfinished = ""
        elif event.name == PROVIDER_RESPONSE:
            self.unfinished = ""
            self._count(event.data)

    def _finish(self, event: ToolFinished) -> None:
        use = self.tools.get(event.tool_call_id)
        if use is None:  # rejected before it began: an unknown tool, bad arguments
            given = event.data.get("tool_input")
            arguments = given if isinstance(given, dict) else {}
            use = self.tools[event.tool_call_id] = ToolUse(event.tool_name, arguments, _now(), time.monotonic())
        use.ended_at = time.monotonic()
        use.success = event.success
        use.result = event.data.get("result")
        if use.result is None:
            use.result = {"success": False, "error": event.data.get("error")}

    def _count(self, data: dict[str, Any]) -> None:
        self.provider = _text(data.get("provider")) or self.provider
        response = data.get("response")
        reported = _text(response.get("model")) if isinstance(response, dict) else None
        self.model = reported or _text(data.get("model")) or self.model
        usage = data.get("usage")
        if not isinstance(usage, dict):
            return
        self.input_tokens += _whole(usage.get("input_tokens"))
        self.output_tokens += _whole(usage.get("output_tokens"))
        cost = usage.get("cost_usd")
        if cost is not None:
            with suppress(InvalidOperation):
                self.cost = (self.cost or Decimal(0)) + Decimal(str(cost))

    @property
    def seconds(self) -> float:
        """Since the turn began."""
        return time.monotonic() - self.began_at


@attrs.frozen(kw_only=True)
class Outcome:
    """How a turn ended.

    Attributes:
        response: The final text; of an answer that was cut off, what had been streamed.
        error: What went wrong, for people.
        exception: The same, for ``--debug``.
    """

    status: TurnStatus
    response: str | None = None
    error: str | None = None
    exception: BaseException | None = None

    @property
    def exit_code(self) -> Exit:
        """What the shell gets."""
        return Exit.BUDGET if isinstance(self.exception, BudgetExceeded) else _EXIT_CODES[self.status]


def as_json(
    outcome: Outcome,
    record: TurnRecord,
    *,
    session_id: str | None = None,
    exit_code: int,
    files: dict[str, str] | None = None,
    trace: bool = False,
    budget: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The one object that ``--output-format json`` and ``json-trace`` print."""
    shown: dict[str, Any] = {
        "status": outcome.status,
        "response": outcome.response,
        "error": outcome.error,
        "error_type": None if outcome.exception is None else type(outcome.exception).__name__,
        "exit_code": int(exit_code),
        "session_id": session_id,
        "provider": record.provider,
        "model": record.model,
        "timestamp": _now(),
        "usage": {
            "input_tokens": record.input_tokens,
            "output_tokens": record.output_tokens,
            "total_tokens": record.input_tokens + record.output_tokens,
            "cost_usd": None if record.cost is None else str(record.cost),
        },
        "metadata": {
            "total_tool_calls": len(record.tools),
            "total_agents_invoked": sum(use.tool == AGENT_TOOL for use in record.tools.values()),
            "duration_ms": round(record.seconds * 1000, 2),
        },
        "files": files or {},
    }
    if budget is not None:
        shown["budget"] = budget
    if trace:
        shown["execution_trace"] = [
            {
                "type": "tool_call",
                "sequence": number,
                "tool": use.tool,
                "arguments": use.arguments,
                "result": use.result,
                "timestamp": use.started,
                "duration_ms": round(use.seconds * 1000, 2),
            }
            for number, use in enumerate(record.tools.values(), start=1)
        ]
    return shown


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
