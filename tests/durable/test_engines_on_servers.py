"""The main tests with Postgres, so that the slow tests have them. The long ones run all of them there."""

from __future__ import annotations

import pytest

from tests.durable.test_content import (
    test_an_error_whatever_its_text_fails_its_turn_and_not_the_worker,
)
from tests.durable.test_engines import (
    test_a_question_is_answered_while_no_worker_runs_and_the_next_one_goes_on,
    test_a_turn_is_stopped,
    test_effects_and_results_agree_over_many_hand_overs,
    test_watchers_see_the_events_and_can_go_on_behind_a_position,
)
from tests.durable.test_stops_and_openings import (
    test_a_stop_of_a_turn_whose_session_does_not_open_again_keeps_what_was_done,
)

__all__ = [
    "test_a_question_is_answered_while_no_worker_runs_and_the_next_one_goes_on",
    "test_a_stop_of_a_turn_whose_session_does_not_open_again_keeps_what_was_done",
    "test_a_turn_is_stopped",
    "test_an_error_whatever_its_text_fails_its_turn_and_not_the_worker",
    "test_effects_and_results_agree_over_many_hand_overs",
    "test_watchers_see_the_events_and_can_go_on_behind_a_position",
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize("kind", ["postgres"]),
]
