"""Handlers that cannot wait, plain ones and async ones without an await: they are called without a cancel scope. Time is virtual."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import pytest
import sniffio
import trio

from amplifier.events import TERMINAL_EVENTS
from amplifier.models import HookResult
from tests._support.hook_registry import registry, sleeper

pytestmark = pytest.mark.virtual_time

Data = dict[str, Any]


def empty() -> list[str]:
    """A log that nothing was written to yet."""
    return []


@pytest.mark.parametrize(("on_failure", "action"), [("continue", "continue"), ("deny", "deny")])
async def test_a_handler_that_blocks_past_its_deadline_and_never_waits_is_late(on_failure, action, monkeypatch):
    hooks, now, timeouts = registry(), [100.0], []
    monkeypatch.setattr("amplifier.kernel.runtime.deadlines.loop_clock", lambda: lambda: now[0])

    async def blocking(event: str, data: Data) -> HookResult:
        now[0] += 9
        return HookResult()

    hooks.register("tool:pre", blocking, name="late", timeout=3, on_failure=on_failure)
    hooks.register("hook:timeout", lambda event, data: timeouts.append((data["hook_name"], data["seconds"])))
    result = await hooks.emit("tool:pre", {})
    assert (result.action, timeouts) == (action, [("late", 3)])
    if action == "deny":
        assert result.reason == "gate 'late' failed: no answer within 3 s"


async def test_handlers_that_never_wait_share_the_time_of_a_terminal_event(monkeypatch):
    hooks, now, timeouts = registry(), [100.0], []
    monkeypatch.setattr("amplifier.kernel.runtime.deadlines.loop_clock", lambda: lambda: now[0])

    async def blocking(event: str, data: Data) -> None:
        now[0] += 3

    for name in ("one", "two", "three"):
        hooks.register("session:end", blocking, name=name)
    hooks.register("hook:timeout", lambda event, data: timeouts.append((data["hook_name"], data["seconds"])))
    await hooks.emit("session:end", {})
    assert timeouts == [("two", 2)]  # the time was over before the third one began


@pytest.mark.parametrize("on_failure", ["continue", "deny"])
async def test_a_handler_that_never_waits_is_not_blamed_for_time_that_was_over_before(on_failure, monkeypatch):
    hooks, now, log = registry(), [100.0], empty()
    monkeypatch.setattr("amplifier.kernel.runtime.deadlines.loop_clock", lambda: lambda: now[0])

    async def blocking(event: str, data: Data) -> None:
        now[0] += 9

    async def brief(event: str, data: Data) -> HookResult:
        log.append(event)
        return HookResult()

    hooks.register("session:end", blocking, name="late")
    hooks.register("session:end", brief, name="brief", on_failure=on_failure)
    hooks.register("hook:timeout", lambda event, data: log.append(data["hook_name"]))
    assert (await hooks.emit("session:end", {})).action == "continue"
    assert log == ["session:end", "late"]


async def own_cancellation() -> BaseException:
    """The cancellation of a task, as it was raised there."""
    kept: list[BaseException] = []
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class() as exc:
            kept.append(exc)
            raise
    return kept.pop()


@pytest.mark.parametrize("event", sorted(TERMINAL_EVENTS))
@pytest.mark.parametrize("kind", ["never waits", "may wait", "plain"])
async def test_a_cancellation_that_a_handler_met_elsewhere_ends_no_terminal_event(event, kind):
    hooks, heard = registry(), []
    met = await own_cancellation()

    async def never_waiting(event: str, data: Data) -> None:
        raise met

    async def waiting(event: str, data: Data) -> None:
        await anyio.lowlevel.cancel_shielded_checkpoint()
        raise met

    def plain(event: str, data: Data) -> None:
        raise met

    async def second(event: str, data: Data) -> None:
        heard.append(event)

    hooks.register(event, {"never waits": never_waiting, "may wait": waiting, "plain": plain}[kind], name="first")
    hooks.register(event, second)
    hooks.register("hook:failed", lambda event, data: heard.append(data["error_type"]))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await hooks.emit(event, {})
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert heard == [event, "SpuriousCancellation"]


@pytest.mark.parametrize("kind", ["never waits", "plain"])
async def test_a_handler_that_cannot_wait_is_not_blamed_for_the_deadline_of_the_one_before_it(kind):
    hooks, failed = registry(), []

    def let_time_pass() -> None:
        if sniffio.current_async_library() == "trio":
            trio.lowlevel.current_clock().jump(1)  # type: ignore[attr-defined]  # trio's clock for tests

    def plain(event: str, data: Data) -> None:
        let_time_pass()
        raise ValueError("mine")

    async def never_waiting(event: str, data: Data) -> None:
        plain(event, data)

    hooks.register("tool:pre", sleeper([], 0.01, "first"), timeout=0.2)
    hooks.register("tool:pre", plain if kind == "plain" else never_waiting, name="second", timeout=100)
    hooks.register("hook:failed", lambda event, data: failed.append((data["hook_name"], data["error"])))
    hooks.register("hook:timeout", lambda event, data: failed.append((data["hook_name"], "late")))
    await hooks.emit("tool:pre", {})
    assert failed == [("second", "mine")]


@pytest.mark.parametrize("others", [False, True])
async def test_handlers_that_never_wait_and_others_are_called_in_order(others):
    hooks, log = registry(), empty()

    async def brief(event: str, data: Data) -> HookResult:
        log.append("brief")
        return HookResult(action="modify", data={**data, "seen": data.get("seen", 0) + 1})

    hooks.register("tool:pre", brief)
    if others:
        hooks.register("tool:pre", sleeper(log, 1, "other"))
    hooks.register("tool:pre", brief)
    result = await hooks.emit("tool:pre", {})
    assert log == (["brief", "other began", "other ended", "brief"] if others else ["brief", "brief"])
    assert (result.action, (result.data or {})["seen"]) == ("modify", 2)


@pytest.mark.parametrize("event", sorted(TERMINAL_EVENTS))
async def test_a_terminal_failure_of_a_handler_that_never_waits_is_reported_while_the_emitter_is_cancelled(event):
    hooks, log = registry(), empty()

    async def failing(event: str, data: Data) -> None:
        log.append("called")
        raise ValueError("bad")

    hooks.register(event, failing)
    hooks.register("hook:failed", sleeper(log, 1, "observer"))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await hooks.emit(event, {})
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert log == ["called", "observer began", "observer ended"]
