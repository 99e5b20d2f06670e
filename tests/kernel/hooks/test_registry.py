"""The registry's own promises: fields, re-entrancy, collecting, bad input. Order is in its own file."""

from __future__ import annotations

import asyncio
import gc
import re
import time
import weakref
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.errors import HookRecursionError
from amplifier.kernel.hooks.registry import MAX_DEPTH
from amplifier.models import HookResult
from tests.kernel.backends_alone import on_asyncio, run_on
from tests.kernel.hooks.hook_registry import of_module, raising, registry

Data = dict[str, Any]


def ignore(event: str, data: Data) -> None:
    """A handler that does nothing."""


# ── fields ───────────────────────────────────────────────────────────────────────────────────────


async def test_payload_layers_defaults_data_kernel_fields():
    hooks, seen = registry(), []
    hooks.set_default_fields(colour="red", size=1, session_id="default", timestamp="default")
    hooks.register("tool:pre", lambda event, data: seen.append(data))
    await hooks.emit(
        "tool:pre",
        {"size": 2, "session_id": "forged", "parent_id": "forged", "timestamp": "forged"},
    )
    (data,) = seen
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", data.pop("timestamp"))
    assert data == {"colour": "red", "size": 2, "session_id": "s-1", "parent_id": None}


async def test_default_fields_replace_earlier_ones():
    hooks, seen = registry(), []
    hooks.register("tool:pre", lambda event, data: seen.append(data))
    hooks.set_default_fields(colour="red")
    hooks.set_default_fields(size=1)
    await hooks.emit("tool:pre", {})
    hooks.set_default_fields()
    await hooks.emit("tool:pre", {})
    assert [sorted(set(data) - {"timestamp", "session_id", "parent_id"}) for data in seen] == [
        ["size"],
        [],
    ]


async def test_data_without_handler_is_returned_unchanged():
    hooks = registry()
    hooks.set_default_fields(colour="red")
    assert await hooks.emit("tool:pre", {"n": 1}) == HookResult(action="continue", data={"n": 1})
    assert await hooks.emit("tool:pre") == HookResult(action="continue", data={})


async def test_mappings_and_str_subclasses_are_accepted():
    class Names(StrEnum):
        PRE = "tool:pre"

    hooks, seen = registry(), []
    hooks.register(Names.PRE, lambda event, data: seen.append((event, data["n"])))
    await hooks.emit("tool:pre", MappingProxyType({"n": 1}))
    await hooks.emit(Names.PRE, {"n": 2})
    assert seen == [("tool:pre", 1), ("tool:pre", 2)]


# ── names ────────────────────────────────────────────────────────────────────────────────────────


async def test_removed_handler_is_not_kept_alive():
    class Handler:
        def __call__(self, event: str, data: Data) -> None: ...

    hooks, handler = registry(), Handler()
    gone = weakref.ref(handler)
    remove = hooks.register("tool:pre", handler)
    await hooks.emit("tool:pre", {})
    remove()
    del remove, handler
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("everywhere", [False, True])
async def test_unused_event_names_leave_nothing(everywhere):
    hooks = registry()
    names = [f"event:{number}" for number in range(10_000)]
    if everywhere:
        hooks.register("*", ignore, name="listener")
    removers = [hooks.register(name, ignore, name=name) for name in names]
    for name in names[:100]:  # what an emit remembers must go, too
        await hooks.emit(name, {})
    for name in names[:10]:
        hooks.unregister(name)
    for remove in removers:
        remove()
    for name in names[:100]:
        await hooks.emit(name, {})
    hooks.unregister("listener")
    assert (hooks._handlers, hooks._ready) == ({}, {})
    assert hooks.statistics().events == 0


# ── no checkpoint ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("event", ["tool:pre", "execution:end"])
@pytest.mark.parametrize("handlers", [0, 1, 3])
def test_emit_adds_no_checkpoint_on_trio(event, handlers):
    from trio.testing import assert_no_checkpoints

    async def main() -> int:
        hooks, called = registry(), []

        async def no_await(event: str, data: Data) -> None:
            called.append(event)

        for number in range(handlers):
            hooks.register(
                event, no_await if number % 2 else lambda event, data: called.append(event)
            )
        with assert_no_checkpoints():
            await hooks.emit(event, {})
        return len(called)

    assert run_on("trio", main) == handlers


@pytest.mark.parametrize(
    ("event", "handlers"), [("tool:pre", 0), ("tool:pre", 3), ("execution:end", 0)]
)
@on_asyncio
async def test_emit_does_not_yield_to_asyncio(event, handlers):
    hooks = registry()
    turned: list[str] = []

    async def no_await(event: str, data: Data) -> None: ...

    for number in range(handlers):
        hooks.register(event, no_await if number % 2 else lambda event, data: None)
    asyncio.get_running_loop().call_soon(turned.append, "turned")
    await hooks.emit(event, {})
    assert turned[:] == []


