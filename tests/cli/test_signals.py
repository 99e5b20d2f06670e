"""What Ctrl-C does at each moment, down to the last one, which leaves at once."""

from __future__ import annotations

import json
import re
import signal

import anyio
import pytest

from amplifier.cli.agent import signals as _signals
from amplifier.cli.agent.signals import Stopper, heard_signals
from amplifier.cli.terminal.output import StandardStreams
from amplifier.cli.terminal.screen import Screen
from amplifier.kernel import CancellationToken
from tests._support.terminal import open_terminal


class Left(Exception):
    """Stands for the end of the process."""


@pytest.fixture
async def stopper(monkeypatch) -> Stopper:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(_signals, "PATIENCE", 0.0)
    return Stopper(Screen(StandardStreams()))


async def test_a_turn_is_stopped_gracefully_then_at_once_then_left(stopper):
    token = CancellationToken()
    with stopper.during_turn(token):
        stopper.receive(signal.SIGINT)
        assert token.state == "graceful"
        stopper.receive(signal.SIGINT)
        assert token.state == "immediate"
        with pytest.raises(Left) as left:
            stopper.receive(signal.SIGINT)
    assert left.value.args == (130,)
    assert stopper.ended_by is None


async def test_fingers_that_hammer_do_not_abandon_what_is_unwinding(stopper, monkeypatch):
    monkeypatch.setattr(_signals, "PATIENCE", 3600.0)
    token = CancellationToken()
    with stopper.during_turn(token):
        for _ in range(9):
            stopper.receive(signal.SIGINT)
    assert token.state == "immediate"


async def test_whoever_waits_for_the_person_hears_ctrl_c_first(stopper):
    heard = []
    token = CancellationToken()
    with stopper.during_turn(token), stopper.interrupts_go_to(lambda: heard.append("question")):
        with stopper.interrupts_go_to(lambda: heard.append("inner")):
            stopper.receive(signal.SIGINT)
        stopper.receive(signal.SIGINT)
    assert (heard, token.state) == (["inner", "question"], "none")


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_without_a_turn_everything_is_cancelled(which, stopper):
    with stopper.scope:
        stopper.receive(which)
        await anyio.sleep_forever()
    assert stopper.ended_by is which


async def test_the_first_signal_is_the_one_that_counts(stopper):
    stopper.receive(signal.SIGTERM)
    stopper.receive(signal.SIGHUP)
    assert stopper.ended_by is signal.SIGTERM


def test_signals_that_are_ignored_are_not_listened_to():
    before = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in heard_signals()
        assert signal.SIGTERM in heard_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_tool_that_will_not_stop_can_be_left_with_the_terminal_intact(backend, home, desk, plan):
    prompt = f"call stubborn {json.dumps({'path': str(desk / 'gate')})}"
    arguments = ("run", prompt, "--plan", plan, "--backend", backend)
    with open_terminal(*arguments, home=home, cwd=desk) as terminal:
        terminal.expect("s  stubborn")
        terminal.press_ctrl_c()
        terminal.expect("Press Ctrl-C again")
        terminal.press_ctrl_c()
        terminal.expect("Stopping now.")
        clock = re.search(r"(\d+) s  stubborn", terminal.expect(" s  stubborn"))
        assert clock is not None
        terminal.expect(f"{int(clock[1]) + 3} s  stubborn")  # the patience with hammering fingers is over
        terminal.press_ctrl_c()
        terminal.expect("Leaving without waiting")
        assert terminal.end() == 130
        assert terminal.is_as_before()
