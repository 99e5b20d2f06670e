"""Many clients at once, a tenth of which leaves early: every turn ends, and no task, socket or session is left."""

from __future__ import annotations

import pytest

from tests.servers.http._load import measure


@pytest.mark.parametrize(
    ("clients", "seconds"),
    [pytest.param(20, 0.1, marks=pytest.mark.slow), pytest.param(200, 60, marks=pytest.mark.long)],
)
def test_many_clients_leave_nothing(clients, seconds, backend):
    found = measure(backend, clients, seconds)
    assert found["failures"] == []
    assert found["left_behind"] == {"tasks": 0, "connections": 0, "sessions": 0}
    assert found["turns"] >= clients
    assert found["left"] >= clients // 10
