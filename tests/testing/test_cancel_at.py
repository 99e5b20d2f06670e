"""One cancellation at one suspension: what it reports of the call it hit."""

from __future__ import annotations

from typing import NoReturn

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest

from amplifier.testing import cancel_at

pytestmark = pytest.mark.anyio


async def deaf() -> str:
    try:
        await anyio.sleep(1)
    except BaseException:
        return "done all the same"
    return "done"


def fail() -> NoReturn:
    raise FileNotFoundError("no such thing")


async def thorough() -> str:
    """Waits for a thread, which cannot be cancelled, and answers with its failure."""
    try:
        await anyio.to_thread.run_sync(fail)
    except FileNotFoundError:
        return "not found"
    return "found"


async def test_a_call_that_ignores_its_cancellation_is_seen_on_both_backends():
    result = await cancel_at(1, deaf)
    assert result.returned
    assert result.swallowed


async def test_the_failure_of_something_awaited_is_no_cancellation():
    # asyncio throws the failure of a future into the task, much as it throws a cancellation.
    suspensions = (await cancel_at(99, thorough)).suspensions
    for k in range(1, suspensions + 1):
        assert not (await cancel_at(k, thorough)).swallowed
