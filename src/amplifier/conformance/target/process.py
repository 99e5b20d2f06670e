"""This process: its threads, child processes, descriptors and files, its log records and audit events; and the state that all its code shares.

Processes and descriptors are read from ``/proc``; elsewhere only threads and files are seen. The shared state, such as the environment and the
working directory, is read, compared and restored: `PARTS` is the one table, a name, how to read it and how to set it again.
"""

from __future__ import annotations

import builtins
import decimal
import functools
import gc
import io
import locale
import logging
import os
import re
import signal
import socket
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from attrs import field, frozen

from amplifier._internal.processes import Process, all_processes, look_at
from amplifier._internal.supervisor import adopt_orphans, end_everything
from amplifier.contracts.cancellation import running_asyncio_loop

_PROC = Path("/proc")
SEES_PROCESSES = (_PROC / "self" / "fd").is_dir()
PATIENCE = 1.0
"""Seconds that a resource which is being closed may take to disappear."""
POOLED_THREAD = "AnyIO worker thread"
"""AnyIO keeps these until its event loop ends; a module that uses one has not started it."""
_MARK = "AMPLIFIER_CONFORMANCE_WORKER"


def mark_descendants() -> None:
    """Mark this process's environment, which every process started from here inherits."""
    os.environ[_MARK] = str(os.getpid())


# A process that forks twice leaves its parent, and one that is forked and not executed shows the environment that its
# origin was started with: neither the parent nor the mark tells whose it is. Below a parent of its own that adopts, it
# stays in sight. That this is another process has a reason: whoever adopts also has to wait for what ends, and the
# children of the examined module are the module's to wait for.
_reaper: list[int] = []
HAS_REAPER = sys.platform.startswith("linux")


def continue_below_reaper() -> None:
    """Go on in a child process, whose parent adopts what is left behind, ends as the child does, and ends the rest.

    A SIGTERM to the parent kills the child first. On Linux only. Call it before there are threads.
    """
    if not HAS_REAPER:
        return
    adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        _reaper.append(os.getppid())
        return

    def end(number: int, frame: Any) -> None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    ended, status = os.wait()
    while ended != child:
        ended, status = os.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end_everything()
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


@frozen
class Resources:
    """A snapshot of this process."""

    threads: frozenset[threading.Thread] = field(factory=lambda: frozenset(threading.enumerate()))
    descriptors: dict[int, str] = field(factory=lambda: dict(_open_descriptors()))
    processes: frozenset[int] = field(
        factory=lambda: frozenset(each.pid for each in _own_processes())
    )

    def leaks(self) -> list[str]:
        """What exists now and did not then, one phrase each."""
        known = self.threads | _executor_threads()
        threads = [
            each for each in threading.enumerate() if each not in known and not _is_pooled(each)
        ]
        descriptors = {
            fd: target for fd, target in _open_descriptors() if self.descriptors.get(fd) != target
        }
        return [
            *(f"the thread {thread.name!r}" for thread in threads),
            *(
                f"the process {_command_line(each.pid)}"
                for each in _own_processes()
                if each.pid not in self.processes
            ),
            *(f"the open file {target}" for target in descriptors.values()),
        ]

    def left_processes(self) -> list[int]:
        """The processes that run now and did not then."""
        return [
            each.pid
            for each in _own_processes()
            if each.pid not in self.processes and each.is_alive
        ]

    def leaks_after_patience(self) -> list[str]:
        """As `leaks`, once whatever is being closed has had the time to disappear."""
        if self.leaks():
            gc.collect()
        return after_patience(self.leaks)


def after_patience(look: Callable[[], list[Any]]) -> list[Any]:
    """What a function still sees once whatever is being closed has had the time to disappear."""
    left, give_up = look(), time.monotonic() + PATIENCE
    while left and time.monotonic() < give_up:
        time.sleep(0.02)
        left = look()
    return left


def open_files() -> Counter[str]:
    """The paths of open files that exist, with the number of descriptors of each."""
    return Counter(
        target
        for _, target in _open_descriptors()
        if target.startswith("/") and os.path.exists(target)  # noqa: PTH110 — a Path per descriptor
    )


def _is_pooled(thread: threading.Thread) -> bool:
    """Whether a thread belongs to AnyIO's or trio's pool, which keeps it for more work."""
    # Private: trio's pool keeps idle threads, which a module has not left behind.
    owner = getattr(getattr(thread, "_target", None), "__self__", None)
    return thread.name == POOLED_THREAD or type(owner).__module__ == "trio._core._thread_cache"


