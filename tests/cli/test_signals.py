"""What Ctrl-C does at each moment, down to the last one, which leaves at once."""

from __future__ import annotations

import re
import signal
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from amplifier.cli.agent import signals as _signals
from amplifier.cli.agent.chat import Chat
from amplifier.cli.agent.signals import SignalHandler, handled_signals
from amplifier.cli.terminal.display import Display
from amplifier.cli.terminal.output import StandardStreams
from amplifier.kernel import CancellationToken
from tests._support.terminal import open_terminal
from tests.cli._scripted_agent import call


class Left(Exception):
    """Raised in place of ending the process."""


@pytest.fixture
async def signal_handler(monkeypatch) -> SignalHandler:
    def leave(code: int) -> None:
        raise Left(code)

    monkeypatch.setattr("os._exit", leave)
    monkeypatch.setattr(_signals, "FORCE_EXIT_AFTER", 0.0)
    return SignalHandler(Display(StandardStreams()))


async def test_ctrl_c_stops_in_three_steps(signal_handler):
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


async def test_repeated_ctrl_c_spares_running_cleanup(signal_handler, monkeypatch):
    monkeypatch.setattr(_signals, "FORCE_EXIT_AFTER", 3600.0)
    token = CancellationToken()
    with signal_handler.during_turn(token):
        for _ in range(9):
            signal_handler.receive(signal.SIGINT)
    assert token.state == "immediate"


async def test_waiting_question_receives_ctrl_c_first(signal_handler):
    heard = []
    token = CancellationToken()
    with (
        signal_handler.during_turn(token),
        signal_handler.redirect_interrupts(lambda: heard.append("question")),
    ):
        with signal_handler.redirect_interrupts(lambda: heard.append("inner")):
            signal_handler.receive(signal.SIGINT)
        signal_handler.receive(signal.SIGINT)
    assert (heard, token.state) == (["inner", "question"], "none")


async def test_ctrl_c_after_stop_belongs_to_it(signal_handler, monkeypatch):
    monkeypatch.setattr(_signals, "FORCE_EXIT_AFTER", 3600.0)
    with signal_handler.during_turn(CancellationToken()):
        signal_handler.receive(signal.SIGINT)
    signal_handler.receive(signal.SIGINT)  # the turn has ended, and the prompt is not there yet
    assert signal_handler.ended_by is None
    monkeypatch.setattr(_signals, "FORCE_EXIT_AFTER", 0.0)
    signal_handler.receive(signal.SIGINT)
    assert signal_handler.ended_by is signal.SIGINT


class Interrupting:
    """A keyboard at which Ctrl-C is pressed whenever a line is wanted."""

    def __init__(self, signal_handler: SignalHandler) -> None:
        self._signal_handler = signal_handler

    async def read_line(self) -> str | None:
        self._signal_handler.receive(signal.SIGINT)
        await anyio.sleep_forever()
        return None


@pytest.mark.parametrize(("patience", "lines"), [(3600.0, ["", "", ""]), (0.0, ["", None, None])])
async def test_rapid_ctrl_c_keeps_chat_open(patience, lines, signal_handler, monkeypatch):
    monkeypatch.setattr(_signals, "FORCE_EXIT_AFTER", patience)
    with signal_handler.during_turn(CancellationToken()):
        signal_handler.receive(signal.SIGINT)
    streams = StandardStreams()
    hooks = SimpleNamespace(register=lambda *_args, **_options: None)
    session = SimpleNamespace(coordinator=SimpleNamespace(hooks=hooks))
    keyboard: Any = Interrupting(signal_handler)
    keyboard.restore = lambda: None
    permissions = SimpleNamespace(mode="ask")
    agent: Any = SimpleNamespace(
        display=Display(streams),
        signal_handler=signal_handler,
        session=session,
        permissions=permissions,
    )
    chat = Chat(agent, keyboard, streams.err)
    assert [await chat._read_line() for _ in lines] == lines


@pytest.mark.parametrize("which", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_signal_without_turn_cancels_everything(which, signal_handler):
    with signal_handler.scope:
        signal_handler.receive(which)
        await anyio.sleep_forever()
    assert signal_handler.ended_by is which


async def test_first_signal_counts(signal_handler):
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
def test_stubborn_tool_is_left_terminal_intact(backend, home, workdir, plan):
    prompt = call("stubborn", path=workdir / "gate")
    arguments = ("run", prompt, "--plan", plan, "--backend", backend)
    with open_terminal(*arguments, home=home, cwd=workdir) as terminal:
        terminal.expect("s  stubborn")
        terminal.press_ctrl_c("Press Ctrl-C again")
        terminal.press_ctrl_c("Stopping now.")
        clock = re.search(r"(\d+) s  stubborn", terminal.expect(" s  stubborn"))
        assert clock is not None
        terminal.expect(
            f"{int(clock[1]) + 3} s  stubborn"
        )  # the patience with hammering fingers is over
        terminal.press_ctrl_c("Leaving without waiting")
        terminal.ends(130)