async def test_cancelled_emitter_of_sync_handlers_gets_verdict():
    hooks = registry()
    hooks.register("tool:pre", lambda event, data: {"action": "deny", "reason": "no"})
    with anyio.CancelScope() as scope:
        scope.cancel()
        assert (await hooks.emit("tool:pre", {})).reason == "no"
    assert not scope.cancelled_caught


# ── re-entrancy ──────────────────────────────────────────────────────────────────────────────────


async def test_chain_at_depth_limit_is_allowed():
    hooks, deepest = registry(), []

    async def descend(event: str, data: Data) -> HookResult:
        if data["level"] < MAX_DEPTH:
            await hooks.emit("down", {"level": data["level"] + 1})
        else:
            deepest.append(data["level"])
        return HookResult()

    hooks.register("down", descend, on_failure="deny")
    assert (await hooks.emit("down", {"level": 1})).action == "continue"
    assert deepest == [MAX_DEPTH]


async def test_failing_gate_at_depth_limit_denies():
    hooks, verdicts, heard = registry(), [], []

    async def descend(event: str, data: Data) -> HookResult:
        if data["level"] == MAX_DEPTH:
            raise ValueError("at the bottom")
        verdicts.append((await hooks.emit("down", {"level": data["level"] + 1})).action)
        return HookResult()

    hooks.register("down", descend, on_failure="deny")
    hooks.register("hook:failed", lambda event, data: heard.append(data["error"]))
    await hooks.emit("down", {"level": 1})
    assert verdicts[0] == "deny"
    assert heard == ["at the bottom"]


async def test_consecutive_events_are_not_nested():
    hooks, count = registry(), []

    async def many(event: str, data: Data) -> HookResult:
        for _ in range(MAX_DEPTH * 2):
            await hooks.emit("inner", {})
        return HookResult()

    hooks.register("outer", many, on_failure="deny")
    hooks.register("inner", lambda event, data: count.append(1))
    assert (await hooks.emit("outer", {})).action == "continue"
    assert len(count) == MAX_DEPTH * 2


async def test_task_of_finished_dispatch_is_not_nested():
    # Each turn is started by a handler of the one before, in a task of its own: a chain in time, not in depth.
    hooks = registry()
    turns: list[int] = []

    async def turn(number: int, earlier: anyio.Event) -> None:
        await earlier.wait()
        turns.append(number)
        over = anyio.Event()
        await hooks.emit("turn:complete", {"number": number, "over": over})
        over.set()

    async def start_next(event: str, data: Data) -> HookResult:
        if data["number"] < MAX_DEPTH * 3:
            group.start_soon(turn, data["number"] + 1, data["over"])
        return HookResult()

    begin = anyio.Event()
    begin.set()
    hooks.register("turn:complete", start_next, on_failure="deny")
    async with anyio.create_task_group() as group:
        group.start_soon(turn, 0, begin)
    assert turns == list(range(MAX_DEPTH * 3 + 1))


def answering(answer: Any) -> Any:
    return lambda event, data: answer


# ── collecting ───────────────────────────────────────────────────────────────────────────────────


async def test_collecting_is_concurrent_and_ordered():
    hooks, arrived = registry(), []
    everybody = anyio.Event()

    def asked(name: str, priority: int) -> None:
        async def handler(event: str, data: Data) -> Data:
            arrived.append(name)
            if len(arrived) == 3:
                everybody.set()
            await everybody.wait()  # only if all three are asked at once does anyone get past here
            return {"data": {"from": name}}

        hooks.register("ask", handler, priority, name)

    for name, priority in (("c", 3), ("a", 1), ("b", 2)):
        asked(name, priority)
    assert await hooks.emit_and_collect("ask", {}, timeout=60) == [
        {"from": "a"},
        {"from": "b"},
        {"from": "c"},
    ]


async def test_collecting_takes_data_of_every_action():
    hooks = registry()
    for answer in (
        None,
        {"action": "deny", "data": {"n": 1}},
        HookResult(),
        HookResult(data={"n": 2}),
        "nonsense",
        {"action": "ask_user", "data": {"n": 3}},
    ):
        hooks.register("ask", answering(answer))
    assert await hooks.emit_and_collect("ask") == [{"n": 1}, {"n": 2}, {"n": 3}]


@pytest.mark.virtual_time
async def test_late_collected_answer_does_not_count():
    hooks = registry()

    async def stubborn(event: str, data: Data) -> Data:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(9)
        return {"data": {"late": True}}

    hooks.register("ask", stubborn)
    assert await hooks.emit_and_collect("ask", {}, timeout=2) == []