def files_below(folder: Path) -> dict[str, bytes | None]:
    """Every file below a folder with its bytes, directories with None, by relative name."""
    found: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        try:
            found[name] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        except OSError:
            found[name] = None
    return found


def _executor_threads() -> set[threading.Thread]:
    """The threads of the asyncio loop's own executor."""
    # Private: the loop keeps these threads, which a module has not left behind.
    return set(getattr(getattr(_loop(), "_default_executor", None), "_threads", ()))


def _open_descriptors() -> Iterator[tuple[int, str]]:
    folder = _PROC / "self" / "fd"
    if not SEES_PROCESSES:
        return
    for name in os.listdir(folder):  # noqa: PTH208 — a Path per descriptor, of which most are uninteresting
        with suppress(FileNotFoundError):
            target = os.readlink(folder / name)  # noqa: PTH115 — sockets and pipes are no paths
            # Private directories may be in shared memory.
            if not target.startswith(("/dev/", "/proc/")) or target.startswith("/dev/shm/"):
                yield int(name), target


def _own_processes() -> Iterator[Process]:
    """The processes that were started from here, also by others that have ended since."""
    mine, mark = os.getpid(), f"{_MARK}={os.getpid()}".encode()
    parents = {mine, *_reaper}
    for each in all_processes() if SEES_PROCESSES else ():
        with suppress(OSError):
            is_own = each.parent in parents or mark in _read_words(each.pid, "environ")
            # What has ended is its parent's to wait for.
            if is_own and each.pid != mine and (each.is_alive or each.parent == mine):
                yield each


def is_waiting(pid: int) -> bool:
    """Whether a process waits for something, and needs no CPU."""
    seen = look_at(pid)
    return seen is not None and seen.state in ("S", "D")


def _read_words(pid: int, name: str) -> list[bytes]:
    return (_PROC / str(pid) / name).read_bytes().split(b"\0")


def _command_line(pid: int) -> str:
    try:
        words = _read_words(pid, "cmdline")
    except OSError:
        return "that has ended meanwhile"
    return (
        repr(b" ".join(words).decode(errors="replace").strip()[:80])
        if words[0]
        else "that was not waited for"
    )


@contextmanager
def captured_logs(wants: Callable[[logging.LogRecord], bool]) -> Iterator[list[logging.LogRecord]]:
    """Collect the wanted log records, of every level."""
    records: list[logging.LogRecord] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if wants(record):
                records.append(record)

    root, collector = logging.getLogger(), Collector(level=0)
    level = root.level
    root.addHandler(collector)
    root.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        root.removeHandler(collector)
        root.setLevel(level)


_FILE_FUNCTIONS = (
    *((os, name) for name in ("stat", "lstat", "scandir", "listdir", "open", "mkdir", "readlink")),
    (io, "open"),
    (builtins, "open"),
)


@contextmanager
def refused_access(root: Path) -> Iterator[list[str]]:
    """Raise PermissionError for every access below a directory in the body; gives the refused paths."""
    refused: list[str] = []
    originals = [(owner, name, getattr(owner, name)) for owner, name in _FILE_FUNCTIONS]

    def guard(original: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            path = args[0] if args else kwargs.get("path", kwargs.get("file", "."))
            if isinstance(path, (str, os.PathLike)) and str(Path(path).absolute()).startswith(
                str(root)
            ):
                refused.append(str(path))
                raise PermissionError(13, "Permission denied", str(path))
            return original(*args, **kwargs)

        return guarded

    try:
        for owner, name, original in originals:
            setattr(owner, name, guard(original))
        yield refused
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)


_ORIGIN = re.compile(r'File "(.+?)", line (\d+)')


_CHANGING = re.compile(r" at (0x)?[0-9a-f]{6,}|fd=\d+, |/[^' ]*/module-\w+/")
Dropped = tuple[str, list[tuple[str, int]]]
"""What Python says about an object, and the lines that led to it, innermost last."""


_UNCLOSED = ("unclosed file", "unclosed <memoryobject")
"""What a module opens itself; sockets and transports belong to libraries and to threads that may end late."""


