"""The events of a session that goes badly, in the order in which a loop emits them: for handlers that count or remember.

Tools succeed, fail with and without an error object, fail in the same way many times in a row, and raise.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

from .hook_payloads import Payload, ordinary_payload

MOST_IN_A_ROW = 8
"""How often the same call fails in the same way, one time after another."""

_SEEN = {"success": True, "output": "seen", "error": None}
_TIMEOUT = {"type": "TimeoutError", "message": "timeout: it failed after 30 s"}
_RESULTS: tuple[tuple[Any, int], ...] = (
    (_SEEN, 2),
    ({"success": True, "output": "a long output, line after line\n" * 40, "error": None}, 1),
    ("a result that the loop has made a text of, as it is stored for the model. " * 4, 1),
    ({"success": False, "output": None, "error": _TIMEOUT}, MOST_IN_A_ROW),
    (_SEEN, 1),
    ({"success": False, "output": None, "error": None}, MOST_IN_A_ROW),
    (_SEEN, 1),
    ({"success": False, "output": "it failed", "error": {"message": "it failed"}}, 3),
    ("Error: it failed", 3),
    (None, MOST_IN_A_ROW),
    (_SEEN, 1),
)
"""Results of one tool and how often each comes in a row; None for a tool that raises. Each line is a turn."""


def session_events(tool_name: str, tool_input: Mapping[str, Any]) -> Iterator[tuple[str, Payload]]:
    """Every event of the session with its payload; one tool is called with the same input every time."""
    calls = 0
    yield "session:start", ordinary_payload("session:start")
    for result, times in _RESULTS:
        for event in ("prompt:submit", "execution:start"):
            yield event, ordinary_payload(event)
        for iteration in range(1, times + 1):
            calls += 1
            for event in ("provider:request", "llm:request", "llm:response", "provider:response"):
                yield event, ordinary_payload(event, iteration=iteration)
            yield from _tool_call(result, tool_name=tool_name, tool_input=tool_input, tool_call_id=f"call-{calls}")
        for event in ("execution:end", "orchestrator:complete", "prompt:complete"):
            yield event, ordinary_payload(event)
    yield "session:end", ordinary_payload("session:end")


def _tool_call(result: Any, **about: Any) -> Iterator[tuple[str, Payload]]:
    yield "tool:pre", ordinary_payload("tool:pre", **copy.deepcopy(about))
    if result is None:
        error = {"type": "OSError", "message": "it failed"}
        yield "tool:error", ordinary_payload("tool:error", error=error, **copy.deepcopy(about))
    else:
        told = {"result": copy.deepcopy(result), "tool_result": copy.deepcopy(result)}
        yield "tool:post", ordinary_payload("tool:post", **told, **copy.deepcopy(about))
