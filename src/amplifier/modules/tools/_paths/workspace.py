"""Which paths a tool may use: roots from the plan, and paths of the model resolved below them.

Pure text except for resolving a root once. Whether a path really leads where its text suggests is checked by
`open_beneath`, which asks the file system component by component.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError, PlanError, Problem

from ..._shared.failure import ToolFailure, shown
from ..._shared.session_files import working_directory

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
            raise ToolFailure("InvalidPath", f"{shown('/'.join(self.names))}: '..' is not the name of a place")

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
    """

    roots: tuple[Root, ...]
    start: Root
    verb: str = "read"

    def locate(self, path: str) -> ConfinedPath:
        """Turn a path of the model into a place.

        Raises:
            ToolFailure: It is no usable path, or is outside.
        """
        if not path or "\0" in path:
            raise ToolFailure("InvalidPath", f"{shown(path)!r} is not a path: it is empty or holds a NUL character")
        try:
            path.encode()
        except UnicodeEncodeError as error:
            problem = f"lone surrogate at character {error.start}"
            raise ToolFailure("InvalidPath", f"{shown(path)} is not a path: {problem}") from None
        names = _names(path)
        if ".." in names:
            raise ToolFailure("InvalidPath", f"{shown(path)}: '..' is not accepted; write the path without it")
        if names[:1] == ["~"]:
            raise ToolFailure("InvalidPath", f"{shown(path)}: '~' has no meaning here; write the path in full")
        if len(names) > MAX_DEPTH:
            raise ToolFailure("InvalidPath", f"{shown(path)}: deeper than {MAX_DEPTH} directories")
        return self._beneath(names if path.startswith("/") else [*_names(self.start.path), *names], shown(path))

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
        return self._beneath([*before[: max(0, len(before) - ups)], *names[ups:], *rest], description)

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
            raise ToolFailure("OutsideRoots", f"{subject}: outside what this tool may {self.verb}: {roots}")
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
            raise ModuleLoadError(f"{module} needs a system with openat and O_NOFOLLOW", module_id=module)
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
        return AccessRoots(tuple(dict.fromkeys((*allowed, *(self._writable or ())))), start=allowed[0])

    def writable(self) -> AccessRoots:
        """Where tools may write."""
        allowed = self._allowed_now()
        return AccessRoots(allowed if self._writable is None else self._writable, start=allowed[0], verb="write")

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

    def _roots(self, key: str, paths: Sequence[str] | None, problems: list[Problem]) -> tuple[Root, ...] | None:
        if paths is None:
            return None
        roots = []
        for index, given in enumerate(paths):
            path = working_directory(self._coordinator, self._default) / Path(given).expanduser()
            if "\0" in given or not path.is_dir():
                problems.append((f"$.{key}[{index}]", f"expected an existing directory, got {given!r}"))
            else:
                roots.append(self._resolved(path))
        return tuple(dict.fromkeys(roots))


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]
