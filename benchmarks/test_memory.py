"""Ten thousand live sessions of five modules: how much each holds, and how many are alive after closing them."""

from __future__ import annotations

import pytest

from benchmarks.duel import QUICK
from benchmarks.memory import measured

SESSIONS = 1000 if QUICK else 10_000


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("by-hand", ""),
        ("in-tasks", ", in a task each"),
        ("in-turn", ", in a task each, opened in turn"),
    ],
)
def test_what_a_live_session_holds(board, how, words):
    ours, theirs = measured("ours", how, SESSIONS), measured("theirs", how, SESSIONS)
    board.figures(
        f"memory of a live session, of {SESSIONS:,}{words}",
        theirs["kib"],
        ours["kib"],
        "KiB",
        note=f"of {SESSIONS:,} sessions {theirs['alive']:,.0f} are alive after close and gc in the "
        f"published kernel, {ours['alive']:,.0f} in ours",
    )
    assert ours["watched"] == theirs["watched"] == SESSIONS
