"""Failures of a module that turns out to need asyncio while it runs on trio.

What a module calls is read from its own source when it is loaded (`asyncio_use`), and one that calls asyncio gets an island. A call in what it imports later, inside a function, or
in a library, shows only when it is made: asyncio then raises "no running event loop", or trio reports that it got something
unexpected. Such an error becomes a `ModuleLoadError` that names the module and the call.
"""

from __future__ import annotations

import functools
import inspect
import linecache
import re
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from amplifier.contracts._containment import running_asyncio_loop

from .asyncio_use import cannot_run_on_trio
from .methods import put_around

_NO_LOOP: Final = ("no running event loop", "no current event loop", "should be used inside a task")
_NOT_OURS: Final = ("some other framework like asyncio", "trio got unexpected")
_NONE: Final = "'NoneType' object has no attribute 'create_future'"
_RAISED_WITHOUT_LOOP: Final = (RuntimeError, TypeError, AttributeError)

_METHODS: Final[dict[str | None, tuple[str, ...]]] = {
    "orchestrator": ("execute",),
    "context": ("add_message", "get_messages_for_request", "get_messages", "set_messages", "clear"),
    "providers": ("complete", "list_models"),
    "tools": ("execute",),
}
"""What a session calls of a module, by mount point."""

running_module: ContextVar[str | None] = ContextVar("amplifier_compat_running_module", default=None)
"""The module whose translated code runs: what it mounts and registers in a published session belongs to it."""


def translate_methods(module_id: str, point: str | None, thing: Any) -> None:
    """Translate the failures of what a module mounted; nothing happens where asyncio runs."""
    if running_asyncio_loop() is None:
        for method in _METHODS.get(point, ()):
            put_around(thing, method, functools.partial(_await_translated, module_id), key="trio")


def translated(module_id: str, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A sync or async function of a module with its failures translated; the function itself where asyncio runs."""
    if running_asyncio_loop() is not None or not callable(fn):
        return fn

    @functools.wraps(fn, updated=())
    def calling(*args: Any, **kwargs: Any) -> Any:
        token = running_module.set(module_id)
        try:
            answer = fn(*args, **kwargs)
        except _RAISED_WITHOUT_LOOP as exc:
            _raise_translated(module_id, exc)
            raise
        finally:
            running_module.reset(token)
        return _await_translated(module_id, lambda: answer) if inspect.isawaitable(answer) else answer

    return calling


async def _await_translated(module_id: str, call: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any) -> Any:
    token = running_module.set(module_id)
    try:
        return await call(*args, **kwargs)
    except _RAISED_WITHOUT_LOOP as exc:
        _raise_translated(module_id, exc)
        raise
    finally:
        running_module.reset(token)


def _raise_translated(module_id: str, exc: Exception) -> None:
    """Raise the worded error if that is what an exception means; the caller raises the exception otherwise."""
    text = str(exc)
    is_about_the_loop = isinstance(exc, RuntimeError) and any(words in text for words in _NO_LOOP)
    is_about_a_yield = isinstance(exc, TypeError) and any(words in text for words in _NOT_OURS)
    # Locks and queues use the loop without checking that there is one.
    is_about_none = isinstance(exc, AttributeError) and text == _NONE
    if running_asyncio_loop() is None and (is_about_the_loop or is_about_a_yield or is_about_none):
        raise cannot_run_on_trio(module_id, _call_in(exc.__traceback__)) from exc


def _call_in(traceback: TracebackType | None) -> str:
    """The last call in a traceback that was made outside asyncio and this package, with its file and line."""
    frames: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    own = Path(__file__).parents[2]
    for index in range(len(frames) - 1, -1, -1):
        file, line, _ = frames[index]
        if _is_of(file, "asyncio") or _is_of(file, "trio") or Path(file).is_relative_to(own):
            continue
        written = re.search(r"\b(?:asyncio|aio)\.([\w.]+)", linecache.getline(file, line))
        called = next((name for other, _, name in frames[index + 1 :] if _is_of(other, "asyncio")), None)
        what = written[1] if written else called
        return f"{'asyncio' if what is None else f'asyncio.{what}'} ({Path(file).name}, line {line})"
    return "asyncio"


def _is_of(file: str, package: str) -> bool:
    return package in Path(file).parts
