"""The clients of the load test, in a process of their own: ``python -m tests.servers.http._load_clients`` with JSON on standard input.

Each client sends one request after the other. Of ten, one leaves after the third piece of every answer, one uses the session API, and
the others take turns with the chat completions and AG-UI.
"""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import anyio
import attrs
import httpx2


@attrs.define
class Measured:
    """What all clients saw together; times are in seconds."""

    first: list[float] = attrs.field(factory=list)
    whole: list[float] = attrs.field(factory=list)
    left: int = 0
    failures: list[str] = attrs.field(factory=list)


@attrs.frozen
class Client:
    number: int
    http: httpx2.AsyncClient
    prompt: str
    measured: Measured

    async def run(self, until: float) -> None:
        while True:
            try:
                if self.number % 10 == 1:
                    await self._use_session()
                else:
                    await self._stream(
                        "/ag-ui"
                        if (self.number // 10 + self.number) % 2
                        else "/v1/chat/completions"
                    )
            except Exception as error:  # any failure is a result of the test
                self.measured.failures.append(f"{type(error).__name__}: {error}")
            if anyio.current_time() >= until:
                return

    async def _stream(self, path: str) -> None:
        message = {"role": "user", "content": self.prompt}
        body: dict[str, Any] = {"messages": [message], "stream": True}
        if path == "/ag-ui":
            body = {
                "messages": [{"id": "1", **message}],
                "threadId": f"thread-{self.number}",
                "runId": "run",
            }
        begun = anyio.current_time()
        first: float | None = None
        pieces = 0
        async with self.http.stream("POST", path, json=body) as response:
            if response.status_code != 200:
                raise RuntimeError(f"{response.status_code}: {(await response.aread())[:200]!r}")
            async for line in response.aiter_lines():
                if "piece " in line:
                    first = first or anyio.current_time() - begun
                    pieces += 1
                    if pieces == 3 and self.number % 10 == 0:
                        self.measured.left += 1
                        return
                if "[DONE]" in line or "RUN_FINISHED" in line:
                    break
            else:
                raise RuntimeError(f"the stream ended after {pieces} pieces")
        assert first is not None
        self.measured.first.append(first)
        self.measured.whole.append(anyio.current_time() - begun)

    async def _use_session(self) -> None:
        opened = await self.http.post("/api/sessions", json={"metadata": {"client": self.number}})
        opened.raise_for_status()
        address = opened.headers["location"]
        try:
            begun = anyio.current_time()
            answer = await self.http.post(
                f"{address}/turns", json={"prompt": self.prompt, "wait": True}
            )
            if answer.json().get("status") != "success":
                raise RuntimeError(answer.text[:200])
            self.measured.whole.append(anyio.current_time() - begun)
        finally:
            (await self.http.delete(address)).raise_for_status()


def shares(times: list[float]) -> dict[str, float]:
    """The median, and what 95 and 99 of 100 stay below; nothing if there are too few."""
    if len(times) < 2:
        return {}
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return {"median": cuts[49], "p95": cuts[94], "p99": cuts[98]}


async def main(given: dict[str, Any]) -> dict[str, Any]:
    measured = Measured()
    begun = anyio.current_time()
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with (
        httpx2.AsyncClient(
            base_url=given["address"], headers=given["headers"], limits=limits, timeout=60.0
        ) as http,
        anyio.create_task_group() as group,
    ):
        for number in range(given["clients"]):
            group.start_soon(
                Client(number, http, given["prompt"], measured).run, begun + given["seconds"]
            )
    seconds = anyio.current_time() - begun
    return {
        "turns": len(measured.whole) + measured.left,
        "per_second": (len(measured.whole) + measured.left) / seconds,
        "left": measured.left,
        "failures": measured.failures[:5],
        "first": shares(measured.first),
        "whole": shares(measured.whole),
    }


if __name__ == "__main__":
    print(json.dumps(anyio.run(main, json.load(sys.stdin))))
