"""How a call of foreign code ended, in virtual time: groups that hold a cancellation, and calls that never end."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier.conformance.target.calls import Outcome, call_with_deadline, run_virtually, when_stuck

BACKENDS = ("asyncio", "trio")
pytestmark = [pytest.mark.parametrize("backend", BACKENDS), pytest.mark.usefixtures("nothing_else_is_at_work")]


async def raise_group_when_cancelled(*errors: Exception) -> None:
    try:
        await anyio.sleep_forever()
    except BaseException as gone:
        raise BaseExceptionGroup("cancelled", [gone, *errors]) from None


def call(function: Any, *args: Any, backend: str) -> Outcome:
    async def run() -> Outcome:
        return await call_with_deadline(function, *args)

    outcome: Outcome = run_virtually(run, backend=backend)
    return outcome


@pytest.mark.parametrize("errors", [(), (ValueError("too late"),)])
def test_a_group_with_the_cancellation_at_the_deadline_is_a_late_call(backend, errors):
    assert call(raise_group_when_cancelled, *errors, backend=backend).kind == "late"


def test_a_group_that_answers_a_cancellation_from_outside_is_raised(backend):
    outcomes = []

    async def run() -> None:
        with anyio.CancelScope() as scope:

            async def cancelled() -> None:
                scope.cancel()
                await raise_group_when_cancelled()

            outcomes.append(await call_with_deadline(cancelled))

    run_virtually(run, backend=backend)
    assert [outcome.kind for outcome in outcomes] == ["raised"]
    assert isinstance(outcomes[0].error, BaseExceptionGroup)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), BaseExceptionGroup("", [SystemExit(3)])])
def test_what_is_no_exception_is_an_outcome(backend, error):
    async def fail() -> None:
        raise error

    assert call(fail, backend=backend).error is error


async def poll() -> None:
    while True:  # noqa: ASYNC110 — polling is what is tested
        await anyio.sleep(0.01)


def test_a_call_that_polls_is_late_after_a_count_and_not_after_real_seconds(backend):
    assert call(poll, backend=backend).kind == "late"


def test_a_call_that_goes_on_after_its_deadline_counts_as_stuck(backend):
    def give_up() -> None:
        stuck.append(True)
        go_on.clear()

    stuck: list[bool] = []
    go_on = [True]

    async def deaf() -> None:
        with anyio.CancelScope(shield=True):
            while go_on:  # noqa: ASYNC110 — as above
                await anyio.sleep(1)

    with when_stuck(give_up):
        assert call(deaf, backend=backend).kind == "late"
    assert stuck == [True]
