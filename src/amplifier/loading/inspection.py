"""Examine an imported module and create the record that the session mounts."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast, final

import anyio
import attrs

from amplifier._internal.reading import can_call
from amplifier.contracts import CONTRACTS
from amplifier.errors import ModuleLoadError
from amplifier.plan import ModuleSpec, type_from_id

from .discovery import TYPE_TO_MOUNT_POINT, FoundModule, check_declared_type
from .importing import MODULE_PREFIX, foreign_code

_MISSING: Final = object()
_EXPECTED_MOUNT: Final = "expected async def mount(coordinator, config)"


@final
@attrs.frozen(kw_only=True, eq=False)
class LoadedModule:
    """A module that was imported and classified, but not mounted.

    Attributes:
        module_id: The id by which it was loaded.
        module_type: A key of `ModuleLoader.TYPE_TO_MOUNT_POINT`. None if the module declares no
            kind and the first word of its id isn't one. The section of the mount plan then decides.
        mount: The module's mount function, not called yet.
        config: A copy of the module's config in the mount plan. Never None.
        on_session_ready: The module's async ``on_session_ready``, or None.
        origin: The place it came from, for people.
        path: The package directory or file of the module, or None if unknown.
        backends: The ``__amplifier_backends__`` that the module declares, or None.
        is_on_island: True if the module is mounted on an asyncio island in a session on trio.
        complaint: A fault of the module that doesn't prevent its use, or None. It is logged at
            every load.
    """

    module_id: str
    module_type: str | None
    mount: Callable[..., Any]
    # The config may contain credentials, so the repr omits it.
    config: dict[str, Any] = attrs.field(factory=dict, repr=False)
    on_session_ready: Callable[..., Any] | None = None
    origin: str
    path: Path | None = None
    backends: tuple[str, ...] | None = None
    is_on_island: bool = False
    complaint: str | None = None

    @property
    def mount_point(self) -> str | None:
        """The mount point for the module's kind. None if the kind is unknown."""
        return None if self.module_type is None else TYPE_TO_MOUNT_POINT[self.module_type]

    def with_config(self, config: dict[str, Any]) -> LoadedModule:
        """Return the same module with another config."""
        return attrs.evolve(self, config=config)

    def on_island(self) -> LoadedModule:
        """Return the same module for a session on trio, where it runs on an asyncio island."""
        # Few sessions need it.
        from amplifier.loading._islands import on_island  # noqa: PLC0415

        ready = self.on_session_ready
        return attrs.evolve(
            self,
            mount=on_island(self.mount, self.module_id),
            on_session_ready=None if ready is None else on_island(ready, self.module_id),
            is_on_island=True,
        )

    async def __call__(self, coordinator: Any, config: dict[str, Any] | None = None) -> Any:
        """Mount by hand: ``cleanup = await (await loader.load(module_id))(coordinator)``.

        A structured mount (an async context manager) is handed to ``coordinator.host``, which keeps
        it open in a separate task until the session closes.

        Returns:
            The result of the mount function: a cleanup callable, an instance or None.

        Raises:
            ModuleLoadError: The mount is structured and this coordinator can't host one.
        """
        result = self.mount(coordinator, config or self.config or {})
        if is_structured(result):
            host = getattr(coordinator, "host", None)
            if host is None:
                raise ModuleLoadError(
                    f"module {self.module_id!r} mounts as an async context manager, but "
                    f"{coordinator!r} has no host(); mount it through a session",
                    module_id=self.module_id,
                    reason_code="mount_failed",
                )
            return await host(result, name=self.module_id)
        return await result if inspect.isawaitable(result) else result


def is_structured(result: object) -> bool:
    """Return whether the result of a mount function is an async context manager.

    The methods are looked up on the type, as by ``async with``.
    """
    return hasattr(type(result), "__aenter__") and hasattr(type(result), "__aexit__")


