"""Starts the scripted service when a configuration first asks for it, and asks it what it has seen.

``{service}`` in a configuration stands for its address. Above stand the mounted and the checks of providers; below stands
`_service`, which runs in a process of its own, so that its sockets and threads are not taken for the subject's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

SERVICE = "{service}"
_SECONDS = 5.0
_kept: list[subprocess.Popen[bytes]] = []


@cache
def service_address() -> str:
    """Where the service listens; started the first time."""
    script = Path(__file__).with_name("fake_llm_server.py")
    process = subprocess.Popen(
        [sys.executable, "-I", str(script)],
        stdin=subprocess.PIPE,  # it ends when this end of the pipe is closed, at the latest by our own end
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    _kept.append(process)
    return f"http://127.0.0.1:{int(process.stdout.readline())}"


def seen() -> list[dict[str, Any]]:
    """The requests that came since this was last asked, each with its path and body."""
    with urllib.request.urlopen(f"{service_address()}/seen", timeout=_SECONDS) as answer:
        told: list[dict[str, Any]] = json.load(answer)
    return told


def is_served(config: Any) -> bool:
    """Whether a configuration names the service."""
    return SERVICE in json.dumps(config, default=str)
