"""`Forked` gives a program what `subprocess.Popen` gives it, and starts as usual what it cannot."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import amplifier
from tests._support.forked import Forked, run_forked

ASK = """
import json, os, signal, sys
print(json.dumps({
    "argv": sys.argv[1:], "cwd": os.getcwd(), "word": os.environ.get("WORD"), "home": os.environ.get("HOME"),
    "path": [entry for entry in sys.path if "mine" in entry], "main": __name__, "stdin": sys.stdin.read(),
    "sigint": signal.getsignal(signal.SIGINT) is signal.default_int_handler, "is_leader": os.getsid(0) == os.getpid(),
    "fds": sorted(int(fd) for fd in os.listdir("/proc/self/fd"))[:4] if os.path.isdir("/proc/self/fd") else None,
    "encodings": [(s.encoding, s.errors, s.line_buffering) for s in (sys.stdin, sys.stdout, sys.stderr)],
}))
print("to stderr \\udc80", file=sys.stderr)
sys.exit(7)
"""


def both(words: list[str], **options: Any) -> list[tuple[int, Any, str]]:
    """How a program ended and what it wrote, started in either way."""
    plain = subprocess.run(
        words, input="given", capture_output=True, text=True, check=False, **options
    )
    forked = run_forked(words, "given", text=True, **options)
    return [(ended.returncode, json.loads(ended.stdout), ended.stderr) for ended in (plain, forked)]


@pytest.mark.parametrize("form", ["text", "file", "module"])
def test_program_has_same_surroundings(form: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "asks.py").write_text(ASK)
    words = {"text": ["-c", ASK], "file": [str(tmp_path / "asks.py")], "module": ["-m", "asks"]}[
        form
    ]
    variables = {
        "PATH": os.environ["PATH"],
        "WORD": "ä",
        "PYTHONPATH": str(tmp_path / "mine"),
        "PYTHONUTF8": "1",
    }
    plain, forked = both(
        [sys.executable, *words, "one", "two"], cwd=tmp_path, env=variables, start_new_session=True
    )
    assert plain == forked
    assert plain[0] == 7


def test_interpreter_affecting_start_is_not_forked(tmp_path: Path) -> None:
    (tmp_path / "click").mkdir()
    (tmp_path / "click" / "__init__.py").write_text("print('hidden')")
    show = "import sys; print(sys.flags.dev_mode, sys.flags.optimize)"
    assert run_forked([sys.executable, "-X", "dev", "-c", show], text=True).stdout == "True 0\n"
    optimized = {**os.environ, "PYTHONOPTIMIZE": "1"}
    assert run_forked([sys.executable, "-c", show], text=True, env=optimized).stdout == "False 1\n"
    hidden = {**os.environ, "PYTHONPATH": str(tmp_path)}
    assert (
        run_forked([sys.executable, "-c", "import click"], text=True, env=hidden).stdout
        == "hidden\n"
    )


def test_signal_and_end_are_reported() -> None:
    with Forked(
        [sys.executable, "-c", "print('ready', flush=True); input()"],
        stdin=-1,
        stdout=-1,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == -signal.SIGTERM
    assert process.poll() == -signal.SIGTERM


@pytest.mark.skipif(
    not os.path.exists("/dev/full"), reason="there is no device that is always full"
)
@pytest.mark.parametrize("end", ["", "import sys; sys.exit(3)", "import sys; sys.stdout.close()"])
def test_program_ends_as_usual(end: str) -> None:
    program = [
        sys.executable,
        "-c",
        f"import atexit; atexit.register(print, 'last'); print('first'); {end}",
    ]
    assert (
        run_forked(program, text=True).stdout
        == subprocess.run(program, capture_output=True, text=True, check=False).stdout
    )
    with open("/dev/full", "w") as full:
        plain = subprocess.run(program, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        forked = run_forked(program, stdout=full, text=True)
    assert (plain.returncode, "No space left" in plain.stderr) == (
        forked.returncode,
        "No space left" in forked.stderr,
    )


def test_program_uses_tested_package() -> None:
    ran = run_forked(
        [sys.executable, "-c", "import amplifier; print(amplifier.__file__)"], text=True
    )
    assert ran.stdout.strip() == amplifier.__file__
