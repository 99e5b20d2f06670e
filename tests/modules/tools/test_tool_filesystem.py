"""tool-filesystem: what its tools do with files, and that they keep the tool contract."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amplifier._internal.json import canonical_dumps
from amplifier.contracts import Tool
from amplifier.errors import PlanError
from amplifier.models import HookResult, ToolResult, to_json
from amplifier.modules._shared.worker_threads import Stop
from amplifier.modules.tools import filesystem as tool_filesystem
from amplifier.modules.tools import search as tool_search
from amplifier.modules.tools import todo as tool_todo
from amplifier.modules.tools.filesystem._read_tools import Lines, chunks_of
from amplifier.testing import EventRecorder, TestCoordinator

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


class Desk:
    """A mounted module over a folder, and the events it emitted."""

    def __init__(self, coordinator: TestCoordinator, recorder: EventRecorder) -> None:
        self.coordinator = coordinator
        self.recorder = recorder

    @classmethod
    async def open(
        cls, root: Path | None, module: ModuleType = tool_filesystem, **config: Any
    ) -> Desk:
        coordinator, recorder = TestCoordinator(), EventRecorder()
        coordinator.hooks.register("*", recorder, name="recorder")
        if root is not None:
            config.setdefault("allowed_paths", [str(root)])
        await module.mount(coordinator, config)
        return cls(coordinator, recorder)

    @property
    def tools(self) -> dict[str, Tool]:
        tools: dict[str, Tool] = self.coordinator.get("tools")
        return tools

    async def call(self, tool: str, **given: Any) -> ToolResult:
        result = await self.tools[tool].execute(given)
        canonical_dumps(result.output)  # every result is JSON
        canonical_dumps(result.error)
        assert to_json(result)
        assert result.success == (result.error is None)
        return result

    async def get(self, tool: str, **given: Any) -> Any:
        result = await self.call(tool, **given)
        assert result.success, result.error
        return result.output

    async def fail(self, tool: str, **given: Any) -> tuple[str, str]:
        result = await self.call(tool, **given)
        assert not result.success, result.output
        assert result.error is not None
        return result.error["type"], result.error["message"]


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


async def test_all_tools_are_mounted_under_their_names(tmp_path):
    desk = await Desk.open(tmp_path)
    assert sorted(desk.tools) == ["edit_file", "glob", "list_directory", "read_file", "write_file"]
    assert all(tool.name == name and isinstance(tool, Tool) for name, tool in desk.tools.items())


@pytest.mark.parametrize("config", [{"read_only": True}, {"writable_paths": []}])
async def test_read_only_desk_has_no_writing_tool(tmp_path, config):
    assert sorted((await Desk.open(tmp_path, **config)).tools) == [
        "glob",
        "list_directory",
        "read_file",
    ]


async def test_plan_may_choose_tools(tmp_path):
    assert list((await Desk.open(tmp_path, tools=["read_file"])).tools) == ["read_file"]


async def test_shared_glob_is_mounted_once(tmp_path, caplog):
    for first, second in ((tool_filesystem, tool_search), (tool_search, tool_filesystem)):
        desk = await Desk.open(tmp_path, first)
        glob = desk.tools["glob"]
        await second.mount(desk.coordinator, {"allowed_paths": [str(tmp_path)]})
        assert desk.tools["glob"] is glob
        assert {"grep", "read_file"} <= set(desk.tools)
    assert not caplog.records


@pytest.mark.parametrize("path", ["missing", "file", "a\0b"])
async def test_non_directory_root_is_config_problem(tmp_path, path):
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match=r"\$\.allowed_paths\[0\]: expected an existing directory"):
        await Desk.open(None, allowed_paths=[str(tmp_path / path)])


async def test_default_root_follows_working_directory(tmp_path, monkeypatch):
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    monkeypatch.chdir(tmp_path / "one")
    desk = await Desk.open(None)
    monkeypatch.chdir(tmp_path)
    assert (await desk.get("read_file", file_path="f"))["content"] == "one"
    desk.coordinator.register_capability("session.working_dir", str(tmp_path / "two"))
    assert (await desk.get("read_file", file_path="f"))["content"] == "two"
    desk.coordinator.register_capability("session.working_dir", tmp_path / "three")
    assert (await desk.get("read_file", file_path="f"))["content"] == "three"
    assert (await desk.fail("read_file", file_path=str(tmp_path / "two" / "f")))[
        0
    ] == "OutsideRoots"


async def test_relative_paths_start_at_first_root(tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    desk = await Desk.open(None, allowed_paths=[str(tmp_path / "one"), str(tmp_path / "two")])
    assert await desk.get("read_file", file_path="f") == {
        "file_path": "f",
        "content": "one",
        "first_line": 1,
        "lines": 1,
        "total_lines": 1,
        "truncated": False,
    }
    there = await desk.get("read_file", file_path=str(tmp_path / "two" / "f"))
    assert (there["content"], there["file_path"]) == ("two", str(tmp_path / "two" / "f"))


async def test_only_writable_paths_are_written(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "src").write_text("x")
    (tmp_path / "out" / "link").symlink_to("../src")
    desk = await Desk.open(tmp_path, writable_paths=[str(tmp_path / "out")])
    assert await desk.get("write_file", file_path="out/new", content="1")
    assert (await desk.fail("write_file", file_path="new", content="1"))[0] == "OutsideRoots"
    assert (await desk.fail("edit_file", file_path="src", old_string="x", new_string="y"))[
        0
    ] == "OutsideRoots"
    assert (await desk.fail("write_file", file_path="out/link", content="1"))[0] == "OutsideRoots"
    assert (await desk.get("read_file", file_path="out/link"))["content"] == "x"


async def test_root_behind_link_has_two_names(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "f").write_text("x")
    (tmp_path / "link").symlink_to("real")
    desk = await Desk.open(tmp_path / "link")
    for path in ("f", tmp_path / "link" / "f", tmp_path / "real" / "f"):
        assert (await desk.get("read_file", file_path=str(path)))["file_path"] == "f"


# ── read_file ────────────────────────────────────────────────────────────────────────────────────


async def test_line_range_names_next_start(tmp_path):
    (tmp_path / "f").write_bytes(b"one\r\ntwo\nthree\nfour")
    desk = await Desk.open(tmp_path)
    output = await desk.get("read_file", file_path="f", offset=2, limit=2)
    assert (output["content"], output["total_lines"], output["truncated"]) == (
        "two\nthree\n",
        4,
        True,
    )
    assert output["note"] == "lines 2 to 3 of 4; continue with offset 4"
    assert (await desk.get("read_file", file_path="f", offset=4))["truncated"] is False
    assert (await desk.get("read_file", file_path="f"))["content"] == "one\r\ntwo\nthree\nfour"


@pytest.mark.parametrize(
    ("content", "note"), [(b"", "the file is empty"), (b"a\nb\n", "the file has only 2 lines")]
)
async def test_reading_past_end_is_empty(tmp_path, content, note):
    (tmp_path / "f").write_bytes(content)
    output = await (await Desk.open(tmp_path)).get("read_file", file_path="f", offset=9)
    assert (output["content"], output["lines"], output["note"]) == ("", 0, note)


async def test_long_answer_is_cut_between_characters(tmp_path):
    (tmp_path / "f").write_text("a\n" + "é" * 100)
    output = await (await Desk.open(tmp_path, max_read_bytes=11)).get("read_file", file_path="f")
    assert output["content"] == "a\néééé"
    assert output["truncated"] is True
    assert output["note"] == "cut after 11 bytes, in line 2; continue with offset 2"
    output = await (await Desk.open(tmp_path, max_read_bytes=11)).get(
        "read_file", file_path="f", offset=2
    )
    assert output["note"] == "cut after 11 bytes, in line 2; the rest of this line cannot be shown"


async def test_huge_file_is_read_in_part(tmp_path):
    with (tmp_path / "f").open("wb") as file:
        file.write(b"line\n" * 4000)
        file.truncate(1 << 40)
    output = await (await Desk.open(tmp_path)).get("read_file", file_path="f", limit=2)
    assert (output["content"], output["total_lines"], output["truncated"]) == (
        "line\nline\n",
        None,
        True,
    )


async def test_invalid_utf8_is_replaced_and_noted(tmp_path):
    (tmp_path / "f").write_bytes(b"caf\xe9\n")
    output = await (await Desk.open(tmp_path)).get("read_file", file_path="f")
    assert output["content"] == "caf\ufffd\n"
    assert "not UTF-8" in output["note"]


async def test_binary_files_and_images_need_permission(tmp_path):
    (tmp_path / "f").write_bytes(b"ab\0cd")
    (tmp_path / "p.png").write_bytes(PNG)
    desk = await Desk.open(tmp_path)
    assert (await desk.fail("read_file", file_path="f"))[0] == "BinaryFile"
    assert (await desk.fail("read_file", file_path="p.png"))[
        1
    ] == "p.png: a binary file (28 bytes, image/png), expected text"
    seeing = await Desk.open(tmp_path, images=True)
    result = await seeing.call("read_file", file_path="p.png")
    assert result.output == {"file_path": "p.png", "media_type": "image/png", "bytes": 28}
    assert [block.type for block in result.content or []] == ["text", "image"]
    assert (await seeing.fail("read_file", file_path="f"))[0] == "BinaryFile"
    small = await Desk.open(tmp_path, images=True, max_image_bytes=10)
    assert (await small.fail("read_file", file_path="p.png"))[0] == "TooLarge"


@given(
    data=st.lists(st.sampled_from([b"a", b"bc", b"\n", b"\r\n", b"\xc3\xa9", b"x" * 70_000])).map(
        b"".join
    ),
    first=st.integers(1, 8),
    limit=st.integers(1, 8),
)
@example(data=b"a\nb", first=2, limit=1)
@example(data=b"x" * 70_000 + b"\n" + b"y" * 70_000, first=2, limit=1)
def test_line_range_equals_split_of_file(tmp_path_factory, data, first, limit):
    lines = Lines(first, limit, max_bytes=1 << 30)
    path = tmp_path_factory.getbasetemp() / "lines"
    path.write_bytes(data)
    file = os.open(path, os.O_RDONLY)
    try:
        lines.read(chunks_of(file, Stop()))
    finally:
        os.close(file)
    whole = [line + b"\n" for line in data.split(b"\n")[:-1]] + [
        line for line in data.split(b"\n")[-1:] if line
    ]
    assert bytes(lines.data) == b"".join(whole[first - 1 : first - 1 + limit])
    assert lines.total == len(whole)
    assert lines.scanned == len(data)


# ── write_file and edit_file ─────────────────────────────────────────────────────────────────────


async def test_new_file_creates_its_directories(tmp_path):
    desk = await Desk.open(tmp_path)
    output = await desk.get("write_file", file_path="a/b/f.txt", content="hé")
    assert output == {"file_path": "a/b/f.txt", "bytes": 3, "created": True}
    assert (tmp_path / "a/b/f.txt").read_bytes() == "hé".encode()
    assert os.listdir(tmp_path / "a/b") == ["f.txt"]


async def test_file_modes_follow_umask_or_persist(tmp_path):
    desk = await Desk.open(tmp_path)
    before = os.umask(0o027)
    try:
        await desk.get("write_file", file_path="new", content="x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640
    (tmp_path / "new").chmod(0o755)
    await desk.get("write_file", file_path="new", content="y")
    await desk.get("edit_file", file_path="new", old_string="y", new_string="z")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o755


async def test_concurrent_reader_sees_old_file_whole(tmp_path):
    (tmp_path / "f").write_text("old")
    desk = await Desk.open(tmp_path)
    with (tmp_path / "f").open() as reader:
        assert (await desk.get("write_file", file_path="f", content="new"))["created"] is False
        assert reader.read() == "old"
    assert (tmp_path / "f").read_text() == "new"
    assert os.listdir(tmp_path) == ["f"]


async def test_inner_link_is_followed_and_kept(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "f").write_text("old")
    (tmp_path / "sub" / "up").symlink_to("../link")
    (tmp_path / "link").symlink_to(tmp_path / "sub" / "f")
    (tmp_path / "dir").symlink_to("sub")
    desk = await Desk.open(tmp_path)
    assert (await desk.get("read_file", file_path="dir/up"))["file_path"] == "sub/f"
    await desk.get("write_file", file_path="sub/up", content="new")
    await desk.get("edit_file", file_path="dir/f", old_string="new", new_string="newer")
    assert (tmp_path / "sub" / "f").read_text() == "newer"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "sub" / "up").is_symlink()


async def test_non_unicode_text_is_refused_first(tmp_path):
    desk = await Desk.open(tmp_path)
    kind, message = await desk.fail("write_file", file_path="new/f", content="ab\ud800")
    assert (kind, message) == (
        "InvalidText",
        "content: a lone surrogate at character 2 cannot be written as UTF-8",
    )
    assert (await desk.fail("edit_file", file_path="f", old_string="a", new_string="\udfff"))[
        0
    ] == "InvalidText"
    assert os.listdir(tmp_path) == []


async def test_oversized_file_is_neither_written_nor_edited(tmp_path):
    (tmp_path / "f").write_text("x" * 11)
    (tmp_path / "g").write_text("x" * 10)
    desk = await Desk.open(tmp_path, max_write_bytes=10)
    assert (await desk.fail("write_file", file_path="g", content="é" * 6))[0] == "TooLarge"
    assert (await desk.fail("edit_file", file_path="f", old_string="x", new_string="y"))[
        0
    ] == "TooLarge"
    assert (await desk.fail("edit_file", file_path="g", old_string="x" * 10, new_string="y" * 11))[
        0
    ] == "TooLarge"
    kind, _ = await desk.fail(
        "edit_file", file_path="g", old_string="x", new_string="yy", replace_all=True
    )
    assert kind == "TooLarge"
    assert (tmp_path / "g").read_text() == "x" * 10


@pytest.mark.parametrize(
    ("content", "old", "kind", "words"),
    [
        ("abc", "x", "TextNotFound", "does not occur. Read the file"),
        ("abc", " b ", "TextNotFound", "without the white space around it"),
        ("a\r\nb\r\n", "a\nb", "TextNotFound", "lines of the file end with \\r\\n"),
        (
            "a\nb\na\n",
            "a",
            "TextNotUnique",
            "occurs 2 times, at lines 1, 3; make it unique or set replace_all",
        ),
        ("a" * 9, "a", "TextNotUnique", "9 times, at lines 1, 1, 1, 1, 1, …"),
    ],
)
async def test_inexact_edit_explains_and_changes_nothing(tmp_path, content, old, kind, words):
    (tmp_path / "f").write_bytes(content.encode())
    found, message = await (await Desk.open(tmp_path)).fail(
        "edit_file", file_path="f", old_string=old, new_string="!"
    )
    assert found == kind
    assert words in message
    assert (tmp_path / "f").read_bytes() == content.encode()


async def test_edit_replaces_one_or_all(tmp_path):
    (tmp_path / "f").write_bytes(b"a\r\nbb\na")
    desk = await Desk.open(tmp_path)
    assert (await desk.get("edit_file", file_path="f", old_string="bb", new_string=""))[
        "replacements"
    ] == 1
    output = await desk.get(
        "edit_file", file_path="f", old_string="a", new_string="cc", replace_all=True
    )
    assert output == {"file_path": "f", "bytes": 7, "replacements": 2}
    assert (tmp_path / "f").read_bytes() == b"cc\r\n\ncc"


@pytest.mark.parametrize(
    ("content", "old", "kind"),
    [(b"a\0b", "a", "BinaryFile"), (b"a\xff", "a", "NotUTF8"), (b"a", "!", "NothingToChange")],
)
async def test_non_text_cannot_be_edited(tmp_path, content, old, kind):
    (tmp_path / "f").write_bytes(content)
    assert (
        await (await Desk.open(tmp_path)).fail(
            "edit_file", file_path="f", old_string=old, new_string="!"
        )
    )[0] == kind
    assert (
        await (await Desk.open(tmp_path)).fail(
            "edit_file", file_path="no", old_string="a", new_string="b"
        )
    )[0] == "NotFound"


async def test_concurrent_edits_are_all_kept(tmp_path):
    (tmp_path / "f").write_text("".join(f"<{number}>" for number in range(20)))
    desk = await Desk.open(tmp_path)

    async def edit(number: int) -> None:
        await desk.get(
            "edit_file", file_path="f", old_string=f"<{number}>", new_string=f"[{number}]"
        )

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(edit, number)
    assert (tmp_path / "f").read_text() == "".join(f"[{number}]" for number in range(20))


async def test_foreign_change_during_edit_is_kept(tmp_path, monkeypatch):
    (tmp_path / "f").write_text("old")
    desk = await Desk.open(tmp_path)
    fsync = os.fsync

    def change_first(descriptor: int) -> None:
        (tmp_path / "f").write_text("theirs")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", change_first)
    assert (await desk.fail("edit_file", file_path="f", old_string="old", new_string="ours"))[
        0
    ] == "Changed"
    monkeypatch.undo()
    assert (tmp_path / "f").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["f"]


# ── list_directory and glob ──────────────────────────────────────────────────────────────────────


async def test_directory_listing_is_ordered_with_types(tmp_path):
    (tmp_path / "b").write_text("xy")
    (tmp_path / "a").mkdir()
    (tmp_path / "c").symlink_to("nowhere")
    os.mkfifo(tmp_path / "d")
    (tmp_path / os.fsdecode(b"e\xff")).touch()
    desk = await Desk.open(tmp_path)
    assert (await desk.get("list_directory"))["entries"] == [
        {"name": "a", "type": "directory"},
        {"name": "b", "type": "file", "size": 2},
        {"name": "c", "type": "link"},
        {"name": "d", "type": "other"},
        {"name": "e\\xff", "type": "file", "size": 0},
    ]
    assert (await desk.get("glob", pattern="e*"))["paths"] == ["e\\xff"]
    assert (await desk.fail("list_directory", path="b"))[0] == "NotADirectory"


async def test_long_listing_is_cut_with_notice(tmp_path):
    for number in range(5):
        (tmp_path / str(number)).touch()
    desk = await Desk.open(tmp_path, max_entries=3, max_results=2)
    output = await desk.get("list_directory")
    assert (output["count"], output["truncated"]) == (3, True)
    assert "more than 3 entries" in output["note"]
    output = await desk.get("glob", pattern="*")
    assert (output["paths"], output["truncated"]) == (["0", "1"], True)
    assert "only the first 2" in output["note"]


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("*.py", ".", ["a.py"]),
        ("**/*.py", ".", ["a.py", "src/b.py", "src/deep/c.py"]),
        ("src/**", ".", ["src/", "src/b.py", "src/b.ts", "src/deep/", "src/deep/c.py"]),
        ("**/*.{py,ts}", "src", ["src/b.py", "src/b.ts", "src/deep/c.py"]),
        ("src/?.[pt][ys]", ".", ["src/b.py", "src/b.ts"]),
        ("**/deep/**/*.py", ".", ["src/deep/c.py"]),
        ("{src,none}/deep", ".", ["src/deep/"]),
        ("**/HEAD", ".", []),
        (".git/HEAD", ".", []),
        ("{", ".", []),
    ],
)
async def test_globs_match_names_and_directories(tmp_path, pattern, path, expected):
    for name in ("a.py", "src/b.py", "src/b.ts", "src/deep/c.py", ".git/HEAD"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert (await (await Desk.open(tmp_path)).get("glob", pattern=pattern, path=path))[
        "paths"
    ] == sorted(expected)


@pytest.mark.parametrize("pattern", ["../*", "/etc/*", "a/../b", "~/x", "/", "a\0", "{a,b}" * 7])
async def test_invalid_glob_is_refused(tmp_path, pattern):
    assert (await (await Desk.open(tmp_path)).fail("glob", pattern=pattern))[0] == "InvalidPattern"


# ── events ───────────────────────────────────────────────────────────────────────────────────────


async def test_reads_and_writes_emit_events(tmp_path):
    desk = await Desk.open(tmp_path)
    await desk.get("write_file", file_path="f", content="abc")
    await desk.get("read_file", file_path="f")
    await desk.get("edit_file", file_path="f", old_string="b", new_string="")
    await desk.fail("read_file", file_path="none")
    emitted = [(event, data["path"], data["bytes"]) for event, data in desk.recorder.events]
    path = str(tmp_path / "f")
    assert emitted == [
        ("artifact:write", path, 3),
        ("artifact:read", path, 3),
        ("artifact:write", path, 2),
    ]


async def test_refusing_hook_does_not_undo(tmp_path):
    desk = await Desk.open(tmp_path)

    async def refuse(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="deny")

    desk.coordinator.hooks.register("artifact:write", refuse)
    assert await desk.get("write_file", file_path="f", content="abc")
    assert (tmp_path / "f").read_text() == "abc"


async def test_circular_hook_is_logged_only(tmp_path, caplog):
    desk = await Desk.open(tmp_path)

    async def write_again(event: str, data: dict[str, Any]) -> None:
        await desk.get("write_file", file_path="f", content="again")

    desk.coordinator.hooks.register("artifact:write", write_again)
    assert await desk.get("write_file", file_path="f", content="abc")
    assert any("artifact:write could not be emitted" in record.message for record in caplog.records)


# ── the contract ─────────────────────────────────────────────────────────────────────────────────

TOOLS = ["read_file", "write_file", "edit_file", "list_directory", "glob", "grep", "todo"]


async def desk_with_everything(root: Path) -> Desk:
    (root / "d").mkdir(exist_ok=True)
    (root / "f").write_text("a\nb\n")
    (root / "d" / "g").write_text("a")
    desk = await Desk.open(root)
    await tool_search.mount(desk.coordinator, {"allowed_paths": [str(root)], "ripgrep": False})
    await tool_todo.mount(desk.coordinator, {})
    assert sorted(desk.tools) == sorted(TOOLS)
    return desk


@pytest.mark.parametrize(
    "given", [None, [], "x", 3, {1: 2}, {"\ud800": 1}, {"file_path": 10**5000}]
)
async def test_malformed_input_is_refused(tmp_path, given):
    for name, tool in (await desk_with_everything(tmp_path)).tools.items():
        result = await tool.execute(given)
        assert result.error is not None, name
        assert result.error["type"] == "InvalidInput"
        canonical_dumps(result.error)


async def test_integer_valued_float_is_accepted(tmp_path):
    """As JSON Schema has it."""
    (tmp_path / "f").write_text("a\nb\n")
    desk = await Desk.open(tmp_path)
    assert (await desk.get("read_file", file_path="f", offset=2.0))["content"] == "b\n"
    for offset in (True, 1.5, 0, 10**400, float("inf")):
        kind, message = await desk.fail("read_file", file_path="f", offset=offset)
        assert kind == "InvalidInput"
        assert message.startswith(
            "offset: expected a whole number of at least 1 and at most 1000000000, got "
        )