async def test_collecting_contains_failures_exits_and_invented_cancellations(caplog):
    hooks = registry()
    errors = {
        "failing": ValueError("bad"),
        "inventing": asyncio.CancelledError(),
        "leaving": SystemExit(3),
    }
    for name, error in errors.items():
        hooks.register("ask", raising(error, asynchronous=False), name=name)
        hooks.register("ask", raising(error, asynchronous=True), name=f"{name} later")
    hooks.register("ask", lambda event, data: {"data": {"well": True}})
    assert await hooks.emit_and_collect("ask") == [{"well": True}]
    messages = [record.getMessage() for record in caplog.records]
    assert sorted(message.split("'")[1] for message in messages) == sorted(
        [*errors, *(f"{name} later" for name in errors)]
    )
    for name in ("leaving", "leaving later"):
        assert any(
            f"'{name}' for 'ask' failed with ContainedError: raised SystemExit: 3" in each
            for each in messages
        )


async def test_circular_collecting_is_stopped():
    hooks, errors = registry(), []

    async def again(event: str, data: Data) -> None:
        try:
            await hooks.emit_and_collect("ask", {}, timeout=60)
        except HookRecursionError as exc:
            errors.append(exc)

    hooks.register("ask", again)
    await hooks.emit_and_collect("ask", {}, timeout=60)
    assert [len(error.chain) for error in errors] == [MAX_DEPTH + 1]


# ── bad input; that of registering is in tests/kernel/test_bad_input.py ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("listening", [False, True])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((5, {}), "an event's name must be a str such as 'tool:pre', got 5"),
        ((None, {}), "must be a str such as 'tool:pre', got None"),
        ((["tool:pre"], {}), "must be a str such as 'tool:pre', got ['tool:pre']"),
        (("tool:pre", [1]), "the data of 'tool:pre' must be a dict (or None), got list: [1]"),
        (("tool:pre", "text"), "must be a dict (or None), got str: 'text'"),
        (("tool:pre", HookResult()), "must be a dict (or None), got HookResult"),
    ],
    ids=str,
)
async def test_wrong_event_is_rejected_before_handlers(arguments, words, listening):
    hooks, called = registry(), []
    if listening:
        hooks.register("*", lambda event, data: called.append(event))
    for method in (hooks.emit, hooks.emit_and_collect):
        with pytest.raises(TypeError) as caught:
            await method(*arguments)
        assert words in str(caught.value)
    assert called == []


@pytest.mark.parametrize(
    ("timeout", "kind", "words"),
    [
        (None, ValueError, "emit_and_collect needs a timeout in seconds, not None"),
        ("1", TypeError, "must be a number of seconds or None, got '1'"),
        (0, ValueError, "positive, finite number of seconds, got 0"),
        (-1.5, ValueError, "positive, finite number of seconds, got -1.5"),
        (float("nan"), ValueError, "positive, finite number of seconds, got nan"),
        (float("inf"), ValueError, "positive, finite number of seconds, got inf"),
    ],
)
async def test_wrong_collecting_timeout_is_rejected(timeout, kind, words):
    hooks, called = registry(), []
    hooks.register("ask", lambda event, data: called.append(event))
    with pytest.raises(kind) as caught:
        await hooks.emit_and_collect("ask", {}, timeout=timeout)
    assert words in str(caught.value)
    assert called == []


def test_unknown_names_are_not_errors():
    hooks = registry()
    hooks.unregister("nobody")
    assert hooks.list_handlers("tool:pre") == {"tool:pre": []}
    assert hooks.list_handlers() == {}


# ── many ─────────────────────────────────────────────────────────────────────────────────────────


def seconds_for(count: int, event: str) -> float:
    """The processor time of this thread for registering so many handlers and taking them back, the fastest of three."""
    times = []
    for _ in range(3):
        hooks = registry()
        module = of_module(hooks, "hooks-many")
        began = time.thread_time()
        for number in range(count):
            module.register(event, print, priority=number % 3)
        hooks.unregister_owner(None)
        times.append(time.thread_time() - began)
        assert hooks.list_handlers() == {}
    return min(times)


@pytest.mark.parametrize("event", ["*", "tool:pre"])
def test_registration_time_is_linear(event):
    few, many = seconds_for(1000, event), seconds_for(16_000, event)
    assert many / few < 16 * 4  # in the square it would be 256


async def test_interrupt_in_collected_handler_propagates():
    interrupt = KeyboardInterrupt()
    cancelled: list[str] = []

    async def waits(event, data):
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append("waits")

    async def fails(event, data):
        await anyio.lowlevel.checkpoint()
        raise interrupt

    hooks = registry()
    hooks.register("ask", waits)
    hooks.register("ask", fails)
    with anyio.fail_after(10), pytest.raises(KeyboardInterrupt) as caught:
        await hooks.emit_and_collect("ask", timeout=3600)
    assert caught.value is interrupt
    assert cancelled == ["waits"]
