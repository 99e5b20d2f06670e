"""wait_for: true as soon as something is, false after the timeout."""

from __future__ import annotations

import anyio
import pytest

from amplifier.testing import wait_for


@pytest.mark.virtual_time
async def test_it_returns_soon_after_the_condition_holds() -> None:
    began = anyio.current_time()
    assert await wait_for(lambda: anyio.current_time() - began >= 5, timeout=60)
    assert anyio.current_time() - began < 5.1


@pytest.mark.virtual_time
async def test_it_gives_up_after_the_timeout() -> None:
    began = anyio.current_time()
    assert await wait_for(lambda: False) is False
    assert anyio.current_time() - began == pytest.approx(1.0)


@pytest.mark.virtual_time
async def test_an_async_condition_is_awaited_and_bounded_too() -> None:
    looks = 0

    async def third_time() -> bool:
        nonlocal looks
        looks += 1
        return looks == 3

    async def never_answers() -> bool:
        await anyio.sleep_forever()
        return True

    assert await wait_for(third_time) is True
    assert looks == 3
    assert await wait_for(never_answers) is False
