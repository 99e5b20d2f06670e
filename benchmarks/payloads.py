"""Conversations for the benchmarks: what an agent at work sends to a language model, made of fixed random words."""

from __future__ import annotations

import random
from typing import Any

WORDS = [
    *[
        "the",
        "a",
        "file",
        "model",
        "reads",
        "writes",
        "then",
        "decides",
        "because",
        "function",
        "returns",
        "value",
    ],
    *[
        "error",
        "line",
        "path",
        "test",
        "module",
        "result",
        "agent",
        "tool",
        "call",
        "answer",
        "next",
        "step",
        "check",
    ],
    *[
        "find",
        "open",
        "close",
        "run",
        "build",
        "None",
        "true",
        "config",
        "session",
        "event",
        "hook",
        "order",
    ],
]


def chat_request(*, messages: int, seed: int = 7) -> dict[str, Any]:
    """A request as plain data, about 1 KB per message.

    Eight kinds of messages in turn: plain text of both sides, thinking with its signature, tool calls, tool results as
    text and as data, an image, and undeclared members on messages, blocks and the request itself.
    """
    speech = _Speech(random.Random(seed))
    return {
        "messages": [_KINDS[number % len(_KINDS)](speech, number) for number in range(messages)],
        "tools": [
            {
                "name": f"tool_{number}",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "description": speech(40)},
                        "limit": {"type": "integer"},
                    },
                    "required": ["path"],
                },
                "description": speech(160),
            }
            for number in range(8)
        ],
        "temperature": 0.2,
        "max_output_tokens": 4096,
        "stream": True,
        "metadata": {"purpose": "benchmark"},
        "model": "some-model-1",
        "x_beta": {"features": ["a", "b"]},
    }


def exchanged_texts(size: int, seed: int = 7) -> list[str]:
    """The texts of a conversation in which user and model take turns, 300 characters each."""
    speech = _Speech(random.Random(seed))
    return [speech(300) for _ in range(size)]


class _Speech:
    def __init__(self, source: random.Random) -> None:
        self._source = source

    def __call__(self, length: int) -> str:
        words = self._source.choices(WORDS, k=length // 4)
        return " ".join(words)[:length]

    def opaque(self, length: int) -> str:
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
        return "".join(self._source.choices(alphabet, k=length))


def _call_id(number: int) -> str:
    return f"call_{number:06d}"


def _question(speech: _Speech, number: int) -> dict[str, Any]:
    return {"role": "user", "content": speech(1200)}


def _thought_and_call(speech: _Speech, number: int) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": speech(700), "signature": speech.opaque(300)},
            {"type": "text", "text": speech(400)},
            {
                "type": "tool_call",
                "id": _call_id(number),
                "name": "read_file",
                "input": {"path": f"src/file_{number}.py", "offset": number, "limit": 200},
            },
        ],
    }


def _result_as_data(speech: _Speech, number: int) -> dict[str, Any]:
    output = {
        "path": "src/file.py",
        "lines": [speech(60) for _ in range(8)],
        "truncated": False,
        "score": 0.5,
    }
    block = {"type": "tool_result", "tool_call_id": _call_id(number - 1), "output": output}
    return {"role": "tool", "content": [block], "tool_call_id": _call_id(number - 1)}


def _remark(speech: _Speech, number: int) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [{"type": "text", "text": speech(800), "visibility": "user"}],
        "metadata": {"turn": number, "tokens": {"input": 120, "output": 44}},
    }


def _picture(speech: _Speech, number: int) -> dict[str, Any]:
    source = {"type": "base64", "media_type": "image/png", "data": speech.opaque(800)}
    return {
        "role": "user",
        "content": [{"type": "text", "text": speech(200)}, {"type": "image", "source": source}],
    }


def _marked_call(speech: _Speech, number: int) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": [
            {"type": "text", "text": speech(500), "cache_control": {"type": "ephemeral"}},
            {
                "type": "tool_call",
                "id": _call_id(number),
                "name": "bash",
                "input": {"command": speech(60), "timeout": 30},
            },
        ],
        "x_vendor": {"trace": f"t{number}", "choices": [1, 2, 3]},
    }


def _result_as_text(speech: _Speech, number: int) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": [
            {"type": "tool_result", "tool_call_id": _call_id(number - 1), "output": speech(1300)}
        ],
    }


def _answer(speech: _Speech, number: int) -> dict[str, Any]:
    return {"role": "assistant", "content": speech(1200), "name": "agent"}


_KINDS = [
    _question,
    _thought_and_call,
    _result_as_data,
    _remark,
    _picture,
    _marked_call,
    _result_as_text,
    _answer,
]
