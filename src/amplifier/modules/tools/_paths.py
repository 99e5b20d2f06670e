"""Access to files below allowed roots only, without races."""

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

# A path is checked twice. The first check looks at its text, which has to lie below a root of the
# plan. The second check takes place while the path is opened: each step opens one name relative to
# the directory before it and follows no link, so that no time passes between the check and the use.
# The text of a link on the way is checked against the roots, and the walk starts again at a root.
# The way from ``/`` to the root is walked in this way, too. So no symbolic link leads outside, even
# if the tree changes during the walk.
#
# There are two limits. If another process moves an open directory out of the root, the tool
# continues to use that directory. And a file with a hard link outside can be read through its name
# inside.

MAX_DEPTH = 128
"""Maximum number of names in a path."""

_CAN_OPEN_BENEATH = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")


@attrs.frozen
class ConfinedPath:
    """A path below a root. Without names it is the root itself.

    Attributes:
        root: The root's absolute path. It had no symbolic links when it was resolved.
        names: The names below the root, without empty ones, ``.`` and ``..``.
    """

    root: str
    names: tuple[str, ...] = ()

    def __attrs_post_init__(self) -> None:
        # Callers refuse such names earlier. The walk would treat them like the names of
        # directories.
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
        """The directory that holds the path. Don't use this on a root, which has no parent."""
        return ConfinedPath(self.root, self.names[:-1])

    def child(self, name: str) -> ConfinedPath:
        """Return the path of a name in this directory."""
        return ConfinedPath(self.root, (*self.names, name))


@attrs.frozen
class Root:
    """A directory below which tools may work.

    Attributes:
        path: The absolute path without symbolic links.
        spelled: The absolute path as the plan or the application writes it. The model may use
            either.
    """

    path: str
    spelled: str


@attrs.frozen
class AccessRoots:
    """The roots for one kind of access.

    Attributes:
        roots: The roots in the order of the plan.
        start: The directory that relative paths start at, the first root of the workspace.
        verb: ``"read"`` or ``"write"``, for messages.
        check: Called with the real path of a file before it is opened, and before directories are
            made for it. It raises to refuse the path.
    """

    roots: tuple[Root, ...]
    start: Root
    verb: str = "read"
    check: Callable[[ConfinedPath], None] = attrs.field(
        default=lambda place: None, eq=False, repr=False
    )

    def locate(self, path: str) -> ConfinedPath:
        """Find the place below the roots that a path from the model names.

        Raises:
            ToolFailure: The path isn't usable, or is outside the roots.
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
        """Resolve a symbolic link that was met on a walk.

        Args:
            link: The link itself.
            target: Its text.
            rest: The names after the link in the path that is walked.

        Raises:
            ToolFailure: The link leads outside, or its text has ``..`` after a name, which can't be
                resolved as text.
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
            for path in (root.path, root.spelled):
                above = _names(path)
                rest = tuple(names[len(above) :])
                if names[: len(above)] == above and (best is None or len(rest) < len(best.names)):
                    best = ConfinedPath(root.path, rest)
        if best is None:
            roots = ", ".join(shown(root.spelled) for root in self.roots) or "nothing at all"
            raise ToolFailure(
                "OutsideRoots", f"{subject}: outside what this tool may {self.verb}: {roots}"
            )
        return best


# The working directory is looked up at every call, because an application may set or move it after
# mount. A session without that capability uses the directory of the process at mount.


