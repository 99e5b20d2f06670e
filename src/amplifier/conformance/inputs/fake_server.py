"""A fake LLM server for providers on 127.0.0.1. Run as a script, it prints its port.

It implements Chat Completions, Anthropic Messages and OpenAI Responses, whole and streamed. The
first part of the path selects the response: ``/auto/…`` answers the question, with tool calls if
the question mentions tools, ``/thinking/…`` returns thinking blocks, and ``/status-429/…`` returns
an error. ``GET /seen`` returns the requests since its last call.
"""

from __future__ import annotations

import json
import sys
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

THOUGHT = "The service thinks before it speaks."
SIGNATURE = "c2VydmljZS1zaWduYXR1cmU="
REDACTED = "cmVkYWN0ZWQtdGhvdWdodA=="

Block = dict[str, Any]

_seen: list[dict[str, Any]] = []
_lock = threading.Lock()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    # The base class has named the parameter.
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing."""

    def do_GET(self) -> None:
        """Send the received requests, or the models."""
        if self.path == "/seen":
            with _lock:
                requests = list(_seen)
                _seen.clear()
            self._send(200, requests)
        else:
            self._send(
                200,
                {
                    "data": [
                        {
                            "id": "test-model",
                            "object": "model",
                            "type": "model",
                            "display_name": "Test",
                        }
                    ]
                },
            )

    def answer(self, scenario: str, body: dict[str, Any]) -> list[Block]:
        """Return the content of an answer."""
        return _answer(scenario, body)

    def do_POST(self) -> None:
        """Answer one call of the model."""
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            body = json.loads(raw)
        except ValueError:
            body = {}
        with _lock:
            _seen.append({"path": self.path, "body": body})
        scenario = self.path.split("/")[1]
        if scenario.startswith("status-"):
            error = {
                "type": "scripted_error",
                "message": "the script demands it",
                "code": "scripted",
            }
            self._send(int(scenario.removeprefix("status-")), {"type": "error", "error": error})
            return
        blocks = self.answer(scenario, body)
        encode = _messages if "messages" in self.path.rsplit("/", 1)[-1] else _chat
        encode = _responses if self.path.endswith("/responses") else encode
        whole, events = encode(blocks, body)
        if body.get("stream"):
            self._stream(events)
        else:
            self._send(200, whole)

    def _send(self, status: int, value: Any) -> None:
        self._write(status, "application/json", json.dumps(value))

    def _write(self, status: int, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", content_type)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, events: list[tuple[str | None, Any]]) -> None:
        lines = []
        for name, value in events:
            lines.append(f"event: {name}\n" if name else "")
            lines.append(f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n")
        self._write(200, "text/event-stream", "".join(lines))


# ── answers ──


def _answer(scenario: str, body: dict[str, Any]) -> list[Block]:
    asked = _last_user_text(body)
    tools = [_tool_name(tool) for tool in body.get("tools") or []]
    text: Block = {"type": "text", "text": f"You said: {asked}"}
    if scenario == "thinking":
        thought: Block = {"type": "thinking", "thinking": THOUGHT, "signature": SIGNATURE}
        return [
            thought,
            {"type": "redacted_thinking", "data": REDACTED},
            text,
            _call(body, 0, "look"),
        ]
    if scenario == "calls" or (tools and "tool" in asked):
        names = [*tools[:2], *tools[:1]] or ["look"]
        return [text, *(_call(body, number, name) for number, name in enumerate(names))]
    return [text]


def _call(body: dict[str, Any], number: int, name: str) -> Block:
    """Return a call with an id that is new in the conversation."""
    conversation = zlib.crc32(json.dumps(body.get("messages") or body.get("input") or []).encode())
    return {
        "type": "tool_use",
        "id": f"toolu_{conversation:x}_{number}",
        "name": name,
        "input": {"text": f"é {number}"},
    }


def _last_user_text(body: dict[str, Any]) -> str:
    """Return the text of the last message if it is the user's, else "nothing"."""
    messages = body.get("messages") or body.get("input") or []
    last = messages[-1] if isinstance(messages, list) and messages else {}
    if not isinstance(last, dict) or last.get("role") != "user":
        return "nothing"
    content = last.get("content")
    if isinstance(content, str):
        return content[:2000]
    parts = [part.get("text") for part in content or [] if isinstance(part, dict)]
    return " ".join(part for part in parts if isinstance(part, str))[:2000] or "nothing"


def _tool_name(tool: Any) -> str:
    function = tool.get("function") if isinstance(tool, dict) else None
    holder = function if isinstance(function, dict) else tool if isinstance(tool, dict) else {}
    return str(holder.get("name", "look"))


def _counts(blocks: list[Block], body: dict[str, Any]) -> tuple[int, int]:
    return len(json.dumps(body)) // 4, len(json.dumps(blocks)) // 4


# ── the wire formats: the whole response, and the events of a stream ──

_PIECES = 3
"""Number of deltas of a block, which may be cut inside words."""


