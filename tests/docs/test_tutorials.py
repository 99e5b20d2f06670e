"""Every tutorial, the first page and the guide to traces are walked through: files are written, commands are run, and what they print is what the page shows.

A page is read from top to bottom in an empty directory, which has a checkout `amplifier` beside it. A block is

    ```console                          run: `$ command`, `> its next line`, and below what it prints
    <!-- file: agent.py --> ```python   written to that file; any kind of block
    <!-- edit: agent.py --> ```diff     its lines with a minus become those with a plus, in that file
    <!-- another terminal --> ```console    runs beside the rest, to the end of the page, once it has printed what is shown
    <!-- the other terminal --> ```console  no command: what that one prints next
    <!-- not run: why --> ```console    not run
    <!-- same: test.py --> ```py        what that file of the reader's holds by now
    <!-- from: examples/a.py --> ```py  quoted from that file of the repository

In shown output a line `…` matches any lines and `…` in a line any text. Spaces and empty lines do not count. A command that
fails fails the test, unless `echo $?` follows. 8000 is replaced by a free port.
"""

from __future__ import annotations

import ast
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import pytest

from tests._support.tree import ROOT

TUTORIALS = sorted(
    path for path in (ROOT / "docs" / "tutorial").glob("*.md") if path.name != "index.md"
)
TUTORIALS += [ROOT / "docs" / "index.md", ROOT / "docs" / "how-to" / "see-what-an-agent-did.md"]

_BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>[^\n]*?) -->\n+)?^(?P<fence>```+)(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
_MARK = "-- the command has ended with"
_PATIENCE = 60.0
"""Seconds that a program may take to end; only a failing test waits that long."""


@attrs.frozen
class Command:
    """A command and the lines it is to print; None when the page shows nothing."""

    text: str
    shown: list[str] | None


@attrs.frozen
class Block:
    """One block of a page: the text of its mark, its kind, its text, and the line it begins at."""

    mark: str
    kind: str
    text: str
    line: int

    @property
    def commands(self) -> list[Command]:
        """The commands of a console block, with what is shown below each."""
        found: list[tuple[str, list[str]]] = []
        for line in self.text.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            elif line.startswith("> ") and found and not found[-1][1]:
                found[-1] = (f"{found[-1][0]}\n{line[2:]}", [])
            else:
                assert found, f"line {self.line}: {line!r} precedes the first command"
                found[-1][1].append(line)
        return [Command(text, shown or None) for text, shown in found]


def blocks_of(page: str) -> list[Block]:
    """The blocks of a page that is written in Markdown."""
    return [
        Block(
            match["mark"] or "",
            match["kind"],
            match["text"],
            page.count("\n", 0, match.start()) + 1,
        )
        for match in _BLOCK.finditer(page)
    ]


# ── what is shown ────────────────────────────────────────────────────────────────────────────────


def plain(lines: list[str]) -> list[str]:
    """Lines as they are compared: no empty ones, one space for many, no colours."""
    colourless = (re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines)
    return [" ".join(line.split()) for line in colourless if line.strip()]


def pattern_of(shown: list[str]) -> re.Pattern[str]:
    """What matches the output that a page shows."""
    lines = [
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in plain(shown)
    ]
    return re.compile("".join(lines))


def fits(shown: list[str], printed: list[str]) -> bool:
    """Whether a command printed what the page shows, and nothing else."""
    # At a reader's terminal a line of progress stands in its place, and goes. A machine without
    # bubblewrap has a warning more.
    lasting = [
        line
        for line in plain(printed)
        if not line.startswith("examining ") and "commands run without a sandbox" not in line
    ]
    return pattern_of(shown).fullmatch("".join(f"{line}\n" for line in lasting)) is not None


# ── walking ──────────────────────────────────────────────────────────────────────────────────────


class Terminal:
    """A shell in a directory; it remembers where it is and what was exported, like a reader's."""

    def __init__(self, cwd: Path, environment: dict[str, str]) -> None:
        self._environment = environment
        self._status = 0
        self._shell = self._start(["bash", "--noprofile", "--norc"], cwd, subprocess.PIPE)
        self._beside: subprocess.Popen[str] | None = None

    def _start(self, command: list[str], cwd: Path, stdin: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            cwd=cwd,
            env=self._environment,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def run(self, command: str) -> tuple[int, list[str]]:
        """Run one command; gives its exit code and its lines."""
        assert self._shell.stdin is not None
        # `$?` is what the last command left, although the shell has printed its mark since.
        self._shell.stdin.write(
            f"(exit {self._status}); {{\n{command}\n}} </dev/null; printf '\\n%s %s\\n' '{_MARK}' $?\n"
        )
        self._shell.stdin.flush()
        printed: list[str] = []
        for line in self._shell.stdout or ():
            if line.startswith(_MARK):
                self._status = int(line.removeprefix(_MARK))
                return self._status, printed
            printed.append(line.rstrip("\n"))
        raise AssertionError(f"the shell ended in the middle of {command!r}: {printed}")

    @property
    def directory(self) -> Path:
        """Where the shell is."""
        status = self._status
        path = self.run("pwd")[1][0]
        self._status = status
        return Path(path)

    def run_beside(self, command: str) -> None:
        """Open the other terminal and run a command there, to the end."""
        assert self._beside is None, "there is one other terminal"
        self._beside = self._start(
            ["bash", "-c", f"exec {command}"], self.directory, subprocess.DEVNULL
        )

    def hear(self, shown: list[str]) -> list[str]:
        """Read what the other terminal prints until it is what is shown; gives everything, if it ends before."""
        assert self._beside is not None, "there is no other terminal"
        assert self._beside.stdout is not None
        printed: list[str] = []
        for line in self._beside.stdout:
            printed.append(line)
            if fits(shown, printed):
                break
        return printed

    def close(self) -> None:
        """End everything; the program beside must end by Ctrl-C."""
        for process, kind in ((self._shell, signal.SIGKILL), (self._beside, signal.SIGINT)):
            if process is not None:
                if process.poll() is None:
                    os.killpg(process.pid, kind)
                try:
                    process.communicate(timeout=_PATIENCE)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.communicate()
                    raise AssertionError(
                        f"{process.args!r} did not end within {_PATIENCE:g} s after Ctrl-C"
                    ) from None


@contextmanager
def terminal(folder: Path) -> Iterator[Terminal]:
    """A terminal in an empty directory beside a checkout, for a reader without keys and with an empty home."""
    (folder / "amplifier").symlink_to(ROOT)
    home = folder / "home"
    desk = folder / "desk"
    home.mkdir()
    desk.mkdir()
    environment = {
        **{
            name: value for name, value in os.environ.items() if name == "AMPLIFIER_TEST_RUN"
        },  # for the leak guard
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "PYTHONUNBUFFERED": "1",
    }
    opened = Terminal(desk, environment)
    try:
        yield opened
    finally:
        opened.close()


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def walk(page: str, folder: Path) -> None:
    """Do everything that a page instructs its reader to do."""
    with terminal(folder) as reader:
        for block in blocks_of(page):
            if block.mark.startswith("file: "):
                path = reader.directory / block.mark.removeprefix("file: ")
                assert path.parent.is_dir(), (
                    f"line {block.line}: there is no folder for {path.name}"
                )
                path.write_text(block.text, encoding="utf-8")
            elif block.mark.startswith("edit: "):
                edit(reader.directory / block.mark.removeprefix("edit: "), block)
            elif block.mark.startswith("same: "):
                path = reader.directory / block.mark.removeprefix("same: ")
                assert path.read_text(encoding="utf-8") == block.text, (
                    f"line {block.line}: {path.name} is another"
                )
            elif block.mark.startswith("from: "):
                check_quote(block)
            elif block.kind == "console" and not block.mark.startswith("not run: "):
                follow(block, reader)


def edit(path: Path, block: Block) -> None:
    """Change a file as a block in the form of a diff shows."""
    lines = block.text.splitlines(keepends=True)
    before = "".join(line[1:] for line in lines if line[0] in " -")
    after = "".join(line[1:] for line in lines if line[0] in " +")
    text = path.read_text(encoding="utf-8")
    assert text.count(before) == 1, (
        f"line {block.line}: {before!r} occurs {text.count(before)} times in {path.name}"
    )
    path.write_text(text.replace(before, after), encoding="utf-8")


def check_quote(block: Block) -> None:
    """What is shown as a piece of one of our files is in that file, line by line."""
    name = block.mark.removeprefix("from: ")
    assert block.text in (ROOT / name).read_text(encoding="utf-8"), (
        f"line {block.line}: this is not in {name}"
    )


def follow(block: Block, reader: Terminal) -> None:
    """Do what one console block shows."""
    if block.mark == "the other terminal":
        shown = block.text.splitlines()
        printed = reader.hear(shown)
        assert fits(shown, printed), f"line {block.line}: the other terminal printed {printed}"
        return
    commands = block.commands
    if block.mark == "another terminal":
        (command,) = commands
        reader.run_beside(command.text)
        printed = reader.hear(command.shown or [])
        assert fits(command.shown or [], printed), (
            f"line {block.line}: {command.text!r} printed {printed}"
        )
        return
    assert block.mark == "", f"line {block.line}: unknown mark {block.mark!r}"
    for number, command in enumerate(commands):
        status, printed = reader.run(command.text)
        output = "\n".join(printed)
        if command.shown is not None:
            assert fits(command.shown, printed), (
                f"line {block.line}: {command.text!r} printed\n{output}"
            )
        is_asked = number + 1 < len(commands) and commands[number + 1].text == "echo $?"
        assert status == 0 or is_asked, (
            f"line {block.line}: {command.text!r} ended with {status}:\n{output}"
        )


@pytest.mark.timeout(600)  # a tutorial holds several runs of the conformance kit
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            path, id=path.stem, marks=[] if path.stem == "first-agent" else pytest.mark.slow
        )
        for path in TUTORIALS
    ],
)
def test_tutorial_commands_print_shown_output(page, tmp_path):
    text = page.read_text(encoding="utf-8").replace("8000", free_port())
    blocks = blocks_of(text)
    assert any(block.kind == "console" for block in blocks)
    assert [
        block.line for block in blocks if block.kind == "py" and not block.mark
    ] == []  # neither run nor compared
    walk(text, tmp_path)


def test_finished_tutorial_tool_equals_example(tmp_path):
    page = (ROOT / "docs" / "tutorial" / "first-tool.md").read_text(encoding="utf-8")
    file = tmp_path / "tool.py"
    for block in blocks_of(page):
        if block.mark.startswith("file: amplifier_module_"):
            file.write_text(block.text, encoding="utf-8")
        elif block.mark.startswith("edit: amplifier_module_") and file.exists():
            edit(file, block)
    assert tool_class(file) == tool_class(ROOT / "examples" / "custom_tool.py")


def tool_class(path: Path) -> str:
    return next(
        ast.dump(node)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    )


# ── the walker itself ────────────────────────────────────────────────────────────────────────────

GOOD = """
<!-- from: examples/agent.yaml -->
```yaml
  - module: tool-filesystem
    config: {read_only: true}
```

<!-- file: greet.sh -->
```sh
echo "hello   $1"
echo ade
```

<!-- edit: greet.sh -->
```diff
-echo ade
+echo goodbye
```

<!-- same: greet.sh -->
```sh
echo "hello   $1"
echo goodbye
```

```console
$ mkdir inside && cd inside
$ sh ../greet.sh world
hello world
goodbye
$ pwd
…/inside
$ sh -c 'echo lost; exit 3'
lost
$ echo $?
3
$ echo one \\
> two
one two
```

<!-- not run: it would not end -->
```console
$ sleep 1000000
```

<!-- another terminal -->
```console
$ sh -c 'echo ready; read line < /dev/null; while [ ! -e go ]; do sleep 0.01; done; echo gone; exec sleep 1000000'
ready
```

```console
$ touch go
```

<!-- the other terminal -->
```console
gone
```
"""


def test_page_with_correct_output_passes(tmp_path):
    walk(GOOD, tmp_path)
    assert (tmp_path / "desk" / "inside" / "go").exists()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("hello world\ngoodbye", "hello world"),  # it prints more than is shown
        ("hello world\ngoodbye", "hello moon\n…"),
        ("-echo ade", "-echo adieu"),
        ("{read_only: true}", "{read_only: false}"),
        ('"\necho goodbye\n```', '"\necho ade\n```'),
        ("…/inside", "…/outside"),
        ("$ echo $?\n3\n", ""),  # a failure that the page does not mention
        ("$ echo $?\n3", "$ echo $?\n4"),
        ("$ mkdir inside && cd inside\n", ""),
    ],
)
def test_page_with_wrong_output_fails(right, wrong, tmp_path):
    assert right in GOOD
    with pytest.raises(AssertionError):
        walk(GOOD.replace(right, wrong), tmp_path)


def test_missing_output_of_other_terminal_fails(tmp_path):
    page = GOOD.replace("echo gone; exec sleep 1000000", "echo gone").replace(
        "\ngone\n", "\nhere\n"
    )
    with pytest.raises(AssertionError, match="the other terminal printed"):
        walk(page, tmp_path)


def test_unknown_mark_fails(tmp_path):
    with pytest.raises(AssertionError, match="unknown mark"):
        walk("<!-- not rum: misspelt -->\n```console\n$ true\n```\n", tmp_path)
