"""Third-party code: whose it is, and wrapping an async method of one object in place."""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import sys
from collections.abc import Awaitable, Callable
from functools import lru_cache, partial
from pathlib import Path
from types import MethodType
from typing import Any, Final

_IMPORTS_ALIAS: Final = re.compile(rb"^\s*(?:from|import)\s+amplifier_core\b", re.MULTILINE)


def is_built_in(package: str) -> bool:
    """Whether a Python module is one of ours."""
    return package.partition(".")[0] == "amplifier"


def is_published(package: str) -> bool:
    """Whether a Python module belongs to a package that was written for the published kernel."""
    if is_built_in(package):
        return False
    root = package.partition(".")[0]
    # A published module is a package of its own; of anything else only the file with the mount function is read.
    file = getattr(sys.modules.get(root if root.startswith("amplifier_module_") else package), "__file__", None)
    return isinstance(file, str) and _imports_alias(file)


@lru_cache(maxsize=256)
def _imports_alias(file: str) -> bool:
    """Whether a file, or a package whose ``__init__.py`` it is, imports ``amplifier_core``, at its top or inside a function."""
    start = Path(file)
    for path in start.parent.rglob("*.py") if start.name == "__init__.py" else [start]:
        if "tests" in path.relative_to(start.parent).parts:
            continue
        with contextlib.suppress(OSError):
            if _IMPORTS_ALIAS.search(path.read_bytes()):
                return True
    return False


def put_around(thing: Any, name: str, around: Callable[..., Awaitable[Any]], *, key: str) -> None:
    """Have every call of ``thing.name`` go through ``around(call, *args, **kwargs)``; repeating it with the same key does nothing.

    Only an async method that the object's class defines is wrapped: what a test has put there stays as it is. The wrapper
    is a method as well, so that a copy of the object calls itself and not the original.
    """
    method = getattr(thing, name, None)
    if not inspect.ismethod(method) or method.__self__ is not thing or not inspect.iscoroutinefunction(method.__func__):
        return
    function: Any = method.__func__
    keys: tuple[str, ...] = getattr(function, "compat_keys", ())
    if key in keys:
        return

    @functools.wraps(function)
    async def calling(self: Any, *args: Any, **kwargs: Any) -> Any:
        return await around(partial(function, self), *args, **kwargs)

    calling.compat_keys = (*keys, key)  # type: ignore[attr-defined]  # read above, by the next call for this object
    with contextlib.suppress(AttributeError, TypeError):  # not every object takes attributes
        setattr(thing, name, MethodType(calling, thing))
