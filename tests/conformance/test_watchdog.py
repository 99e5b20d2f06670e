"""The watchdog that ends the worker process when a call cannot be stopped: calls may overlap."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from typing import NoReturn

import pytest

from amplifier.conformance.target.locate import find_target, load
from amplifier.conformance.target.mounted import CheckContext, Fault
from tests.conformance.modules import SOUND_TOOL, write_module


class Rung(Exception):
    """In place of the end of the process."""


def abort(fault: Fault) -> NoReturn:
    raise Rung(fault.clause)


@pytest.fixture
def ctx(tmp_path, monkeypatch):
    """A context whose alarms raise `Rung`; the handler and the timer of the test runner are restored."""
    handler, (left, _) = signal.signal(signal.SIGALRM, signal.SIG_IGN), signal.setitimer(signal.ITIMER_REAL, 0)
    monkeypatch.syspath_prepend(tmp_path)
    loaded = load(find_target(write_module(tmp_path, SOUND_TOOL), "tool"), {}, {})
    yield CheckContext(loaded=loaded, backend="asyncio", abort=abort)
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, left)


@pytest.mark.parametrize("first_ends_first", [True, False])
def test_calls_that_have_ended_do_not_ring_in_whatever_order_they_end(ctx, first_ends_first):
    first, second = ExitStack(), ExitStack()
    first.enter_context(ctx.watchdog(0))  # due at once; without a timer, so that the test rings it
    second.enter_context(ctx.watchdog(0))
    for stack in (first, second) if first_ends_first else (second, first):
        stack.close()
    signal.raise_signal(signal.SIGALRM)


def test_a_call_that_has_not_ended_rings(ctx):
    with pytest.raises(Rung, match="A12"), ctx.watchdog(0, "A12", "closing"):
        signal.raise_signal(signal.SIGALRM)
