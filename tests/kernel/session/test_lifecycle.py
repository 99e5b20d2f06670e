from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.errors import SessionBusyError, SessionError, SessionStateError
from amplifier.kernel.session.lifecycle import Lifecycle, State

# The road at the top of _lifecycle.py, once more and by hand.
LEGAL = {
    ("new", "opening"),
    ("opening", "open"),
    ("opening", "closing"),
    ("open", "closing"),
    ("closing", "closed"),
    ("closed", "opening"),
}
ROAD = ["opening", "open", "closing", "closed"]


def lifecycle_in(state: State) -> Lifecycle:
    lifecycle = Lifecycle("s-1")
    for step in ROAD:
        if lifecycle.state is state:
            break
        lifecycle.move(State(step))
    return lifecycle


@pytest.mark.parametrize("to", list(State))
@pytest.mark.parametrize("state", list(State))
def test_a_move_is_made_if_and_only_if_it_is_on_the_road(state, to):
    lifecycle = lifecycle_in(state)
    assert lifecycle.state is state
    if (state.value, to.value) in LEGAL:
        lifecycle.move(to)
        assert lifecycle.state is to
    else:
        with pytest.raises(SessionStateError) as caught:
            lifecycle.move(to)
        assert f"'s-1' cannot go from {state.value} to {to.value}; " in str(caught.value)
        assert lifecycle.state is state


@given(st.lists(st.sampled_from([*State, "begin", "end"]), max_size=20))
def test_any_program_of_moves_and_turns_agrees_with_the_road(program):
    lifecycle = Lifecycle("s-1")
    state, busy = "new", False
    for step in program:
        if step == "end":
            lifecycle.end_turn()
            busy = False
        elif step == "begin":
            if state == "open" and not busy:
                lifecycle.begin_turn()
                busy = True
            else:
                with pytest.raises(SessionBusyError if state == "open" else SessionStateError):
                    lifecycle.begin_turn()
        elif (state, step.value) in LEGAL:
            lifecycle.move(step)
            state = step.value
        else:
            with pytest.raises(SessionStateError):
                lifecycle.move(step)
        assert (lifecycle.state.value, lifecycle.turn_running) == (state, busy)


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
        lifecycle.begin_turn()
    assert f"session 's-1' not initialized (it is {state.value})" in str(caught.value)
    assert str(caught.value).endswith(advice)
    assert not lifecycle.turn_running


def test_a_second_turn_is_refused_and_leaves_the_first_one_alone():
    lifecycle = lifecycle_in(State.OPEN)
    lifecycle.begin_turn()
    with pytest.raises(SessionBusyError) as caught:
        lifecycle.begin_turn()
    assert caught.value.session_id == "s-1"
    assert "fork()" in str(caught.value)
    assert lifecycle.turn_running
    lifecycle.end_turn()
    lifecycle.begin_turn()
    assert lifecycle.turn_running


def test_the_two_refusals_differ_and_are_session_errors():
    assert not issubclass(SessionBusyError, SessionStateError)
    assert issubclass(SessionBusyError, SessionError)
    assert issubclass(SessionStateError, SessionError)
