"""Scripts of doubles: in order, and loud about steps too many and steps unused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import agent
from amplifier.testing import script
from amplifier.testing.doubles.scripted import Script, Scripted


class Player(Scripted):
    def __init__(self, steps: list[str]) -> None:
        self._script: Script | None = Script("Player", steps, "step")

    def play(self) -> str:
        assert self._script is not None
        return str(self._script.take("play()"))


@given(steps=st.lists(st.text()), calls=st.integers(0, 8))
def test_a_script_is_content_with_exactly_as_many_calls_as_it_has_steps(steps: list[str], calls: int) -> None:
    played = Script("Player", steps, "step")
    taken = [played.take("play()") for _ in range(min(calls, len(steps)))]
    assert taken == steps[: len(taken)]
    assert played.remaining == steps[len(taken) :]
    if calls > len(steps):
        with pytest.raises(AssertionError, match="unexpected call"):
            played.take("play()")
    if calls == len(steps):
        played.assert_exhausted()
    else:
        with pytest.raises(AssertionError):
            played.assert_exhausted()


def test_the_error_of_an_unexpected_call_names_the_double_and_its_script() -> None:
    player = Player(["one"])
    player.play()
    with pytest.raises(
        AssertionError, match=r"Player: unexpected call 2, play\(\); expected 1 step, all of which were"
    ):
        player.play()
    with pytest.raises(AssertionError, match="unexpected call 3"):
        player.play()


def test_unused_steps_are_listed() -> None:
    player = Player(["a", "b" * 500, "c", "d", "e"])
    player.play()
    with pytest.raises(AssertionError, match=r"Player: 4 of 5 steps never played: 'bbb.*…, 'c', 'd', …;"):
        player.assert_exhausted()


def test_leaving_the_block_by_an_exception_does_not_cover_it_up() -> None:
    with pytest.raises(KeyError), Player(["unused"]):
        raise KeyError


# ── scripts of user programs ─────────────────────────────────────────────────────────────────────


async def weather(city: str) -> str:
    """The weather."""
    return f"rain in {city}"


async def test_a_script_drives_an_agent() -> None:
    with script(("weather", {"city": "Oslo"}), "It rains.") as model:
        async with agent(model, tools=[weather]) as session:
            assert [piece async for piece in session.stream_text("Rain?")] == ["It ", "rains."]
    assert model.last_request.messages[-1].content == "rain in Oslo"


async def test_a_request_too_many_fails_the_turn_and_the_block_and_a_turn_too_few_fails_the_block() -> None:
    model = script("one")
    async with agent(model) as session:
        await session.execute("1")
        with pytest.raises(AssertionError, match=r"unexpected call 2, stream\(3 messages\); expected 1 turn"):
            await session.execute("2")
    with pytest.raises(AssertionError, match="unexpected call 2"), model:
        pass
    with pytest.raises(AssertionError, match="1 of 2 turns never played: 'two'"), script("one", "two") as model:
        async with agent(model) as session:
            await session.execute("1")


TESTS = """
import pytest
from amplifier import agent

pytestmark = pytest.mark.anyio

async def test_played(amplifier_script):
    async with agent(amplifier_script("Hello.")) as session:
        assert await session.execute("Hi!") == "Hello."

async def test_too_few(amplifier_script):
    async with agent(amplifier_script("Hello.", "unused")) as session:
        await session.execute("Hi!")

async def test_too_many_and_hidden(amplifier_script):
    async with agent(amplifier_script()) as session:
        with pytest.raises(AssertionError):
            await session.execute("Hi!")
"""


def test_the_fixture_checks_its_scripts_at_the_end_of_the_test(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "test_it.py"]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert "6 passed, 4 errors" in done.stdout, done.stdout
    assert "1 of 2 turns never played: 'unused'" in done.stdout
    assert "MockProvider 'mock': unexpected call 1" in done.stdout
