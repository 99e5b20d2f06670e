"""Observes what a module does to the process while a check runs: its log records and its audit events."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def captured_logs(wants: Callable[[logging.LogRecord], bool]) -> Iterator[list[logging.LogRecord]]:
    """Collect the wanted log records, of every level."""
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if wants(record):
                records.append(record)

    root, collector = logging.getLogger(), Collector(level=0)
    level = root.level
    root.addHandler(collector)
    root.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        root.removeHandler(collector)
        root.setLevel(level)


_listeners: list[tuple[tuple[str, ...], list[str]]] = []
_is_hooked: list[bool] = []
_STARTING = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
_started = [0]


@contextmanager
def audited(*events: str) -> Iterator[list[str]]:
    """Collect audit events with their arguments."""
    _hook()
    seen: list[str] = []
    _listeners.append((events, seen))
    try:
        yield seen
    finally:
        _listeners.remove((events, seen))


def started_processes() -> int:
    """How many processes this one has started since the first call of this function."""
    _hook()
    return _started[0]


def _hook() -> None:
    """Install the audit hook; Python cannot remove one, so there is only one."""
    if not _is_hooked:
        _is_hooked.append(True)
        sys.addaudithook(_dispatch)


def _dispatch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTING:
        _started[0] += 1
    for events, seen in _listeners:
        if event in events:
            seen.append(f"{event} {arguments[1:]!r}"[:200])
