"""Logs as hooks-logging writes them, for tests of the trace."""

from __future__ import annotations

import json
from typing import Any

START = 1_767_225_600.0  # 2026-01-01


def line(
    event: str, at: float = 0.0, session_id: str = "s", /, level: str = "INFO", **data: Any
) -> bytes:
    """One line; ``at`` is in seconds after the start of the log."""
    minutes, seconds = divmod(at, 60)
    record: dict[str, Any] = {
        "ts": f"2026-01-01T00:{int(minutes):02}:{seconds:09.6f}+00:00",
        "lvl": level,
        "schema": {"name": "amplifier.log", "ver": "1.0.0"},
        "event": event,
        "session_id": session_id,
    }
    for key in ("status", "error", "duration_ms"):
        if key in data:
            record[key] = data.pop(key)
    if data:
        record["data"] = data
    return json.dumps(record).encode() + b"\n"


def usage(given: int, answered: int, cost: str | None = None) -> dict[str, Any]:
    return {"input_tokens": given, "output_tokens": answered, "cost_usd": cost}


def model_call(
    at: float, seconds: float, session_id: str = "s", *, cost: str | None = "0.01"
) -> list[bytes]:
    """A streamed model call; the first piece comes half-way."""
    return [
        line(
            "provider:request",
            at,
            session_id,
            provider="mock",
            messages=[{"role": "user", "content": "q"}],
        ),
        line("llm:request", at, session_id, provider="mock", model="m-1"),
        line("content_block:start", at + seconds / 2, session_id, block_index=0, block_type="text"),
        line(
            "content_block:end",
            at + seconds,
            session_id,
            block_index=0,
            block={"type": "text", "text": "hello"},
        ),
        line("llm:response", at + seconds, session_id, model="m-1", usage=usage(1, 1)),
        line(
            "provider:response",
            at + seconds,
            session_id,
            provider="mock",
            response={"content": [{"type": "text", "text": "hello"}]},
            usage=usage(10, 5, cost),
        ),
    ]


def tool_call(
    at: float, seconds: float, call_id: str = "c1", session_id: str = "s", name: str = "bash"
) -> list[bytes]:
    about: dict[str, Any] = {
        "tool_name": name,
        "tool_call_id": call_id,
        "tool_input": {"command": "ls"},
    }
    result = {"success": True, "output": "a.txt", "error": None}
    return [
        line("tool:pre", at, session_id, **about),
        line("tool:post", at + seconds, session_id, **about, tool_result=result, result=result),
    ]


def turn(
    at: float, *inside: bytes, end: float, session_id: str = "s", status: str = "completed"
) -> list[bytes]:
    return [
        line("execution:start", at, session_id, prompt="do it"),
        *inside,
        line("execution:end", end, session_id, status=status, response="done"),
        line("orchestrator:complete", end, session_id, status="success", turn_count=1),
    ]


def small_session() -> list[bytes]:
    """One turn with two model calls and a tool call between them."""
    return [
        line("session:start"),
        *turn(1, *model_call(1, 2), *tool_call(3, 0.5), *model_call(4, 1), end=5),
        line("session:end", 6, status="completed"),
    ]
