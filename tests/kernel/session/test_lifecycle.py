from __future__ import annotations

import pytest

from amplifier.errors import SessionBusyError, SessionError, SessionStateError
from amplifier.kernel.session.turn import Lifecycle, State


def lifecycle_in(state: State) -> Lifecycle:
    lifecycle = Lifecycle("s-1")
    lifecycle.state = state
    return lifecycle


@pytest.mark.parametrize("state", list(State))
def test_a_session_can_be_opened_when_it_is_new_or_closed(state):
    lifecycle = lifecycle_in(state)
    if state in (State.NEW, State.CLOSED):
        lifecycle.require_opening()
    else:
        with pytest.raises(SessionStateError) as caught:
            lifecycle.require_opening()
        assert f"'s-1' cannot go from {state.value} to opening; " in str(caught.value)
    assert lifecycle.state is state


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        (State.NEW, "open it first: `async with session:` or `await session.initialize()`"),
        (State.OPENING, "wait until `initialize()` or `async with` has finished opening it"),
        (State.CLOSING, "it is being closed"),
        (State.CLOSED, "make a new session"),
    ],
)
def test_the_error_of_a_turn_outside_an_open_session_advises_what_to_do(state, advice):
    lifecycle = lifecycle_in(state)
    with pytest.raises(SessionStateError) as caught:
        lifecycle.require_turn()
    assert f"session 's-1' not initialized (it is {state.value})" in str(caught.value)
    assert str(caught.value).endswith(advice)
    assert not lifecycle.turn_running


def test_a_second_turn_is_refused_and_leaves_the_first_one_alone():
    lifecycle = lifecycle_in(State.OPEN)
    lifecycle.require_turn()
    lifecycle.turn_running = True
    with pytest.raises(SessionBusyError) as caught:
        lifecycle.require_turn()
    assert caught.value.session_id == "s-1"
    assert "fork()" in str(caught.value)
    assert lifecycle.turn_running


def test_the_two_refusals_differ_and_are_session_errors():
    assert not issubclass(SessionBusyError, SessionStateError)
    assert issubclass(SessionBusyError, SessionError)
    assert issubclass(SessionStateError, SessionError)
