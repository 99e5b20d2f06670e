"""tool-search: grep finds what there is, reports what it left out, and always ends; ripgrep only helps."""

from __future__ import annotations

import os
import re
import stat
import sys
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amplifier.errors import ModuleLoadError
from amplifier.modules._shared.failure import ToolFailure
from amplifier.modules._shared.worker_threads import Stop
from amplifier.modules.tools import search as _ripgrep
from amplifier.modules.tools import search as tool_search
from amplifier.modules.tools.search import Matcher
from amplifier.testing import cancel_everywhere, wait_for
from tests.modules.tools.test_tool_filesystem import Desk

FOREVER = "(a+)+$"
"""Takes longer than the universe has on the line below."""
ENDLESS_LINE = "a" * 64 + "b"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "a.py": "import os\n\ndef find():\n    return 1\n",
        "src/b.py": "def Find():\r\n    pass\r\n",
        "src/c.txt": "nothing\nfind me\nlast find",
        ".git/config": "find\n",
        "node_modules/m.js": "find\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode())
    (tmp_path / "bin").write_bytes(b"find\0")
    (tmp_path / "link.py").symlink_to("a.py")
    return tmp_path


async def desk_for(tree: Path, **config: Any) -> Desk:
    return await Desk.open(tree, tool_search, **{"ripgrep": False, **config})


def fake_ripgrep(folder: Path, body: str) -> str:
    """A program in ripgrep's place that does what a test needs; it gets ripgrep's arguments."""
    program = folder / "rg"
    program.write_text(f"#!{sys.executable} -IS\nimport os, sys, time\n{body}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


# ── what is found ────────────────────────────────────────────────────────────────────────────────


async def test_matching_lines_have_file_and_number(tree):
    output = await (await desk_for(tree)).get("grep", pattern="find")
    assert [(match["file_path"], match["line"], match["text"]) for match in output["matches"]] == [
        ("a.py", 3, "def find():"),
        ("src/c.txt", 2, "find me"),
        ("src/c.txt", 3, "last find"),
    ]
    assert (output["count"], output["files_searched"], output["truncated"]) == (3, 3, False)
    assert output["note"] == "1 binary files were left out"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"ignore_case": True}, ["a.py:3", "src/b.py:1", "src/c.txt:2", "src/c.txt:3"]),
        ({"glob": "*.py"}, ["a.py:3"]),
        ({"glob": "src/*"}, ["src/c.txt:2", "src/c.txt:3"]),
        ({"glob": "**/*.{py,txt}", "path": "src"}, ["src/c.txt:2", "src/c.txt:3"]),
        ({"path": "src/c.txt"}, ["src/c.txt:2", "src/c.txt:3"]),
        ({"path": "link.py"}, ["a.py:3"]),
        ({"pattern": r"^find|\bfind$"}, ["src/c.txt:2", "src/c.txt:3"]),
        ({"pattern": r"pass$"}, ["src/b.py:2"]),
        ({"pattern": r"^$"}, ["a.py:2"]),
        ({"pattern": r"(?=def)(?P<word>\w+) [fF]"}, ["a.py:3", "src/b.py:1"]),
        ({"pattern": "gibt es nicht"}, []),
        ({"path": ".git"}, [".git/config:1"]),
    ],
)
async def test_patterns_paths_and_globs_choose(tree, given, found):
    output = await (await desk_for(tree)).get("grep", **{"pattern": "find", **given})
    assert [f"{match['file_path']}:{match['line']}" for match in output["matches"]] == found


async def test_files_and_counts_alone(tree):
    desk = await desk_for(tree)
    assert (await desk.get("grep", pattern="find", output_mode="files_with_matches"))["files"] == [
        "a.py",
        "src/c.txt",
    ]
    output = await desk.get("grep", pattern="find", output_mode="count")
    assert output["counts"] == [
        {"file_path": "a.py", "count": 1},
        {"file_path": "src/c.txt", "count": 2},
    ]
    assert output["count"] == 3


async def test_context_surrounds_match(tree):
    output = await (await desk_for(tree)).get("grep", pattern="def find", context=2, path="a.py")
    assert output["matches"] == [
        {
            "file_path": "a.py",
            "line": 3,
            "text": "def find():",
            "before": ["import os", ""],
            "after": ["    return 1"],
        }
    ]


@pytest.mark.parametrize("mode", ["content", "files_with_matches", "count"])
async def test_surplus_matches_are_cut_with_notice(tree, mode):
    desk = await desk_for(tree, max_matches=2)
    output = await desk.get("grep", pattern="n", limit=2, output_mode=mode)
    assert output["truncated"] is True
    assert "more matches than are listed" in output["note"]
    assert len(output.get("matches") or output.get("files") or output["counts"]) == 2
    exact = await desk.get("grep", pattern="find", limit=9, output_mode=mode, path="src/c.txt")
    assert exact["truncated"] is False


