"""Observe this process: its resources, log records, audit events and process-wide state.

Processes and descriptors are read from ``/proc``. Without it only threads and files are seen.
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
from typing import Any, TypeVar

from attrs import field, frozen

from amplifier._internal.processes import Process, all_processes, look_at
from amplifier._internal.supervisor import adopt_orphans, end_everything
from amplifier.contracts.cancellation import running_asyncio_loop

_PROC = Path("/proc")
SEES_PROCESSES = (_PROC / "self" / "fd").is_dir()
PROCESS_EXIT_SECONDS = 1.0
"""Seconds that a resource may take to disappear after it was closed."""
POOLED_THREAD = "AnyIO worker thread"
"""Name of AnyIO's threads, which stay until the loop ends and don't count as a module's."""
_MARK = "AMPLIFIER_CONFORMANCE_WORKER"


def mark_descendants() -> None:
    """Mark the environment of this process, which all of its descendants inherit."""
    os.environ[_MARK] = str(os.getpid())


# A process that forks twice leaves its parent, and one that is forked without exec shows the
# environment of its origin. Neither the parent nor the mark shows whose it is. It stays visible
# below a separate parent that adopts orphans. That parent has to be another process, because a
# process that adopts also has to wait for exits, and the module's children are the module's to wait
# for.
_reaper: list[int] = []
HAS_REAPER = sys.platform.startswith("linux")


def continue_below_reaper() -> None:
    """Continue in a child process, whose parent adopts the orphans and ends them.

    The parent exits as the child did. A SIGTERM to the parent kills the child first. On other
    systems than Linux this does nothing. Call it before there are threads.
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
        factory=lambda: frozenset(process.pid for process in _own_processes())
    )

    def leaks(self) -> list[str]:
        """Return a phrase for each resource that is new since the snapshot."""
        known = self.threads | _executor_threads()
        threads = [
            thread
            for thread in threading.enumerate()
            if thread not in known and not _is_pooled(thread)
        ]
        descriptors = {
            fd: target for fd, target in _open_descriptors() if self.descriptors.get(fd) != target
        }
        return [
            *(f"the thread {thread.name!r}" for thread in threads),
            *(
                f"the process {_command_line(process.pid)}"
                for process in _own_processes()
                if process.pid not in self.processes
            ),
            *(f"the open file {target}" for target in descriptors.values()),
        ]

    def left_processes(self) -> list[int]:
        """Return the pids of the running processes that are new since the snapshot."""
        return [
            process.pid
            for process in _own_processes()
            if process.pid not in self.processes and process.is_alive
        ]

    def lasting_leaks(self) -> list[str]:
        """Return the `leaks` that remain after a second, in which resources may disappear."""
        if self.leaks():
            gc.collect()
        return remaining(self.leaks)


T = TypeVar("T")


def remaining(look: Callable[[], list[T]]) -> list[T]:
    """Call a function until it returns nothing or a second is over, and return its last result."""
    left, give_up = look(), time.monotonic() + PROCESS_EXIT_SECONDS
    while left and time.monotonic() < give_up:
        time.sleep(0.02)
        left = look()
    return left


def open_files() -> Counter[str]:
    """Return the paths of existing open files, with the number of descriptors of each."""
    return Counter(
        target
        for _, target in _open_descriptors()
        if target.startswith("/") and os.path.exists(target)  # noqa: PTH110 — a Path per descriptor
    )


def _is_pooled(thread: threading.Thread) -> bool:
    """Return whether a thread belongs to AnyIO's or trio's pool, which keeps it for more work."""
    # A private module of trio, whose pool keeps idle threads. They are not leaks of a module.
    owner = getattr(getattr(thread, "_target", None), "__self__", None)
    return thread.name == POOLED_THREAD or type(owner).__module__ == "trio._core._thread_cache"


def files_below(folder: Path) -> dict[str, bytes | None]:
    """Return the bytes of every file below a folder by relative name, None for directories."""
    files: dict[str, bytes | None] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        try:
            files[name] = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        except OSError:
            files[name] = None
    return files


def _executor_threads() -> set[threading.Thread]:
    """Return the threads of the asyncio loop's default executor."""
    # A private attribute of asyncio. The loop keeps these threads, so they are not leaks.
    return set(getattr(getattr(_loop(), "_default_executor", None), "_threads", ()))


