"""The cancellation token by itself: states, children, tools, callbacks, and what the session hears of it."""

from __future__ import annotations

import asyncio
import threading

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import CancellationToken
from amplifier.kernel.runtime.cancellation import CALLBACK_SECONDS
from amplifier.kernel.runtime.loop import Loop

# ── states ───────────────────────────────────────────────────────────────────────────────────────
from tests._support.small_agent import takes


def shown(token):
    return token.state, token.is_cancelled, token.is_graceful, token.is_immediate


def test_states_only_rise():
    token = CancellationToken()
    assert token.request_graceful(reason="first") is True
    assert shown(token) == ("graceful", True, True, False)
    assert token.request_graceful(reason="second") is False
    assert token.reason == "first"
    assert token.request_immediate(reason="third") is True
    assert shown(token) == ("immediate", True, False, True)
    assert token.reason == "third"
    assert token.request_immediate() is False
    assert token.request_graceful() is False
    assert shown(token) == ("immediate", True, False, True)


def test_reset_keeps_children_and_callbacks():
    token, child = CancellationToken(), CancellationToken()
    token.register_child(child)
    token.on_cancel(lambda: None)
    token.register_tool_start("1", "bash")
    token.request_immediate(reason="why")
    token.reset()
    assert shown(token) == ("none", False, False, False)
    assert (token.reason, token.running_tools, token._drain_requests()) == (None, set(), [])
    assert child.is_immediate
    child.reset()
    assert token.request_graceful() is True
    assert child.is_graceful


@given(st.lists(st.sampled_from(["graceful", "immediate", "reset"]), max_size=20))
def test_request_reports_change_exactly(program):
    token = CancellationToken()
    for step in program:
        before = token.state
        if step == "reset":
            token.reset()
            assert token.state == "none"
            continue
        changed = token.request_graceful() if step == "graceful" else token.request_immediate()
        assert changed == (token.state != before)
        assert token.state == ("immediate" if "immediate" in (step, before) else "graceful")


@pytest.mark.parametrize(
    "grace",
    [0, -1, True, "5", float("nan"), float("inf"), 10**400, [1]],
    ids=lambda grace: f"{grace!r:.12}",
)
def test_invalid_grace_is_refused(grace):
    token = CancellationToken()
    with pytest.raises((TypeError, ValueError), match="number of seconds"):
        token.request_graceful(grace)
    assert token.state == "none"