async def test_omissions_are_reported(tree):
    (tree / "large").write_text("find\n" * 100)
    (tree / "long").write_text("x" * 50 + "find\nfind" + "y" * 50)
    desk = await desk_for(tree, max_file_bytes=400, max_line_length=20)
    output = await desk.get("grep", pattern="find")
    assert [match["line"] for match in output["matches"] if match["file_path"] == "long"] == [2]
    assert output["note"] == (
        "1 files larger than 400 bytes were left out; 1 binary files were left out; "
        "2 lines were searched only in their first 20 bytes"
    )


async def test_long_line_is_shown_in_part(tree):
    (tree / "long").write_text("find" + "y" * 1000)
    output = await (await desk_for(tree)).get("grep", pattern="find", path="long")
    assert output["matches"][0]["text"] == "find" + "y" * 496 + "… (1004 characters)"


async def test_non_unicode_names_and_text_are_shown(tree):
    (tree / os.fsdecode(b"\xff.txt")).write_bytes(b"find \xfe")
    output = await (await desk_for(tree)).get("grep", pattern="find", glob="*.txt")
    assert {"file_path": "\\xff.txt", "line": 1, "text": "find \ufffd"} in output["matches"]


@pytest.mark.parametrize("pattern", ["(", "*", "[a", "(?P<x", "a{3,2}", "(?<=a+)b", "\\"])
async def test_invalid_pattern_is_refused(tree, pattern):
    kind, message = await (await desk_for(tree)).fail("grep", pattern=pattern)
    assert kind == "InvalidPattern"
    assert ascii(pattern) in message


async def test_lone_surrogate_pattern_never_matches(tree):
    assert (await (await desk_for(tree)).get("grep", pattern="\ud800"))["matches"] == []


@pytest.mark.parametrize(
    ("path", "kind"), [("none", "NotFound"), ("../x", "InvalidPath"), ("a.py/x", "NotADirectory")]
)
async def test_unsearchable_path_is_failure(tree, path, kind):
    assert (await (await desk_for(tree)).fail("grep", pattern="x", path=path))[0] == kind


@settings(max_examples=15)
@given(
    lines=st.lists(st.text(st.sampled_from("abF \r\té"), max_size=6)),
    pattern=st.sampled_from(["a", "^b", "F$", r"\s"]),
)
async def test_grep_agrees_with_matching_line_by_line(tmp_path_factory, lines, pattern):
    folder = tmp_path_factory.mktemp("grep")
    (folder / "f").write_bytes("\n".join(lines).encode())
    output = await (await desk_for(folder)).get("grep", pattern=pattern)
    expected = [n for n, line in enumerate(lines, 1) if re.search(pattern, line.rstrip("\r"))]
    assert [match["line"] for match in output["matches"]] == expected


# ── it always ends ───────────────────────────────────────────────────────────────────────────────


async def test_endless_pattern_is_killed_beside_loop(tree):
    (tree / "f").write_text(ENDLESS_LINE)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await anyio.sleep(0.01)
            turns += 1

    for seconds in (0.5, 10):  # on a busy machine the first may be too short for the turns
        desk = await desk_for(tree, timeout=seconds)
        async with anyio.create_task_group() as group:
            group.start_soon(count_turns)
            kind, message = await desk.fail("grep", pattern=FOREVER)
            group.cancel_scope.cancel()
        assert (kind, message) == (
            "Timeout",
            f"grep '(a+)+$': timed out after {seconds} s",
        )
        if turns > 5:
            break
    assert (
        turns > 5
    )  # a pattern in a thread of ours would have held the interpreter's lock all the time


def test_abandoned_pattern_is_ended_by_system():
    with closing(
        Matcher(FOREVER, ignore_case=False, max_line=100, seconds=-4, stop=Stop())
    ) as matcher:
        assert matcher.find(b"b\naaa", 9)["lines"] == [1]
        with pytest.raises(ToolFailure, match="more memory or time than it may have"):
            matcher.find(ENDLESS_LINE.encode(), 9)


@pytest.mark.parametrize(
    "pattern", ["(" * 400 + ")" * 400, "x{99999999999999999999}", "(?:" * 300 + "x" + "){9}" * 100]
)
async def test_monstrous_pattern_gets_normal_result(tree, pattern):
    desk = await desk_for(tree)
    await desk.call("grep", pattern=pattern)
    assert (await desk.get("grep", pattern="find"))["count"] == 3


async def test_cancelled_search_kills_process_at_once(tree):
    (tree / "f").write_text(ENDLESS_LINE)
    desk = await desk_for(tree)
    with anyio.fail_after(60), anyio.move_on_after(0.3) as scope:
        await desk.call("grep", pattern=FOREVER)
    assert scope.cancelled_caught  # that no process is left is what the guard of all tests looks at


