"""The state of a session: aware times, exact costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given

from amplifier.conformance.strategies import instances
from amplifier.errors import ModelError
from amplifier.models import SessionStatus, from_dict, from_json, to_dict, to_json

NOON = datetime(2024, 5, 6, 12, tzinfo=timezone(timedelta(hours=2)))


def test_session_starts_now_in_utc():
    before = datetime.now(UTC)
    started = SessionStatus(session_id="s").started_at
    assert before <= started <= datetime.now(UTC)
    assert started.tzinfo is UTC


def test_naive_time_is_local():
    naive = datetime(2024, 5, 6, 12)  # noqa: DTZ001  # the point of the test
    for given_time in (naive, naive.isoformat()):
        started = SessionStatus(session_id="s", started_at=given_time).started_at
        assert started == naive.astimezone()
        assert started.utcoffset() is not None


def test_times_are_written_with_their_offset():
    status = SessionStatus(session_id="s", started_at=NOON, cost_usd="0.10")
    assert '"started_at":"2024-05-06T12:00:00+02:00"' in to_json(status)
    assert '"cost_usd":"0.10"' in to_json(status)
    assert from_json(SessionStatus, to_json(status)) == status


def test_assigned_naive_time_is_written_with_offset():
    status = SessionStatus(session_id="s", started_at=NOON)
    status.ended_at = datetime(2024, 5, 6, 13)  # noqa: DTZ001  # the point of the test
    assert from_json(SessionStatus, to_json(status)).ended_at == status.ended_at.astimezone()
    assert (
        to_dict(status)["ended_at"]
        == status.to_dict()["ended_at"]
        == status.ended_at.astimezone().isoformat()
    )


@pytest.mark.parametrize("value", ["yesterday", 5, "", [], "2024-13-01T00:00:00"])
def test_invalid_time_is_refused(value):
    with pytest.raises(ModelError, match="started_at: expected datetime or its ISO 8601 text"):
        SessionStatus(session_id="s", started_at=value)
    with pytest.raises(ModelError, match="started_at: expected datetime or its ISO 8601 text"):
        from_dict(SessionStatus, {"session_id": "s", "started_at": value})


def test_reference_status_with_utc_marker():
    status = from_json(
        SessionStatus, '{"session_id":"s","started_at":"2024-01-01T00:00:00Z","cost_usd":3}'
    )
    assert (status.started_at, status.cost_usd) == (datetime(2024, 1, 1, tzinfo=UTC), Decimal(3))


@given(instances(SessionStatus))
def test_to_dict_agrees_with_converter(status):
    shown = status.to_dict()
    assert shown == to_dict(status)
    if status.last_error is not None:
        shown["last_error"]["changed"] = True
        assert "changed" not in status.last_error
