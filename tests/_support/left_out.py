"""Leave slow tests out, and say at the end of a run how to get them.

``SLOW_SHARE=0.4`` runs two of five slow tests of each file, drawn by the seed of the run. Without
it all of them run.
"""

from __future__ import annotations

import math
import os
import random
from collections import defaultdict

import pytest

SHARE = float(os.environ.get("SLOW_SHARE", "1"))

LEFT_OUT = (
    "left out: tests marked slow, some of which need what `make parts` downloads; "
    "`make test-all` runs everything"
)
DRAWN = "left out: {} slow tests, drawn by TEST_SEED; `make test-all` runs everything"

_left_out = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Draw the slow tests that run, if only a share of them is wanted."""
    if SHARE >= 1:
        return
    files: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("long"):
            files[item.nodeid.partition("::")[0]].append(item)
    left_out: set[pytest.Item] = set()
    for file, slow in files.items():
        chance = random.Random(f"{os.environ['TEST_SEED']} {file}")
        left_out.update(chance.sample(slow, len(slow) - math.ceil(SHARE * len(slow))))
    config.stash[_left_out] = len(left_out)
    config.hook.pytest_deselected(items=sorted(left_out, key=items.index))
    items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print one line above the summary of pytest."""
    config = terminalreporter.config
    if "not slow" in config.option.markexpr:
        terminalreporter.write_line(LEFT_OUT)
    elif SHARE < 1:
        # With several processes, only they know the number.
        terminalreporter.write_line(DRAWN.format(config.stash.get(_left_out, "some")))
