"""Faults F80–F81: secrets in values, events, log lines and errors."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from amplifier import ModuleLoadError
from tests._support.small_agent import agent, heard, mounting
from tests.internal.test_json import CANARY, SHAPES

KEY = "sk-proj-" + "Ab3dEf9hIjKl0nOpQrSt1vWx"


async def test_f80_plan_in_events_has_no_secrets():
    """By name, by place and by shape; a registry of known secrets is left to applications."""
    given = list(SHAPES.values())
    got = []

    async def mount(coordinator, config):
        got.append(config["given"])

    session = agent(hooks={"hooks-x": mount}, session={"raw": True})
    session.config["hooks"][0]["config"] = {"given": given}
    events = heard(session)
    async with session:
        await session.execute("")
    assert got[0] is given
    assert "session:config" in [event for event, _ in events]
    assert CANARY not in repr(events)


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
async def test_f81_provider_error_secret_is_hidden(error, caplog):
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


async def test_f81_ready_callback_error_secret_is_hidden(caplog):
    async def ready(coordinator):
        raise ValueError(f"401 for api_key={KEY}")

    session = agent(
        providers={"provider-bad": SimpleNamespace(mount=mounting(None), on_session_ready=ready)}
    )
    events = heard(session)
    async with session:
        assert len(session.failures) == 1
    assert KEY not in repr(events)
    assert KEY not in caplog.text
    assert KEY not in repr(session.status)


async def test_f81_handler_cleanup_task_secret_is_hidden():
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


async def test_f81_gate_and_turn_secret_is_hidden():
    async def fail(*args):
        raise ValueError(f"401 for api_key={KEY}")

    async with agent(fail) as session:
        session.coordinator.hooks.register("tool:pre", fail, name="gate", on_failure="deny")
        result = await session.coordinator.hooks.emit("tool:pre", {})
        assert result.reason == "gate 'gate' failed: ValueError: 401 for api_key=[REDACTED]"
        with pytest.raises(ValueError, match=KEY):  # the caller's own error is not touched
            await session.execute("go")
        assert KEY not in repr(session.status)