def _open_descriptors() -> Iterator[tuple[int, str]]:
    folder = _PROC / "self" / "fd"
    if not SEES_PROCESSES:
        return
    # This uses plain functions of `os`, because there are many descriptors, and sockets are not
    # paths.
    for name in os.listdir(folder):  # noqa: PTH208
        with suppress(FileNotFoundError):
            target = os.readlink(folder / name)  # noqa: PTH115
            # Private directories may be in shared memory.
            if not target.startswith(("/dev/", "/proc/")) or target.startswith("/dev/shm/"):
                yield int(name), target


def _own_processes() -> Iterator[Process]:
    """Yield all descendants, even those whose parents have ended."""
    mine, mark = os.getpid(), f"{_MARK}={os.getpid()}".encode()
    parents = {mine, *_reaper}
    for process in all_processes() if SEES_PROCESSES else ():
        with suppress(OSError):
            is_own = process.parent in parents or mark in _read_words(process.pid, "environ")
            # Only the parent of an ended process can wait for it.
            if is_own and process.pid != mine and (process.is_alive or process.parent == mine):
                yield process


def is_waiting(pid: int) -> bool:
    """Return whether a process waits for an event and needs no CPU."""
    process = look_at(pid)
    return process is not None and process.state in ("S", "D")


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
    """Collect the log records of all levels for which `wants` returns True."""
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
    """Raise PermissionError for every access below a directory, and collect the refused paths."""
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
"""Python's warning about a dropped object, and the lines that led to it, innermost last."""
# Warnings about objects that a module opens itself. Sockets and transports belong to libraries,
# and to threads that may end late.
_UNCLOSED = ("unclosed file", "unclosed <memoryobject")


@contextmanager
def dropped_objects() -> Iterator[tuple[list[Dropped], list[Dropped]]]:
    """Collect the coroutines that are dropped unawaited, and the streams and files left open."""
    unawaited: list[Dropped] = []
    unclosed: list[Dropped] = []
    depth = sys.get_coroutine_origin_tracking_depth()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        warnings.simplefilter("always", ResourceWarning)
        sys.set_coroutine_origin_tracking_depth(5)
        try:
            yield unawaited, unclosed
        finally:
            sys.set_coroutine_origin_tracking_depth(depth)
            for warning in caught:
                text = str(warning.message)
                if "was never awaited" in text:
                    lines = [(file, int(line)) for file, line in _ORIGIN.findall(text)]
                    unawaited.append((text.partition("\n")[0], lines))
                elif text.lower().startswith(_UNCLOSED):
                    place = (warning.filename, warning.lineno)
                    unclosed.append((_CHANGING.sub("", text), [place]))


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
    """Return the number of processes that this one has started since the first call."""
    _hook()
    return _started[0]


def _hook() -> None:
    """Install the audit hook once, since Python cannot remove one."""
    if not _is_hooked:
        _is_hooked.append(True)
        sys.addaudithook(_dispatch)


def _dispatch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTING:
        _started[0] += 1
    for events, seen in _listeners:
        if event in events:
            seen.append(f"{event} {arguments[1:]!r}"[:200])


# ── process-wide state, such as the environment ──

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
_MAX_VALUE_LENGTH = 80
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
    umask = os.umask(0)
    os.umask(umask)
    return umask


def _signals() -> dict[str, Any]:
    # SIGALRM is used by the kit itself.
    return {
        number.name: signal.getsignal(number)
        for number in signal.Signals
        if number != signal.SIGALRM
    }


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
        **{name: logger for name, logger in named.items() if isinstance(logger, logging.Logger)},
    }


