"""Garbage collections take less time: they leave out what collecting the tests has made."""

from __future__ import annotations

import gc

import hypothesis  # noqa: F401 — registers objects when it is imported, and finds them through the collector
import pytest

_set_aside = pytest.StashKey[int]()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take what there is out of the collector's sight: it lives to the end, and there is much of it."""
    gc.collect()
    gc.freeze()
    session.stash[_set_aside] = gc.get_freeze_count()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The same again after a test that has brought it back, as sweeps do: a part cannot be brought back."""
    if gc.get_freeze_count() < item.session.stash[_set_aside] // 2:
        gc.collect(1)
        gc.freeze()
