"""Every part of the state of a process is seen when it changes, named, and set back."""

from __future__ import annotations

import decimal
import gc
import locale
import logging
import os
import signal
import socket
import ssl
import sys
import warnings
from collections.abc import Callable

import pytest

from amplifier.conformance.target.process import PARTS, ProcessState

CHANGES: dict[str, tuple[str, Callable[[], object]]] = {
    "the environment": (
        "CONFORMANCE_X was nothing and is '1'",
        lambda: os.environ.setdefault("CONFORMANCE_X", "1"),
    ),
    "the working directory": ("and is '/'", lambda: os.chdir("/")),
    "the umask": ("and is 7", lambda: os.umask(0o007)),
    "the locale": ("and is 'C'", lambda: locale.setlocale(locale.LC_ALL, "C")),
    "the decimal context": (
        "prec was 28 and is 5",
        lambda: setattr(decimal.getcontext(), "prec", 5),
    ),
    "the members of standard library modules": (
        "ssl._create_default_https_context was <function create_default_context>",
        lambda: setattr(ssl, "_create_default_https_context", ssl._create_unverified_context),
    ),
    "the default timeout of sockets": ("was None and is 3.0", lambda: socket.setdefaulttimeout(3)),
    "the recursion limit": ("and is 4321", lambda: sys.setrecursionlimit(4321)),
    "the switch interval": ("and is 0.25", lambda: sys.setswitchinterval(0.25)),
    "the garbage collection": ("was True and is False", gc.disable),
    "the signal handlers": ("SIGHUP was", lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)),
    "the logging configuration": (
        "logging.disable was 0 and is 50",
        lambda: logging.disable(logging.CRITICAL),
    ),
    "the warnings filters": ("is new", lambda: warnings.simplefilter("ignore", BytesWarning)),
    "sys.path": ("'/nowhere' is new", lambda: sys.path.insert(0, "/nowhere")),
    "the interpreter's hooks and streams": (
        "sys.excepthook was",
        lambda: setattr(sys, "excepthook", print),
    ),
}


@pytest.fixture(autouse=True)
def as_found(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
    before = ProcessState()
    yield
    before.restore()


@pytest.mark.parametrize("part", CHANGES)
def test_a_change_is_named_and_can_be_undone(part):
    before = ProcessState()
    phrase, change = CHANGES[part]
    change()
    assert list(before.changes()) == [part]
    assert phrase in before.changes()[part]
    assert bool(before.changes(lasting=False)) is not PARTS[part].is_lasting
    before.restore()
    assert before.changes() == {}