def _logging() -> dict[str, Any]:
    """Read the handlers of all loggers and the settings that hold for all of them.

    Levels and new loggers are left out, because a module may set those of its own.
    """
    handlers: dict[str, Any] = {
        f"the handlers of {name or 'root'}": list(logger.handlers)
        for name, logger in _loggers().items()
    }
    silenced = [name for name, logger in _loggers().items() if logger.disabled]
    return {
        **handlers,
        "the root level": logging.root.level,
        "logging.disable": logging.root.manager.disable,
        "disabled": silenced,
    }


def _set_logging(wanted: Mapping[str, Any]) -> None:
    for name, logger in _loggers().items():
        logger.handlers[:] = wanted.get(f"the handlers of {name or 'root'}", logger.handlers)
        logger.disabled = name in wanted["disabled"]
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
    """Return whether a filter applies to all code.

    Libraries add filters for their own messages, modules and categories when they are imported.
    """
    _, message, category, module, _ = warning_filter
    return message is None and module is None and category.__module__ == "builtins"


def _filters() -> list[Any]:
    return [entry for entry in warnings.filters if _is_general(entry)]


def _set_filters(wanted: list[Any]) -> None:
    special = [entry for entry in warnings.filters if not _is_general(entry)]
    warnings.filters[:] = [*special, *wanted]  # type: ignore[index]


@frozen
class Part:
    """One part of the process-wide state.

    Attributes:
        read: Returns the value. Mappings are compared key by key.
        write: Sets the value that was read.
        is_lasting: True if a module may change it until its cleanup, because other sessions don't
            notice the change.
        may_grow: True if a module may add keys.
    """

    read: Callable[[], Any]
    write: Callable[[Any], Any]
    is_lasting: bool = False
    may_grow: bool = False


def _attributes(owner: Callable[[], Any], *names: str, is_lasting: bool = False) -> Part:
    """Return a part that consists of attributes of an object, named by dotted paths."""

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
    "the members of standard library modules": Part(_functions, _set_functions, may_grow=True),
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
        """Return a phrase for each part that differs from the snapshot.

        Args:
            lasting: True to include the parts that a module may change until its cleanup.
        """
        changes = {}
        for name, part in PARTS.items():
            before, now = self._read[name], part.read()
            if (
                before != now
                and (lasting or not part.is_lasting)
                and (how := _difference(before, now, part.may_grow))
            ):
                changes[name] = how
        return changes

    def restore(self) -> None:
        """Set the parts that differ back to the snapshot."""
        for name, part in PARTS.items():
            if part.read() != self._read[name]:
                # The folder may be gone, and a signal can't be set in another thread.
                with suppress(OSError, ValueError):
                    part.write(self._read[name])


def _difference(before: Any, now: Any, may_grow: bool) -> str:
    if isinstance(before, list):
        added = [_short(item) for item in now if item not in before]
        gone = [_short(item) for item in before if item not in now]
        return (
            "; ".join(
                [
                    *(f"{item} is new" for item in added[:2]),
                    *(f"{item} is gone" for item in gone[:2]),
                ]
            )
            or "it has another order"
        )
    if not isinstance(before, dict):
        return f"was {_short(before)} and is {_short(now)}"
    for key in [*before, *(() if may_grow else now)]:
        old, new = (side.get(key, "nothing") for side in (before, now))
        if isinstance(old, dict) and old is not new:
            if inner := _difference(old, new, may_grow):
                return f"{key}.{inner}"
        elif old != new:
            return f"{key} was {_short(old)} and is {_short(new)}"
    return ""


def _short(value: Any) -> str:
    text = str(value) if value == "nothing" else _AT_ADDRESS.sub("", repr(value))
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:_MAX_VALUE_LENGTH]}…"
