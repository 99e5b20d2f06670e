"""One search: which files, which lines, and what is shown of them. Blocking; runs in a worker thread."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import attrs

from .._confined_paths import (
    AccessRoots,
    ConfinedPath,
    GlobPattern,
    Walk,
    Workspace,
    open_directory,
    open_file,
    open_file_in,
)
from .._tool_base import Stop, ToolFailure, shown
from ._matcher import Matcher
from ._options import SearchOptions
from ._ripgrep import likely_files

_CHUNK = 1 << 18
_SNIFFED = 8192
_MOST_COUNTED = 1_000_000
_MOST_SHOWN_OF_A_LINE = 500
_MOST_SHOWN = 100_000


@attrs.define
class Search:
    """One search under way.

    Attributes:
        wanted: Matches in the answer: lines, or files in the other modes.
    """

    workspace: Workspace
    options: SearchOptions
    values: dict[str, Any]
    stop: Stop
    wanted: int
    matches: list[dict[str, Any]] = attrs.field(factory=list)
    files: dict[str, int] = attrs.field(factory=dict)
    searched: int = 0
    skipped_large: int = 0
    skipped_binary: int = 0
    unreadable: int = 0
    too_long: int = 0
    more: bool = False
    notes: list[str] = attrs.field(factory=list)
    _shown: int = 0

    def run(self) -> dict[str, Any]:
        """Search, and describe what was found.

        Raises:
            ToolFailure: The pattern or the path is wrong.
            OSError: The path cannot be opened.
            Stopped: The call was cancelled.
        """
        access = self.workspace.readable()
        base = access.locate(self.values["path"])
        wanted = GlobPattern(self.values["glob"], anywhere=True) if "glob" in self.values else None
        matcher = Matcher(
            self.values["pattern"],
            ignore_case=self.values["ignore_case"],
            max_line=self.options.max_line_length,
            seconds=self.options.timeout,
            stop=self.stop,
        )
        with contextlib.closing(matcher):
            for file, place in self._files(access, base, wanted):
                try:
                    self._search(matcher, file, place)
                finally:
                    os.close(file)
                if self.more:
                    break
        return self._output()

    def _files(
        self, access: AccessRoots, base: ConfinedPath, wanted: GlobPattern | None
    ) -> Iterator[tuple[int, ConfinedPath]]:
        """Open files one after another; the receiver closes each."""
        try:
            directory, base = open_directory(access, base)
        except ToolFailure as failure:
            if failure.kind != "NotADirectory":
                raise
            yield open_file(access, base)
            return
        os.close(directory)
        likely = self._likely(base)
        if likely is not None:
            for names in likely:
                if not self.options.ignore.intersection(names[:-1]) and (wanted is None or wanted.matches(names)):
                    yield from self._opened(
                        lambda place: open_file(access, place)[0], ConfinedPath(base.root, base.names + names)
                    )
            return
        walk = Walk(access, self.stop, self.options.ignore)
        for found in walk.below(base, wanted):
            if found.entry.kind == "file":
                yield from self._opened(partial(open_file_in, found.directory), found.place)
        self.unreadable += walk.unreadable
        if walk.cut:
            self.notes += walk.notes()[:1]

    def _likely(self, base: ConfinedPath) -> list[tuple[str, ...]] | None:
        if not isinstance(self.options.ripgrep, str):
            return None
        return likely_files(
            self.options.ripgrep,
            base.path,
            self.values["pattern"],
            ignore_case=self.values["ignore_case"],
            ignored=self.options.ignore,
            max_bytes=self.options.max_file_bytes,
            stop=self.stop,
        )

    def _opened(
        self, opening: Callable[[ConfinedPath], int], place: ConfinedPath
    ) -> Iterator[tuple[int, ConfinedPath]]:
        try:
            file = opening(place)
        except (OSError, ToolFailure):  # gone, forbidden, or something else by now: the search goes on without it
            self.unreadable += 1
            return
        yield file, place

    def _search(self, matcher: Matcher, file: int, place: ConfinedPath) -> None:
        data = self._content(file)
        if data is None:
            return
        self.searched += 1
        mode = self.values["output_mode"]
        most = {"content": self.wanted - len(self.matches), "count": _MOST_COUNTED}.get(mode, 1)
        hits = matcher.find(data, most)
        self.too_long += hits.too_long
        if not hits.lines:
            self.more = self.more or hits.more  # the match does not fit any more
            return
        if mode != "content" and len(self.files) == self.wanted:
            self.more = True
            return
        path = self.workspace.shown(place)
        self.files[path] = len(hits.lines)
        if mode == "content":
            self.more = hits.more
            self._show(path, data.removesuffix(b"\n").split(b"\n"), hits.lines)

    def _content(self, file: int) -> bytes | None:
        """The whole file; None if it is binary or too large."""
        data = bytearray()
        while chunk := os.read(file, _CHUNK):
            self.stop.check()
            data += chunk
            if b"\0" in data[:_SNIFFED]:
                self.skipped_binary += 1
                return None
            if len(data) > self.options.max_file_bytes:
                self.skipped_large += 1
                return None
        return bytes(data)

    def _show(self, path: str, lines: list[bytes], numbers: tuple[int, ...]) -> None:
        context = self.values["context"]
        for number in numbers:
            match: dict[str, Any] = {"file_path": path, "line": number + 1, "text": self._line(lines[number])}
            if context:
                match["before"] = [self._line(line) for line in lines[max(0, number - context) : number]]
                match["after"] = [self._line(line) for line in lines[number + 1 : number + 1 + context]]
            self._shown += sum(map(len, (match["text"], *match.get("before", ()), *match.get("after", ()))))
            if self._shown > _MOST_SHOWN:
                self.more = True
                return
            self.matches.append(match)

    def _line(self, line: bytes) -> str:
        return shown(line.decode("utf-8", "replace").rstrip("\r"), _MOST_SHOWN_OF_A_LINE)

    def _output(self) -> dict[str, Any]:
        mode = self.values["output_mode"]
        output: dict[str, Any] = {"files_searched": self.searched, "truncated": self.more or bool(self.notes)}
        if mode == "content":
            output = {"matches": self.matches, "count": len(self.matches), **output}
        elif mode == "count":
            counts = [{"file_path": path, "count": count} for path, count in self.files.items()]
            output = {"counts": counts, "count": sum(self.files.values()), **output}
        else:
            output = {"files": list(self.files), "count": len(self.files), **output}
        notes = list(self.notes)
        if self.more:
            notes.insert(0, "there are more matches than are listed; use a narrower pattern, path or glob")
        for number, words in (
            (self.skipped_large, f"files larger than {self.options.max_file_bytes} bytes were left out"),
            (self.skipped_binary, "binary files were left out"),
            (self.unreadable, "files or directories could not be read"),
            (self.too_long, f"lines were searched only in their first {self.options.max_line_length} bytes"),
        ):
            if number:
                notes.append(f"{number} {words}")
        if notes:
            output["note"] = "; ".join(notes)
        return output