# ── ripgrep ──────────────────────────────────────────────────────────────────────────────────────


async def test_only_files_from_ripgrep_are_opened(tree, tmp_path_factory):
    program = fake_ripgrep(
        tmp_path_factory.mktemp("bin"), 'sys.stdout.write("./src/c.txt\\0./a.py\\0")'
    )
    output = await (await desk_for(tree, ripgrep=program)).get("grep", pattern="find|import")
    assert [match["file_path"] for match in output["matches"]] == [
        "a.py",
        "a.py",
        "src/c.txt",
        "src/c.txt",
    ]
    assert output["files_searched"] == 2


async def test_ripgrep_gets_pattern_without_shell_or_environment(
    tree, tmp_path_factory, monkeypatch
):
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    body = f'open({str(folder / "seen")!r}, "w").write(repr((sys.argv[1:], dict(os.environ), os.getcwd())))'
    await (await desk_for(tree, ripgrep=fake_ripgrep(folder, body))).get(
        "grep", pattern="--help", path="src"
    )
    seen = (folder / "seen").read_text()
    assert "--regexp=--help" in seen
    assert "--no-config" in seen
    assert str(tree / "src") in seen
    assert "sk-secret" not in seen


@pytest.mark.parametrize(
    "body",
    [
        "sys.exit(2)",
        "os.kill(os.getpid(), 9)",
        "sys.stdout.write('x' * (9 << 20))",
        "",
    ],
    ids=["refuses", "dies", "floods", "is-gone"],
)
async def test_undecided_ripgrep_means_reading_every_file(tree, tmp_path_factory, body):
    program = fake_ripgrep(tmp_path_factory.mktemp("bin"), body)
    if not body:
        os.unlink(program)
    assert (await (await desk_for(tree, ripgrep=program)).get("grep", pattern="find"))["count"] == 3


async def test_unexpected_names_from_ripgrep_are_ignored(tree, tmp_path_factory):
    (tree / "src" / "out").symlink_to(tree)
    (tree / "src" / "link").symlink_to("c.txt")
    absolute = str(tree / "a.py")
    names = [
        "../a.py",
        absolute,
        "out/a.py",
        "../src/../a.py",
        "../.git/config",
        ".",
        "gone",
        "",
        "link",
        "..",
    ]
    body = f"sys.stdout.write({chr(0).join(names)!r})"
    program = fake_ripgrep(tmp_path_factory.mktemp("bin"), body)
    output = await (await desk_for(tree / "src", ripgrep=program)).get(
        "grep", pattern="find|import"
    )
    assert {match["file_path"] for match in output["matches"]} == {"link"}  # which stays inside
    assert output["files_searched"] == 1


async def test_timeout_kills_ripgrep_and_children(tree, tmp_path_factory):
    for seconds in (
        1,
        10,
        60,
    ):  # on a busy machine the first may be too short for the program to start
        folder = tmp_path_factory.mktemp("bin")
        body = f'child = os.fork()\nopen({str(folder)!r} + f"/{{os.getpid()}}", "w").close()\ntime.sleep(600)'
        desk = await desk_for(tree, ripgrep=fake_ripgrep(folder, body), timeout=seconds)
        assert (await desk.fail("grep", pattern="find"))[0] == "Timeout"
        started = [int(name) for name in os.listdir(folder) if name.isdigit()]
        assert await wait_for(partial(_are_gone, started), timeout=60)
        if len(started) == 2 or seconds == 60:
            assert len(started) == 2
            break


def test_program_below_root_is_not_ripgrep(tmp_path, monkeypatch):
    program = fake_ripgrep(tmp_path, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _ripgrep.find_ripgrep([]) == program
    assert _ripgrep.find_ripgrep([str(tmp_path)]) is None


# ── mounting and cancellation ────────────────────────────────────────────────────────────────────


async def test_missing_python_prevents_mount(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "")
    with pytest.raises(ModuleLoadError, match=r"sys\.executable is empty"):
        await Desk.open(tmp_path, tool_search)


@pytest.mark.parametrize("mode", ["trio", "asyncio-scope", "asyncio-native"])
def test_search_cancelled_anywhere_leaves_nothing(tmp_path, mode):
    (tmp_path / "f").write_text("find me")
    before = set(_children())  # a server that other tests talk to may be among them

    def make() -> Any:
        async def scenario() -> None:
            desk = await desk_for(tmp_path)
            await desk.get("grep", pattern="find")

        def check() -> list[str]:
            return [f"process {pid} is left" for pid in _children() if pid not in before]

        return scenario, check

    cancel_everywhere(make, modes=[mode], clock="real", budget=20).raise_if_broken()


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _are_gone(pids: list[int]) -> bool:
    return not any(map(_is_alive, pids))


def _children() -> list[str]:
    return Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
