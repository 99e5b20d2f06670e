"""What tests of the kit's virtual time need."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from amplifier.conformance.inputs.server_process import server_ids
from amplifier.conformance.target import calls


@pytest.fixture
def nothing_else_is_at_work(monkeypatch):
    """Servers and threads that other tests of this process have started are not the work that virtual time waits for."""
    children = {
        int(pid)
        for thread in threading.enumerate()
        for pid in Path(f"/proc/self/task/{thread.native_id}/children").read_text().split()
    }
    threads = set(threading.enumerate())
    may_act = calls._may_act
    monkeypatch.setattr(calls, "server_ids", lambda: {*server_ids(), *children})
    monkeypatch.setattr(calls, "_may_act", lambda thread: thread not in threads and may_act(thread))
