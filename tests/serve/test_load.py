"""Many clients at once, a tenth of which leaves early: every turn ends, and no task, socket or session is left."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests._support.terminal import environment

PATIENCE = 280.0


@pytest.mark.parametrize("clients", [20, pytest.param(200, marks=pytest.mark.long)])
def test_nothing_is_left_of_many_clients(clients, backend, home, workdir):
    finished = subprocess.run(
        [sys.executable, "-m", "tests.serve._load", backend, str(clients)],
        capture_output=True,
        text=True,
        env=environment(home),
        cwd=workdir,
        timeout=PATIENCE,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    leaving = clients // 10
    assert json.loads(finished.stdout) == {
        "answered": clients - leaving,
        "left": leaving,
        "completed": clients - leaving,
        "cancelled": leaving,
        "tasks": 0,
        "application": "<Application: 0 sessions, 0 turns>",
        "descriptors": 0,
    }
