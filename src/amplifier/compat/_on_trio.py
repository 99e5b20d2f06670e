"""A published module that turns out to need asyncio while trio runs: the failure is named like the refusal at loading.

What a module calls is read from its own source when it is loaded (`_backends`). What it imports later, inside a function, or what a
library of its calls, shows only when the call is made: asyncio then says "no running event loop", and trio that it got something
unexpected. Such an error becomes a `ModuleLoadError` with the module and the call.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from amplifier.contracts._containment import running_asyncio_loop

from ._backends import cannot_run_on_trio
from ._methods import put_around

_NO_LOOP: Final = ("no running event loop", "no current event loop", "should be used inside a task")
_NOT_OURS: Final = ("some other framework like asyncio", "trio got unexpected")

_NONE: Final = "'NoneType' object has no attribute 'create_future'"
TELLING: Final = (RuntimeError, TypeError, AttributeError)
"""What calls of asyncio raise while trio runs."""

_METHODS: Final[dict[str, tuple[str, ...]]] = {
    "orchestrator": ("execute",),
    "context": ("add_message", "get_messages_for_request", "get_messages", "set_messages", "clear"),
    "providers": ("complete", "list_models"),
    "tools": ("execute",),
}
"""What a session calls of a module while it works, by mount point."""


def name_failures(module_id: str, point: str, thing: Any) -> None:
    """Have what a module mounted name itself when it fails for want of asyncio."""
    if running_asyncio_loop() is None:
        for method in _METHODS.get(point, ()):
            put_around(thing, method, functools.partial(_named, module_id), key="trio")


def naming_failures(module_id: str, handler: Callable[..., Any]) -> Callable[..., Any]:
    """A handler that does the same; itself where asyncio runs."""
    if running_asyncio_loop() is not None or not callable(handler):
        return handler

    @functools.wraps(handler, updated=())
    def calling(*args: Any, **kwargs: Any) -> Any:
        try:
            answer = handler(*args, **kwargs)
        except TELLING as exc:
            raise_named(module_id, exc)
            raise
        return _named(module_id, lambda: answer) if inspect.isawaitable(answer) else answer

    return calling


async def _named(module_id: str, call: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await call()
    except TELLING as exc:
        raise_named(module_id, exc)
        raise


def raise_named(module_id: str, exc: Exception) -> None:
    """Raise the worded error if that is what an exception means; the caller raises the exception otherwise.

    Raises:
        ModuleLoadError: The module called something that needs a running asyncio loop.
    """
    named = worded(module_id, exc)
    if named is not exc:
        raise named from exc


def worded(module_id: str, exc: Exception) -> Exception:
    """The error that names a module and its call of asyncio, if that is what an exception means; else the exception."""
    text = str(exc)
    is_about_the_loop = isinstance(exc, RuntimeError) and any(words in text for words in _NO_LOOP)
    is_about_a_yield = isinstance(exc, TypeError) and any(words in text for words in _NOT_OURS)
    is_about_none = (
        isinstance(exc, AttributeError) and text == _NONE
    )  # locks and queues ask nobody before they use the loop
    if running_asyncio_loop() is None and (is_about_the_loop or is_about_a_yield or is_about_none):
        return cannot_run_on_trio(module_id, _call_in(exc.__traceback__))
    return exc


def _call_in(traceback: TracebackType | None) -> str:
    """The last thing in a traceback that was called from outside asyncio and this package, with where it stands."""
    frames: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    for index in range(len(frames) - 1, -1, -1):
        file, line, _ = frames[index]
        if _is_of(file, "asyncio") or _is_of(file, "trio") or Path(file).is_relative_to(Path(__file__).parents[1]):
            continue
        written = re.search(r"\b(?:asyncio|aio)\.([\w.]+)", linecache.getline(file, line))
        called = next((name for other, _, name in frames[index + 1 :] if _is_of(other, "asyncio")), None)
        what = written[1] if written else called
        return f"{'asyncio' if what is None else f'asyncio.{what}'} ({Path(file).name}, line {line})"
    return "asyncio"


def _is_of(file: str, package: str) -> bool:
    return package in Path(file).parts