def examine_registered(entry: FoundModule) -> LoadedModule:
    """Examine an object that was registered in process: a mount function, or an owner of one.

    The Python module of a bare function isn't read, because it may define many modules.

    Raises:
        ModuleLoadError: The object can't be used.
    """
    kind = type(entry.registered).__name__
    with foreign_code(entry.module_id, f"reading the attributes of a registered {kind}"):
        mount = getattr(entry.registered, "mount", entry.registered)
        declared = _declarations((entry.registered,))
    return _checked(entry, mount, declared, None)


def examine_imported(
    entry: FoundModule, module: ModuleType, path: Path | None = None
) -> LoadedModule:
    """Examine an imported Python module, or one of its attributes, which may be dotted.

    Raises:
        ModuleLoadError: There is no usable mount function.
    """
    with foreign_code(entry.module_id, f"looking for mount in {module.__name__!r}"):
        target = find_target(module, entry.attribute)
        mount = getattr(target, "mount", target)
        # These objects may have declarations about the module, in order of precedence: the owner of
        # mount, the Python module that defines it, its package. A package that only hosts modules,
        # such as an application, has no declarations about any single one.
        defined_in = sys.modules.get(getattr(mount, "__module__", None) or "")
        top = module.__name__.partition(".")[0]
        package = sys.modules.get(top) if top.startswith(MODULE_PREFIX) else None
        declared = _declarations((target, defined_in, module, package))
    if target is _MISSING or isinstance(mount, ModuleType):
        where = f"has no {entry.attribute or 'mount'!r} in the Python module {module.__name__!r}"
        raise entry.error(f" {where}; {_EXPECTED_MOUNT}", "invalid_entry_point")
    if path is None and isinstance(file := getattr(module, "__file__", None), str):
        path = Path(file).parent if hasattr(module, "__path__") else Path(file)
    return _checked(entry, mount, declared, path)


def find_target(module: ModuleType, attribute: str) -> object:
    """Return the target of an entry point, or a sentinel if there is nothing with that name."""
    target: object = module
    for name in attribute.split(".") if attribute else ():
        target = getattr(target, name, _MISSING)
    return target


def _declarations(holders: tuple[object, ...]) -> tuple[Any, Any, Any]:
    """Return the kind, the callback and the backends that the holders declare, or None.

    The first holder with a declaration counts.
    """

    def first(name: str) -> Any:
        values = (getattr(holder, name, _MISSING) for holder in holders)
        return next((value for value in values if value is not _MISSING), None)

    return (
        first("__amplifier_module_type__"),
        first("on_session_ready"),
        first("__amplifier_backends__"),
    )


def _checked(
    entry: FoundModule, mount: object, declared: tuple[Any, Any, Any], path: Path | None
) -> LoadedModule:
    kind, ready, backends = declared
    kind = kind if entry.registered_type is None else entry.registered_type
    if not callable(mount):
        raise entry.error(
            f": mount is {mount!r}, which is not callable; {_EXPECTED_MOUNT}", "invalid_entry_point"
        )
    if not can_call(mount, None, None):
        expected = "expected one that can be called as mount(coordinator, config)"
        raise entry.error(
            f": the signature is mount{inspect.signature(mount)}; {expected}", "invalid_entry_point"
        )
    complaint = None
    if ready is not None and not _is_async(ready):
        complaint = (
            f"module {entry.module_id!r} ({entry}): on_session_ready is {ready!r} and will not be "
            "called; expected async def on_session_ready(coordinator)"
        )
    return LoadedModule(
        module_id=entry.module_id,
        module_type=type_from_id(entry.module_id)
        if kind is None
        else check_declared_type(kind, entry),
        mount=mount,
        on_session_ready=ready if complaint is None else None,
        origin=str(entry),
        path=path,
        complaint=complaint,
        backends=_checked_backends(backends, entry),
    )


def _is_async(fn: object) -> bool:
    return inspect.iscoroutinefunction(fn) or (
        callable(fn) and inspect.iscoroutinefunction(type(fn).__call__)
    )


