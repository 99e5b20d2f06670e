"""Failures of services and connections: each maps to an error of the taxonomy that states whether it is retryable."""

from __future__ import annotations

import gc
import time
from email.utils import formatdate
from typing import Any

import anyio
import pytest

from amplifier.errors import (
    AccessDeniedError,
    AuthenticationError,
    ConfigurationError,
    ContentFilterError,
    ContextLengthError,
    InvalidRequestError,
    InvalidToolCallError,
    LLMError,
    LLMTimeoutError,
    NetworkError,
    NotFoundError,
    ProviderUnavailableError,
    QuotaExceededError,
    RateLimitError,
    StreamError,
)
from amplifier.models import ToolSpec
from amplifier.modules.providers import _http_client
from amplifier.modules.providers._error_mapping import (
    CallContext,
    error_from_status,
    error_from_stream_event,
    retry_after,
)
from amplifier.modules.providers._http_client import MAX_ERROR_BYTES
from tests.modules.providers.scripted_http_server import (
    CLOSE,
    END,
    EVENT_STREAM,
    RESET,
    STALL,
    chunk,
    event,
    reply,
)
from tests.modules.providers.services import KEY, SERVICES, ask, error_of, mounted, response_of

CONTEXT = CallContext("svc", "model-x", KEY)

STATUSES: list[tuple[int, dict, type[LLMError], bool]] = [
    (400, {"message": "bad field"}, InvalidRequestError, False),
    (
        400,
        {"message": "prompt is too long: 210000 tokens > 200000 maximum"},
        ContextLengthError,
        False,
    ),
    (400, {"code": "context_length_exceeded", "message": "too much"}, ContextLengthError, False),
    (
        400,
        {"type": "exceed_context_size_error", "message": "n_prompt_tokens"},
        ContextLengthError,
        False,
    ),
    (
        400,
        {"message": "Your credit balance is too low to access the API"},
        QuotaExceededError,
        False,
    ),
    (400, {"message": "Output blocked by content filtering policy"}, ContentFilterError, False),
    (400, {"code": "content_policy_violation", "message": "no"}, ContentFilterError, False),
    (
        401,
        {"type": "invalid_request_error", "code": "invalid_api_key", "message": "no"},
        AuthenticationError,
        False,
    ),
    (402, {"type": "billing_error", "message": "pay"}, QuotaExceededError, False),
    (403, {"type": "permission_error", "message": "no"}, AccessDeniedError, False),
    (
        404,
        {"type": "invalid_request_error", "code": "model_not_found", "message": "no"},
        NotFoundError,
        False,
    ),
    (408, {"message": "late"}, LLMTimeoutError, True),
    (409, {"message": "conflict"}, ProviderUnavailableError, True),
    (413, {"type": "request_too_large", "message": "too large"}, ContextLengthError, False),
    (418, {"message": "teapot"}, LLMError, False),
    (422, {"message": "unprocessable"}, InvalidRequestError, False),
    (429, {"type": "rate_limit_error", "message": "slow down"}, RateLimitError, True),
    (
        429,
        {"code": "insufficient_quota", "message": "You exceeded your current quota"},
        QuotaExceededError,
        False,
    ),
    (500, {"type": "api_error", "message": "oops"}, ProviderUnavailableError, True),
    (503, {"message": "context length"}, ProviderUnavailableError, True),
    (529, {"type": "overloaded_error", "message": "Overloaded"}, ProviderUnavailableError, True),
]


@pytest.mark.parametrize(("status", "error", "kind", "retryable"), STATUSES)
def test_status_and_message_map_to_error(status, error, kind, retryable):
    found = error_from_status(CONTEXT, status, {}, {"error": error})
    assert type(found) is kind
    assert (found.retryable, found.status_code) == (retryable, status)
    assert (found.provider, found.model) == ("svc", "model-x")
    assert error["message"] in str(found)
    assert found.delay_multiplier == (10.0 if status == 529 else 1.0)


@pytest.mark.parametrize(
    "body",
    [
        None,
        "",
        "<html>busy</html>",
        [1],
        {"error": "text"},
        {"detail": "text"},
        {"error": None},
        {"x": {}},
    ],
)
def test_error_may_have_any_body(body):
    assert isinstance(error_from_status(CONTEXT, 500, {}, body), ProviderUnavailableError)
    assert isinstance(error_from_stream_event(CONTEXT, body), StreamError)


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("overloaded_error", ProviderUnavailableError),
        ("rate_limit_error", RateLimitError),
        ("invalid_request_error", InvalidRequestError),
        ("server_error", ProviderUnavailableError),
        ("timeout_error", LLMTimeoutError),
        ("something_new", StreamError),
    ],
)
def test_stream_error_is_mapped_by_name(word, kind):
    assert type(error_from_stream_event(CONTEXT, {"error": {"type": word, "message": "m"}})) is kind


