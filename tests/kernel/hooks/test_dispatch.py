"""One emit from start to end: deadlines, failures, isolation, cancellation. Deadlines are in virtual time."""

from __future__ import annotations

import asyncio
import copy
import logging
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.events import TERMINAL_EVENTS
from amplifier.kernel.hooks.merge import INVALID_RESPONSE, was_modified
from amplifier.kernel.runtime.child import run_in_child
from amplifier.models import HookResult
from tests._support.cancellations import some_cancellation
from tests._support.small_agent import let_time_pass, takes
from tests.internal.test_json import circular
from tests.kernel.backends_alone import loop_turns, on_asyncio
from tests.kernel.hooks.answers import chatter, denials, names, payloads
from tests.kernel.hooks.hook_registry import of_module, raising, registry, sleeper
from tests.kernel.hooks.merging import merge

pytestmark = pytest.mark.virtual_time

Data = dict[str, Any]
DENY = HookResult(action="deny", reason="no")


def empty() -> list[str]:
    """A log that nothing was written to yet."""
    return []


# ── the same law as the pure merge ───────────────────────────────────────────────────────────────


@given(
    st.lists(chatter, max_size=2), st.none() | st.tuples(names, denials), st.booleans(), payloads
)
async def test_dispatch_merges_like_pure_function(parts, denial, asynchronous, payload):
    answers = [pair for part in parts for pair in part] + ([] if denial is None else [denial])
    hooks = registry()
    for name, answer in answers:

        async def later(event: str, data: Data, answer: Any = answer) -> Any:
            return copy.deepcopy(answer)

        def now(event: str, data: Data, answer: Any = answer) -> Any:
            return copy.deepcopy(answer)

        hooks.register("tool:pre", later if asynchronous else now, name=name)
    result = await hooks.emit("tool:pre", payload)
    if not answers:
        assert result == HookResult(data=payload)
        return
    owned = {
        "timestamp": (result.data or {}).get("timestamp"),
        "session_id": "s-1",
        "parent_id": None,
    }
    if denial is None:
        assert result == merge("tool:pre", {**payload, **owned}, answers, owned)
        assert was_modified(result) == was_modified(
            merge("tool:pre", {**payload, **owned}, answers, owned)
        )
    else:
        assert (result.action, result.reason) == ("deny", denial[1].reason)


# ── deadlines ────────────────────────────────────────────────────────────────────────────────────


async def test_only_late_handler_is_blamed(caplog):
    hooks, log = registry(), empty()
    hooks.register("tool:pre", sleeper(log, 9, "before"), name="before", timeout=10)
    hooks.register("tool:pre", sleeper(log, 9, "late"), name="late", timeout=3)
    hooks.register("tool:pre", sleeper(log, 9, "after"), name="after", timeout=10)
    began = anyio.current_time()
    assert (await hooks.emit("tool:pre", {})).action == "continue"
    assert anyio.current_time() - began == pytest.approx(21)
    assert log == ["before began", "before ended", "late began", "after began", "after ended"]
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    [error] = errors
    assert error.startswith(
        "handler 'late' for 'tool:pre' overran its deadline and was cancelled (no answer within 3 s, "
    )
    assert "waiting at" in error
    assert "hook_registry.py" in error
    assert error.endswith("in sleeper.<locals>.handler): skipped")


@given(
    st.lists(
        st.tuples(st.sampled_from([0, 1, 5, 50]), st.sampled_from([0.5, 2.5, 20.5, None])),
        max_size=5,
    )
)
async def test_every_handler_has_own_time(plan):
    hooks, log = registry(), empty()
    for number, (seconds, timeout) in enumerate(plan):
        hooks.register("tool:pre", sleeper(log, seconds, str(number)), timeout=timeout)
    began = anyio.current_time()
    await hooks.emit("tool:pre", {})
    spent = sum(seconds if timeout is None else min(seconds, timeout) for seconds, timeout in plan)
    assert anyio.current_time() - began == pytest.approx(spent, rel=0.02)
    ended = [number for number in range(len(plan)) if f"{number} ended" in log]
    assert ended == [
        n for n, (seconds, timeout) in enumerate(plan) if timeout is None or seconds <= timeout
    ]
    assert [line for line in log if line.endswith("began")] == [
        f"{number} began" for number in range(len(plan))
    ]


async def test_default_timeout_is_fixed_at_registration():
    hooks, log = registry(), empty()
    hooks.register("tool:pre", sleeper(log, 299, "default"), name="default")
    hooks.set_default_timeout(7)
    hooks.register("tool:pre", sleeper(log, 299, "shorter"), name="shorter")
    hooks.set_default_timeout(None)
    hooks.register("tool:pre", sleeper(log, 10_000, "unlimited"), name="unlimited")
    await hooks.emit("tool:pre", {})
    assert [line for line in log if line.endswith("ended")] == ["default ended", "unlimited ended"]


