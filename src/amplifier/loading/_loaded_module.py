"""What a loaded module is: its id, its kind, the record the session mounts.

Nothing here imports foreign code or reads files.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeGuard, final

import anyio
import attrs

from amplifier.errors import ModuleLoadError

TYPE_TO_MOUNT_POINT: Final[Mapping[str, str]] = MappingProxyType(
    {
        "orchestrator": "orchestrator",
        "provider": "providers",
        "tool": "tools",
        "hook": "hooks",
        "context": "context",
        "resolver": "module-source-resolver",
    }
)
"""Every kind of module and the mount point it belongs to."""

_FIRST_WORD_TO_TYPE: Final = {
    "orchestrator": "orchestrator",
    "loop": "orchestrator",
    "provider": "provider",
    "tool": "tool",
    "tools": "tool",
    "hook": "hook",
    "hooks": "hook",
    "context": "context",
    "resolver": "resolver",
}

_MODULE_ID: Final = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_WORD_END: Final = re.compile(r"[-_]")


def is_module_id(value: object) -> TypeGuard[str]:
    """Whether a value follows the grammar of module ids."""
    # fullmatch, not match with "$": that would let a trailing newline through.
    return isinstance(value, str) and _MODULE_ID.fullmatch(value) is not None


def check_module_id(module_id: object) -> str:
    """Return the id if it follows the grammar; ids become file and package names, so this runs before anything else.

    Raises:
        ModuleLoadError: It does not.
    """
    if is_module_id(module_id):
        return module_id
    shown = repr(module_id)
    if len(shown) > 100:
        shown = f"{shown[:100]}… ({len(shown)} characters)"
    raise ModuleLoadError(
        f"{shown} is not a module id; expected lower-case letters, digits, '-' and '_', starting with a letter, "
        "at most 64 characters, such as 'tool-bash'",
        module_id=module_id if isinstance(module_id, str) else None,
        reason_code="validation_failed",
    )


def package_name(module_id: str) -> str:
    """The import package that carries a module by convention."""
    return f"amplifier_module_{module_id.replace('-', '_')}"


def type_from_id(module_id: str) -> str | None:
    """The kind an id's first word names, or None.

    Only the first word counts: ``hooks-tool-x`` is a hook about tools. When it names no kind there is no guess; the
    section of the mount plan that lists the module decides.
    """
    return _FIRST_WORD_TO_TYPE.get(_WORD_END.split(module_id, maxsplit=1)[0])


def check_declared_type(declared: object, module_id: str, origin: str) -> str:
    """Return what a module declares as its kind.

    Raises:
        ModuleLoadError: No such kind exists.
    """
    if isinstance(declared, str) and declared in TYPE_TO_MOUNT_POINT:
        return declared
    raise ModuleLoadError(
        f"module {module_id!r} ({origin}) declares __amplifier_module_type__ = {declared!r}; "
        f"expected one of {', '.join(map(repr, TYPE_TO_MOUNT_POINT))}",
        module_id=module_id,
        reason_code="invalid_module_metadata",
    )


def check_declared_backends(declared: object, module_id: str, origin: str) -> tuple[str, ...] | None:
    """Return the backends a module declares to run on; None when it declares none.

    Raises:
        ModuleLoadError: The declaration is neither a name nor several.
    """
    if declared is None:
        return None
    names = (declared,) if isinstance(declared, str) else declared
    if isinstance(names, tuple | list | set | frozenset) and all(isinstance(name, str) for name in names) and names:
        return tuple(names)
    raise ModuleLoadError(
        f"module {module_id!r} ({origin}) declares __amplifier_backends__ = {declared!r}; "
        "expected a tuple of names, such as ('asyncio',)",
        module_id=module_id,
        reason_code="invalid_module_metadata",
    )


def needs_island(backends: tuple[str, ...], module_id: str, origin: str) -> bool:
    """Whether a module that declares its backends has to run on an asyncio island here: trio runs, and it needs asyncio.

    Where nothing runs, no module needs one.

    Raises:
        ModuleLoadError: The running backend is another one, and there is no island for the module's.
    """
    try:
        running = anyio.get_cancelled_exc_class().__module__.partition(".")[0]
    except RuntimeError:  # no event loop is running; the module may be meant for a later one
        return False
    if running in backends:
        return False
    if running != "trio" or "asyncio" not in backends:
        raise ModuleLoadError(
            f"module {module_id!r} ({origin}) cannot run on {running}: it declares __amplifier_backends__ = "
            f"{backends!r}; run the session on {' or '.join(backends)}, or use another module",
            module_id=module_id,
            reason_code="validation_failed",
        )
    return True


@final
@attrs.frozen(kw_only=True, eq=False)
class LoadedModule:
    """A module that was imported and classified, but not mounted.

    Attributes:
        module_id: The id it was loaded by.
        module_type: One of `TYPE_TO_MOUNT_POINT`; None when the module declares nothing and its id's first word names
            no kind, in which case the section of the mount plan decides.
        mount: The module's own mount function; not called yet.
        config: The module's config in the mount plan; a copy, never None.
        on_session_ready: The module's async ``on_session_ready``, if it has one.
        origin: Where it came from, for people.
        path: Its package directory or file, where that is known.
    """

    module_id: str
    module_type: str | None
    mount: Callable[..., Any]
    config: dict[str, Any] = attrs.field(repr=False)  # may hold credentials
    on_session_ready: Callable[..., Any] | None = None
    origin: str
    path: Path | None = None

    @property
    def mount_point(self) -> str | None:
        """The mount point of its kind; None when the kind is not known."""
        return None if self.module_type is None else TYPE_TO_MOUNT_POINT[self.module_type]

    async def __call__(self, coordinator: Any, config: dict[str, Any] | None = None) -> Any:
        """Mount the module by hand: ``cleanup = await (await loader.load(module_id))(coordinator)``.

        A structured mount (an async context manager) is handed to ``coordinator.host``, which keeps it open in a task
        of its own until the session closes.

        Returns:
            What the mount function returned: a cleanup callable, an instance or None.

        Raises:
            ModuleLoadError: The mount is structured and this coordinator cannot host one.
        """
        result = self.mount(coordinator, config or self.config or {})
        kind = type(result)
        # Looked up on the type, as ``async with`` does.
        if hasattr(kind, "__aenter__") and hasattr(kind, "__aexit__"):
            host = getattr(coordinator, "host", None)
            if host is None:
                raise ModuleLoadError(
                    f"module {self.module_id!r} mounts as an async context manager and {coordinator!r} has no host(); "
                    "mount it through a session",
                    module_id=self.module_id,
                    reason_code="mount_failed",
                )
            return await host(result, name=self.module_id)
        return await result if inspect.isawaitable(result) else result