NOW = 1_700_000_000.0
WAITS = [
    ({"retry-after": "7"}, 7.0),
    ({"retry-after": "1.5"}, 1.5),
    ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
    ({"retry-after": formatdate(NOW + 30, usegmt=True)}, 30.0),
    ({"retry-after": formatdate(NOW - 30, usegmt=True)}, 0.0),
    ({"retry-after": "soon"}, None),
    ({"retry-after": "-3"}, None),
    ({"retry-after": "nan"}, None),
    ({}, None),
]


@pytest.mark.parametrize(("headers", "seconds"), WAITS)
def test_retry_delay_from_every_known_header(headers, seconds):
    assert retry_after(headers, now=NOW) == (seconds if seconds is None else pytest.approx(seconds))


# ── over the wire ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["seconds", "date"])
async def test_rate_limit_error_has_retry_delay(service, server, form):
    wait = "3" if form == "seconds" else formatdate(time.time() + 60, usegmt=True)
    server.answers(service.error(429, "slow down", "rate_limit_error", Retry_After=wait))
    async with mounted(service, server) as opened:
        with pytest.raises(RateLimitError, match="slow down") as caught:
            await opened.provider.complete(ask())
        (after,) = opened.payloads("llm:response")
    assert caught.value.retryable
    waits: Any = caught.value.retry_after
    assert waits == 3 if form == "seconds" else 50 < waits <= 60
    assert len(server.requests) == 1  # neither we nor the SDK retry
    assert (after["status"], after["error"]["type"]) == ("error", "RateLimitError")


async def test_server_can_forbid_retry(service, server):
    steps = service.error(500, "no", x_should_retry="false")
    assert not (await error_of(ProviderUnavailableError, service, server, *steps)).retryable


async def test_key_echoed_by_server_is_removed(service, server, caplog):
    server.answers(service.error(401, f"the key {KEY} is wrong\x1b[31m", "authentication_error"))
    async with mounted(service, server) as opened:
        with pytest.raises(AuthenticationError) as caught:
            await opened.provider.complete(ask())
        assert await opened.provider.list_models()
    error = caught.value
    shown = f"{error}{error!r}{error.__cause__!r}{opened.recorder.events}{caplog.text}"
    assert KEY not in shown
    assert "[key]" in str(error)
    assert "\x1b" not in str(error)


async def test_redirect_is_not_followed(service, server):
    redirect = reply(b"", 307, Location=f"{server.url}/elsewhere")
    assert "base_url" in str(await error_of(ConfigurationError, service, server, redirect))
    assert len(server.requests) == 1


async def test_error_body_is_read_to_limit(service, server):
    sent: list[int] = []
    flood = [b"HTTP/1.1 500 No\r\nContent-Type: text/plain\r\nContent-Length: 1000000000\r\n\r\n"]
    pieces = [step for _ in range(1000) for step in (b"x" * 65536, lambda: sent.append(65536))]
    assert (
        len(str(await error_of(ProviderUnavailableError, service, server, *flood, *pieces))) < 2000
    )
    assert sum(sent) < 1000 * 65536
    assert sum(sent) + 2 * 65536 > MAX_ERROR_BYTES  # it was the limit that ended it


async def test_absent_server_is_network_error(service, server):
    server.close()
    assert (await error_of(NetworkError, service, server)).retryable


@pytest.mark.parametrize("how", [RESET, CLOSE])
async def test_connection_lost_before_answer(service, server, how):
    await error_of(NetworkError, service, server, how)


@pytest.mark.parametrize("how", [RESET, CLOSE, END])
async def test_interrupted_answer_is_stream_error(service, server, how):
    """By a broken connection, by one that ends, and by a body that ends properly but too early."""
    pieces = service.pieces(["one", "two"], thoughts=["hm"])
    server.answers([EVENT_STREAM, *pieces[:3], how])
    async with mounted(service, server) as opened:
        with pytest.raises(StreamError) as caught:
            await opened.provider.complete(ask())
        assert caught.value.retryable
        assert (caught.value.provider, opened.payloads("llm:response")[0]["status"]) == (
            service.name,
            "error",
        )
        server.answers(service.answer(["whole again"]))
        assert await opened.provider.complete(ask())


GARBAGE = (
    chunk(b"data: {nonsense\n\n"),
    chunk(b"data: [1, 2]\n\n"),
    chunk(b"data: 7\n\n"),
    chunk(b'data: {"type": "content_block_delta"}\n\n'),
    chunk(b'data: {"type": "response.output_text.delta", "delta": 4}\n\n'),
    chunk(b'data: {"choices": [{"delta": {"tool_calls": [3]}}]}\n\n'),
    chunk(b"data: \xff\xfe\n\n"),
    chunk(b'data: {"a": NaN}\n\n'),
    chunk(b"data: " + b"[" * 100_000 + b"\n\n"),
    b"this is no chunk\r\n",
    b"fffffffffffffffffff\r\n",
)


