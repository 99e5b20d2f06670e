"""How a turn ended for the command line: its exit code, and its JSON form.

Scripts rely on the JSON form, which docs/reference/cli.md describes.
"""

from __future__ import annotations

from typing import Any, Self

import attrs

from amplifier.errors import BudgetExceeded
from amplifier.turns import Ended, TurnRecord, TurnStatus, now

from .error_messages import error_message
from .exit_codes import Exit

__all__ = ["Outcome", "as_json"]

AGENT_TOOL = "task"
"""The tool that starts child sessions; their tool calls are not counted here."""

_EXIT_CODES = {"success": Exit.OK, "error": Exit.FAILED, "cancelled": Exit.INTERRUPTED}


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

    @classmethod
    def of(cls, ended: Ended, record: TurnRecord) -> Self:
        """The outcome of a turn."""
        if ended.error is None:
            return cls(status=ended.status, response=ended.result)
        streamed = record.unfinished or None if ended.status == "cancelled" else None
        return cls(status=ended.status, response=streamed, error=error_message(ended.error), exception=ended.error)

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
        "timestamp": now(),
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
