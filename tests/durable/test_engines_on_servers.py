"""The main tests with Postgres, so that the slow tests have them. The long ones run all of them there."""

from __future__ import annotations

import pytest

from tests.durable.test_content import (
    test_error_with_odd_text_fails_turn_only,
)
from tests.durable.test_engines import (
    test_effects_match_results_over_many_hand_overs,
    test_question_is_answered_without_worker,
    test_turn_is_stopped,
    test_watchers_resume_events_behind_position,
)
from tests.durable.test_stops_and_openings import (
    test_stop_without_reopening_keeps_work,
)

__all__ = [
    "test_effects_match_results_over_many_hand_overs",
    "test_error_with_odd_text_fails_turn_only",
    "test_question_is_answered_without_worker",
    "test_stop_without_reopening_keeps_work",
    "test_turn_is_stopped",
    "test_watchers_resume_events_behind_position",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("kind", ["postgres"]),
]
