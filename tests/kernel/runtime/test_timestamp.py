from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from amplifier.kernel.runtime.backend import timestamp


def test_a_stamp_is_utc_in_iso_8601_with_six_digits():
    stamps = [timestamp() for _ in range(200)]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", stamp) for stamp in stamps)
    assert stamps == sorted(stamps)


def test_a_stamp_is_the_present_moment():
    before = datetime.now(UTC)
    stamped = datetime.fromisoformat(timestamp())
    assert before - timedelta(microseconds=1) <= stamped <= datetime.now(UTC)
