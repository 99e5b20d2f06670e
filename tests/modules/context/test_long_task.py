"""A long task in a small window, over a real HTTP server that counts as a service with a prompt cache does.

The server knows blocks and marks: what is the same up to a mark of an earlier request is read from the cache for a tenth of the price, what
a mark covers for the first time is written for five quarters of it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from amplifier import AmplifierSession
from amplifier.modules.context.simple import SimpleContext
from amplifier.testing import MockProvider, MockTool

RULES = "Rules: never delete a file, and answer in French."
FIRST = "First request: port the harbour plan to the new tide tables."
TIDES = "tide 06:12 low, 12:40 high; " * 40
_LOOKBACK = 20


class CountingServer:
    """Answers every request with a tool call, every tenth with text, and counts what each would cost.

    Attributes:
        cost: In tokens at the full price of input.
        hit_rate: The share of all input that was read from the cache.
        largest: Tokens of the largest request.
        forgotten: Requests that lacked the rules or the first request.
    """

    def __init__(self) -> None:
        self.cost = 0.0
        self.requests = self.counts = self.summaries = self.largest = self.forgotten = 0
        self.sizes: list[int] = []
        self._read = self._sent = 0
        self._cache: set[int] = set()

    @property
    def hit_rate(self) -> float:
        return self._read / self._sent

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        usage, tokens = self._count(body)
        self.cost += usage["input_tokens"] + 1.25 * usage["cache_creation_input_tokens"]
        self.cost += 0.1 * usage["cache_read_input_tokens"]
        if body["system"][0]["text"].startswith("You keep the memory"):
            self.summaries += 1
            content: dict[str, Any] = {
                "type": "text",
                "text": f"Summary {self.summaries}: tide tables were read.",
            }
        else:
            self._read, self._sent = (
                self._read + usage["cache_read_input_tokens"],
                self._sent + tokens,
            )
            self.largest = max(self.largest, tokens)
            self.sizes.append(tokens)
            self.requests += 1
            self.forgotten += RULES not in json.dumps(body["system"]) or FIRST not in json.dumps(
                body["messages"]
            )
            content = {
                "type": "tool_use",
                "id": f"t{self.requests}",
                "name": "tides",
                "input": {"day": self.requests},
            }
            if self.requests % 10 == 0:
                content = {"type": "text", "text": f"Table {self.requests} is ported."}
        return {
            "type": "message",
            "model": "m",
            "content": [content],
            "stop_reason": "end_turn",
            "usage": usage,
        }

    def count(self, body: dict[str, Any]) -> dict[str, int]:
        self.counts += 1
        blocks = [
            *body.get("tools", ()),
            *body["system"],
            *(b for m in body["messages"] for b in m["content"]),
        ]
        return {"input_tokens": sum(len(json.dumps(block)) // 4 for block in blocks)}

    def _count(self, body: dict[str, Any]) -> tuple[dict[str, int], int]:
        blocks = [*body.get("tools", ()), *body["system"]]
        blocks += [
            {**block, "in": message["role"]}
            for message in body["messages"]
            for block in message["content"]
        ]
        known, sent, prefix, marks = 0, 0, 0, []
        prefixes: list[tuple[int, int]] = []
        for at, block in enumerate(blocks):
            text = json.dumps(
                {name: value for name, value in block.items() if name != "cache_control"}
            )
            prefix, sent = hash((prefix, text)), sent + len(text) // 4
            prefixes.append((prefix, sent))
            if "cache_control" in block:
                marks.append(at)
        assert len(marks) <= 4, "the service takes no more"
        for mark in marks:
            for at in range(mark, max(-1, mark - _LOOKBACK), -1):
                if prefixes[at][0] in self._cache:
                    known = max(known, prefixes[at][1])
                    break
        self._cache.update(prefixes[mark][0] for mark in marks)
        written = max(0, max((prefixes[mark][1] for mark in marks), default=0) - known)
        usage = {
            "input_tokens": sent - known - written,
            "cache_creation_input_tokens": written,
            "output_tokens": 20,
        }
        return {**usage, "cache_read_input_tokens": known}, sent


@contextmanager
def counting_server() -> Iterator[tuple[CountingServer, str]]:
    counted = CountingServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            is_count = self.path.endswith("/count_tokens")
            answer = json.dumps(counted.count(body) if is_count else counted.answer(body)).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield counted, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Sliding:
    """The instructions, the first request and the newest messages that fit, reckoned anew for every request."""

    def __init__(self, most: int) -> None:
        self._messages: list[dict[str, Any]] = []
        self._most = most

    async def add_message(self, message: dict[str, Any]) -> None:
        self._messages.append(message)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._messages = list(messages)

    async def clear(self) -> None:
        self._messages = []

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self._messages)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        room, at = self._most, len(self._messages)
        while at > 2 and (room := room - len(json.dumps(self._messages[at - 1])) // 4) > 0:
            at -= 1
        while at < len(self._messages) and self._messages[at]["role"] == "tool":
            at += 1
        return [*self._messages[:2], *self._messages[max(at, 2) :]]


async def run_task(context: Any, url: str, turns: int, window: int) -> int:
    """Every turn makes nine tool calls; returns how many messages are stored."""
    config = {
        "api_key": "k",
        "base_url": url,
        "max_tokens": 1000,
        "context_window": window + 1000,
    }
    plan = {
        "session": {
            "orchestrator": {"module": "loop-basic", "config": {"system_prompt": RULES}},
            "context": context,
        },
        "providers": [{"module": "provider-anthropic", "config": config}],
        "tools": [MockTool("tides", respond=lambda given: f"day {given['day']}: {TIDES}")],
    }
    async with AmplifierSession(plan) as session:
        await session.execute(FIRST)
        for turn in range(1, turns):
            await session.execute(f"Request {turn}: go on.")
        return len(await session.messages())


@pytest.mark.parametrize(
    ("turns", "window"),
    [
        pytest.param(8, 6_000, id="160 messages in 6k"),
        pytest.param(
            100,
            32_000,
            id="2,000 messages in 32k",
            marks=[pytest.mark.long, pytest.mark.timeout(1800)],
        ),
    ],
)
async def test_stable_prompts_cost_less_in_long_task(turns, window, capsys):
    found, stored = {}, 0
    for name in ("stable", "sliding"):
        with counting_server() as (counted, url):
            budget = int(window * 0.65)  # what a compacted view takes on average
            context = (
                Sliding(budget)
                if name == "sliding"
                else {"module": "context-simple", "config": {"safety_margin": 0}}
            )
            stored = await run_task(context, url, turns, window)
            assert stored >= turns * 20
            found[name] = counted
    stable, sliding = found["stable"], found["sliding"]
    assert stable.forgotten == 0
    assert stable.largest <= window
    assert stable.requests == sliding.requests == turns * 10
    assert stable.counts <= stable.requests // 50, "responses tell it"
    assert stable.hit_rate > 0.75
    assert stable.cost < sliding.cost / 2
    with capsys.disabled():
        print(
            f"\n{stored} messages, window {window}: {stable.cost:,.0f} tokens at full price, {stable.hit_rate:.0%} from the cache, "
            f"largest {stable.largest:,}, {stable.summaries} summaries; a sliding window {sliding.cost:,.0f}, {sliding.hit_rate:.0%}"
        )


async def test_request_cost_ignores_conversation_length():
    """Counted in calls of functions, which do not depend on the machine."""
    provider = MockProvider(
        lambda request: "so far so good", defaults={"context_window": 9000, "max_output_tokens": 0}
    )
    context = SimpleContext()
    calls: list[int] = []
    for length in range(1, 12_001):
        await context.add_message(
            {"role": "user", "content": f"message {length} with some words in it"}
        )
        if length % 4000 == 0 or length % 25 == 0:
            await context.get_messages_for_request(provider=provider)
        if length % 4000 == 0:
            await context.add_message({"role": "user", "content": "one more"})
            work = 0

            def count(frame: Any, what: str, argument: Any) -> None:
                nonlocal work
                work += what in ("call", "c_call")

            sys.setprofile(count)
            try:
                view = await context.get_messages_for_request(provider=provider)
            finally:
                sys.setprofile(None)
            calls.append(work * 100 // len(view))  # per message of the view, which differs
    assert max(calls) <= 1.1 * min(calls), calls
