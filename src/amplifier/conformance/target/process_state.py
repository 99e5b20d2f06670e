"""The state that all code of a process shares, such as its environment and its working directory: read, compared and restored.

`PARTS` is the one table: a name, how to read it and how to set it again. Threads, processes and open files are in
`process`, tasks in `checks.every_module.cancellation`.
"""

from __future__ import annotations

import decimal
import gc
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from attrs import frozen

_PATCHED = (
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
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


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
    return {each.name: signal.getsignal(each) for each in signal.Signals if each != signal.SIGALRM}  # the kit's own


def _set_signals(wanted: Mapping[str, Any]) -> None:
    for name, handler in wanted.items():
        if handler is not None and signal.getsignal(signal.Signals[name]) is not handler:
            signal.signal(signal.Signals[name], handler)


def _functions() -> dict[str, dict[str, Any]]:
    return {name: dict(vars(sys.modules[name])) for name in _PATCHED if name in sys.modules}


def _set_functions(wanted: Mapping[str, Mapping[str, Any]]) -> None:
    for name, members in wanted.items():
        vars(sys.modules[name]).update(members)


def _loggers() -> dict[str, logging.Logger]:
    named = logging.root.manager.loggerDict
    return {"": logging.root, **{name: each for name, each in named.items() if isinstance(each, logging.Logger)}}


def _logging() -> dict[str, Any]:
    """Handlers of all loggers that exist, and what holds for all of them; a level or a logger of the module's own is its own."""
    found: dict[str, Any] = {
        f"the handlers of {name or 'root'}": list(each.handlers) for name, each in _loggers().items()
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


def _hooks() -> dict[str, Any]:
    streams = {
        f"sys.{name}": getattr(sys, name) for name in ("stdout", "stderr", "stdin", "excepthook", "unraisablehook")
    }
    return {**streams, "threading.excepthook": threading.excepthook}


def _set_hooks(wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        setattr(sys.modules[name.partition(".")[0]], name.partition(".")[2], value)


def _loop() -> Any:
    events = sys.modules.get("asyncio.events")
    return None if events is None else events._get_running_loop()


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


def _decimals() -> dict[str, Any]:
    context = decimal.getcontext()
    return {name: getattr(context, name) for name in ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")}


def _is_general(warning_filter: tuple[Any, ...]) -> bool:
    """Whether it is about all code; libraries add filters for messages, modules and categories of their own when they are imported."""
    _, message, category, module, _ = warning_filter
    return message is None and module is None and category.__module__ == "builtins"


def _filters() -> list[Any]:
    return [each for each in warnings.filters if _is_general(each)]


def _set_filters(wanted: list[Any]) -> None:
    warnings.filters[:] = [*(each for each in warnings.filters if not _is_general(each)), *wanted]  # type: ignore[index]


def _set_decimals(wanted: Mapping[str, Any]) -> None:
    for name, value in wanted.items():
        setattr(decimal.getcontext(), name, value)


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


PARTS: dict[str, Part] = {
    "the environment": Part(lambda: dict(os.environ), _set_environment),
    "the working directory": Part(_folder, os.chdir),
    "the umask": Part(_umask, os.umask),
    "the locale": Part(partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)),
    "the time zone": Part(lambda: time.tzname, lambda _: time.tzset()),
    "the decimal context": Part(_decimals, _set_decimals),
    "what modules of the standard library hold": Part(_functions, _set_functions, may_grow=True),
    "the default timeout of sockets": Part(socket.getdefaulttimeout, socket.setdefaulttimeout),
    "the recursion limit": Part(sys.getrecursionlimit, sys.setrecursionlimit),
    "the switch interval": Part(sys.getswitchinterval, sys.setswitchinterval),
    "the garbage collection": Part(gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
    "the signal handlers": Part(_signals, _set_signals, is_lasting=True),
    "the logging configuration": Part(_logging, _set_logging, is_lasting=True, may_grow=True),
    "the warnings filters": Part(_filters, _set_filters, is_lasting=True),
    "sys.path": Part(lambda: list(sys.path), lambda paths: sys.path.__setitem__(slice(None), paths), is_lasting=True),
    "the interpreter's hooks and streams": Part(_hooks, _set_hooks, is_lasting=True),
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
            if before != now and (lasting or not part.is_lasting) and (how := _difference(before, now, part.may_grow)):
                found[name] = how
        return found

    def restore(self) -> None:
        """Set what differs to what it was."""
        for name, part in PARTS.items():
            if part.read() != self._read[name]:
                with suppress(OSError, ValueError):  # a folder that is gone, a signal in another thread
                    part.write(self._read[name])


def _difference(before: Any, now: Any, may_grow: bool) -> str:
    if isinstance(before, list):
        added = [_short(each) for each in now if each not in before]
        gone = [_short(each) for each in before if each not in now]
        return (
            "; ".join([*(f"{each} is new" for each in added[:2]), *(f"{each} is gone" for each in gone[:2])])
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
    text = str(value) if value == "nothing" else _ADDRESS.sub("", repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
