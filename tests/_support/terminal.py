"""The command line in a real pseudo-terminal: type, wait for text, press Ctrl-C, see how it ends and how the terminal is left.

Nothing here waits for a while; everything waits for something, and gives up with what was seen so far.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests._support.forked import Forked, run_forked
from tests._support.programs import run_program
from tests._support.tree import ROOT

PATIENCE = 60.0
"""Seconds to wait for a text or an end that must come; long, for a machine that does other things, too."""

_WRITTEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|([\x08\r\n])|(\x1b|[^\x1b\x08\r\n]+)")
_LINES, _COLUMNS = 40, 100

# Makes the pseudo-terminal the controlling one, so that Ctrl-C becomes a signal.
_START = """
import fcntl, sys, termios
if sys.argv[1] == "terminal":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from amplifier.cli import main
sys.exit(main(sys.argv[2:]))
"""


def environment(home: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a person without keys, whose state is below ``home``."""
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    for name in ("NO_COLOR", "AMPLIFIER_MODULES", "PYTHONWARNINGS"):
        kept.pop(name, None)
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH")]))
    mine = {"AMPLIFIER_HOME": str(home), "TERM": "xterm", "PYTHONPATH": path, "PYTHONUTF8": "1"}
    return {**kept, **mine, **(extra or {})}


def command(*arguments: str, at: str = "pipe") -> list[str]:
    """The words that start the command line in a process of its own."""
    return [sys.executable, "-c", _START, at, *arguments]


