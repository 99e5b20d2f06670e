"""Nothing outside the roots is read, listed or changed: hostile paths as a table, and a tree that changes at every system call.

The attacker of the second half acts right before one of the system calls of our own code, for every one of them in turn,
so a gap between checking and using is found by enumeration and not by luck. A careless tool is attacked the same way, to
prove that the attacks do succeed where there is a gap.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier._internal.json import canonical_dumps
from amplifier.models import ToolResult
from amplifier.modules._shared.failure import ToolFailure
from amplifier.modules.tools import search as tool_search
from amplifier.modules.tools._paths import ConfinedPath
from tests.modules.tools.test_tool_filesystem import Desk

ROOT_LINK = "root"  # the link of that name below /proc leads out of everything

SECRET = "the-secret-outside"
ONLY_OUTSIDE = "name-that-exists-only-outside"

# ── hostile paths ────────────────────────────────────────────────────────────────────────────────


class Scene:
    """A workspace full of traps, beside a folder that must not be touched.

    Attributes:
        root: The workspace: directory ``a/b`` with the file ``f``, and the traps of `VECTORS`.
        outside: Has the same shape, and the secret.
    """

    def __init__(self, base: Path) -> None:
        self.base, self.root, self.outside = base, base / "ws", base / "out"
        for folder in (self.root, self.outside):
            (folder / "a" / "b").mkdir(parents=True)
            for name in ("a/b/f", "a/f", "f"):
                (folder / name).write_text("inside" if folder == self.root else SECRET)
        (self.outside / "a" / "b" / ONLY_OUTSIDE).write_text(SECRET)
        (self.outside / "a" / ONLY_OUTSIDE).write_text(SECRET)
        (self.outside / ONLY_OUTSIDE).write_text(SECRET)

    def set_traps(self) -> None:
        """Everything a malicious repository can hold."""
        links: dict[str, str | Path] = {
            "abs": self.outside / "f",
            "abs_dir": self.outside,
            "rel": "../out/f",
            "rel_dir": "../out",
            "up": "..",
            "parent_of_root": self.base,
            "etc": "/etc/passwd",
            "proc": f"/proc/self/{ROOT_LINK}/etc/passwd",
            "fd": "/proc/self/fd/0",
            "device": "/dev/zero",
            "loop": "loop",
            "ping": "pong",
            "pong": "ping",
            "chain": "chain2",
            "chain2": "rel",
            "down_and_up": "a/../../out/f",
            "dangling": "../out/new",
            "dangling_abs": self.outside / "new",
            "here_and_out": "./../out/f",
            "sibling": str(self.root) + "2/f",
            "slashes": "..//out///f",
            "dots": "../ws/../out/f",
            "far_up": "../" * 40 + "etc/passwd",
            "far_up_and_back": "../" * 40 + str(self.outside).lstrip("/") + "/f",
            "root_and_up": f"{self.root}/../out/f",
        }
        for name, target in links.items():
            (self.root / name).symlink_to(target)
        (self.root / "a" / "deep").symlink_to("../../out/a")
        os.mkfifo(self.root / "fifo")
        with socket.socket(
            socket.AF_UNIX
        ) as server:  # its path must be short, so it is relative to the current directory
            folder = os.open(self.root, os.O_RDONLY)
            try:
                server.bind(f"/proc/self/fd/{folder}/socket")
            finally:
                os.close(folder)
        os.link(self.outside / "f", self.root / "hard")

    def filled_in(self, vector: str) -> str:
        """A hostile path with the places of this scene."""
        places = {"{root}": self.root, "{base}": self.base, "{outside}": self.outside}
        return functools.reduce(
            lambda path, name: path.replace(name, str(places[name])), places, vector
        )

    def contents_outside(self) -> dict[str, bytes]:
        """Every file and folder outside, with its content."""
        found = {}
        for folder, _, files in os.walk(self.outside):
            found[folder] = b""
            for name in files:
                with open(f"{folder}/{name}", "rb") as file:
                    found[f"{folder}/{name}"] = file.read()
        return found


VECTORS = [
    *(
        "../out/f",
        "../../etc/passwd",
        "..",
        "../",
        "../ws",
        "a/../../out/f",
        "a/b/../../../out/f",
        "./../out/f",
    ),
    *(
        "a/./../../out/f",
        "//../out/f",
        "a//..//..//out/f",
        "/etc/passwd",
        "//etc/passwd",
        "/",
        "///",
    ),
    *(
        f"/proc/self/{ROOT_LINK}/etc/passwd",
        "/dev/zero",
        "/dev/stdin",
        "{outside}/f",
        "{root}/../out/f",
        "{root}2/f",
    ),
    *(
        "{root}x",
        "{base}",
        "~",
        "~/f",
        "f\0",
        "\0",
        "a\0/../../out/f",
        "\ud800",
        "a/\udcff/f",
        "x" * 256,
    ),
    *(
        "x/" * 1000,
        "a/" * 129 + "f",
        "é" * 200,
        "abs",
        "abs_dir/f",
        "abs_dir/a/b/f",
        "rel",
        "rel_dir/f",
        "up/out/f",
    ),
    *(
        "parent_of_root/out/f",
        "etc",
        "proc",
        "fd",
        "device",
        "loop",
        "loop/f",
        "ping",
        "chain",
        "down_and_up",
    ),
    *(
        "here_and_out",
        "sibling",
        "slashes",
        "dots",
        "far_up",
        "far_up_and_back",
        "root_and_up",
        "a/deep/f",
    ),
    *("a/deep/b/f", "fifo", "fifo/f", "socket", "a", ".", "./", "a/b/", "f/x", "hard/x"),
]
WRITE_VECTORS = [
    *VECTORS,
    "hard",
    "dangling",
    "dangling_abs",
    "rel_dir/new",
    "abs_dir/new",
    "a/deep/new/deeper",
]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    made = Scene(tmp_path)
    made.set_traps()
    return made


@pytest.mark.parametrize(
    ("tool", "extra", "vectors"),
    [
        ("read_file", {}, VECTORS),
        ("write_file", {"content": "pwned"}, WRITE_VECTORS),
        ("edit_file", {"old_string": SECRET, "new_string": "pwned"}, WRITE_VECTORS),
    ],
)
async def test_hostile_paths_reach_no_file(scene, tool, extra, vectors):
    desk, before = await Desk.open(scene.root), scene.contents_outside()
    escaped = []
    for vector in vectors:
        path = scene.filled_in(vector)
        with anyio.fail_after(60):
            result = await desk.call(tool, file_path=path, **extra)
        if result.success and vector not in MERELY_NEW.get(tool, ()):
            escaped.append(vector)
        assert SECRET not in canonical_dumps(result.output), vector
    assert escaped == []
    assert scene.contents_outside() == before
    assert len(vectors) >= 60


MERELY_NEW = {"write_file": ("x/" * 1000, "é" * 200)}
"""Paths that may be written because they are only odd; the file system decides."""


async def test_no_hostile_path_is_listed_or_searched(scene):
    desk, before = await Desk.open(scene.root), scene.contents_outside()
    await tool_search.mount(
        desk.coordinator, {"allowed_paths": [str(scene.root)], "ripgrep": False}
    )
    listable = {"a", ".", "./", "a/b/"}
    for vector in VECTORS:
        path = scene.filled_in(vector)
        for tool, extra in (("list_directory", {}), ("glob", {"pattern": "**"})):
            result = await desk.call(tool, path=path, **extra)
            assert result.success == (vector in listable), (tool, vector)
            assert ONLY_OUTSIDE not in canonical_dumps(result.output), (tool, vector)
    for path in (".", "abs", "rel_dir", "etc", "../out", "a/deep"):
        result = await desk.call("grep", pattern="secret|root:", path=path)
        found = [
            match["file_path"] for match in (result.output["matches"] if result.success else [])
        ]
        assert found == (["hard"] if path == "." else [])
    assert scene.contents_outside() == before


@pytest.mark.parametrize(
    ("path", "kind", "words"),
    [
        ("../f", "InvalidPath", "../f: '..' is not accepted; write the path without it"),
        ("a/../f", "InvalidPath", "a/../f: '..' is not accepted; write the path without it"),
        ("~/f", "InvalidPath", "~/f: '~' has no meaning here; write the path in full"),
        ("a\0b", "InvalidPath", "it is empty or holds a NUL character"),
        ("a/\ud800", "InvalidPath", "a/\\ud800 is not a path: lone surrogate at character 2"),
        ("x" * 256, "InvalidPath", "a name in the path is too long"),
        ("x/" * 129, "InvalidPath", "deeper than 128 directories"),
        ("x" * 5000, "InvalidInput", "file_path: expected at most 4096 characters, got 5000"),
        ("/etc/passwd", "OutsideRoots", "/etc/passwd: outside what this tool may read: "),
        ("etc", "OutsideRoots", "is a symbolic link to '/etc/passwd'"),
        ("down_and_up", "OutsideRoots", "a form that is not followed"),
        ("loop", "TooManyLinks", "more than 32 symbolic links on the way"),
        ("loop/x", "TooManyLinks", "more than 32 symbolic links on the way"),
        ("none/f", "NotFound", "none/f: there is no such file or directory"),
        ("none/x", "NotFound", ""),
        ("f/x", "NotADirectory", ""),
        ("a", "IsADirectory", ""),
        (".", "IsADirectory", ""),
        ("socket", "NotARegularFile", "socket is a socket, expected a regular file"),
        ("fifo", "NotARegularFile", "fifo is a FIFO, expected a regular file"),
    ],
)
async def test_impossible_path_is_refused(scene, path, kind, words):
    found, message = await (await Desk.open(scene.root)).fail("read_file", file_path=path)
    assert found == kind
    assert words in message


@pytest.mark.parametrize(
    ("path", "kind"), [("a", "IsADirectory"), (".", "IsADirectory"), ("fifo", "NotARegularFile")]
)
async def test_non_file_is_neither_written_nor_edited(scene, path, kind):
    desk = await Desk.open(scene.root)
    assert (await desk.fail("write_file", file_path=path, content=""))[0] == kind
    assert (await desk.fail("edit_file", file_path=path, old_string="a", new_string="b"))[0] == kind


async def test_link_returning_inside_is_followed(scene):
    (scene.root / "round").symlink_to("../" * 40 + str(scene.root / "f").lstrip("/"))
    assert (await (await Desk.open(scene.root)).get("read_file", file_path="round"))[
        "content"
    ] == "inside"


def test_place_never_goes_up():
    with pytest.raises(ToolFailure, match=r"'\.\.' is not the name of a place"):
        ConfinedPath("/root-of-all", ("a", "..", "b"))


@pytest.mark.parametrize("name", ["zero", "null", "full", "random", "tty", "stdin"])
async def test_devices_are_neither_read_nor_written(name):
    desk = await Desk.open(Path("/dev"))
    with anyio.fail_after(60):
        assert not (await desk.call("read_file", file_path=name)).success
        assert not (await desk.call("write_file", file_path=name, content="x")).success


async def test_hard_link_is_read_only(scene):
    desk = await Desk.open(scene.root)
    assert (await desk.get("read_file", file_path="hard"))[
        "content"
    ] == SECRET  # a name inside is a name inside
    kind, message = await desk.fail("write_file", file_path="hard", content="x")
    assert kind == "HardLink"
    assert "has 2 names" in message


# ── a tree that changes under us ─────────────────────────────────────────────────────────────────

CALLS = (
    *(
        "open",
        "close",
        "stat",
        "fstat",
        "readlink",
        "mkdir",
        "scandir",
        "read",
        "write",
        "fsync",
        "fchmod",
        "rename",
    ),
    "unlink",
)
OURS = ("amplifier.modules.tools._paths", "amplifier.modules.tools.", __name__)


class Attacker:
    """Acts right before the n-th system call of our code, and takes it back some calls later if asked to."""

    def __init__(
        self,
        attack: Callable[[Scene], None],
        scene: Scene,
        when: int,
        undo_after: int | None = None,
    ) -> None:
        self._attack, self._scene, self._when, self._undo_after = attack, scene, when, undo_after
        self.calls = 0

    def __call__(self) -> None:
        number, self.calls = self.calls, self.calls + 1
        if number == self._when:
            with contextlib.suppress(
                OSError
            ):  # what it wanted to swap is not there, or there already
                self._attack(self._scene)
        if self._undo_after is not None and number == self._when + self._undo_after:
            _undo(self._scene)


@pytest.fixture
def before_every_call(monkeypatch) -> Iterator[Callable[[Attacker | None], None]]:
    """Have an attacker called before each system call of our code, in whatever thread."""
    current: list[Attacker | None] = [None]

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            caller = sys._getframe(1).f_globals.get("__name__", "")
            if current[0] is not None and caller.startswith(OURS):
                current[0]()
            return original(*args, **kwargs)

        return call

    def use(attacker: Attacker | None) -> None:
        current[0] = attacker

    for name in CALLS:
        monkeypatch.setattr(
            os, name, watched(getattr(os, name) if name != "fsync" else lambda descriptor: None)
        )
    yield use
    current[0] = None


def _swap(path: Path, target: Path) -> None:
    shelter = path.with_name(path.name + "~")
    if not shelter.exists():
        path.rename(shelter)
    path.symlink_to(target)


def _undo(scene: Scene) -> None:
    for path in (
        scene.root,
        scene.root / "a",
        scene.root / "a" / "b",
        scene.root / "a" / "b" / "f",
    ):
        shelter = path.with_name(path.name + "~")
        if shelter.exists() and (path.is_symlink() or not path.exists()):
            path.unlink(missing_ok=True)
            shelter.rename(path)


def swap_root(scene: Scene) -> None:
    _swap(scene.root, scene.outside)


def swap_dir(scene: Scene) -> None:
    _swap(scene.root / "a", scene.outside / "a")


def swap_parent(scene: Scene) -> None:
    _swap(scene.root / "a" / "b", scene.outside / "a" / "b")


def swap_leaf(scene: Scene) -> None:
    _swap(scene.root / "a" / "b" / "f", scene.outside / "a" / "b" / "f")


def swap_new_dir(scene: Scene) -> None:
    """For a directory that is being made: be there first."""
    (scene.root / "a" / "b" / "new").symlink_to(scene.outside)


def swap_hardlink(scene: Scene) -> None:
    leaf = scene.root / "a" / "b" / "f"
    leaf.unlink()
    os.link(scene.outside / "a" / "b" / "f", leaf)


def swap_fifo(scene: Scene) -> None:
    leaf = scene.root / "a" / "b" / "f"
    leaf.unlink()
    os.mkfifo(leaf)


def swap_temporary(scene: Scene) -> None:
    """Replace the file that is about to be renamed."""
    found = next((scene.root / "a" / "b").glob(".amplifier-*"), None)
    if found is None:
        raise FileNotFoundError
    found.unlink()
    found.symlink_to(scene.outside / "a" / "b" / "f")


READ_ATTACKS = [swap_root, swap_dir, swap_parent, swap_leaf, swap_fifo]
WRITE_ATTACKS = [*READ_ATTACKS, swap_hardlink, swap_temporary, swap_new_dir]
READS: dict[str, dict[str, Any]] = {
    "read_file": {"file_path": "a/b/f"},
    "list_directory": {"path": "a/b"},
    "glob": {"pattern": "a/**"},
}
WRITES: dict[str, dict[str, Any]] = {
    "write_file": {"file_path": "a/b/f", "content": "pwned"},
    "write_file new": {"file_path": "a/b/new/deep/f", "content": "pwned"},
    "edit_file": {
        "file_path": "a/b/f",
        "old_string": "e",
        "new_string": "pwned",
        "replace_all": True,
    },
}


def is_escape(scene: Scene, before: dict[str, bytes], result: ToolResult) -> bool:
    answered = canonical_dumps([result.output, result.error])
    if result.output and result.success and result.output.get("content", "inside") != "inside":
        return True  # what was read is not the file that was asked for
    return SECRET in answered or ONLY_OUTSIDE in answered or scene.contents_outside() != before


async def attack_everywhere(
    base: Path,
    use: Callable[[Attacker | None], None],
    attack: Callable[[Scene], None],
    make: Callable[[Path], Awaitable[Callable[[], Awaitable[ToolResult]]]],
    undo_after: int | None = None,
) -> tuple[int, list[int]]:
    """Run a tool once for each of its system calls: how many runs, and at which calls the attack succeeded."""
    escapes: list[int] = []
    call = await make(Scene(base).root)
    when = 0
    while True:
        shutil.rmtree(base)
        scene = Scene(base)
        before = scene.contents_outside()
        attacker = Attacker(attack, scene, when, undo_after)
        use(attacker)
        try:
            with anyio.fail_after(60):
                result = await call()
        finally:
            use(None)
        if is_escape(scene, before, result):
            escapes.append(when)
        assert attack is swap_temporary or not list(scene.base.rglob(".amplifier-*")), (
            "a temporary file was left"
        )
        if attacker.calls <= when:
            shutil.rmtree(base)
            return when, escapes
        when += 1


async def try_all(
    base: Path, use: Any, tool: str, attacks: list[Any], undo_after: int | None
) -> None:
    async def make(root: Path) -> Callable[[], Awaitable[ToolResult]]:
        desk = await Desk.open(root)
        return lambda: desk.call(tool.split(maxsplit=1)[0], **{**READS, **WRITES}[tool])

    runs, found = 0, {}
    for attack in attacks:
        count, escapes = await attack_everywhere(base, use, attack, make, undo_after)
        runs += count
        if escapes:
            found[attack.__name__] = escapes
    assert found == {}
    assert runs > 30


# On one backend: system calls happen in a thread and know nothing of event loops.


@pytest.mark.slow
@pytest.mark.parametrize("tool", [*READS, *WRITES])
def test_swaps_never_lead_outside(tmp_path, before_every_call, tool):
    attacks = WRITE_ATTACKS if tool in WRITES else READ_ATTACKS
    anyio.run(try_all, tmp_path / "scene", before_every_call, tool, attacks, None)
    assert not (tmp_path / "scene").exists()


@pytest.mark.slow
@pytest.mark.parametrize("undo_after", [1, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("tool", [*READS, "write_file new", "edit_file"])
def test_brief_swaps_never_lead_outside(tmp_path, before_every_call, tool, undo_after):
    attacks = [swap_dir, swap_parent, swap_leaf]
    anyio.run(try_all, tmp_path / "scene", before_every_call, tool, attacks, undo_after)
    assert not (tmp_path / "scene").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", [swap_dir, swap_parent, swap_leaf], ids=lambda attack: attack.__name__
)
def test_swaps_never_lead_search_outside(tmp_path, before_every_call, attack):
    async def make(root: Path) -> Callable[[], Any]:
        desk = await Desk.open(root, tool_search, ripgrep=False)
        return lambda: desk.call("grep", pattern="secret", path="a/b")

    count, escapes = anyio.run(
        attack_everywhere, tmp_path / "scene", before_every_call, attack, make
    )
    assert escapes == []
    assert count > 10


async def test_attacks_succeed_against_careless_tool(tmp_path, before_every_call):
    """The proof that the attacks are attacks."""

    class Careless:
        def __init__(self, root: Path) -> None:
            self.root = root

        async def write(self) -> ToolResult:
            return self._write()

        def _write(self) -> ToolResult:
            path = self.root / "a" / "b" / "f"
            os.stat(path)
            if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(self.root)):
                return ToolResult(success=False)
            try:
                file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK)
            except OSError:
                return ToolResult(success=False)
            os.write(file, b"pwned")
            os.close(file)
            return ToolResult()

    async def run(root: Path) -> Callable[[], Any]:
        return Careless(root).write

    found = {}
    for attack in (swap_dir, swap_parent, swap_leaf, swap_hardlink):
        _, found[attack.__name__] = await attack_everywhere(
            tmp_path / "scene", before_every_call, attack, run
        )
    assert all(found.values()), found


# ── a system that refuses or hangs ────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tool", ["read_file", "write_file", "edit_file", "list_directory", "glob"])
async def test_system_refusal_is_explained(scene, monkeypatch, tool):
    desk = await Desk.open(scene.root)
    given = {**READS, **WRITES}[tool]
    original = os.open

    def forbid(path: Any, *args: Any, **kwargs: Any) -> int:
        if path in ("f", ".", "a") or str(path).startswith(".amplifier"):
            raise PermissionError(13, "Permission denied", path)
        return original(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", forbid)
    if tool == "glob":
        assert "1 directories could not be read" in (await desk.get(tool, **given))["note"]
    else:
        assert (await desk.fail(tool, **given))[0] == "PermissionDenied"


async def test_full_disk_leaves_old_file_only(scene, monkeypatch):
    desk = await Desk.open(scene.root)

    def full(*args: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert (await desk.fail("write_file", file_path="a/b/f", content="x"))[0] == "NoSpace"
    assert (scene.root / "a" / "b" / "f").read_text() == "inside"
    assert os.listdir(scene.root / "a" / "b") == ["f"]


@pytest.mark.slow
@pytest.mark.parametrize("tool", ["read_file", "write_file"])
async def test_hanging_system_call_undoes_itself_later(scene, monkeypatch, caplog, tool):
    begun, released, ended = threading.Event(), threading.Event(), threading.Event()
    name = "read" if tool == "read_file" else "fsync"
    original = getattr(os, name)

    def hang(*args: Any) -> Any:
        begun.set()
        released.wait(120)
        ended.set()
        return original(*args)

    monkeypatch.setattr(os, name, hang)
    try:
        for seconds in (0.1, 10):  # on a busy machine the first may be over before the system call
            desk = await Desk.open(scene.root, timeout=seconds)
            with anyio.fail_after(60):
                kind, message = await desk.fail(tool, **{**READS, **WRITES}[tool])
            assert kind == "Timeout"
            assert message == f"{tool} a/b/f: timed out after {seconds} s"
            if begun.is_set():
                break
    finally:
        released.set()
    assert any("hangs in a system call" in record.message for record in caplog.records)
    assert await anyio.to_thread.run_sync(ended.wait, 60)
    monkeypatch.undo()
    assert (scene.root / "a" / "b" / "f").read_text() == "inside"