def test_one_thread_makes_change():
    token = CancellationToken()
    ready, answers = threading.Barrier(8), []

    def request():
        ready.wait()
        answers.append(token.request_immediate())

    threads = [threading.Thread(target=request) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [False] * 7 + [True]
    assert len(token._drain_requests()) == 1


# ── children ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("level", ["graceful", "immediate"])
def test_request_reaches_descendants_only(level):
    parent, child, grandchild = CancellationToken(), CancellationToken(), CancellationToken()
    parent.register_child(child)
    child.register_child(grandchild)
    getattr(child, f"request_{level}")(reason="why")
    assert (parent.state, child.state, grandchild.state) == ("none", level, level)
    assert grandchild.reason == "why"
    parent.request_immediate(reason="because")
    assert (child.state, grandchild.state) == ("immediate", "immediate")


def test_late_child_gets_present_state():
    graceful, immediate = CancellationToken(), CancellationToken()
    graceful.request_graceful(5, reason="why")
    immediate.request_immediate(reason="now")
    first, second, untouched = CancellationToken(), CancellationToken(), CancellationToken()
    graceful.register_child(first)
    immediate.register_child(second)
    CancellationToken().register_child(untouched)
    assert (first.state, first.reason, first._drain_requests()[0].grace) == ("graceful", "why", 5)
    assert (second.state, second.reason) == ("immediate", "now")
    assert untouched.state == "none"


def test_detached_child_gets_nothing():
    parent, child, other = CancellationToken(), CancellationToken(), CancellationToken()
    for token in (child, other, child):
        parent.register_child(token)
    parent.unregister_child(child)
    parent.unregister_child(child)
    parent.request_immediate()
    assert (child.state, other.state) == ("none", "immediate")


def test_immediate_child_is_not_lowered():
    """Circles of children end."""
    parent, child = CancellationToken(), CancellationToken()
    child.request_immediate()
    parent.register_child(child)
    child.register_child(parent)
    parent.register_child(parent)
    assert parent.is_immediate
    parent.reset()
    assert parent.request_graceful() is True
    assert child.is_immediate
    assert parent.request_immediate() is True


@pytest.mark.parametrize("wrong", [None, "token", object()])
def test_child_must_be_token(wrong):
    token = CancellationToken()
    with pytest.raises(TypeError, match="expected a CancellationToken"):
        token.register_child(wrong)
    token.unregister_child(wrong)
    assert "0 children" in repr(token)


# ── running tools ────────────────────────────────────────────────────────────────────────────────


def test_running_tools_are_copies():
    token = CancellationToken()
    for call, name in (("1", "bash"), ("2", "bash"), ("3", "web")):
        token.register_tool_start(call, name)
    token.register_tool_complete("1")
    token.register_tool_complete("never started")
    assert token.running_tools == {"2", "3"}
    assert token.running_tool_names == ["bash", "web"]
    token.running_tools.clear()
    token.running_tool_names.clear()
    assert token.running_tools == {"2", "3"}


# ── callbacks ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", [None, 5, "callback"])
def test_callback_must_be_callable(wrong):
    with pytest.raises(TypeError, match="on_cancel needs a callable"):
        CancellationToken().on_cancel(wrong)


@pytest.mark.virtual_time
async def test_callbacks_run_in_order_every_time():
    token, log = CancellationToken(), []

    async def slow():
        await anyio.sleep(1)
        log.append("slow")

    token.on_cancel(slow)
    token.on_cancel(lambda: log.append("sync"))
    await token.trigger_callbacks()
    await token.trigger_callbacks()
    assert log == ["slow", "sync", "slow", "sync"]
    await CancellationToken().trigger_callbacks()


@pytest.mark.virtual_time
async def test_failing_callback_stops_no_other(
    caplog,
):
    token, log = CancellationToken(), []

    def fail():
        raise ValueError("broke")

    def invent():
        raise asyncio.CancelledError

    async def hang():
        await anyio.sleep_forever()

    for callback in (fail, invent, hang):
        token.on_cancel(callback)
    token.on_cancel(lambda: log.append("ran"))
    with takes(CALLBACK_SECONDS):
        await token.trigger_callbacks()
    assert log == ["ran"]
    for word in ("broke", "nothing was cancelled", "was cancelled: no answer within 5 s"):
        assert word in caplog.text
    for callback in (fail, invent, hang):
        assert f"cancel callback {__name__}.{callback.__qualname__} " in caplog.text


@pytest.mark.virtual_time
async def test_callbacks_finish_under_cancelled_caller():
    token, log = CancellationToken(), []

    async def callback():
        await anyio.sleep(1)
        log.append("ran")

    token.on_cancel(callback)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await token.trigger_callbacks()
    assert log == ["ran"]


# ── the session's side ───────────────────────────────────────────────────────────────────────────


async def test_immediate_request_cancels_bound_scope():
    token = CancellationToken()
    token.attach(Loop(), None, None)
    with anyio.CancelScope() as scope:
        token.bind(scope)
        token.request_graceful()
        await anyio.lowlevel.checkpoint()
        assert not scope.cancel_called
        token.request_immediate()
        await anyio.sleep_forever()
    assert scope.cancel_called
    token.unbind()
    token.detach()


async def test_late_bound_scope_is_cancelled_immediately():
    token = CancellationToken()
    token.request_immediate()
    scope = anyio.CancelScope()
    token.bind(scope)
    assert scope.cancel_called


async def test_requests_are_drained_once_in_order():
    token, announced = CancellationToken(), []
    token.request_graceful(3, reason="early")
    token.attach(Loop(), None, lambda: announced.extend(token._drain_requests()))
    with anyio.fail_after(60):
        while not announced:
            await anyio.lowlevel.checkpoint()
        token.request_immediate(reason="late")
        while len(announced) < 2:
            await anyio.lowlevel.checkpoint()
    assert [(request.state.value, request.grace, request.reason) for request in announced] == [
        ("graceful", 3, "early"),
        ("immediate", None, "late"),
    ]
    assert token._drain_requests() == []
    token.detach()
