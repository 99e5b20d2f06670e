"""Modules that have moved keep working under their former names, with a warning."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys

import pytest

from amplifier.models.turns import StopReport
from tests._support.tree import FORMER_PLACES


@pytest.mark.parametrize(("former", "place"), FORMER_PLACES.items())
def test_former_place_has_names_and_warns(former, place, monkeypatch):
    monkeypatch.delitem(sys.modules, former, raising=False)
    with pytest.warns(DeprecationWarning, match=f"^{former} is now {place};"):
        module = importlib.import_module(former)
    now = importlib.import_module(place)
    assert module.__all__ is now.__all__
    assert all(getattr(module, name) is getattr(now, name) for name in now.__all__)


def test_warning_is_shown_to_importing_program():
    program = "".join(f"import {former}\n" for former in FORMER_PLACES)
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (
        ended.stderr.count("<string>:")
        == ended.stderr.count("DeprecationWarning")
        == len(FORMER_PLACES)
    )


@pytest.mark.filterwarnings("ignore:amplifier.turns is now:DeprecationWarning")
def test_pickle_with_former_place_is_read():
    report = StopReport(cause="closed", parts=[])
    written = pickle.dumps(report, protocol=0)
    former = written.replace(b"camplifier.models.turns\n", b"camplifier.turns\n")
    assert former != written
    assert pickle.loads(former) == report