def _cut(text: str) -> list[str]:
    step = max(1, -(-len(text) // _PIECES))
    return [text[at : at + step] for at in range(0, len(text), step)] or [""]


Encoded = tuple[dict[str, Any], list[tuple[str | None, Any]]]


def _chat(blocks: list[Block], body: dict[str, Any]) -> Encoded:
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    calls = [
        {
            "id": block["id"],
            "index": number,
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for number, block in enumerate(b for b in blocks if b["type"] == "tool_use")
    ]
    taken, given = _counts(blocks, body)
    usage = {"prompt_tokens": taken, "completion_tokens": given, "total_tokens": taken + given}
    about = {"id": "chatcmpl-1", "created": 1, "model": str(body.get("model"))}
    reason = "tool_calls" if calls else "stop"
    message: dict[str, Any] = {
        "role": "assistant",
        "content": text,
        **({"tool_calls": calls} if calls else {}),
    }
    choice = {"index": 0, "message": message, "finish_reason": reason}
    whole = {**about, "object": "chat.completion", "choices": [choice], "usage": usage}
    part = {**about, "object": "chat.completion.chunk"}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": piece} for piece in _cut(text)]
    for call in calls:
        begun = {**call, "function": {**call["function"], "arguments": ""}}
        pieces = [
            {"index": call["index"], "function": {"arguments": piece}}
            for piece in _cut(call["function"]["arguments"])
        ]
        deltas += [{"tool_calls": [part_of_call]} for part_of_call in (begun, *pieces)]
    events: list[tuple[str | None, Any]] = [
        *(
            (None, {**part, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
            for delta in deltas
        ),
        (None, {**part, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}),
        (None, {**part, "choices": [], "usage": usage}),
        (None, "[DONE]"),
    ]
    return whole, events


def _messages(blocks: list[Block], body: dict[str, Any]) -> Encoded:
    taken, given = _counts(blocks, body)
    usage = {"input_tokens": taken, "output_tokens": given}
    reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
    about = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": str(body.get("model")),
        "stop_sequence": None,
    }
    whole = {**about, "content": blocks, "stop_reason": reason, "usage": usage}
    start: dict[str, Any] = {
        **about,
        "content": [],
        "stop_reason": None,
        "usage": {"input_tokens": taken, "output_tokens": 1},
    }
    events: list[tuple[str | None, Any]] = [
        ("message_start", {"type": "message_start", "message": start})
    ]
    for index, block in enumerate(blocks):
        begun, deltas = _begun(block)
        events.append(
            (
                "content_block_start",
                {"type": "content_block_start", "index": index, "content_block": begun},
            )
        )
        events += [
            ("content_block_delta", {"type": "content_block_delta", "index": index, "delta": delta})
            for delta in deltas
        ]
        events.append(("content_block_stop", {"type": "content_block_stop", "index": index}))
    over = {
        "type": "message_delta",
        "delta": {"stop_reason": reason, "stop_sequence": None},
        "usage": {"output_tokens": given},
    }
    return whole, [*events, ("message_delta", over), ("message_stop", {"type": "message_stop"})]


def _begun(block: Block) -> tuple[Block, list[Block]]:
    if block["type"] == "text":
        return {"type": "text", "text": ""}, [
            {"type": "text_delta", "text": piece} for piece in _cut(block["text"])
        ]
    if block["type"] == "thinking":
        deltas = [
            *({"type": "thinking_delta", "thinking": piece} for piece in _cut(block["thinking"])),
            {"type": "signature_delta", "signature": block["signature"]},
        ]
        return {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if block["type"] == "tool_use":
        pieces = _cut(json.dumps(block["input"]))
        return {**block, "input": {}}, [
            {"type": "input_json_delta", "partial_json": piece} for piece in pieces
        ]
    return block, []


def _responses(blocks: list[Block], body: dict[str, Any]) -> Encoded:
    taken, given = _counts(blocks, body)
    output: list[dict[str, Any]] = []
    for number, block in enumerate(blocks):
        if block["type"] == "text":
            parts = [{"type": "output_text", "text": block["text"], "annotations": []}]
            message = {
                "type": "message",
                "id": f"msg_{number}",
                "role": "assistant",
                "status": "completed",
                "content": parts,
            }
            output.append(message)
        elif block["type"] == "tool_use":
            call = {
                "type": "function_call",
                "id": f"fc_{number}",
                "call_id": block["id"],
                "status": "completed",
            }
            output.append({**call, "name": block["name"], "arguments": json.dumps(block["input"])})
    whole = {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "status": "completed",
        "model": str(body.get("model")),
        "output": output,
        "usage": {"input_tokens": taken, "output_tokens": given, "total_tokens": taken + given},
    }
    events: list[tuple[str | None, Any]] = [
        ("response.created", {"type": "response.created", "response": {**whole, "output": []}})
    ]
    for index, item in enumerate(output):
        for name in ("response.output_item.added", "response.output_item.done"):
            events.append((name, {"type": name, "output_index": index, "item": item}))
    return whole, [
        *events,
        ("response.completed", {"type": "response.completed", "response": whole}),
    ]


def main() -> None:
    """Serve until standard input is closed."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
