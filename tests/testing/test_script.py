"""Scripts of doubles: in order, and loud about steps too many and steps unused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.testing.doubles.script import Script, Scripted


class Player(Scripted):
    def __init__(self, steps: list[str]) -> None:
        self._script: Script[str] | None = Script("Player", steps, "step")

    def play(self) -> str:
        assert self._script is not None
        return self._script.take("play()")


@given(steps=st.lists(st.text()), calls=st.integers(0, 8))
def test_a_script_is_content_with_exactly_as_many_calls_as_it_has_steps(steps: list[str], calls: int) -> None:
    script = Script("Player", steps, "step")
    taken = [script.take("play()") for _ in range(min(calls, len(steps)))]
    assert taken == steps[: len(taken)]
    assert script.remaining == steps[len(taken) :]
    if calls > len(steps):
        with pytest.raises(AssertionError, match="unexpected call"):
            script.take("play()")
    if calls == len(steps):
        script.assert_exhausted()
    else:
        with pytest.raises(AssertionError):
            script.assert_exhausted()


def test_the_error_of_an_unexpected_call_names_the_double_and_its_script() -> None:
    player = Player(["one"])
    player.play()
    with pytest.raises(
        AssertionError, match=r"Player: unexpected call 2, play\(\); expected 1 step, all of which were"
    ):
        player.play()
    with pytest.raises(AssertionError, match="unexpected call 3"):
        player.play()


def test_an_unexpected_call_that_was_swallowed_is_reported_again() -> None:
    player = Player([])
    with pytest.raises(AssertionError):
        player.play()
    with pytest.raises(AssertionError, match="unexpected call 1"):
        player.assert_exhausted()


def test_unused_steps_are_listed() -> None:
    player = Player(["a", "b" * 500, "c", "d", "e"])
    player.play()
    with pytest.raises(AssertionError, match=r"Player: 4 of 5 steps never played: 'bbb.*…, 'c', 'd', …;"):
        player.assert_exhausted()


def test_leaving_the_block_checks_the_script() -> None:
    with pytest.raises(AssertionError, match="1 of 1 step never played"), Player(["unused"]):
        pass
    with Player(["used"]) as player:
        assert player.play() == "used"


def test_leaving_the_block_by_an_exception_does_not_cover_it_up() -> None:
    with pytest.raises(KeyError), Player(["unused"]):
        raise KeyError


def test_a_script_shows_how_far_it_is() -> None:
    script = Script("Player", ["a", "b"], "step")
    script.take("play()")
    assert repr(script) == "<script of Player: 1 of 2 steps played>"
