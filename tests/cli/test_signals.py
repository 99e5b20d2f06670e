"""What Ctrl-C does at each moment, down to the last one, which leaves at once."""

from __future__ import annotations

import json
import re
import signal

import anyio
import pytest

from amplifier.cli.agent import signals as _signals
from amplifier.cli.agent.signals import SignalHandler, handled_signals
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.output import StandardStreams
from amplifier.kernel import CancellationToken
from tests._support.terminal import open_terminal


class Left(Exception):
    """Raised in place of ending the process."""


@pytest.fixture
async def signal_handler(monkeypatch) -> SignalHandler:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(_signals, "FORCE_EXIT_AFTER", 0.0)
    return SignalHandler(Display(StandardStreams()))


async def test_ctrl_c_stops_a_turn_gracefully_then_immediately_then_exits(signal_handler):
    token = CancellationToken()
    with signal_handler.during_turn(token):
        signal_handler.receive(signal.SIGINT)
        assert token.state == "graceful"
        signal_handler.receive(signal.SIGINT)
        assert token.state == "immediate"
        with pytest.raises(Left) as left:
            signal_handler.receive(signal.SIGINT)
    assert left.value.args == (130,)
    assert signal_handler.ended_by is None


async def test_repeated_ctrl_c_does_not_abort_a_running_cleanup(signal_handler, monkeypatch):
    monkeypatch.setattr(_signals, "FORCE_EXIT_AFTER", 3600.0)
    token = CancellationToken()
    with signal_handler.during_turn(token):
        for _ in range(9):
            signal_handler.receive(signal.SIGINT)
    assert token.state == "immediate"


async def test_a_waiting_question_receives_ctrl_c_first(signal_handler):
    heard = []
    token = CancellationToken()
    with signal_handler.during_turn(token), signal_handler.redirect_interrupts(lambda: heard.append("question")):
        with signal_handler.redirect_interrupts(lambda: heard.append("inner")):
            signal_handler.receive(signal.SIGINT)
        signal_handler.receive(signal.SIGINT)
    assert (heard, token.state) == (["inner", "question"], "none")


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_without_a_turn_everything_is_cancelled(which, signal_handler):
    with signal_handler.scope:
        signal_handler.receive(which)
        await anyio.sleep_forever()
    assert signal_handler.ended_by is which


async def test_the_first_signal_is_the_one_that_counts(signal_handler):
    signal_handler.receive(signal.SIGTERM)
    signal_handler.receive(signal.SIGHUP)
    assert signal_handler.ended_by is signal.SIGTERM


def test_ignored_signals_are_not_handled():
    before = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in handled_signals()
        assert signal.SIGTERM in handled_signals()
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.slow
def test_a_tool_that_will_not_stop_can_be_left_with_the_terminal_intact(backend, home, workdir, plan):
    prompt = f"call stubborn {json.dumps({'path': str(workdir / 'gate')})}"
    arguments = ("run", prompt, "--plan", plan, "--backend", backend)
    with open_terminal(*arguments, home=home, cwd=workdir) as terminal:
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
