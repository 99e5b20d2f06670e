"""How a turn ended for the command line: its exit code, and its JSON form.

Scripts rely on the JSON form, which docs/reference/cli.md describes.
"""

from __future__ import annotations

from typing import Any

from amplifier.errors import BudgetExceeded
from amplifier.turns import Ended, TurnRecord, now

from .exit_codes import Exit

__all__ = ["as_json", "exit_code_of_turn"]

AGENT_TOOL = "task"
"""The tool that starts child sessions; their tool calls are not counted here."""

_EXIT_CODES = {"success": Exit.OK, "error": Exit.FAILED, "cancelled": Exit.INTERRUPTED}


def exit_code_of_turn(ended: Ended) -> Exit:
    """What the shell gets."""
    return Exit.BUDGET if isinstance(ended.error, BudgetExceeded) else _EXIT_CODES[ended.status]


def as_json(
    ended: Ended,
    record: TurnRecord,
    *,
    session_id: str | None = None,
    exit_code: int,
    error: str | None = None,
    files: dict[str, str] | None = None,
    trace: bool = False,
    budget: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The one object that ``--output-format json`` and ``json-trace`` print."""
    shown: dict[str, Any] = {
        "status": ended.status,
        "response": ended.result,
        "error": error,
        "error_type": None if ended.error is None else type(ended.error).__name__,
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
