"""Faults F80–F81: secrets in values, events, log lines and errors."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import attrs
import pytest

from amplifier import ModuleLoadError
from amplifier._json import redact_secrets
from tests._support.small_agent import agent, heard

SECRET = "hUnTer2-9f8e7d6c5b4a"
KEY = "sk-proj-" + "Ab3dEf9hIjKl0nOpQrSt1vWx"
TOKEN = "ghp_" + "0123456789abcdefABCDEF0123456789abcd"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.c2lnbmF0dXJlLXBhcnQtaGVyZQ"


@attrs.define
class Settings:
    url: str
    password: str


SHAPES: dict[str, tuple[Any, str]] = {
    "key": ({"api_key": SECRET}, SECRET),
    "upper-case key": ({"API_KEY": SECRET}, SECRET),
    "camel-case key": ({"accessToken": SECRET}, SECRET),
    "header-like key": ({"x-api-key": SECRET}, SECRET),
    "key with a prefix": ({"AWS_SECRET_ACCESS_KEY": SECRET}, SECRET),
    "key with a suffix": ({"password_hash": SECRET}, SECRET),
    "key run together": ({"dbpassword": SECRET}, SECRET),
    "numbered key": ({"token2": SECRET}, SECRET),
    "nested": ({"a": {"b": [{"client_secret": SECRET}]}}, SECRET),
    "list under a key": ({"api_keys": [SECRET, "x"]}, SECRET),
    "dict under a key": ({"credentials": {"user": "u", "value": SECRET}}, SECRET),
    "name and value": ({"name": "Authorization", "value": SECRET}, SECRET),
    "pairs": ([("password", SECRET), ("user", "u")], SECRET),
    "tuple": ({"args": ("--password", SECRET)}, SECRET),
    "text with an assignment": ({"text": f"PASSWORD={SECRET} ./run"}, SECRET),
    "bearer in text": ({"text": f"Authorization: Bearer {SECRET}"}, SECRET),
    "url with a password": ({"dsn": f"postgres://user:{SECRET}@host/db"}, SECRET),
    "command line": ({"command": f"login --token {SECRET}"}, SECRET),
    "JSON in text": ({"body": f'{{"client_secret": "{SECRET}"}}'}, SECRET),
    "bytes": ({"body": f"api_key={SECRET}".encode()}, SECRET),
    "instance": ({"settings": Settings("u", SECRET)}, SECRET),
    "foreign mapping": (MappingProxyType({"password": SECRET}), SECRET),
    "shape of a provider's key": ({"note": f"used {KEY} today"}, KEY),
    "shape of a token, as a key": ({TOKEN: 1, "jwt in text": JWT}, TOKEN),
}


@pytest.mark.parametrize("name", SHAPES)
async def test_f80_secret_is_found_wherever_it_is(name):
    """By name, by place and by shape; a registry of known secrets is left to applications."""
    assert len(SHAPES) == 24
    value, secret = SHAPES[name]
    shown = repr(redact_secrets(value))
    assert secret not in shown
    assert JWT not in shown
    assert "[REDACTED]" in shown


async def test_f80_what_is_no_secret_stays():
    value = {"max_tokens": 4096, "token_count": 7, "text": "the token was refused", "password": None, "name": "x"}
    assert redact_secrets(value) == value


async def test_f80_plan_in_events_carries_no_secret():
    async def turn(t):
        return ""

    session = agent(turn, hooks={"hooks-x": turn_hook}, session={"raw": True})
    session.config["hooks"][0]["config"] = {"api_key": SECRET}
    events = heard(session)
    async with session:
        await session.execute("")
    assert "session:config" in [event for event, _ in events]
    assert SECRET not in repr(events)


async def turn_hook(coordinator, config):
    assert config["api_key"] == SECRET  # the module itself gets it


def raising(error):
    async def mount(coordinator, config):
        raise error

    return mount


@pytest.mark.parametrize(
    "error",
    [
        ValueError(f"401 for api_key={KEY}"),
        ModuleLoadError(f"cannot log in with {KEY}", module_id="provider-bad"),
        RuntimeError({"headers": {"Authorization": f"Bearer {KEY}"}}),
    ],
    ids=["foreign error", "error of ours", "error with a dict"],
)
async def test_f81_secret_in_a_providers_error_reaches_no_event_log_or_status(error, caplog):
    session = agent(providers={"provider-bad": raising(error)})
    events = heard(session)
    async with session:
        [(_, failed)] = [(event, data) for event, data in events if event == "module:load_failed"]
        assert failed["module_id"] == "provider-bad"
        assert "[REDACTED]" in failed["error"]
    assert KEY not in repr(events)
    assert "provider-bad" in caplog.text
    assert KEY not in caplog.text
    assert KEY not in repr(session.status)


async def test_f81_secret_in_the_error_of_on_session_ready_reaches_no_event_log_or_status(caplog):
    class Module:
        @staticmethod
        async def mount(coordinator, config):
            return None

        @staticmethod
        async def on_session_ready(coordinator):
            raise ValueError(f"401 for api_key={KEY}")

    session = agent(providers={"provider-bad": Module})
    events = heard(session)
    async with session:
        assert len(session.failures) == 1
    assert KEY not in repr(events)
    assert KEY not in caplog.text
    assert KEY not in repr(session.status)


async def test_f81_secret_in_the_error_of_a_handler_a_cleanup_or_a_task_reaches_no_event():
    """Their log records carry the exception itself, for tools that want it; scrubbing it is the log handler's part."""
    error = ValueError(f"401 for api_key={KEY}")

    async def mount(coordinator, config):
        async def fail(*args):
            raise error

        coordinator.hooks.register("x", fail, name="bad")
        coordinator.register_contributor("c", "bad", fail)
        coordinator.start_soon(fail, name="bad")
        return fail

    session = agent(hooks={"hooks-bad": mount})
    events = heard(session)
    async with session:
        await session.coordinator.hooks.emit("x", {})
        await session.coordinator.collect_contributions("c")
    names = [event for event, _ in events]
    assert {"hook:failed", "module:crashed", "cleanup:failed"} <= set(names)
    assert KEY not in repr(events)


async def test_f81_secret_in_the_error_of_a_gate_or_a_turn_reaches_neither_the_model_nor_the_status():
    async def fail(*args):
        raise ValueError(f"401 for api_key={KEY}")

    async with agent(fail) as session:
        session.coordinator.hooks.register("tool:pre", fail, name="gate", on_failure="deny")
        result = await session.coordinator.hooks.emit("tool:pre", {})
        assert result.reason == "gate 'gate' failed: ValueError: 401 for api_key=[REDACTED]"
        with pytest.raises(ValueError, match=KEY):  # the caller's own error is not touched
            await session.execute("go")
        assert KEY not in repr(session.status)
