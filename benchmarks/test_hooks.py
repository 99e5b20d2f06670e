"""Emitting events: against the published kernel, a bare loop of awaits, and pluggy."""

from __future__ import annotations

from functools import partial
from typing import Any

import pluggy
import pytest

from benchmarks.duel import Side, timed_call
from benchmarks.handlers import KINDS, Handler, Make, fields_of, looking, taking_all
from benchmarks.kernels import OURS, OURS_ON_TRIO, THEIRS, Kernel, Prepare, Work
from benchmarks.payloads import chat_request

SMALL = {"tool_name": "look", "tool_call_id": "c1", "tool_input": {"path": "x"}}


def emitting(event: str, payload: dict[str, Any], handlers: int, make: Make = looking) -> Prepare:
    async def prepare(kernel: Kernel) -> Work:
        hooks = kernel.package.HookRegistry()
        handler = handler_of(kernel, make)
        asks = (
            {} if kernel is THEIRS else {"fields": fields_of(make)}
        )  # the published kernel has no such option
        for number in range(handlers):
            hooks.register(event, handler, name=f"h{number}", **asks)
        return lambda: hooks.emit(event, payload)

    return prepare


def handler_of(kernel: Kernel, make: Make = looking) -> Handler:
    return make(partial(kernel.package.HookResult, action="continue"))


def words(handlers: int) -> str:
    return f"emit, {handlers} handler{'' if handlers == 1 else 's'}"


@pytest.mark.parametrize("handlers", [0, 1, 10, 100])
def test_emitting_a_small_payload(board, handlers):
    prepare = emitting("tool:pre", SMALL, handlers)
    board.duel(words(handlers), THEIRS.timed(prepare), OURS.timed(prepare))


@pytest.mark.parametrize("kind", [" with an await", " with the whole payload"])
@pytest.mark.parametrize("handlers", [1, 10, 100])
def test_emitting_a_small_payload_to_handlers_of_other_kinds(board, handlers, kind):
    prepare = emitting("tool:pre", SMALL, handlers, KINDS[kind])
    board.duel(f"{words(handlers)}{kind}", THEIRS.timed(prepare), OURS.timed(prepare))


@pytest.mark.orientation
@pytest.mark.parametrize("handlers", [0, 1, 10, 100])
def test_emitting_a_small_payload_on_trio(board, handlers):
    prepare = emitting("tool:pre", SMALL, handlers)
    board.duel(f"{words(handlers)}, trio", THEIRS.timed(prepare), OURS_ON_TRIO.timed(prepare))


@pytest.mark.parametrize("handlers", [1, 10, 100])
def test_emitting_a_payload_of_200_kb(board, handlers):
    """The handlers ask for fields of the top level, so that the messages are not copied for them."""
    prepare = emitting("provider:request", chat_request(messages=180), handlers)
    board.duel(f"{words(handlers)}, 200 KB", THEIRS.timed(prepare), OURS.timed(prepare))


@pytest.mark.parametrize("handlers", [1, 10, 100])
def test_emitting_a_payload_of_200_kb_to_handlers_that_take_all_of_it(board, handlers):
    prepare = emitting("provider:request", chat_request(messages=180), handlers, taking_all)
    work = f"{words(handlers)} with the whole payload, 200 KB"
    board.duel(work, THEIRS.timed(prepare), OURS.timed(prepare))


def test_a_hundred_handlers_against_a_bare_loop_of_awaits(board):
    """What deadlines, isolation, order, containment and merging cost together."""

    async def bare(kernel: Kernel) -> Work:
        handlers = [handler_of(kernel)] * 100

        async def work() -> None:
            for handler in handlers:
                await handler("tool:pre", SMALL)

        return work

    ours = OURS.timed(emitting("tool:pre", SMALL, 100))
    board.duel("emit, 100 handlers", OURS.timed(bare), ours, rival="a bare loop of awaits")


@pytest.mark.orientation
@pytest.mark.parametrize("handlers", [1, 10, 100])
def test_emitting_against_pluggy(board, handlers):
    """For orientation: pluggy calls plain functions, without copies, deadlines or containment."""
    ours = OURS.timed(emitting("tool:pre", SMALL, handlers))
    board.duel(words(handlers), calling_pluggy(handlers), ours, rival="pluggy")


def calling_pluggy(handlers: int) -> Side:
    specify, implement = pluggy.HookspecMarker("bench"), pluggy.HookimplMarker("bench")

    class Specification:
        @specify
        def tool_pre(self, event, data):
            """Called before a tool."""

    class Plugin:
        @implement
        def tool_pre(self, event, data):
            return {"action": "continue"}

    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Specification)
    for _ in range(handlers):
        manager.register(Plugin())
    return timed_call(lambda: manager.hook.tool_pre(event="tool:pre", data=SMALL))