@contextmanager
def dropped_objects() -> Iterator[tuple[list[Dropped], list[Dropped]]]:
    """Collect the coroutines that are dropped before they were awaited, and the streams and files before they were closed."""
    found: tuple[list[Dropped], list[Dropped]] = ([], [])
    depth = sys.get_coroutine_origin_tracking_depth()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        warnings.simplefilter("always", ResourceWarning)
        sys.set_coroutine_origin_tracking_depth(5)
        try:
            yield found
        finally:
            sys.set_coroutine_origin_tracking_depth(depth)
            for each in caught:
                text = str(each.message)
                if "was never awaited" in text:
                    lines = [(file, int(line)) for file, line in _ORIGIN.findall(text)]
                    found[0].append((text.partition("\n")[0], lines))
                elif text.lower().startswith(_UNCLOSED):
                    found[1].append((_CHANGING.sub("", text), [(each.filename, each.lineno)]))


_listeners: list[tuple[tuple[str, ...], list[str]]] = []
_is_hooked: list[bool] = []
_STARTING = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn")
_started = [0]


@contextmanager
def audited(*events: str) -> Iterator[list[str]]:
    """Collect audit events with their arguments."""
    _hook()
    seen: list[str] = []
    _listeners.append((events, seen))
    try:
        yield seen
    finally:
        _listeners.remove((events, seen))


def started_processes() -> int:
    """How many processes this one has started since the first call of this function."""
    _hook()
    return _started[0]


def _hook() -> None:
    """Install the audit hook; Python cannot remove one, so there is only one."""
    if not _is_hooked:
        _is_hooked.append(True)
        sys.addaudithook(_dispatch)


def _dispatch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTING:
        _started[0] += 1
    for events, seen in _listeners:
        if event in events:
            seen.append(f"{event} {arguments[1:]!r}"[:200])


# ── the state that all code of the process shares ──