def _checked_backends(declared: object, entry: FoundModule) -> tuple[str, ...] | None:
    if declared is None:
        return None
    names = (declared,) if isinstance(declared, str) else declared
    if (
        isinstance(names, tuple | list | set | frozenset)
        and all(isinstance(name, str) for name in names)
        and names
    ):
        return tuple(names)
    expected = "expected a tuple of names, such as ('asyncio',)"
    raise entry.error(
        f" declares __amplifier_backends__ = {declared!r}; {expected}", "invalid_module_metadata"
    )


def usable_here(module: LoadedModule) -> LoadedModule:
    """Return a module for the running backend. On trio a module for asyncio gets an island.

    Raises:
        ModuleLoadError: The module declares only other backends, and there is no island for them.
    """
    try:
        running = anyio.get_cancelled_exc_class().__module__.partition(".")[0]
    # No event loop is running, so the module may be for a later one.
    except RuntimeError:
        return module
    if module.backends is None or running in module.backends:
        return module
    if running != "trio" or "asyncio" not in module.backends:
        raise ModuleLoadError(
            f"module {module.module_id!r} ({module.origin}) cannot run on {running}: it declares "
            f"__amplifier_backends__ = {module.backends!r}; run the session on "
            f"{' or '.join(module.backends)}, or use another module",
            module_id=module.module_id,
            reason_code="validation_failed",
        )
    return module.on_island()


# ── modules in a plan as objects instead of ids ──────────────────────────────────────────────────

_EXPECTED: Final = {
    "tool": "a function, an object with name, description and execute(input)",
    "hook": "a function marked with @on('tool:pre', …)",
    "provider": "an object with name and complete(request)",
    "context": (
        "an object with add_message, get_messages_for_request, get_messages, set_messages and clear"
    ),
    "orchestrator": "an object with execute(prompt, context, providers, tools, hooks)",
}


def load_thing(kind: str, spec: ModuleSpec) -> LoadedModule:
    """Return the module for a function, an instance or a mount function in a plan.

    Raises:
        ModuleLoadError: This section of a plan takes no such object.
    """
    mount = _mount_of(kind, spec)
    entry = FoundModule(module_id=spec.module, registered=mount, registered_type=kind)
    return usable_here(examine_registered(entry))


def _mount_of(kind: str, spec: ModuleSpec) -> Any:
    thing = spec.thing
    if isinstance(thing, type):
        name = thing.__name__
        raise _error(kind, spec, f"the class {name}; write {name}(…) for an instance of it")
    if callable(getattr(thing, "mount", None)):
        return thing
    if _is_mount(thing):
        return thing
    if kind != "hook" and isinstance(thing, CONTRACTS[cast("Any", kind)].protocol):

        async def mount(coordinator: object, config: dict[str, Any]) -> object:
            return thing

        return mount
    if callable(thing) and kind in ("tool", "hook"):
        # Only plans with functions need it.
        from amplifier.functions import mount_hook, mount_tool  # noqa: PLC0415

        try:
            return mount_tool(thing) if kind == "tool" else mount_hook(thing)
        except TypeError as error:
            raise _error(kind, spec, str(error)) from error
    hint = "; an agent is a tool in agent(…, tools=[…])" if hasattr(thing, "agent_name") else ""
    raise _error(kind, spec, f"{type(thing).__name__} {thing!r:.80}{hint}")


def _is_mount(thing: Any) -> bool:
    """Return whether the object is a mount function, by its name or its parameters.

    A mount function has two parameters, and either its own name is mount, or the first parameter is
    the coordinator.
    """
    if not inspect.isroutine(thing):
        return False
    try:
        names = list(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return False
    return len(names) == 2 and (
        thing.__name__ == "mount" or names[0].strip("_") in ("coordinator", "coord")
    )


def _error(kind: str, spec: ModuleSpec, actual: str) -> ModuleLoadError:
    expected = (
        f"expected the id of a module, {_EXPECTED[kind]}, or a function mount(coordinator, config)"
    )
    article = "an" if kind == "orchestrator" else "a"
    return ModuleLoadError(
        f"{spec.path} is not {article} {kind}: {expected}, got {actual}",
        module_id=spec.module,
        reason_code="invalid_entry_point",
    )