async def test_unprintable_error_is_contained():
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    hooks, heard = registry(), []

    def failing(event: str, data: Data) -> None:
        raise Unspeakable

    logging.getLogger("amplifier.hooks").disabled = True  # logging itself cannot show it either
    try:
        hooks.register("tool:pre", failing, name="gate", on_failure="deny")
        hooks.register("hook:failed", lambda event, data: heard.append(data))
        result = await hooks.emit("tool:pre", {})
    finally:
        logging.getLogger("amplifier.hooks").disabled = False
    assert (
        result.reason == "gate 'gate' failed: Unspeakable: (its text cannot be shown: RuntimeError)"
    )
    assert heard[0]["error"] == "(its text cannot be shown: RuntimeError)"


async def test_handler_swallowing_cancellation_has_failed():
    hooks = registry()

    async def swallowing(event: str, data: Data) -> Data:
        try:
            await anyio.sleep(100)
        except anyio.get_cancelled_exc_class():
            return {"action": "modify", "data": {"late": True}}  # this is what must not count
        return {}

    log: list[str] = []
    hooks.register("tool:pre", swallowing, timeout=3)
    hooks.register("tool:pre", sleeper(log, 5, "after"), timeout=10)
    result = await hooks.emit("tool:pre", {})
    assert result.action == "continue"
    assert "late" not in (result.data or {})
    assert log == ["after began", "after ended"]


# ── reports ──────────────────────────────────────────────────────────────────────────────────────


async def test_failing_observer_gets_no_own_failure():
    hooks, heard = registry(), []

    def failing(event: str, data: Data) -> None:
        heard.append(event)
        raise ValueError("bad")

    hooks.register("*", failing)
    await hooks.emit("tool:pre", {})
    assert heard == ["tool:pre", "hook:failed"]


# ── gates without an answer, invalid answers ─────────────────────────────────────────────────────


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("answer", [None, {}])
async def test_gate_returning_nothing_denies(answer, asynchronous, caplog):
    hooks, heard, called = registry(), [], []

    def silent(event: str, data: Data) -> Any:
        return answer

    async def silent_later(event: str, data: Data) -> Any:
        await anyio.lowlevel.checkpoint()
        return answer

    gate = silent_later if asynchronous else silent
    of_module(hooks, "hooks-x").register("tool:pre", gate, name="forgetful", on_failure="deny")
    hooks.register("tool:pre", lambda event, data: called.append(event))
    hooks.register("hook:failed", lambda event, data: heard.append(data))
    result = await hooks.emit("tool:pre", {"tool_name": "rm"})
    assert result.action == "deny"
    assert result.reason == (
        f"gate 'forgetful' failed: ContractError: it returned {answer}; a gate must return a HookResult, such as HookResult() "
        "to let the event pass"
    )
    assert (result.data or {})["tool_name"] == "rm"
    assert called == []
    [report] = heard
    assert (report["module_id"], report["hook_name"], report["event"]) == (
        "hooks-x",
        "forgetful",
        "tool:pre",
    )
    assert "handler 'forgetful' of module 'hooks-x' for 'tool:pre' failed" in caplog.text


async def test_observer_may_return_nothing(caplog):
    hooks, heard = registry(), []
    hooks.register("tool:pre", lambda event, data: None, on_failure="continue")
    hooks.register("tool:pre", lambda event, data: {})
    hooks.register("hook:failed", lambda event, data: heard.append(data))
    assert (await hooks.emit("tool:pre", {})).action == "continue"
    assert (heard, caplog.records) == ([], [])


class Unshowable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("answer", "shown"),
    [
        ("denied", "the str 'denied'"),
        (True, "the bool True"),
        (["deny"], "the list ['deny']"),
        ({"verdict": "deny"}, "the dict {'verdict': 'deny'}"),
        ({"action": "forbid"}, "the dict {'action': 'forbid'}"),
        ({"action": "modify", "data": circular()}, "the dict {'action': 'modify', "),
        ("x" * 10_000, "the str 'xxxxx"),
        ("token=sk-ant-api03-" + "a" * 90, "the str 'token=[REDACTED"),
        (Unshowable(), "the Unshowable (it cannot be shown: RuntimeError)"),
    ],
)
async def test_invalid_answer_is_logged_with_module(answer, shown, caplog):
    hooks, heard = registry(), []
    of_module(hooks, "hooks-x").register("tool:pre", lambda event, data: answer, name="wordy")
    hooks.register("hook:failed", lambda event, data: heard.append(data))
    result = await hooks.emit("tool:pre", {})
    assert (result.action, result.reason) == ("deny", INVALID_RESPONSE)
    [record] = caplog.records
    message = record.getMessage()
    assert record.levelname == "WARNING"
    assert message.startswith(
        f"handler 'wordy' of module 'hooks-x' for 'tool:pre' returned {shown}"
    )
    assert message.endswith("; expected a HookResult, a dict with its keys or None: denied")
    assert len(message) < 400
    assert [(each["hook_name"], each["error_type"]) for each in heard] == [
        ("wordy", "ContractError")
    ]


