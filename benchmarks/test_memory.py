"""Ten thousand live sessions of five modules: how much each holds, and how many are alive after closing them."""

from __future__ import annotations

import pytest

from benchmarks.board import PUBLISHED
from benchmarks.duel import QUICK
from benchmarks.memory import measured

SESSIONS = 1000 if QUICK else 10_000


@pytest.mark.parametrize(
    ("how", "words", "target"),
    [
        ("by-hand", "", 7),
        ("in-tasks", ", in a task each", None),
        ("in-turn", ", in a task each, opened in turn", 8.5),
    ],
)
def test_what_a_live_session_holds(board, how, words, target):
    ours, theirs = measured("ours", how, SESSIONS), measured("theirs", how, SESSIONS)
    board.figure(
        f"memory of a live session, of {SESSIONS:,}{words}",
        ours["kib"],
        "KiB",
        rival=PUBLISHED,
        target=target,
        sense="at most",
        ours=f"{ours['kib']:.1f} KiB",
        theirs=f"{theirs['kib']:.1f} KiB",
    )
    board.figure(
        f"alive after close and gc, of {SESSIONS:,}{words}",
        ours["alive"],
        "sessions",
        rival=PUBLISHED,
        target=0,
        sense="at most",
        ours=f"{ours['alive']:.0f}",
        theirs=f"{theirs['alive']:.0f}",
    )
    assert ours["watched"] == theirs["watched"] == SESSIONS
