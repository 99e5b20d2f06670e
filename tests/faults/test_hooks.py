"""Faults F01–F08: handlers that hang, raise, refuse to stop, come and go, or change what they were given."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from amplifier import HookRegistry
from tests._support.child_process import run_child
from tests._support.small_agent import agent, give_up_after, heard, takes

pytestmark = pytest.mark.virtual_time


async def hang(event, data):
    await anyio.sleep_forever()


# ── F01–F03: handlers that do not come back ──────────────────────────────────────────────────────


async def test_f01_hanging_handler_ends_at_deadline(caplog):
    """Ours is 300 s rather than 30: an approval may wait inside a handler. Observers are skipped."""
    hooks = HookRegistry()
    ran, timeouts = [], []
    hooks.register("x", hang, name="sleeper")
    hooks.register("x", lambda event, data: ran.append(event))
    hooks.register("hook:timeout", lambda event, data: timeouts.append(data))
    with takes(300):
        result = await hooks.emit("x", {})
    assert result.action == "continue"
    assert ran == ["x"]
    assert [(t["hook_name"], t["event"], t["seconds"], t["on_failure"]) for t in timeouts] == [
        ("sleeper", "x", 300, "continue")
    ]
    assert "'sleeper'" in caplog.text
    assert "300 s" in caplog.text


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_f02_cancelled_emitter_cancels_hanging_handler(how, caplog):
    hooks = HookRegistry()
    log = []

    async def handler(event, data):
        try:
            await anyio.sleep_forever()
        finally:
            log.append("handler left")

    hooks.register("x", handler, on_failure="deny")
    hooks.register("x", lambda event, data: log.append("the next handler ran"))
    hooks.register("hook:failed", lambda event, data: log.append(event))
    await give_up_after(1, how, hooks.emit, "x", {})
    log.append("emitter left")
    assert log == ["handler left", "emitter left"]
    assert "failed" not in caplog.text


@pytest.mark.parametrize("how", ["scope", "native"])
async def test_f03_handler_swallowing_cancellation_is_reported(how, caplog):
    log = []

    async def stubborn(event, data):
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await anyio.sleep(9)
        log.append("handler left")

    async with agent() as session:
        reports = heard(session, "module:unresponsive")
        session.coordinator.hooks.register("x", stubborn, name="stubborn", timeout=4)
        with takes(10):
            await give_up_after(1, how, session.coordinator.hooks.emit, "x", {})
            log.append("emitter left")
        assert log == ["handler left", "emitter left"]
        # At the deadline plus a second to unwind, then at growing intervals for as long as it lasts.
        assert [data["seconds"] for _, data in reports] == [4, 4]
        assert all("'stubborn'" in data["operation"] for _, data in reports)
        assert all(
            "stubborn" in data["awaiting"] and __file__ in data["awaiting"] for _, data in reports
        )
    assert "does not react to its cancellation" in caplog.text


# ── F04–F05b: handlers that raise ────────────────────────────────────────────────────────────────


async def failing(event, data):
    raise OSError("the policy server is down")


async def test_f04_raising_gate_denies():
    """The event's name does not decide: a handler registered with ``on_failure="deny"`` is a gate on every event."""
    hooks = HookRegistry()
    failures = []
    hooks.register("tool:pre", failing, name="policy", on_failure="deny")
    hooks.register("hook:failed", lambda event, data: failures.append(data))
    result = await hooks.emit("tool:pre", {"tool_name": "bash"})
    assert result.action == "deny"
    assert result.reason == "gate 'policy' failed: OSError: the policy server is down"
    assert [(f["hook_name"], f["error_type"], f["on_failure"]) for f in failures] == [
        ("policy", "OSError", "deny")
    ]


async def test_f04_plan_declares_module_as_gate():
    async def mount(coordinator, config):
        coordinator.hooks.register("tool:pre", failing, name="policy")
        coordinator.hooks.register("tool:post", failing, name="watcher", on_failure="continue")

    session = agent(hooks={"hooks-policy": mount})
    session.config["hooks"][0]["on_failure"] = "deny"
    async with session:
        assert (await session.coordinator.hooks.emit("tool:pre", {})).action == "deny"
        assert (await session.coordinator.hooks.emit("tool:post", {})).action == "continue"


