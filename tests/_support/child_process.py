"""Programs in an interpreter of their own, for what only a whole process can show: signals, exits, imports."""

from __future__ import annotations

import signal as signals
import subprocess
import sys
import textwrap

import attrs

from tests._support.forked import Forked
from tests._support.tree import ROOT

_PATIENCE = 60.0
"""Seconds after which a child that should have ended is killed; the test then fails by its output."""

_PREAMBLE = '''
import signal, sys
backend = sys.argv[1]
import anyio
from amplifier import *
from tests._support.small_agent import Echo, Loop, Memory, agent, heard, mounting

def print_line(*words):
    print(*words, flush=True)

async def wait_awake(is_over=lambda: False):
    """Wait with short sleeps: a handler set by `signal.signal` runs when the interpreter next does something, and asyncio
    sleeping in select without a timer may never notice a signal that came just before."""
    while not is_over():
        await anyio.sleep(0.02)

def run_natively(main):
    """As an application does that has never heard of AnyIO."""
    if backend == "trio":
        import trio
        return trio.run(main)
    import asyncio
    return asyncio.run(main())
'''


@attrs.frozen
class Ended:
    """How a child ended and its output."""

    code: int
    lines: list[str]
    errors: str


def run_child(program: str, *arguments: str, signal: signals.Signals | None = None) -> Ended:
    """Run a program that has `agent`, `print_line` and its arguments at hand.

    Args:
        program: Its text.
        arguments: ``sys.argv[1:]``; the first one is the backend's name.
        signal: Sent as soon as the program has printed ``ready``.
    """
    code = _PREAMBLE + textwrap.dedent(program)
    command = [sys.executable, "-c", code, *arguments]
    with Forked(
        command,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        lines: list[str] = []
        try:
            if signal is not None:
                assert child.stdout is not None
                for line in child.stdout:
                    lines.append(line.strip())
                    if lines[-1] == "ready":
                        child.send_signal(signal)
                        break
            rest, errors = child.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            child.kill()
            rest, errors = child.communicate()
            errors = f"did not end within {_PATIENCE:g} s\n{errors}"
    return Ended(child.returncode, [*lines, *rest.split("\n")[:-1]], errors)
