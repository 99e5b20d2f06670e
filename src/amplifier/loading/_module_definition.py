"""Examining what was imported: is there a mount function, what kind is it, what else does it offer.

Nothing here calls a mount function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, Final

import attrs

from amplifier.errors import ModuleLoadError

from ._importing import MODULE_PREFIX, foreign_code
from ._loaded_module import LoadedModule, check_declared_backends, check_declared_type, type_from_id

_MISSING: Final = object()


@attrs.frozen(kw_only=True, eq=False)
class Blueprint:
    """All of a `LoadedModule` that does not depend on the loader and the config, so that a second load costs one small record.

    Attributes:
        complaint: What is wrong with the module though it can be used; logged at every load.
        backends: What the module declares as ``__amplifier_backends__``; None when it declares none.
        is_on_island: It is mounted on an asyncio island, in a session on trio.
    """

    mount: Callable[..., Any]
    module_type: str | None
    on_session_ready: Callable[..., Any] | None
    origin: str
    path: Path | None
    complaint: str | None
    backends: tuple[str, ...] | None = None
    is_on_island: bool = False

    def on_island(self, module_id: str) -> Blueprint:
        """The same module for a session on trio, where it runs on an asyncio island."""
        from amplifier._islands import mount_on_island, ready_on_island  # noqa: PLC0415 — asyncio on trio is for few sessions

        ready = self.on_session_ready
        return attrs.evolve(
            self,
            mount=mount_on_island(self.mount, module_id),
            on_session_ready=None if ready is None else ready_on_island(ready, module_id),
            is_on_island=True,
        )

    def loaded(self, module_id: str, config: dict[str, Any]) -> LoadedModule:
        return LoadedModule(
            module_id=module_id,
            module_type=self.module_type,
            mount=self.mount,
            config=config,
            on_session_ready=self.on_session_ready,
            origin=self.origin,
            path=self.path,
        )


def examine_registered(module_id: str, source: object, module_type: str | None) -> Blueprint:
    """Examine what was registered in process: a mount function, or something that has one.

    A bare function is taken by itself: the Python module it is defined in may define many.

    Raises:
        ModuleLoadError: It cannot be used.
    """
    with foreign_code(module_id, f"reading the attributes of a registered {type(source).__name__}"):
        mount = getattr(source, "mount", source)
        declared = module_type if module_type is not None else _first_attribute((source,), "__amplifier_module_type__")
        ready = _first_attribute((source,), "on_session_ready")
        backends = _first_attribute((source,), "__amplifier_backends__")
    return _checked(module_id, mount, declared, ready, backends, origin="registered in process")


def examine_imported(
    module_id: str, module: ModuleType, attribute: str = "", *, origin: str, path: Path | None = None
) -> Blueprint:
    """Examine what was imported: the Python module itself, or the (dotted) attribute of it that was named.

    Raises:
        ModuleLoadError: There is no usable mount function.
    """
    with foreign_code(module_id, f"looking for mount in {module.__name__!r}"):
        target = find_target(module, attribute)
        mount = getattr(target, "mount", target)
        holders = _holders(module, target, mount)
        declared = _first_attribute(holders, "__amplifier_module_type__")
        ready = _first_attribute(holders, "on_session_ready")
        backends = _first_attribute(holders, "__amplifier_backends__")
    if target is _MISSING or isinstance(mount, ModuleType):
        raise ModuleLoadError(
            f"module {module_id!r} ({origin}) has no {attribute or 'mount'!r} in the Python module "
            f"{module.__name__!r}; expected async def mount(coordinator, config)",
            module_id=module_id,
            reason_code="invalid_entry_point",
        )
    if path is None and isinstance(file := getattr(module, "__file__", None), str):
        path = Path(file).parent if hasattr(module, "__path__") else Path(file)
    return _checked(module_id, mount, declared, ready, backends, origin=origin, path=path)


def find_target(module: ModuleType, attribute: str) -> object:
    """What an entry point refers to; a sentinel when there is nothing of that name."""
    target: object = module
    for name in attribute.split(".") if attribute else ():
        target = getattr(target, name, _MISSING)
    return target


def _holders(module: ModuleType, target: object, mount: object) -> tuple[object, ...]:
    """The objects that may declare something about the module, best first: where mount is defined, where it was found, its package."""
    defined_in = sys.modules.get(getattr(mount, "__module__", None) or "")
    # A package that only hosts modules, such as an application, declares nothing about any one of them.
    top = module.__name__.partition(".")[0]
    package = sys.modules.get(top) if top.startswith(MODULE_PREFIX) else None
    return target, defined_in, module, package


def _checked(
    module_id: str,
    mount: object,
    declared: object,
    ready: object,
    backends: object,
    *,
    origin: str,
    path: Path | None = None,
) -> Blueprint:
    if not callable(mount):
        raise ModuleLoadError(
            f"module {module_id!r} ({origin}): mount is {mount!r}, which is not callable; "
            "expected async def mount(coordinator, config)",
            module_id=module_id,
            reason_code="invalid_entry_point",
        )
    if not accepts_coordinator_and_config(mount):
        raise ModuleLoadError(
            f"module {module_id!r} ({origin}): the signature is {_shown_signature(mount)}; "
            "expected one that can be called as mount(coordinator, config)",
            module_id=module_id,
            reason_code="invalid_entry_point",
        )
    ready, complaint = _ready_callback(ready, module_id, origin)
    return Blueprint(
        mount=mount,
        module_type=type_from_id(module_id) if declared is None else check_declared_type(declared, module_id, origin),
        on_session_ready=ready,
        origin=origin,
        path=path,
        complaint=complaint,
        backends=check_declared_backends(backends, module_id, origin),
    )


def accepts_coordinator_and_config(mount: Callable[..., Any]) -> bool:
    """Whether ``mount(coordinator, config)`` fits the signature; True when there is none to look at."""
    function = mount
    # Not through a bound method: what it wraps takes the object as well.
    while type(function) is FunctionType and (wrapped := getattr(function, "__wrapped__", None)) is not None:
        function = wrapped
    # A plain function is read off its code object: `inspect.signature` costs ten times as much, and every session
    # asks this for each module registered in process.
    if type(function) is FunctionType and "__signature__" not in function.__dict__:
        code = function.__code__
        most = code.co_argcount
        least = most - len(function.__defaults__ or ())
        has_varargs = bool(code.co_flags & inspect.CO_VARARGS)
        keywords_needed = code.co_kwonlyargcount - len(function.__kwdefaults__ or ())
        return least <= 2 and (most >= 2 or has_varargs) and keywords_needed == 0
    try:
        inspect.signature(mount).bind(None, None)
    except ValueError:  # written in C, no signature
        return True
    except TypeError:
        return False
    return True


def _shown_signature(mount: Callable[..., Any]) -> str:
    try:
        return f"mount{inspect.signature(mount)}"
    except (TypeError, ValueError):
        return repr(mount)


def _first_attribute(holders: tuple[object, ...], name: str) -> Any:
    for holder in holders:
        value = getattr(holder, name, _MISSING)
        if value is not _MISSING:
            return value
    return None


def _ready_callback(ready: object, module_id: str, origin: str) -> tuple[Callable[..., Any] | None, str | None]:
    """The callback if it can be used, else why not."""
    if ready is None:
        return None, None
    if callable(ready) and (inspect.iscoroutinefunction(ready) or inspect.iscoroutinefunction(type(ready).__call__)):
        return ready, None
    return None, (
        f"module {module_id!r} ({origin}): on_session_ready is {ready!r} and will not be called; "
        "expected async def on_session_ready(coordinator)"
    )