async def test_f04_raising_observer_is_skipped(caplog):
    hooks = HookRegistry()
    ran = []
    hooks.register("tool:pre", failing, name="observer")
    hooks.register("tool:pre", lambda event, data: ran.append(event))
    assert (await hooks.emit("tool:pre", {})).action == "continue"
    assert ran == ["tool:pre"]
    assert "'observer'" in caplog.text
    assert "the policy server is down" in caplog.text


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("on_failure", ["continue", "deny"])
async def test_f05_invented_cancellation_is_handler_failure(is_async, on_failure):
    hooks = HookRegistry()
    ran = []

    def raise_it(event, data):
        raise asyncio.CancelledError

    async def raise_it_later(event, data):
        raise_it(event, data)

    hooks.register("x", raise_it_later if is_async else raise_it, on_failure=on_failure)
    hooks.register("x", lambda event, data: ran.append(event))
    result = await hooks.emit("x", {})
    assert result.action == on_failure
    assert ran == (["x"] if on_failure == "continue" else [])
    await anyio.lowlevel.checkpoint()  # nothing is left cancelled


_RAISING_HANDLER = """
async def mount(coordinator, config):
    async def handler(event, data):
        raise {exception}
    coordinator.hooks.register("x", handler)
    async def cleanup():
        await anyio.sleep(0)
        print_line("cleanup")
    return cleanup

async def turn(t):
    try:
        await t.hooks.emit("x", {{}})
        print_line("the turn went on")
    finally:
        print_line("turn unwound")

async def main():
    try:
        async with agent(turn, hooks={{"hooks-x": mount}}) as session:
            await session.execute("go")
            print_line("the block went on")
    except BaseException as exc:
        print_line("left with", type(exc).__name__)
        raise

anyio.run(main, backend=backend)
"""


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(("exception", "code"), [("KeyboardInterrupt()", -2)])
def test_f05b_interrupt_in_handler_closes_session(backend, exception, code):
    ended = run_child(_RAISING_HANDLER.format(exception=exception), backend)
    name = exception.partition("(")[0]
    assert ended.lines == ["turn unwound", "cleanup", f"left with {name}"]
    assert ended.code == code
    assert ended.errors.count(f"\n{name}") <= 1


# ── F06–F08: handlers that come, go and meddle ───────────────────────────────────────────────────


async def test_f06_registration_changes_during_dispatch():
    """An unregistered handler is skipped, and a new one waits for the next event."""
    hooks = HookRegistry()
    log = []

    async def first(event, data):
        log.append("first")
        leave()
        hooks.register("x", lambda event, data: log.append("new"), name="new")
        await anyio.lowlevel.checkpoint()

    hooks.register("x", first, priority=-1)
    leave = hooks.register("x", lambda event, data: log.append("gone"))
    hooks.register("x", lambda event, data: log.append("last"))
    await hooks.emit("x", {})
    assert log == ["first", "last"]
    log.clear()
    hooks.unregister("new")
    await hooks.emit("x", {})
    assert log == ["first", "last"]


async def test_f07_unregistering_removes_own_registration_only():
    hooks = HookRegistry()
    log = []
    leave_first = hooks.register("x", lambda event, data: log.append("first"), name="same")
    hooks.register("x", lambda event, data: log.append("second"), name="same")
    leave_first()
    leave_first()
    await hooks.emit("x", {})
    assert log == ["second"]


async def test_f08_payload_changes_stay_with_handler():
    """Copies instead of frozen payloads: published handlers write into what they get."""
    hooks = HookRegistry()
    seen = []

    def meddle(event, data):
        data["top"] = "changed"
        data["nested"]["list"].append("changed")
        del data["nested"]["key"]

    hooks.register("x", meddle)
    hooks.register("x", lambda event, data: seen.append(data))
    given = {"top": 1, "nested": {"list": [1], "key": 2}}
    result = await hooks.emit("x", given)
    assert given == {"top": 1, "nested": {"list": [1], "key": 2}}
    assert seen[0]["top"] == 1
    assert seen[0]["nested"] == {"list": [1], "key": 2}
    assert result.data is not None
    assert result.data["nested"] == {"list": [1], "key": 2}
