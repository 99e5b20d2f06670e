"""provider-local with a real model: streaming, cancellation, schemas, and the end of the server process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import jsonschema_rs
import pytest

from amplifier import AmplifierSession
from amplifier.errors import ConfigurationError, ContextLengthError, StreamError
from amplifier.models import ChatRequest, Message, ResponseFormatJsonSchema, TextBlock
from amplifier.modules.providers import local as provider_local
from amplifier.modules.providers._error_mapping import CallContext
from amplifier.testing import wait_for
from tests._support import small_model
from tests._support.processes import is_alive
from tests._support.tree import ROOT
from tests.modules.providers.services import MountedProvider, check_chunks, check_response

QUICK = {"context_size": 512, "temperature": 0, "seed": 1, "threads": 1}
"""One thread: several wait for each other in a loop, which a busy machine pays for dearly."""
SYSTEM = Message(role="system", content="Be brief.")  # shorter than what the model's template puts there
LONG = ChatRequest(
    messages=[SYSTEM, Message(role="user", content="Tell me a very long story.")], max_output_tokens=2000
)


def short(prompt: str = "Tell me a long story.", tokens: int = 8, **options: Any) -> ChatRequest:
    return ChatRequest(messages=[SYSTEM, Message(role="user", content=prompt)], max_output_tokens=tokens, **options)


@pytest.fixture(scope="session")
def model() -> Path:
    assert small_model.is_there(), "the small model is missing; bring it with: python -m tests._support.small_model"
    return small_model.MODEL


class Local(MountedProvider):
    """A mounted provider with its server in sight."""

    @classmethod
    def running(cls, model: Path, **config: Any) -> Any:  # type: ignore[override]
        return super().running(provider_local, model_path=str(model), **{**QUICK, **config})

    @property
    def server(self) -> Any:
        return self.provider._client

    async def is_idle(self) -> bool:
        async with self.server.open("GET", "/slots", None, CallContext("local", timeout=30)) as response:
            slots = await response.receive_json()
        return not any(slot["is_processing"] for slot in slots)


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
async def test_a_real_model_streams_and_its_process_is_gone_afterwards(model):
    async with Local.running(model) as local:
        assert local.server.pid is None  # nothing is loaded before it is needed
        response = check_chunks(await local.chunks(short()))
        check_response(local.provider, response)
        pid: Any = local.server.pid
        assert is_alive(pid)
        assert isinstance(response.content[0], TextBlock)
        assert response.usage is not None
        assert (response.finish_reason, response.usage.output_tokens, str(response.usage.cost_usd)) == (
            "length",
            8,
            "0",
        )
        again = await local.answer(short())
        assert again.content == response.content  # by temperature and seed
        assert local.server.pid == pid
        assert [name for name, _ in local.recorder.events] == ["llm:request", "llm:response"] * 2
        assert local.payloads("llm:response")[0]["usage"]["output_tokens"] == 8
        assert local.payloads("llm:response")[1]["usage"]["cache_read_tokens"] > 0
    assert not is_alive(pid)


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.mark.slow
async def test_one_server_keeps_schemas_answers_concurrent_requests_and_stops_when_a_stream_is_left(model):
    async with Local.running(model, context_size=2048, parallel=2) as local:
        person = ResponseFormatJsonSchema(json_schema=SCHEMA)
        response = await local.answer(short("Describe a person.", 60, response_format=person))
        jsonschema_rs.validate(SCHEMA, json.loads(response.content[0].text))
        pid, answers = local.server.pid, {}

        async def ask(word: str) -> None:
            asked = ResponseFormatJsonSchema(json_schema={"const": word})
            answers[word] = (await local.answer(short(f"Say {word}.", 8, response_format=asked))).content[0].text

        async with anyio.create_task_group() as group:
            for word in ("one", "two", "three"):
                group.start_soon(ask, word)
        assert {word: json.loads(text) for word, text in answers.items()} == {
            "one": "one",
            "two": "two",
            "three": "three",
        }

        for is_cancelled in (False, True):
            with anyio.CancelScope() as scope:
                async with local.provider.stream(LONG) as chunks:
                    async for chunk in chunks:
                        if chunk.kind == "block_delta":
                            assert not await local.is_idle()
                            if not is_cancelled:
                                break
                            scope.cancel()
            assert scope.cancelled_caught == is_cancelled
            assert await wait_for(local.is_idle, 60)

        with pytest.raises(ContextLengthError, match="exceeds the available context size") as caught:
            await local.answer(short("word " * 3000))
        assert (caught.value.retryable, caught.value.status_code) == (False, 400)
        assert local.server.pid == pid
    assert not is_alive(pid)


# ── trouble ──────────────────────────────────────────────────────────────────────────────────────


async def test_a_damaged_model_file_is_reported_with_the_servers_message_and_leaves_no_process(model, tmp_path):
    broken = tmp_path / "broken.gguf"
    with model.open("rb") as whole:
        broken.write_bytes(whole.read(3_000_000))
    async with Local.running(broken) as local:
        for _ in range(2):
            with pytest.raises(
                ConfigurationError, match=r"broken\.gguf.* cannot be run: .*corrupted or incomplete"
            ) as caught:
                await local.answer(short())
            assert not caught.value.retryable
            assert local.server.pid is None
        assert local.payloads("llm:response")[0]["error"]["type"] == "ConfigurationError"


@pytest.mark.slow
async def test_a_server_killed_in_the_middle_is_an_error_and_the_next_request_gets_a_new_one(model):
    async with Local.running(model, context_size=2048) as local:
        pid = None
        with pytest.raises(StreamError, match=r"broke the connection|ended before the answer did") as caught:  # noqa: PT012 - killed inside
            async with local.provider.stream(LONG) as chunks:
                async for chunk in chunks:
                    if pid is None and chunk.kind == "block_delta":
                        pid = local.server.pid
                        os.kill(pid, signal.SIGKILL)
        assert caught.value.retryable
        assert await wait_for(
            lambda: local.server.pid is None, 60
        )  # until then the request goes to the one that is dying
        await local.answer(short(tokens=2))
        assert local.server.pid not in (None, pid)


def agent(model: Path, **config: Any) -> AmplifierSession:
    plan = {
        "session": {"orchestrator": {"module": "loop-streaming", "config": {"initial_delay": 0}}, "context": "context-simple",
                    "strict": True},
        "providers": [{"module": "provider-local", "config": {"model_path": str(model), **QUICK, **config}}],
    }  # fmt: skip
    return AmplifierSession(plan)


KILLED = """
import sys, anyio
from amplifier.testing import TestCoordinator
from amplifier.modules.providers import local as provider_local
from amplifier.models import ChatRequest, Message

async def main():
    coordinator = TestCoordinator()
    cleanup = await provider_local.mount(coordinator, {"model_path": sys.argv[2], "context_size": 4096, "threads": 1})
    provider = coordinator.get("providers")["local"]
    asked = ChatRequest(messages=[Message(role="user", content="Tell me a long story.")], max_output_tokens=3000)
    async with provider.stream(asked) as chunks:
        async for chunk in chunks:
            if chunk.kind == "block_delta":
                print(provider._client.pid, flush=True)

anyio.run(main, backend=sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_parent_killed_by_force_takes_the_server_with_it(model, backend):
    command = [sys.executable, "-c", KILLED, backend, str(model)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert is_alive(pid)
        parent.kill()
        parent.wait()

    def is_gone() -> bool:
        try:  # there may be no process to reap it
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except FileNotFoundError:
            return not is_alive(pid)

    assert anyio.run(wait_for, is_gone, 20.0)