async def test_garbage_is_stream_error(service, server):
    async with mounted(service, server) as opened:
        for garbage in GARBAGE:
            # The header keeps the client from trying the connection once more while it is being closed.
            server.answers(
                [
                    EVENT_STREAM.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
                    garbage,
                    END,
                    CLOSE,
                ]
            )
            with pytest.raises(StreamError):
                await opened.provider.complete(ask())


async def test_invalid_answer_is_stream_error(service, server):
    async with mounted(service, server) as opened:
        for body in (
            b"<html>hello</html>",
            b"{}",
            b"[]",
            b'{"choices": [], "content": 3, "output": {}}',
        ):
            server.answers([reply(body)])
            with pytest.raises(StreamError):
                await opened.provider.complete(ask())


async def test_endless_line_is_abandoned(service, server):
    line = [chunk(b"data: "), *[chunk(b"x" * 2**20)] * 40]
    assert "larger than" in str(await error_of(StreamError, service, server, EVENT_STREAM, *line))


async def test_error_inside_stream_has_own_type(service, server):
    error = {"type": "overloaded_error", "code": None, "message": "busy"}
    steps = [
        EVENT_STREAM,
        *service.pieces(["a"])[:2],
        event({"type": "error", "error": error}, "error"),
        END,
    ]
    found = await error_of(ProviderUnavailableError, service, server, *steps)
    assert "busy" in str(found)
    assert found.delay_multiplier == 10


async def test_failed_response_has_own_type(server):
    failed = {
        "type": "response.failed",
        "response": {"error": {"code": "rate_limit_exceeded", "message": "later"}},
    }
    steps = [EVENT_STREAM, event(failed), END]
    assert "later" in str(
        await error_of(RateLimitError, SERVICES["openai-responses"], server, *steps)
    )


@pytest.mark.parametrize("bad", ['{"x": ', "nonsense", "[1]", '"text"', "3"])
async def test_call_with_unreadable_arguments_is_dropped(service, server, bad):
    steps = service.answer([], [("c1", "look", bad)])
    error = await error_of(InvalidToolCallError, service, server, *steps, default_model="model-x")
    assert (error.tool_name, error.raw_arguments, error.retryable) == ("look", bad, True)
    assert (error.provider, error.model) == (service.name, "model-x")


async def test_doubly_encoded_arguments_are_read(service, server):
    response = await response_of(
        service, server, service.answer([], [("c1", "look", '"{\\"x\\": 1}"')])
    )
    assert response.tool_calls[0].arguments == {"x": 1}


async def test_refusal_without_text_is_content_filter_error(server):
    refusal = reply({"type": "message", "content": [], "stop_reason": "refusal", "usage": {}})
    await error_of(ContentFilterError, SERVICES["anthropic"], server, refusal)


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("after", [0, 3])
async def test_stalled_stream_ends_at_idle_timeout(service, server, after):
    pieces = service.pieces(["one", "two"], thoughts=["hm"])
    server.answers([EVENT_STREAM, *pieces[:after], STALL])
    async with mounted(service, server, idle_timeout=0.2) as opened:
        with pytest.raises(LLMTimeoutError, match="idle_timeout") as caught:
            await opened.provider.complete(ask())
        assert server.wait_gone() == service.path
    assert caught.value.retryable


async def test_silent_server_ends_at_idle_timeout(service, server):
    server.answers([STALL])
    async with mounted(service, server, idle_timeout=0.2) as opened:
        with pytest.raises(LLMTimeoutError, match="waiting for an answer"):
            await opened.provider.complete(ask())
        assert server.wait_gone() == service.path


# ── leaving ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("how", ["break", "error", "cancel"])
async def test_early_leave_closes_connection_at_once(service, server, how, monkeypatch):
    """And nothing is left to the garbage collector: every warning is an error in this suite."""
    monkeypatch.setattr(
        _http_client, "_CLOSING_SECONDS", 3600
    )  # a close that waited for the server would fail below
    server.answers([EVENT_STREAM, *service.pieces(["one", "two"], thoughts=["hm"])[:5], STALL])
    async with mounted(service, server) as opened:
        with anyio.fail_after(60), anyio.CancelScope() as scope:
            try:
                async with opened.provider.stream(ask()) as chunks:
                    assert (await anext(chunks)).kind == "block_start"
                    if how == "cancel":
                        scope.cancel()
                        await anyio.sleep(60)
                    if how == "error":
                        raise ZeroDivisionError
            except ZeroDivisionError:
                assert how == "error"
        assert await anyio.to_thread.run_sync(server.wait_gone) == service.path
        gc.collect()
        server.answers(service.answer(["next"]))
        assert (await opened.provider.complete(ask())).content[0].text == "next"


async def test_unserialisable_call_is_not_sent(service, server):
    request = ask(tools=[ToolSpec(name="look", parameters={"default": object()})])
    assert "JSON" in str(await error_of(InvalidRequestError, service, server, request=request))
    assert server.requests == []
