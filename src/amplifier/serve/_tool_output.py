"""The output of a tool call as text for a client."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

__all__ = ["output_text"]

_LONGEST = 20_000
"""Characters; the whole output is in the conversation."""


def output_text(data: Mapping[str, Any]) -> str:
    """The output, or the error, in the payload of ``tool:post`` or ``tool:error``, shortened."""
    result = data.get("result")
    result = result if isinstance(result, Mapping) else {"error": data.get("error") or "the call failed"}
    output, error = result.get("output"), result.get("error")
    text = output if isinstance(output, str) else "" if output is None else orjson.dumps(output, default=str).decode()
    if error is not None:
        message = error.get("message") if isinstance(error, Mapping) else error
        text = "\n".join(filter(None, [text, f"Error: {message}"]))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}\n… {len(text) - _LONGEST} characters are not shown"