class Workspace:
    """The roots that the tools of one module may read and write.

    Args:
        module: The module's id, for messages.
        coordinator: The coordinator of the session, which provides the working directory.
        allowed_paths: The roots. None for the session's working directory.
        writable_paths: The roots below which tools may write. None for all of them.
        read_only: True if tools must not write anywhere.

    Raises:
        PlanError: A root isn't a directory. The error lists all of them.
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
        """True if anything may be written."""
        return self._writable is None or bool(self._writable)

    def readable(self) -> AccessRoots:
        """Return the roots for reading, which include those for writing.

        This blocks for a moment if a root is new.
        """
        allowed = self._allowed_now()
        return AccessRoots(
            tuple(dict.fromkeys((*allowed, *(self._writable or ())))), start=allowed[0]
        )

    def writable(self, check: Callable[[ConfinedPath], None]) -> AccessRoots:
        """Return the roots for writing. ``check`` raises for a path that tools must not change."""
        allowed = self._allowed_now()
        roots = allowed if self._writable is None else self._writable
        return AccessRoots(roots, start=allowed[0], verb="write", check=check)

    def real_place(self, path: str) -> tuple[str, str] | None:
        """Resolve a path from the model, following symbolic links. This blocks for a moment.

        Returns:
            The real path, and that of the directory that relative paths start at. None if tools
            must not write to the path.
        """
        access = self.writable(lambda place: None)
        try:
            place = access.locate(path)
            return os.path.realpath(place.path), access.start.path
        except (ToolFailure, OSError, ValueError):
            return None

    def shown(self, place: ConfinedPath) -> str:
        """Return a path for the model, relative to the first root if possible."""
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
        """Resolve the symbolic links of a root, once.

        A link that replaces a part of it later is refused by `_open_root`.
        """
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
        for index, text in enumerate(paths):
            path = working_directory(self._coordinator, self._default) / Path(text).expanduser()
            if "\0" in text or not path.is_dir():
                problems.append(
                    (f"$.{key}[{index}]", f"expected an existing directory, got {text!r}")
                )
            else:
                roots.append(self._resolved(path))
        return tuple(dict.fromkeys(roots))


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


# ── opening ───────────────────────────────────────────────────────────────────────────────────────

_MAX_LINKS = 32
# These are the errors of opening a link with O_NOFOLLOW. BSD uses EMLINK.
_NOT_FOLLOWED = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})


def _flags(*names: str) -> int:
    """Combine flags by name.

    A system that lacks one can't mount the tools, but it can import this file.
    """
    return functools.reduce(operator.or_, (getattr(os, name, 0) for name in names))


# O_PATH needs only the right to pass through a directory, not to list it. Only Linux has it.
_PASS = _flags("O_PATH", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
_LIST = _flags("O_RDONLY", "O_DIRECTORY", "O_NOFOLLOW", "O_CLOEXEC")
# With O_NONBLOCK, opening a FIFO doesn't wait for its other end. With O_NOCTTY, a terminal doesn't
# become the controlling one.
_READ = _flags("O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC")


def open_directory(
    access: AccessRoots, place: ConfinedPath, *, make_for: str | None = None
) -> tuple[int, ConfinedPath]:
    """Open a directory, to reach the names in it.

    Args:
        access: The roots, which links must not leave.
        place: The directory.
        make_for: Make missing directories for a file of this name. None makes none.

    Returns:
        A descriptor, which the caller closes, and the path without links.

    Raises:
        ToolFailure: The place isn't a directory, or a link leads outside.
        OSError: The place doesn't exist, or access to it is denied.
    """
    for _ in range(_MAX_LINKS):
        directory, is_reached = _open_root(place.root), False
        try:
            for index, name in enumerate(place.names):
                try:
                    if make_for is None:
                        following = enter(directory, name)
                    else:
                        # No name before this one is a link, and if this one is missing, so are all
                        # names after it. So the real path is known before anything is made.
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
    """Open the directory that holds a file, after following the links that the path ends with.

    Returns:
        The directory's descriptor, which the caller closes, and the path without links.

    Raises:
        ToolFailure: As for `open_directory`, or the place is a root, or `AccessRoots.check` refuses
            it.
        OSError: As for `open_directory`.
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
    """Open a regular file for reading. It never waits for another process.

    Returns:
        A descriptor, which the caller closes, and the path without links.

    Raises:
        ToolFailure: The place isn't a regular file, or a link leads outside.
        OSError: The place doesn't exist, or access to it is denied.
    """
    directory, place = open_parent(access, place)
    with _closing(directory):
        return open_file_in(directory, place), place


def open_file_in(directory: int, place: ConfinedPath) -> int:
    """Open a regular file in an open directory. A link is refused.

    Raises:
        ToolFailure: The name isn't that of a regular file.
        OSError: The place doesn't exist, or access to it is denied.
    """
    name = place.names[-1]
    # Opening a device can have side effects, so the kind is checked first. Only the check of the
    # open file is free of races.
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
    """Raise unless a file is regular.

    Raises:
        ToolFailure: The file isn't regular. The message names its kind.
    """
    if (description := irregular_kind(info.st_mode)) is not None:
        kind = "IsADirectory" if stat.S_ISDIR(info.st_mode) else "NotARegularFile"
        raise ToolFailure(kind, f"{shown(place.path)} is {description}, expected a regular file")


@attrs.frozen
class Entry:
    """A name in a directory, and the kind of file at the time of the listing."""

    name: str
    kind: Literal["file", "directory", "link", "other"]


def entries_of(directory: int) -> Iterator[Entry]:
    """List a directory that was opened with `enter`. Names that aren't UTF-8 contain surrogates.

    Raises:
        OSError: Listing the directory is denied.
    """
    listing = os.open(".", _LIST, dir_fd=directory)
    with _closing(listing), os.scandir(listing) as entries:
        for entry in entries:
            yield _entry(entry)


def _entry(entry: os.DirEntry[str]) -> Entry:
    # Python's entry may use the descriptor of the listing, which is closed later.
    try:
        if entry.is_symlink():
            return Entry(entry.name, "link")
        if entry.is_dir(follow_symlinks=False):
            return Entry(entry.name, "directory")
        return Entry(entry.name, "file" if entry.is_file(follow_symlinks=False) else "other")
    except OSError:
        # The name was removed, on a system whose listings don't include the kind.
        return Entry(entry.name, "other")


def enter(directory: int, name: str) -> int:
    """Open a directory inside an open one. A link is refused.

    Raises:
        OSError: The name doesn't exist, isn't that of a directory, or access is denied.
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
    """Return the target of a link. None if it isn't a link or doesn't exist."""
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
