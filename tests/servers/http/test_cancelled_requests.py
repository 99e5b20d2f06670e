"""A streamed request that is cancelled anywhere, its server with it, leaves no session open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from amplifier.testing import cancel_everywhere
from amplifier.testing.cancel_sweep.sweep import MODES
from tests.servers.http._asgi_client import Factory, serving

BODIES: dict[str, dict[str, Any]] = {
    "/ag-ui": {
        "threadId": "t",
        "runId": "r",
        "messages": [{"id": "1", "role": "user", "content": "say one two three"}],
    },
    "/v1/responses": {"input": "say one two three", "stream": True},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "say one two three"}],
        "stream": True,
    },
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("path", BODIES)
def test_cancelled_request_leaves_no_session(path, mode):
    def make() -> Any:
        factories: list[Factory] = []

        async def scenario() -> None:
            async with serving() as client:
                factories.append(client.factory)
                exchange = client.begin("POST", path, BODIES[path])
                assert (await exchange.start()).status == 200
                assert [event async for event in exchange.events()]

        def check() -> Iterator[str]:
            for factory in factories:
                if factory.open():
                    yield f"{factory.open()} sessions are open"

        return scenario, check

    report = cancel_everywhere(make, modes=[mode], second_after=(1, 3), max_points=25)
    report.raise_if_broken()
