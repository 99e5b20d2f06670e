"""Garbage collections take less time: they leave out what collecting the tests has made."""

from __future__ import annotations

import gc

import hypothesis  # noqa: F401 — registers objects when it is imported, and finds them through the collector


def pytest_collection_finish() -> None:
    """Take what there is out of the collector's sight: it lives to the end, and there is much of it."""
    gc.collect()
    gc.freeze()
