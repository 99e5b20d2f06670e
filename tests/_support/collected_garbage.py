"""Garbage collections take less time: none runs while tests are collected, and later ones leave out what that has made."""

from __future__ import annotations

import gc

import hypothesis  # noqa: F401 — registers objects when it is imported, and finds them through the collector
import pytest

_unfreeze = gc.unfreeze
_is_set_aside = False


def _note_and_unfreeze() -> None:
    global _is_set_aside
    _is_set_aside = False
    _unfreeze()


def pytest_collection() -> None:
    """Collect no garbage while modules are imported and tests made: little of it is garbage."""
    gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Take what there is out of the collector's sight: it lives to the end, and there is much of it."""
    global _is_set_aside
    gc.enable()
    gc.collect()
    gc.freeze()
    gc.unfreeze = _note_and_unfreeze  # `gc.get_freeze_count` counts one by one, which takes longer than most tests
    _is_set_aside = True


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """The same again after a test that has brought it back, as sweeps do: a part cannot be brought back."""
    global _is_set_aside
    if not _is_set_aside:
        gc.collect(1)
        gc.freeze()
        _is_set_aside = True
