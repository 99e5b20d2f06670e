"""Which modules there are: entry points of installed distributions, and directories on search paths.

Nothing here imports a module or runs foreign code; it only reads files.

Entry points are read by hand instead of through `importlib.metadata`: importing that costs more (email, csv, zipfile)
than reading the one section we want, its cache misses a distribution installed within one tick of the file system's
clock, and it keeps archives open.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

import attrs

from . import _sys_path
from ._loaded_module import is_module_id, package_name

logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "amplifier.modules"
BUILT_IN_GROUP: Final = "amplifier.builtin_modules"
"""Where this package declares its own modules: published programs take whatever is in the other group for published modules."""
SEARCH_PATH_VARIABLE: Final = "AMPLIFIER_MODULES"
_DIRECTORY_PREFIX: Final = "amplifier-module-"

_REFERENCE: Final = re.compile(r"(?P<module>\w+(?:\.\w+)*)\s*(?::\s*(?P<attribute>\w+(?:\.\w+)*))?\s*(?:\[.*\])?")
_METADATA_DIRECTORY: Final = re.compile(r"(?P<name>.+?)(?:-(?P<version>\d[^-]*)(?:-.*)?)?\.(?:dist|egg)-info")
_SEPARATORS: Final = re.compile(r"[-_.]+")

_OUR_DISTRIBUTION: Final = "amplifier"
_OUR_MODULES: Final = "amplifier.modules."

# A directory changed this recently may change again without its modification time showing it (file systems count in
# up to two seconds), so what was read from it is not kept.
_SETTLED_AFTER_NS: Final = 2_000_000_000


def _standard_library() -> frozenset[str]:
    """The entries of sys.path that hold Python itself: no distribution is installed there, so none is looked for."""
    if getattr(sys, "frozen", False):  # a bundled application may keep everything in one directory
        return frozenset()
    directory = Path(os.__file__).parent
    archive = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    return frozenset(map(str, (directory, directory / "lib-dynload", directory.parent / archive)))


_STANDARD_LIBRARY: Final = _standard_library()


@attrs.frozen(cache_hash=True)
class EntryPoint:
    """One distribution's claim to a module id.

    Attributes:
        module: The Python module it points into.
        attribute: The dotted name in it; empty when the module itself is meant.
        metadata: The distribution's metadata directory.
        is_built_in: Whether the module is one of this package's own.
    """

    module_id: str
    module: str
    attribute: str
    distribution: str
    version: str
    metadata: str
    is_built_in: bool = False

    def __str__(self) -> str:
        return f"entry point {self.module_id} of {self.distribution} {self.version}".rstrip()


_Stamp = tuple[int, int, int] | None
_Stamps = list[tuple[str, _Stamp]]
_Index = Mapping[str, tuple[EntryPoint, ...]]


@attrs.frozen
class _Scan:
    """What one directory held when it had this stamp."""

    stamp: _Stamp
    settled: bool
    entry_points: tuple[EntryPoint, ...]


@attrs.frozen
class _Snapshot:
    """An index, and the directories it was made from."""

    stamps: _Stamps
    scans: dict[str, _Scan]
    index: _Index
    settled: bool


class _EntryPoints:
    """The claims on sys.path, read once and again whenever a directory changed.

    A snapshot is replaced, never changed, so threads need no lock; at worst two of them read the same directory.
    """

    def __init__(self) -> None:
        self._last = _Snapshot(stamps=[], scans={}, index=MappingProxyType({}), settled=False)

    def __call__(self) -> _Index:
        """Return every claim of every distribution on sys.path, by module id.

        As fresh as one `os.stat` per entry of sys.path can show: a distribution that is installed or removed changes
        the directory it is in. A metadata file that is edited in place does not. Roots that loaders put on sys.path
        are left out, or one session's sources would appear in another.
        """
        last = self._last
        held = _sys_path.held_roots()
        entries: list[object] = [*sys.path]  # nothing stops people from putting a Path there; Python skips it, too
        stamps = [
            (entry, _stamp(entry))
            for entry in entries
            if isinstance(entry, str) and entry not in _STANDARD_LIBRARY and entry not in held
        ]
        if last.settled and last.stamps == stamps:
            return last.index
        scans: dict[str, _Scan] = {}
        for entry, stamp in stamps:
            scan = last.scans.get(entry)
            if scan is None or not scan.settled or scan.stamp != stamp:
                settled = stamp is None or time.time_ns() - stamp[0] > _SETTLED_AFTER_NS
                scan = _Scan(stamp, settled, () if stamp is None else tuple(_read_directory(entry)))
            scans.setdefault(entry, scan)
        settled = all(scan.settled for scan in scans.values())
        self._last = _Snapshot(stamps=stamps, scans=scans, index=_indexed(scans), settled=settled)
        return self._last.index


entry_points: Final = _EntryPoints()


class Listing:
    """The claims as they were when first asked for: opening a session asks for all modules of its plan in one moment.

    What is not in it is looked for afresh, since a module of the plan may have installed it meanwhile.
    """

    __slots__ = ("_index",)

    def __init__(self) -> None:
        self._index: _Index = MappingProxyType({})

    def claims(self, module_id: str) -> tuple[EntryPoint, ...] | None:
        """The claims to an id; None when there are none."""
        if module_id not in self._index:
            self._index = entry_points()
        return self._index.get(module_id)


def _stamp(entry: str) -> _Stamp:
    try:
        # The empty entry is the working directory, which may become another one: device and inode identify it.
        status = os.stat(entry or ".")  # noqa: PTH116 — asked at every load; a Path doubles the cost
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ino, status.st_dev


def normalized(distribution: str) -> str:
    """A distribution's name in the form in which names are compared."""
    return _SEPARATORS.sub("-", distribution).lower()


