"""A model that sends an answer in pieces with pauses, read as streamed text: ours, and what the tests ask of servers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from typing import Any, Self

import anyio

import amplifier
from amplifier.models import ChatRequest, ChatResponse, ProviderInfo, StreamChunk, TextBlock, Usage
from amplifier.modules.providers._streams import Chunks, StreamingProvider
from benchmarks.duel import Sample, Side, timed_await

PIECES = 20
MORE_PIECES = 200
PAUSE = 0.001

CHAT, AG_UI = "/v1/chat/completions", "/ag-ui"
_ENDS = (b"[DONE]", b"RUN_FINISHED", b"cpu=")

PLAN: dict[str, Any] = {
    "session": {"orchestrator": "loop-streaming", "context": "context-simple", "strict": True},
    "providers": [{"module": "provider-pieces"}],
}


class Pieces(StreamingProvider):
    """Sends as many pieces as the prompt says, after a pause each: ``PIECES PAUSE``."""

    name = "pieces"

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id="pieces", display_name="Pieces")

    async def list_models(self) -> list[Any]:
        return []

    async def _chunks(self, request: ChatRequest, kwargs: dict[str, Any]) -> Chunks:
        count, pause = str(request.messages[-1].content).split()
        yield StreamChunk(kind="block_start", index=0, block_type="text")
        for _ in range(int(count)):
            await anyio.sleep(float(pause))
            yield StreamChunk(kind="block_delta", index=0, block_type="text", text="piece ")
        block = TextBlock(text="piece " * int(count))
        yield StreamChunk(kind="block_end", index=0, block_type="text", block=block)
        usage = Usage(input_tokens=1, output_tokens=1, total_tokens=2)
        yield StreamChunk(
            kind="response",
            response=ChatResponse(content=[block], usage=usage, finish_reason="stop"),
        )


async def mount(coordinator: Any, config: Any = None) -> Any:
    provider = Pieces(coordinator)
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose


def loader() -> amplifier.ModuleLoader:
    return amplifier.ModuleLoader(modules={"provider-pieces": mount})


def turns(backend: str, how: str, pieces: int = PIECES) -> Side:
    """Turns of one session: ``text`` and ``events`` are read as streams, ``execute`` returns the answer; ``pauses`` are the pauses alone."""
    prompt = f"{pieces} {PAUSE}"

    def side(count: int) -> Sample:
        async def main() -> Sample:
            async with amplifier.AmplifierSession(PLAN, loader=loader()) as session:
                context: Any = session.coordinator.get("context")

                async def work() -> None:
                    if how == "pauses":
                        for _ in range(pieces):
                            await anyio.sleep(PAUSE)
                    elif how == "text":
                        assert len([piece async for piece in session.stream_text(prompt)]) == pieces
                    elif how == "events":
                        async with session.stream(prompt) as events:
                            assert len([event async for event in events]) > pieces
                    else:
                        await session.execute(prompt)
                    await context.clear()

                return await timed_await(work, count)

        return anyio.run(main, backend=backend)

    return side


# ── servers ──


class Server:
    """A program of `benchmarks.stream_servers` in a process of its own.

    Args:
        kind: Its name there.
        backend: ``asyncio`` or ``trio``.
    """

    def __init__(self, kind: str, backend: str = "asyncio") -> None:
        self._arguments = [kind, backend]

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = int(free.getsockname()[1])
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.stream_servers",
            *self._arguments,
            str(self._port),
        ]
        self._process = subprocess.Popen(command)
        until = time.monotonic() + 60
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port)).close()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > until:
                    raise
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()

    def turns(
        self, clients: int, path: str = CHAT, *, pieces: int = PIECES, pause: float = 0.01
    ) -> Side:
        """One turn of every client at once; the figure is the processor time of the server for one turn."""
        message = {"role": "user", "content": f"{pieces} {pause}"}

        async def ask(path: str, given: dict[str, Any]) -> bytes:
            text = json.dumps(given).encode()
            head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nContent-Type: application/json\r\n"
            head += f"Connection: close\r\nContent-Length: {len(text)}\r\n\r\n"
            answer = b""
            async with await anyio.connect_tcp("127.0.0.1", self._port) as stream:
                await stream.send(head.encode() + text)
                while not any(end in answer for end in _ENDS):
                    answer += await stream.receive()
            return answer

        async def seconds() -> float:
            return float((await ask("/cpu", {})).split(b"cpu=")[1])

        async def turn(number: int) -> None:
            given: dict[str, Any] = {"messages": [message], "stream": True}
            if path == AG_UI:
                given = {
                    "messages": [{"id": "1", **message}],
                    "threadId": f"thread-{number}",
                    "runId": "run",
                }
            answer = await ask(path, given)
            assert answer.count(b"piece ") >= pieces, answer[-2000:]

        async def main(count: int) -> Sample:
            before, began = await seconds(), time.perf_counter()
            for _ in range(count):
                async with anyio.create_task_group() as group:
                    for number in range(clients):
                        group.start_soon(turn, number)
            sample = Sample(cpu=await seconds() - before, wall=time.perf_counter() - began)
            return sample / clients

        return lambda count: anyio.run(main, count)
