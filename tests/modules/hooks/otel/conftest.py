"""A tracer and a meter for each test; the process may have only one of each."""

from __future__ import annotations

import pytest
from opentelemetry import metrics, trace

from tests.modules.hooks.otel.traces import Traces


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> Traces:
    made = Traces()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", made.provider)
    monkeypatch.setattr(metrics._internal, "_METER_PROVIDER", made.meters)
    return made