def run_cli(
    *arguments: str,
    home: Path,
    cwd: Path,
    stdin: str | bytes | None = None,
    extra: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run the command line without a terminal, to its end."""
    given = b"" if stdin is None else stdin.encode() if isinstance(stdin, str) else stdin
    finished = run_forked(
        command(*arguments), given, cwd=cwd, env=environment(home, extra), timeout=PATIENCE
    )
    return subprocess.CompletedProcess(
        finished.args, finished.returncode, finished.stdout.decode(), finished.stderr.decode()
    )


def run_without(
    package: str, *arguments: str, home: Path, cwd: Path
) -> subprocess.CompletedProcess[str]:
    """Run the command line in an interpreter in which a package cannot be imported."""
    program = f"import sys; sys.modules[{package!r}] = None; from amplifier.cli import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-P", "-c", program, *arguments]
    return run_program(words, cwd=cwd, env=environment(home))


def start(
    *arguments: str, home: Path, cwd: Path, extra: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[Any]:
    """Start the command line without a terminal; nothing is on standard input, and text comes through pipes, unless options change that."""
    usual = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    return Forked(
        command(*arguments), cwd=cwd, env=environment(home, extra), **{**usual, **options}
    )


def json_of(finished: subprocess.CompletedProcess[str]) -> Any:
    """The one object on standard output."""
    lines = finished.stdout.splitlines()
    assert len(lines) == 1, (finished.stdout, finished.stderr)
    return json.loads(lines[0])


class Terminal:
    """A process at a pseudo-terminal.

    Attributes:
        process: The process.
        screen: Everything it has written, escape sequences included.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], master: int, slave: int, size: tuple[int, int]
    ) -> None:
        self.process = process
        self._size = size
        self.screen = ""
        self._master = master
        self._slave = slave
        self._seen = 0
        self._undecoded = b""
        self._modes_before = termios.tcgetattr(slave)

    @property
    def text(self) -> str:
        """Everything it has written, without escape sequences."""
        return _as_shown(self.screen)

    @property
    def rows(self) -> list[str]:
        """What is on the screen and above it, see `on_screen`; for a command that ends without a chat."""
        return on_screen(self.screen, self._size)

    def expect(self, *wanted: str) -> str:
        """Wait until each of these appears behind what was expected before; returns the text up to the end of the last."""
        return [self._expect_one(each) for each in wanted][-1]

    def _expect_one(self, wanted: str) -> str:
        give_up = time.monotonic() + PATIENCE
        while True:
            found = self.text.find(wanted, self._seen)
            if found >= 0:
                before, self._seen = self._seen, found + len(wanted)
                return self.text[before : self._seen]
            if not self._receive(give_up):
                raise AssertionError(
                    f"{wanted!r} did not appear; after what was expected came:\n{self.rest()}"
                )

    def rest(self) -> str:
        """The output after the text that was last expected."""
        return self.text[self._seen :]

    def type(self, text: str) -> None:
        """Press keys; lone surrogates are sent as the bytes they escape."""
        os.write(self._master, text.encode(errors="surrogateescape"))

    def enter(self, line: str, *wanted: str) -> None:
        """Type a line, and wait for what follows."""
        self.type(f"{line}\n")
        if wanted:
            self.expect(*wanted)

    def say(self, line: str, *wanted: str) -> None:
        """Enter a line at the prompt of a chat, and wait for what follows."""
        self.expect("› ")
        self.enter(line, *wanted)

    def answer(self, line: str, *wanted: str) -> None:
        """Enter the answer to a question, and wait for what follows."""
        self.expect("Your answer: ")
        self.enter(line, *wanted)

    def leave(self, keys: str = "/exit\n") -> None:
        """Leave a chat at its prompt; it has to end well, with the terminal as it was."""
        self.expect("› ")
        self.type(keys)
        self.ends(0)

    def press_ctrl_c(self, *wanted: str) -> None:
        """Ctrl-C, as a key: the terminal makes a signal of it; wait for what follows."""
        self.type("\x03")
        if wanted:
            self.expect(*wanted)

    def send(self, which: signal.Signals) -> None:
        """Send a signal to the process."""
        self.process.send_signal(which)

    def hang_up(self) -> None:
        """Close the terminal's window, as it were."""
        os.close(self._slave)
        os.close(self._master)
        self._master = self._slave = -1

    def end(self) -> int:
        """Wait for the process; returns its exit code, negative for a signal it died of."""
        give_up = time.monotonic() + PATIENCE
        while self.process.poll() is None:
            if self._master < 0:
                return self.process.wait(PATIENCE)
            if (
                not self._receive(min(give_up, time.monotonic() + 0.05))
                and time.monotonic() > give_up
            ):
                raise AssertionError(f"it does not end; it wrote:\n{self.text}")
        while self._receive(time.monotonic()):
            pass
        return self.process.returncode

    def ends(self, code: int) -> None:
        """Wait for the process, which has to end with this code and leave the terminal as it was."""
        assert self.end() == code
        assert self.is_as_before()

    def is_as_before(self) -> bool:
        """Whether the terminal has the modes it had, and the cursor is not hidden."""
        shown, hidden = self.screen.rfind("\x1b[?25h"), self.screen.rfind("\x1b[?25l")
        return termios.tcgetattr(self._slave) == self._modes_before and shown >= hidden

    def unread(self) -> bytes:
        """What was typed and no one has read: the shell would get it."""
        modes = termios.tcgetattr(self._slave)
        modes[3] &= ~termios.ICANON
        termios.tcsetattr(self._slave, termios.TCSANOW, modes)
        os.set_blocking(self._slave, False)
        try:
            return os.read(self._slave, 4096)
        except BlockingIOError:
            return b""

    def _receive(self, give_up: float) -> bool:
        ready, _, _ = select.select([self._master], [], [], max(0.0, give_up - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:  # the other end is closed
            return False
        text = (self._undecoded + data).decode(errors="ignore")
        self._undecoded = b"" if not _is_cut(data) else data[-3:]
        self.screen += text
        return True

    def close(self) -> None:
        """End the process if it still runs, and let go of the terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for descriptor in (self._master, self._slave):
            if descriptor >= 0:
                os.close(descriptor)


def on_screen(written: str, size: tuple[int, int] = (_LINES, _COLUMNS)) -> list[str]:
    """The rows that a terminal of this size has after ``written``, those that have scrolled away included, blank ones at the end not.

    Knows what the command line uses: line feeds, wrapping, moves up, erasures. Everything else that is no styling is an error.
    """
    height, width = size
    rows, line, column = [""], 0, 0
    for parameter, final, control, text in _WRITTEN.findall(written):
        if final == "F":
            line, column = max(line - int(parameter or 1), len(rows) - height, 0), 0
        elif final == "J":
            rows[line:] = [rows[line][:column]]
        elif control == "\r":
            column = 0
        elif control == "\n":
            line, column = line + 1, 0
        elif text:
            for character in text:
                assert unicodedata.category(character) != "Cc", repr(text)
                if column == width:
                    line, column = line + 1, 0
                rows += [""] * (line + 1 - len(rows))
                rows[line] = (
                    rows[line][:column].ljust(column) + character + rows[line][column + 1 :]
                )
                column += 1
        else:
            assert final == "m", (parameter, final)
        rows += [""] * (line + 1 - len(rows))
    while rows and not rows[-1].strip():
        rows.pop()
    return [row.rstrip() for row in rows]


def _as_shown(screen: str) -> str:
    """Text without escape sequences, with what moves the cursor along its line applied: blanks are often skipped, not written.

    Moves to other lines and erasures are left out, so that text that has been shown once stays.
    """
    lines, column = [""], 0
    for parameter, final, control, text in _WRITTEN.findall(screen):
        if control == "\n":
            lines.append("")
        if control in ("\n", "\r"):
            column = 0
        elif control or final == "D":
            column = max(column - int(parameter or 1), 0)
        elif final == "C":
            column += int(parameter or 1)
            lines[-1] = lines[-1].ljust(column)
        elif text:
            lines[-1] = lines[-1][:column].ljust(column) + text + lines[-1][column + len(text) :]
            column += len(text)
    return "\n".join(lines)


def _is_cut(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return False


@contextmanager
def open_terminal(
    *arguments: str,
    home: Path,
    cwd: Path,
    extra: Mapping[str, str] | None = None,
    stdout: Any = None,
    size: tuple[int, int] = (_LINES, _COLUMNS),
    program: Sequence[str] = (),
) -> Iterator[Terminal]:
    """Start the command line at a pseudo-terminal of its own.

    Args:
        arguments: Of the command line.
        home: Where it keeps its state.
        cwd: Where it works.
        extra: Variables besides the usual ones.
        stdout: Where standard output goes instead.
        size: Lines and columns of the window.
        program: What to start instead of the command line.
    """
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    words: Sequence[str] = [*program, *arguments] if program else command(*arguments, at="terminal")
    process = Forked(
        words,
        stdin=slave,
        stdout=slave if stdout is None else stdout,
        stderr=slave,
        cwd=cwd,
        env=environment(home, extra),
        start_new_session=True,
    )
    terminal = Terminal(process, master, slave, size)
    try:
        yield terminal
    finally:
        terminal.close()