async def test_denial_resembling_invalid_answer_is_denial(caplog):
    hooks = registry()
    hooks.register(
        "tool:pre", lambda event, data: HookResult(action="deny", reason=INVALID_RESPONSE)
    )
    assert (await hooks.emit("tool:pre", {})).reason == INVALID_RESPONSE
    assert caplog.records == []


async def test_invalid_collected_answer_is_logged(caplog):
    hooks = registry()
    of_module(hooks, "hooks-x").register(
        "tool:pre", cast("Any", lambda event, data: "words"), name="wordy"
    )
    hooks.register("tool:pre", lambda event, data: {"data": {"n": 1}}, name="fine")
    hooks.register("tool:pre", lambda event, data: None, name="silent", on_failure="deny")
    assert await hooks.emit_and_collect("tool:pre", {}) == [{"n": 1}]
    [record] = caplog.records
    assert record.getMessage() == (
        "handler 'wordy' of module 'hooks-x' for 'tool:pre' returned the str 'words'; "
        "expected a HookResult, a dict with its keys or None: skipped"
    )


# ── cancellation ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, GeneratorExit])
async def test_ctrl_c_in_handler_propagates(kind, asynchronous):
    hooks, called = registry(), []
    hooks.register("tool:pre", raising(kind(), asynchronous=asynchronous))
    hooks.register("tool:pre", lambda event, data: called.append(event))
    with pytest.raises(kind):
        await hooks.emit("tool:pre", {})
    assert called == []
    await anyio.sleep(1000)  # no deadline was left behind


class Panic(BaseException):
    """What an extension written in Rust raises when it panics."""


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("error", [SystemExit(3), Panic("unreachable")], ids=["exit", "panic"])
@pytest.mark.parametrize("on_failure", ["continue", "deny"])
async def test_base_exception_is_handler_failure(error, asynchronous, on_failure, caplog):
    hooks, called = registry(), []
    hooks.register(
        "tool:pre", raising(error, asynchronous=asynchronous), name="leaver", on_failure=on_failure
    )
    hooks.register("tool:pre", lambda event, data: called.append(event))
    result = await hooks.emit("tool:pre", {})
    assert result.action == on_failure
    assert called == (["tool:pre"] if on_failure == "continue" else [])
    assert (
        f"handler 'leaver' for 'tool:pre' failed with ContainedError: raised {type(error).__name__}"
        in caplog.text
    )


async def test_cancel_scope_of_handler_is_private():
    hooks = registry()

    async def impatient(event: str, data: Data) -> HookResult | None:
        with anyio.move_on_after(1):
            await anyio.sleep(100)
        return DENY

    hooks.register("tool:pre", impatient, timeout=3)
    assert (await hooks.emit("tool:pre", {})).reason == "no"


@pytest.mark.parametrize("event", ["tool:pre", "execution:end"])
@pytest.mark.parametrize("times", [1, 2])
@on_asyncio
async def test_native_cancel_waits_for_terminal_event(event, times):
    hooks, log = registry(), empty()
    hooks.register(event, sleeper(log, 2, "handler"))

    async def emitting() -> None:
        await hooks.emit(event, {})
        log.append("went on")

    task = asyncio.get_running_loop().create_task(run_in_child(emitting, name="a turn"))
    for _ in range(times):
        await loop_turns()
        task.cancel()
    await asyncio.wait([task])
    terminal = event in TERMINAL_EVENTS
    # A dispatch adds no checkpoint, so the emitter continues after the handler of a terminal event.
    expected = ["handler began", "handler ended", "went on"] if terminal else ["handler began"]
    assert (log, task.cancelled()) == (expected, True)


# ── terminal events ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("event", sorted(TERMINAL_EVENTS))
async def test_terminal_event_reaches_cancelled_emitter_handlers(event):
    hooks, log = registry(), empty()
    hooks.register(event, sleeper(log, 1, "first"))
    hooks.register(event, sleeper(log, 1, "second"))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await hooks.emit(event, {})
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert log == ["first began", "first ended", "second began", "second ended"]


async def test_terminal_handlers_share_five_seconds():
    hooks, log = registry(), empty()
    for name in ("one", "two", "three"):
        hooks.register("session:end", sleeper(log, 3, name), name=name)
    hooks.register("session:end", lambda event, data: log.append("sync"))
    began = anyio.current_time()
    await hooks.emit("session:end", {})
    assert anyio.current_time() - began == pytest.approx(5)
    assert log == ["one began", "one ended", "two began", "three began", "sync"]


