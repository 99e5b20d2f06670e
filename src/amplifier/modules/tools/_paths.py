"""Access to files below allowed roots only, without races.

Which paths a tool may use is decided twice. First by text: roots from the plan, and paths of the model resolved below them; pure
except for resolving a root once. Then every step opens one name relative to the directory opened before it and follows no link,
so there is no moment between checking and using. A link that is met is read, checked as text against the roots, and the walk
starts again at a root. Even the way from ``/`` to the root is walked like this. So no symbolic link leads out, however the tree
changes meanwhile.

Limits: a directory that another process moves out of the root while it is open is still the directory that was opened. A file
with a second name (a hard link) outside is readable through the name inside.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import operator
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import attrs

from amplifier._internal.regular_files import irregular_kind
from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError, PlanError, Problem

from .._shared.failure import ToolFailure, failure_from_os, shown
from .._shared.session import working_directory

MAX_DEPTH = 128
"""Names in a path; deeper ones are refused rather than walked."""

_CAN_OPEN_BENEATH = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


@attrs.frozen
class ConfinedPath:
    """A path below a root; without names it is the root itself.

    Attributes:
        root: The root's absolute path, free of symbolic links when it was read.
        names: What follows, without empty names, ``.`` and ``..``.
    """

    root: str
    names: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        # Callers have refused this already; the walk would take it for a directory like any other.
        if ".." in self.names:
            raise ToolFailure(
                "InvalidPath", f"{shown('/'.join(self.names))}: '..' is not the name of a place"
            )

    @property
    def path(self) -> str:
        """The absolute path."""
        return "/".join([self.root.rstrip("/"), *self.names]) or "/"

    @property
    def parent(self) -> ConfinedPath:
        """The directory that holds it; the root has none and must not be asked."""
        return ConfinedPath(self.root, self.names[:-1])

    def child(self, name: str) -> ConfinedPath:
        """The place of a name in this directory."""
        return ConfinedPath(self.root, (*self.names, name))


@attrs.frozen
class Root:
    """A directory below which tools may work.

    Attributes:
        path: Absolute and free of symbolic links.
        spelled: As the plan or the application writes it, absolute; the model may use either.
    """

    path: str
    spelled: str


@attrs.frozen
class AccessRoots:
    """The roots for one kind of access.

    Attributes:
        roots: In the plan's order.
        start: Where relative paths start: the first root of the workspace.
        verb: ``"read"`` or ``"write"``, for messages.
        check: Called with the real place of a file before it is opened, and before directories are made for it.
            It raises to refuse it.
    """

    roots: tuple[Root, ...]
    start: Root
    verb: str = "read"
    check: Callable[[ConfinedPath], None] = attrs.field(
        default=lambda place: None, eq=False, repr=False
    )

    def locate(self, path: str) -> ConfinedPath:
        """Turn a path of the model into a place.

        Raises:
            ToolFailure: It is no usable path, or is outside.
        """
        if not path or "\0" in path:
            raise ToolFailure(
                "InvalidPath",
                f"{shown(path)!r} is not a path: it is empty or holds a NUL character",
            )
        try:
            path.encode()
        except UnicodeEncodeError as error:
            problem = f"lone surrogate at character {error.start}"
            raise ToolFailure("InvalidPath", f"{shown(path)} is not a path: {problem}") from None
        names = _names(path)
        if ".." in names:
            raise ToolFailure(
                "InvalidPath", f"{shown(path)}: '..' is not accepted; write the path without it"
            )
        if names[:1] == ["~"]:
            raise ToolFailure(
                "InvalidPath", f"{shown(path)}: '~' has no meaning here; write the path in full"
            )
        if len(names) > MAX_DEPTH:
            raise ToolFailure("InvalidPath", f"{shown(path)}: deeper than {MAX_DEPTH} directories")
        return self._beneath(
            names if path.startswith("/") else [*_names(self.start.path), *names], shown(path)
        )

    def follow(self, link: ConfinedPath, target: str, rest: tuple[str, ...]) -> ConfinedPath:
        """Where a symbolic link leads, if it stays inside.

        Args:
            link: The link itself.
            target: Its text.
            rest: The names after it in the path being walked.

        Raises:
            ToolFailure: It leads outside, or its text goes up after going down, which text alone cannot resolve.
        """
        names = _names(target)
        ups = 0
        while ups < len(names) and names[ups] == "..":
            ups += 1
        description = f"{shown(link.path)} is a symbolic link to {shown(target)!r}"
        if ".." in names[ups:]:
            raise ToolFailure("OutsideRoots", f"{description}, a form that is not followed")
        before = [] if target.startswith("/") else _names(link.parent.path)
        # The parent of the top directory is the top directory.
        return self._beneath(
            [*before[: max(0, len(before) - ups)], *names[ups:], *rest], description
        )

    def _beneath(self, names: list[str], subject: str) -> ConfinedPath:
        best: ConfinedPath | None = None
        for root in self.roots:
            for way in (root.path, root.spelled):
                above = _names(way)
                rest = tuple(names[len(above) :])
                if names[: len(above)] == above and (best is None or len(rest) < len(best.names)):
                    best = ConfinedPath(root.path, rest)
        if best is None:
            roots = ", ".join(shown(root.spelled) for root in self.roots) or "nothing at all"
            raise ToolFailure(
                "OutsideRoots", f"{subject}: outside what this tool may {self.verb}: {roots}"
            )
        return best


class Workspace:
    """The roots that the tools of one module may read and write.

    Without ``allowed_paths`` the root is the session's working directory, asked for at every call because an
    application may set or move it after mount; without that capability it is the process's directory at mount.

    Args:
        module: The module's id, for messages.
        coordinator: Has the session's working directory.
        allowed_paths: The roots; None for the working directory.
        writable_paths: The roots below which tools may write; None for all of them.
        read_only: Tools may write nowhere.

    Raises:
        PlanError: A root is not a directory; it lists all of them.
    """

    def __init__(
        self,
        module: str,
        coordinator: Coordinator,
        allowed_paths: Sequence[str] | None,
        writable_paths: Sequence[str] | None = None,
        read_only: bool = False,
    ) -> None:
        if not _CAN_OPEN_BENEATH:
            raise ModuleLoadError(
                f"{module} needs a system with openat and O_NOFOLLOW", module_id=module
            )
        self._coordinator = coordinator
        self._default = Path.cwd()
        self._known: dict[str, Root] = {}
        problems: list[Problem] = []
        self._allowed = self._roots("allowed_paths", allowed_paths, problems)
        writable = self._roots("writable_paths", writable_paths, problems)
        if problems:
            raise PlanError(problems, subject=f"invalid config of {module}")
        self._writable = () if read_only else writable

    @property
    def is_writable(self) -> bool:
        """Whether anything may be written at all."""
        return self._writable is None or bool(self._writable)

    def readable(self) -> AccessRoots:
        """Where tools may read; everything writable belongs to it. Blocks for a moment when a root is new."""
        allowed = self._allowed_now()
        return AccessRoots(
            tuple(dict.fromkeys((*allowed, *(self._writable or ())))), start=allowed[0]
        )

    def writable(self, check: Callable[[ConfinedPath], None]) -> AccessRoots:
        """Return where tools may write; ``check`` raises for a place that they may not change."""
        allowed = self._allowed_now()
        roots = allowed if self._writable is None else self._writable
        return AccessRoots(roots, start=allowed[0], verb="write", check=check)

    def real_place(self, path: str) -> tuple[str, str] | None:
        """Return the real path that a path of the model leads to, and that of the folder it starts at.

        None if it leads nowhere that may be written. Blocks for a moment.
        """
        access = self.writable(lambda place: None)
        try:
            place = access.locate(path)
            return os.path.realpath(place.path), access.start.path
        except (ToolFailure, OSError, ValueError):
            return None

    def shown(self, place: ConfinedPath) -> str:
        """The shortest path that leads the model back here: relative to the first root if it can be."""
        start, path = self._allowed_now()[0].path, place.path
        if path == start:
            return "."
        inside = start.rstrip("/") + "/"
        return shown(path[len(inside) :] if path.startswith(inside) else path, 5000)

    def _allowed_now(self) -> tuple[Root, ...]:
        return (
            (self._resolved(working_directory(self._coordinator, self._default)),)
            if self._allowed is None
            else self._allowed
        )

    def _resolved(self, path: Path) -> Root:
        """A root without symbolic links, resolved once: what is swapped later is met by `open_beneath` and refused."""
        key = str(path)
        if key not in self._known:
            self._known[key] = Root(str(path.resolve()), os.path.normpath(path))
        return self._known[key]

    def _roots(
        self, key: str, paths: Sequence[str] | None, problems: list[Problem]
    ) -> tuple[Root, ...] | None:
        if paths is None:
            return None
        roots = []
        for index, given in enumerate(paths):
            path = working_directory(self._coordinator, self._default) / Path(given).expanduser()
            if "\0" in given or not path.is_dir():
                problems.append(
                    (f"$.{key}[{index}]", f"expected an existing directory, got {given!r}")
                )
            else:
                roots.append(self._resolved(path))
        return tuple(dict.fromkeys(roots))


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


# ── opening ────────────────────────────────────────────────────────────────────────────────────────

_MAX_LINKS = 32
_NOT_FOLLOWED = frozenset(
    {errno.ELOOP, errno.ENOTDIR, errno.EMLINK}
)  # errors for a link; the last is BSD's


def _flags(*names: str) -> int:
    """The flags by name; a system that lacks one cannot mount the tools, but may import them."""
    return functools.reduce(operator.or_, (getattr(os, name, 0) for name in names))


# O_PATH needs no right to list a directory, only to pass through it; elsewhere than on Linux it has to do without.
_PASS = _flags("O_PATH", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
_LIST = _flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
# O_NONBLOCK: opening a FIFO must not wait for its other end. O_NOCTTY: a terminal must not become the controlling one.
_READ = _flags("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC")


def open_directory(
    access: AccessRoots, place: ConfinedPath, *, make_for: str | None = None
) -> tuple[int, ConfinedPath]:
    """Open a directory to reach what is in it.

    Args:
        access: Where links may lead.
        place: The directory.
        make_for: Create what is missing, for a file of this name that may be there.

    Returns:
        A descriptor, the caller's to close, and the place without links.

    Raises:
        ToolFailure: It is no directory, or a link leads outside.
        OSError: It is missing or forbidden.
    """
    for _ in range(_MAX_LINKS):
        directory, is_reached = _open_root(place.root), False
        try:
            for index, name in enumerate(place.names):
                try:
                    if make_for is None:
                        following = enter(directory, name)
                    else:
                        # No name before this one is a link, and none after it exists if this one does not.
                        check = functools.partial(access.check, place.child(make_for))
                        following = _enter_or_make(directory, name, check)
                except OSError as error:
                    if error.errno not in _NOT_FOLLOWED:
                        raise
                    here = ConfinedPath(place.root, place.names[: index + 1])
                    if (target := _link_text(name, directory)) is None:
                        raise ToolFailure(
                            "NotADirectory", f"{shown(here.path)} is not a directory"
                        ) from error
                    place = access.follow(here, target, place.names[index + 1 :])
                    break
                os.close(directory)
                directory = following
            else:
                is_reached = True
                return directory, place
        finally:
            if not is_reached:
                os.close(directory)
    raise ToolFailure(
        "TooManyLinks", f"{shown(place.path)}: more than {_MAX_LINKS} symbolic links on the way"
    )


def open_parent(
    access: AccessRoots, place: ConfinedPath, *, make: bool = False
) -> tuple[int, ConfinedPath]:
    """Open the directory that holds a place whose last name is no symbolic link, following it if it is one.

    Returns:
        The directory's descriptor, the caller's to close, and the place whose last name is to be used in it.

    Raises:
        ToolFailure: As `open_directory`; also if the place is a root, or `AccessRoots.check` refuses it.
        OSError: As `open_directory`.
    """
    for _ in range(_MAX_LINKS):
        if not place.names:
            raise ToolFailure(
                "IsADirectory", f"{shown(place.path)} is a directory, expected a file"
            )
        name = place.names[-1]
        directory, above = open_directory(access, place.parent, make_for=name if make else None)
        place = above.child(name)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, directory)
            target = _link_text(name, directory)
            if target is None:
                access.check(place)
                stack.pop_all()
                return directory, place
        place = access.follow(place, target, ())
    raise ToolFailure(
        "TooManyLinks", f"{shown(place.path)}: more than {_MAX_LINKS} symbolic links on the way"
    )


def open_file(access: AccessRoots, place: ConfinedPath) -> tuple[int, ConfinedPath]:
    """Open a regular file for reading, without ever waiting for another process.

    Returns:
        A descriptor, the caller's to close, and the place without links.

    Raises:
        ToolFailure: It is something else, or a link leads outside.
        OSError: It is missing or forbidden.
    """
    directory, place = open_parent(access, place)
    with _closing(directory):
        return open_file_in(directory, place), place


def open_file_in(directory: int, place: ConfinedPath) -> int:
    """Open a regular file in a directory that is open already; a link is refused.

    Raises:
        ToolFailure: It is something else.
        OSError: It is missing or forbidden.
    """
    name = place.names[-1]
    # Asked first because merely opening a device can have an effect, and again afterwards because only that counts.
    refuse_unless_regular(os.stat(name, dir_fd=directory, follow_symlinks=False), place)
    try:
        file = os.open(name, _READ, dir_fd=directory)
    except OSError as error:
        raise failure_from_os(error, shown(place.path)) from error
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, file)
        refuse_unless_regular(os.fstat(file), place)
        stack.pop_all()
    return file


def refuse_unless_regular(info: os.stat_result, place: ConfinedPath) -> None:
    """Do nothing for a regular file.

    Raises:
        ToolFailure: It is something else; the message names it.
    """
    if (found := irregular_kind(info.st_mode)) is not None:
        kind = "IsADirectory" if stat.S_ISDIR(info.st_mode) else "NotARegularFile"
        raise ToolFailure(kind, f"{shown(place.path)} is {found}, expected a regular file")


@attrs.frozen
class Entry:
    """A name in a directory and what it was when it was listed."""

    name: str
    kind: Literal["file", "directory", "link", "other"]


def entries_of(directory: int) -> Iterator[Entry]:
    """List a directory that was opened to be passed through; names that are no UTF-8 come as surrogates.

    Raises:
        OSError: It may not be listed.
    """
    listing = os.open(".", _LIST, dir_fd=directory)
    with _closing(listing), os.scandir(listing) as entries:
        for entry in entries:
            yield _entry(entry)


def _entry(found: os.DirEntry[str]) -> Entry:
    # Now and not later: the system's entry may ask through the descriptor of the listing, which is closed by then.
    try:
        if found.is_symlink():
            return Entry(found.name, "link")
        if found.is_dir(follow_symlinks=False):
            return Entry(found.name, "directory")
        return Entry(found.name, "file" if found.is_file(follow_symlinks=False) else "other")
    except OSError:  # gone, on a system that has to ask again
        return Entry(found.name, "other")


def enter(directory: int, name: str) -> int:
    """Open a directory inside one that is open; a link is refused.

    Raises:
        OSError: It is missing, forbidden, a link or no directory.
    """
    return os.open(name, _PASS, dir_fd=directory)


def _open_root(root: str) -> int:
    directory = os.open("/", _PASS)
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: os.close(directory))
        for name in root.split("/"):
            if name:
                following = enter(directory, name)
                os.close(directory)
                directory = following
        stack.pop_all()
    return directory


def _enter_or_make(directory: int, name: str, before_making: Callable[[], None]) -> int:
    try:
        return enter(directory, name)
    except FileNotFoundError:
        before_making()
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, dir_fd=directory)
    return enter(directory, name)


def _link_text(name: str, directory: int) -> str | None:
    """The target of a link; None if it is none, or nothing at all."""
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):
            return None
        raise


@contextlib.contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
