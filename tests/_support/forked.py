"""Programs in Python that start at once: forked from an interpreter that has imported what most of them import.

Imports are most of what a short `amplifier` costs, and the suite starts hundreds. `Forked` is `subprocess.Popen` for these: a process
of its own with its own session, terminal, signals, environment and streams. Two things differ: the system shows the command line of
`forking_interpreter.py`, and that one is its parent. What depends on these, or on how an interpreter starts, uses `subprocess`.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

_PROGRAM = str(Path(__file__).with_name("forking_interpreter.py"))
_PASSED_ON = ("PYTHONPATH", "PYTHONUTF8", "PYTHON_KEYRING_BACKEND")
_interpreter: list[socket.socket] = []


@pytest.fixture(scope="session", autouse=True)
def forking_interpreter(known_process_state: None) -> Iterator[None]:
    """Start the interpreter; it imports nothing before the first program is wanted."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-X", "utf8", _PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={
                name: text
                for name, text in os.environ.items()
                if name == "PYTHONPATH" or not name.startswith("PYTHON")
            },
        )
    with process, ours:
        _interpreter.append(ours)
        yield
        _interpreter.clear()


class Forked(subprocess.Popen[Any]):
    """`subprocess.Popen` for the words ``[sys.executable, "-c" or "-m" or a file, …]``; what it cannot pass on is started as usual.

    Its base class makes the pipes, uses them and keeps to time limits. Start and wait are replaced, for which it has no public place.
    """

    _report: int | None = None
    """Where the interpreter writes the process id, and the status when it has ended."""

    def _execute_child(self, args: Any, *given: Any) -> None:
        _, before, _, descriptors, cwd, env, _, _, shell, *pipes = given[:15]
        variables = dict(os.environ if env is None else env)
        folder = os.fspath(os.getcwd() if cwd is None else cwd)
        if (
            before
            or descriptors
            or shell
            or not _can_be_forked(args, variables)
            or not os.path.isdir(folder)
        ):
            super()._execute_child(args, *given)  # type: ignore[misc]
            return
        words = [os.fspath(word) for word in args[1:]]
        request = json.dumps(
            {"words": words, "cwd": folder, "env": variables, "new_session": given[-2]}
        ).encode()
        streams = [
            own if own != -1 else usual for usual, own in enumerate((pipes[0], pipes[3], pipes[5]))
        ]
        self._report, theirs = os.pipe()
        socket.send_fds(_interpreter[0], [len(request).to_bytes(8, "big")], [*streams, theirs])
        _interpreter[0].sendall(request)
        os.close(theirs)
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]
        self._child_created = True
        self.pid = self._reported()

    def _reported(self) -> int:
        assert self._report is not None
        line = b""
        while not line.endswith(b"\n"):
            line += (byte := os.read(self._report, 1))
            assert byte, "the interpreter that programs are forked from has ended"
        return int(line)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._report is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc]
        if wait_flags & os.WNOHANG and not select.select([self._report], [], [], 0)[0]:
            return 0, 0
        status = self._reported()
        os.close(self._report)
        return self.pid, status

    def _internal_poll(self, *args: Any, **kwargs: Any) -> int | None:
        if self._report is None:
            return super()._internal_poll(*args, **kwargs)  # type: ignore[misc]
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def run_forked(
    words: list[str],
    given: str | bytes | None = None,
    *,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with captured output, forked."""
    options = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        **options,
    }
    with Forked(words, **options) as process:
        try:
            output, errors = process.communicate(given, timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(words, process.returncode, output, errors)


def _can_be_forked(words: Any, variables: Mapping[str, str]) -> bool:
    """Whether it is a program for this interpreter, without an option or variable that changes how it starts."""
    options = [
        word for word in words[1:2] if str(word).startswith("-") and word not in ("-c", "-m")
    ]
    special = [name for name in variables if name.startswith("PYTHON") and name not in _PASSED_ON]
    path = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    is_usual = len(words) > 1 and words[0] == sys.executable and not options and not special
    return bool(_interpreter) and is_usual and not any(map(_hides_a_package, path))


def _hides_a_package(folder: str) -> bool:
    """Whether it stands in front of something that may have been imported already."""
    if folder in sys.path or not os.path.isdir(folder):
        return False
    names = {name.partition(".")[0] for name in os.listdir(folder)}
    return any(name.isidentifier() and PathFinder.find_spec(name) is not None for name in names)