def _indexed(scans: Mapping[str, _Scan]) -> _Index:
    """Claims by id, the built-in one last; of one distribution found twice the first one counts, as for imports."""
    index: dict[str, dict[str, EntryPoint]] = {}
    for scan in scans.values():
        for entry_point in scan.entry_points:
            claims = index.setdefault(entry_point.module_id, {})
            claims.setdefault(normalized(entry_point.distribution), entry_point)
    return MappingProxyType(
        {
            module_id: tuple(sorted(claims.values(), key=lambda claim: claim.is_built_in))
            for module_id, claims in index.items()
        }
    )


def _read_directory(entry: str) -> Iterator[EntryPoint]:
    try:
        names = os.listdir(entry or ".")  # noqa: PTH208 — thousands of names, of which a few become paths
    except NotADirectoryError:
        yield from _read_archive(entry)
        return
    except OSError:
        return
    for name in sorted(name for name in names if name.endswith("-info")):
        match = _METADATA_DIRECTORY.fullmatch(name)
        if match is None:
            continue
        directory = Path(entry, name)
        try:
            text = (directory / "entry_points.txt").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if ENTRY_POINT_GROUP in text or BUILT_IN_GROUP in text:
            yield from _parsed(text, match["name"], match["version"] or "", str(directory))


def _read_archive(entry: str) -> Iterator[EntryPoint]:
    import zipfile  # noqa: PLC0415 — few processes have an archive on sys.path

    try:
        with zipfile.ZipFile(entry) as archive:
            for name in sorted(archive.namelist()):
                directory, _, file = name.partition("/")
                match = _METADATA_DIRECTORY.fullmatch(directory)
                if match is not None and file == "entry_points.txt":
                    text = archive.read(name).decode("utf-8", "replace")
                    yield from _parsed(text, match["name"], match["version"] or "", f"{entry}/{directory}")
    except (OSError, zipfile.BadZipFile):
        return


def _parsed(text: str, distribution: str, version: str, metadata: str) -> Iterator[EntryPoint]:
    """The claims in one ``entry_points.txt``; the first line for an id counts."""
    section = ""
    is_ours = normalized(distribution) == _OUR_DISTRIBUTION
    groups = (ENTRY_POINT_GROUP, BUILT_IN_GROUP) if is_ours else (ENTRY_POINT_GROUP,)
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section in groups and "=" in line and not line.startswith(("#", ";")):
            module_id, _, value = line.partition("=")
            match = _REFERENCE.fullmatch(value.strip())
            if match is None:
                logger.warning("%s: entry point %r is not a reference to an object, ignored", metadata, line)
                continue
            yield EntryPoint(
                module_id=module_id.strip(),
                module=match["module"],
                attribute=match["attribute"] or "",
                distribution=distribution,
                version=version,
                metadata=metadata,
                is_built_in=is_ours and match["module"].startswith(_OUR_MODULES),
            )


def effective_search_paths(given: Sequence[str | os.PathLike[str]] | None) -> list[Path]:
    """The search paths given, or else those in the environment."""
    if given:
        return [Path(path) for path in given]
    return [Path(path) for path in os.environ.get(SEARCH_PATH_VARIABLE, "").split(os.pathsep) if path]


def find_directory(module_id: str, search_paths: Sequence[Path]) -> Path | None:
    """The first root of a module on the search paths: ``amplifier-module-<id>``, or the bare package."""
    for search_path in search_paths:
        root = search_path / f"{_DIRECTORY_PREFIX}{module_id}"
        if root.is_dir():
            return root
        package = search_path / package_name(module_id)
        if (package / "__init__.py").is_file():
            return package
    return None


def module_directories(search_path: Path) -> Iterator[tuple[str, Path]]:
    """Every ``amplifier-module-<id>`` in a search path, by name; none if it cannot be read."""
    try:
        directories = sorted(search_path.iterdir())
    except OSError as exc:
        logger.warning("search path %s cannot be read: %s", search_path, exc)
        return
    for directory in directories:
        module_id = directory.name.removeprefix(_DIRECTORY_PREFIX)
        if module_id == directory.name or not directory.is_dir():
            continue
        if is_module_id(module_id):
            yield module_id, directory
        else:
            logger.warning("%s: %r is not a module id, ignored", directory, module_id)
