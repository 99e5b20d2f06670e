"""A server that speaks as those of Anthropic and OpenAI do, for programs of the docs: they take key and address from the environment.

The programs and libraries are not ours to change, so what it answers depends on the conversation alone: asked to write into a diary it
wants the tools `weather` and `note`, one after the other, and then gives a report; it answers anything else at once.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from typing import Any

from amplifier.conformance.inputs import fake_server

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("weather", {"city": "Oslo"}),
    ("note", {"text": "rain in Oslo"}),
]
REPORT = '{"city": "Oslo", "rain": true}'


def _answer(scenario: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    said = json.dumps(body.get("messages") or body.get("input"))
    known = sum(
        said.count(word)
        for word in ('"role": "tool"', '"function_call_output"', '"type": "tool_result"')
    )
    if "diary" not in said:
        return [{"type": "text", "text": "It will."}]
    if known < len(CALLS):
        name, given = CALLS[known]
        return [{"type": "tool_use", "id": f"call_{known}", "name": name, "input": given}]
    return [{"type": "text", "text": REPORT}]


class _Handler(fake_server._Handler):
    answer = staticmethod(_answer)


@contextmanager
def running_model() -> Iterator[dict[str, str]]:
    """The environment of programs, while the server runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/auto"
    try:
        yield {
            "ANTHROPIC_API_KEY": "a-key-of-the-test",
            "ANTHROPIC_BASE_URL": url,
            "OPENAI_API_KEY": "a-key-of-the-test",
            "OPENAI_BASE_URL": f"{url}/v1",
        }
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
