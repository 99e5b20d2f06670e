"""Which files there are: one rule for every listing, count and search.

Regular files are meant: no links, no pipes. Hidden files and whatever lies in hidden directories are left out at every
depth, unless they are named. `glob` tells neither links nor pipes from files, so directories are listed to see which is
which; above `_MOST_DIRECTORIES` of them that is not done, and `Gathered.unsure` is set.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping

import attrs

from amplifier.modules._tool_base import shown

from ._desk import Desk, Result, Wanted
from ._intents import Files

LEFT_OUT = "Hidden files and directories are left out."

_MOST_DIRECTORIES = 12


@attrs.frozen(kw_only=True)
class Gathered:
    """Files of a kind.

    Attributes:
        paths: In order.
        directories: Those that were met, without the slash.
        result: What `glob` answered: its note, and what went wrong.
        unsure: Whether links and pipes may be among the paths.
    """

    paths: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    result: Result
    unsure: bool = False

    def at_least(self) -> str:
        """Words to put before a number."""
        return "at least " if self.result.data.get("truncated") else ""

    def remark(self) -> str:
        """A sentence on what is counted with them, if it is not sure."""
        return " Links among them, if any, are counted as files." if self.unsure and self.paths else ""


def where(files: Files) -> str:
    """Words for a directory: nothing for the workspace."""
    return "" if _base(files) == "" else f" in {shown(files.directory, 100)}"


def below(files: Files) -> str:
    """The kind's pattern at any depth, but not in hidden directories at the top: caches and environments live there."""
    if "/" in files.pattern:
        return files.pattern
    top = "[!.]*" if files.pattern == "*" else files.pattern
    return f"{{{top},[!.]*/**/{files.pattern}}}"


def searched(files: Files) -> str:
    """The same for grep, where a pattern without a slash would match at any depth; ``/**`` also matches nothing."""
    if "/" in files.pattern:
        return files.pattern
    return "[!.]*/**" if files.pattern == "*" else f"{{{files.pattern}/**,[!.]*/**/{files.pattern}}}"


def is_seen(path: str, files: Files) -> bool:
    """Whether a path is not hidden, or hidden only where it was named."""
    base = _base(files)
    if base and not path.startswith(base):
        if any(part.startswith(".") for part in base.split("/")):
            return True  # told in another way than it was named: which of its parts were named cannot be seen
        base = ""
    *directories, name = path.removeprefix(base).rstrip("/").split("/")
    named = files.pattern.split("/")
    if any(part.startswith(".") and part not in (".", "..") and part not in named for part in directories):
        return False
    return not name.startswith(".") or named[-1].startswith(".")


def gather(desk: Desk, files: Files) -> Gathered:
    """All files of a kind.

    Raises:
        Waiting: Something was not called yet.
    """
    result = desk.call("glob", pattern=below(files), path=files.directory)
    if not result.ok:
        return Gathered(result=result)
    seen = [path for path in result.texts("paths") if is_seen(path, files)]
    paths = [path for path in seen if not path.endswith("/")]
    directories = tuple(path.rstrip("/") for path in seen if path.endswith("/"))
    kinds = kinds_of(desk, paths)
    regular = tuple(path for path in paths if kinds.get(path, ("file", 0))[0] == "file")
    unsure = any(path not in kinds for path in paths)
    return Gathered(paths=regular, directories=directories, result=result, unsure=unsure)


def kinds_of(desk: Desk, paths: Iterable[str]) -> Mapping[str, tuple[str, int]]:
    """Type and size of paths, by listing the directories they are in; nothing if those are too many.

    Raises:
        Waiting: Something was not called yet.
    """
    folders = list(dict.fromkeys(posixpath.dirname(path) for path in paths))
    if not desk.offers("list_directory") or len(folders) > _MOST_DIRECTORIES:
        return {}
    results = desk.calls(*(Wanted("list_directory", {"path": folder or "."}) for folder in folders))
    kinds: dict[str, tuple[str, int]] = {}
    for folder, result in zip(folders, results, strict=True):
        for entry in result.objects("entries"):
            size = entry.get("size")
            path = posixpath.join(folder, str(entry.get("name")))
            kinds[path] = str(entry.get("type")), size if isinstance(size, int) else -1
    return kinds


def _base(files: Files) -> str:
    base = posixpath.normpath(files.directory)
    return "" if base == "." else base.rstrip("/") + "/"