_STANDARD_MODULES = (
    "builtins",
    "os",
    "os.path",
    "time",
    "random",
    "json",
    "socket",
    "ssl",
    "subprocess",
    "asyncio",
    "anyio",
    "datetime",
)
"""Modules whose members a module may not replace."""
_LONGEST = 80
_AT_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def _set_environment(wanted: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(wanted)
    time.tzset()


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109 — compared as text
    except FileNotFoundError:
        return "a folder that is gone"


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


def _signals() -> dict[str, Any]:
    return {
        each.name: signal.getsignal(each) for each in signal.Signals if each != signal.SIGALRM
    }  # the kit's own


def _set_signals(wanted: Mapping[str, Any]) -> None:
    for name, handler in wanted.items():
        if handler is not None and signal.getsignal(signal.Signals[name]) is not handler:
            signal.signal(signal.Signals[name], handler)


def _functions() -> dict[str, dict[str, Any]]:
    return {
        name: dict(vars(sys.modules[name])) for name in _STANDARD_MODULES if name in sys.modules
    }


def _set_functions(wanted: Mapping[str, Mapping[str, Any]]) -> None:
    for name, members in wanted.items():
        vars(sys.modules[name]).update(members)


def _loggers() -> dict[str, logging.Logger]:
    named = logging.root.manager.loggerDict
    return {
        "": logging.root,
        **{name: each for name, each in named.items() if isinstance(each, logging.Logger)},
    }


def _logging() -> dict[str, Any]:
    """Handlers of all loggers that exist, and what holds for all of them; a level or a logger of the module's own is its own."""
    found: dict[str, Any] = {
        f"the handlers of {name or 'root'}": list(each.handlers)
        for name, each in _loggers().items()
    }
    silenced = [name for name, each in _loggers().items() if each.disabled]
    return {
        **found,
        "the root level": logging.root.level,
        "logging.disable": logging.root.manager.disable,
        "disabled": silenced,
    }


def _set_logging(wanted: Mapping[str, Any]) -> None:
    for name, each in _loggers().items():
        each.handlers[:] = wanted.get(f"the handlers of {name or 'root'}", each.handlers)
        each.disabled = name in wanted["disabled"]
    logging.root.setLevel(wanted["the root level"])
    logging.disable(wanted["logging.disable"])


_loop = running_asyncio_loop


def _loop_settings() -> dict[str, Any]:
    loop = _loop()
    if loop is None:
        return {}
    return {
        "exception_handler": loop.get_exception_handler(),
        "task_factory": loop.get_task_factory(),
        "debug": loop.get_debug(),
    }


def _set_loop(wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items() if _loop() is not None else ():
        getattr(_loop(), f"set_{name}")(value)


def _is_general(warning_filter: tuple[Any, ...]) -> bool:
    """Whether it is about all code; libraries add filters for messages, modules and categories of their own when they are imported."""
    _, message, category, module, _ = warning_filter
    return message is None and module is None and category.__module__ == "builtins"


def _filters() -> list[Any]:
    return [each for each in warnings.filters if _is_general(each)]


def _set_filters(wanted: list[Any]) -> None:
    warnings.filters[:] = [*(each for each in warnings.filters if not _is_general(each)), *wanted]  # type: ignore[index]


@frozen
class Part:
    """One part of the state.

    Attributes:
        read: Returns it; a mapping is compared key by key.
        write: Sets it to what was read.
        is_lasting: Whether a module may change it until its cleanup, because other sessions work as before.
        may_grow: Whether keys may be added.
    """

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    is_lasting: bool = False
    may_grow: bool = False


def _attributes(owner: Callable[[], Any], *names: str, is_lasting: bool = False) -> Part:
    """The part that consists of attributes of an object, or of what is in it."""

    def write(wanted: Mapping[str, Any]) -> None:
        for name, value in wanted.items():
            *inside, last = name.split(".")
            setattr(functools.reduce(getattr, inside, owner()), last, value)

    return Part(lambda: {name: attrgetter(name)(owner()) for name in names}, write, is_lasting)


_DECIMALS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")
_HOOKS = ("stdout", "stderr", "stdin", "excepthook", "unraisablehook")
PARTS: dict[str, Part] = {
    "the environment": Part(lambda: dict(os.environ), _set_environment),
    "the working directory": Part(_folder, os.chdir),
    "the umask": Part(_umask, os.umask),
    "the locale": Part(
        partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)
    ),
    "the time zone": Part(lambda: time.tzname, lambda _: time.tzset()),
    "the decimal context": _attributes(decimal.getcontext, *_DECIMALS),
    "what modules of the standard library hold": Part(_functions, _set_functions, may_grow=True),
    "the default timeout of sockets": Part(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "the recursion limit": Part(sys.getrecursionlimit, sys.setrecursionlimit),
    "the switch interval": Part(sys.getswitchinterval, sys.setswitchinterval),
    "the garbage collection": Part(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "the signal handlers": Part(_signals, _set_signals, is_lasting=True),
    "the logging configuration": Part(_logging, _set_logging, is_lasting=True, may_grow=True),
    "the warnings filters": Part(_filters, _set_filters, is_lasting=True),
    "sys.path": Part(
        lambda: list(sys.path),
        lambda paths: sys.path.__setitem__(slice(None), paths),
        is_lasting=True,
    ),
    "the interpreter's hooks and streams": _attributes(
        lambda: SimpleNamespace(sys=sys, threading=threading),
        *(f"sys.{name}" for name in _HOOKS),
        "threading.excepthook",
        is_lasting=True,
    ),
    "the event loop's settings": Part(_loop_settings, _set_loop, is_lasting=True),
}


class ProcessState:
    """A snapshot of all parts."""

    def __init__(self) -> None:
        self._read = {name: part.read() for name, part in PARTS.items()}

    def changes(self, *, lasting: bool = True) -> dict[str, str]:
        """What differs now, as a phrase for each part; without the ``lasting`` parts if these may differ yet."""
        found = {}
        for name, part in PARTS.items():
            before, now = self._read[name], part.read()
            if (
                before != now
                and (lasting or not part.is_lasting)
                and (how := _difference(before, now, part.may_grow))
            ):
                found[name] = how
        return found

    def restore(self) -> None:
        """Set what differs to what it was."""
        for name, part in PARTS.items():
            if part.read() != self._read[name]:
                with suppress(
                    OSError, ValueError
                ):  # a folder that is gone, a signal in another thread
                    part.write(self._read[name])


def _difference(before: Any, now: Any, may_grow: bool) -> str:
    if isinstance(before, list):
        added = [_short(each) for each in now if each not in before]
        gone = [_short(each) for each in before if each not in now]
        return (
            "; ".join(
                [
                    *(f"{each} is new" for each in added[:2]),
                    *(f"{each} is gone" for each in gone[:2]),
                ]
            )
            or "it has another order"
        )
    if not isinstance(before, dict):
        return f"was {_short(before)} and is {_short(now)}"
    for key in [*before, *(() if may_grow else now)]:
        old, new = (each.get(key, "nothing") for each in (before, now))
        if isinstance(old, dict) and old is not new:
            if inner := _difference(old, new, may_grow):
                return f"{key}.{inner}"
        elif old != new:
            return f"{key} was {_short(old)} and is {_short(new)}"
    return ""


def _short(value: Any) -> str:
    text = str(value) if value == "nothing" else _AT_ADDRESS.sub("", repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