async def test_terminal_failure_is_reported_under_cancellation():
    hooks, heard = registry(), []

    async def failing(event: str, data: Data) -> None:
        raise ValueError("bad")

    async def observing(event: str, data: Data) -> None:
        await anyio.sleep(1)
        heard.append(data["event"])

    hooks.register("execution:end", failing)
    hooks.register("hook:failed", observing)
    hooks.register("orchestrator:complete", lambda event, data: heard.append(event))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await hooks.emit("execution:end", {})
        await hooks.emit("orchestrator:complete", {})
    assert heard == ["execution:end", "orchestrator:complete"]


async def test_observers_of_terminal_failure_are_bounded():
    hooks, log = registry(), empty()

    def failing(event: str, data: Data) -> None:
        raise ValueError("bad")

    hooks.register("execution:end", failing)
    hooks.register("hook:failed", sleeper(log, 1000, "observer"))
    with takes(5):
        await hooks.emit("execution:end", {})


# ── handlers that cannot wait: plain ones, and async ones without an await ────────────────────────────


@pytest.mark.parametrize(("on_failure", "action"), [("continue", "continue"), ("deny", "deny")])
async def test_blocking_handler_past_deadline_is_late(on_failure, action, monkeypatch):
    hooks, now, timeouts = registry(), [100.0], []
    monkeypatch.setattr("amplifier.kernel.runtime.deadlines.loop_clock", lambda: lambda: now[0])

    async def blocking(event: str, data: Data) -> HookResult:
        now[0] += 9
        return HookResult()

    hooks.register("tool:pre", blocking, name="late", timeout=3, on_failure=on_failure)
    hooks.register(
        "hook:timeout", lambda event, data: timeouts.append((data["hook_name"], data["seconds"]))
    )
    result = await hooks.emit("tool:pre", {})
    assert (result.action, timeouts) == (action, [("late", 3)])
    if action == "deny":
        assert result.reason == "gate 'late' failed: no answer within 3 s"


async def test_blocking_handlers_share_terminal_time(monkeypatch):
    hooks, now, timeouts = registry(), [100.0], []
    monkeypatch.setattr("amplifier.kernel.runtime.deadlines.loop_clock", lambda: lambda: now[0])

    async def blocking(event: str, data: Data) -> None:
        now[0] += 3

    for name in ("one", "two", "three"):
        hooks.register("session:end", blocking, name=name)
    hooks.register(
        "hook:timeout", lambda event, data: timeouts.append((data["hook_name"], data["seconds"]))
    )
    await hooks.emit("session:end", {})
    assert timeouts == [("two", 2)]  # the time was over before the third one began


@pytest.mark.parametrize("on_failure", ["continue", "deny"])
async def test_blocking_handler_is_not_blamed_for_others(on_failure, monkeypatch):
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


@pytest.mark.parametrize("event", sorted(TERMINAL_EVENTS))
@pytest.mark.parametrize("kind", ["never waits", "may wait", "plain"])
async def test_foreign_cancellation_ends_no_terminal_event(event, kind):
    hooks, heard = registry(), []
    met = await some_cancellation()
    plain = raising(met, asynchronous=False)

    async def never_waiting(event: str, data: Data) -> None:
        raise met

    async def waiting(event: str, data: Data) -> None:
        await anyio.lowlevel.cancel_shielded_checkpoint()
        raise met

    async def second(event: str, data: Data) -> None:
        heard.append(event)

    hooks.register(
        event,
        {"never waits": never_waiting, "may wait": waiting, "plain": plain}[kind],
        name="first",
    )
    hooks.register(event, second)
    hooks.register("hook:failed", lambda event, data: heard.append(data["error_type"]))
    with anyio.CancelScope() as scope:
        scope.cancel()
        await hooks.emit(event, {})
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert heard == [event, "SpuriousCancellation"]


@pytest.mark.parametrize("kind", ["never waits", "plain"])
async def test_sync_handler_is_not_blamed_for_predecessor(kind):
    hooks, failed = registry(), []

    def plain(event: str, data: Data) -> None:
        let_time_pass(1)
        raise ValueError("mine")

    async def never_waiting(event: str, data: Data) -> None:
        plain(event, data)

    hooks.register("tool:pre", sleeper([], 0.01, "first"), timeout=0.2)
    hooks.register(
        "tool:pre", plain if kind == "plain" else never_waiting, name="second", timeout=100
    )
    hooks.register(
        "hook:failed", lambda event, data: failed.append((data["hook_name"], data["error"]))
    )
    hooks.register("hook:timeout", lambda event, data: failed.append((data["hook_name"], "late")))
    await hooks.emit("tool:pre", {})
    assert failed == [("second", "mine")]
