"""What a loaded module is: the record that the session mounts, made by examining what was imported.

Nothing here calls a mount function.
"""

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
        module_id: The id it was loaded by.
        module_type: One of `ModuleLoader.TYPE_TO_MOUNT_POINT`; None when the module declares nothing and its id's first word
            names no kind, in which case the section of the mount plan decides.
        mount: The module's own mount function; not called yet.
        config: The module's config in the mount plan; a copy, never None.
        on_session_ready: The module's async ``on_session_ready``, if it has one.
        origin: Where it came from, for people.
        path: Its package directory or file, where that is known.
        backends: What the module declares as ``__amplifier_backends__``; None when it declares none.
        is_on_island: It is mounted on an asyncio island, in a session on trio.
        complaint: What is wrong with the module though it can be used; logged at every load.
    """

    module_id: str
    module_type: str | None
    mount: Callable[..., Any]
    config: dict[str, Any] = attrs.field(factory=dict, repr=False)  # may hold credentials
    on_session_ready: Callable[..., Any] | None = None
    origin: str
    path: Path | None = None
    backends: tuple[str, ...] | None = None
    is_on_island: bool = False
    complaint: str | None = None

    @property
    def mount_point(self) -> str | None:
        """The mount point of its kind; None when the kind is not known."""
        return None if self.module_type is None else TYPE_TO_MOUNT_POINT[self.module_type]

    def with_config(self, config: dict[str, Any]) -> LoadedModule:
        """The same module for an entry of a plan."""
        return attrs.evolve(self, config=config)

    def on_island(self) -> LoadedModule:
        """The same module for a session on trio, where it runs on an asyncio island."""
        from amplifier.loading._islands import on_island  # noqa: PLC0415 — asyncio on trio is for few sessions

        ready = self.on_session_ready
        return attrs.evolve(
            self,
            mount=on_island(self.mount, self.module_id),
            on_session_ready=None if ready is None else on_island(ready, self.module_id),
            is_on_island=True,
        )

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
        if is_structured(result):
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


def is_structured(result: object) -> bool:
    """Whether a mount function returned an async context manager; looked up on the type, as ``async with`` does."""
    return hasattr(type(result), "__aenter__") and hasattr(type(result), "__aexit__")


def examine_registered(found: FoundModule) -> LoadedModule:
    """Examine what was registered in process: a mount function, or something that has one.

    A bare function is taken by itself: the Python module it is defined in may define many.

    Raises:
        ModuleLoadError: It cannot be used.
    """
    with foreign_code(
        found.module_id, f"reading the attributes of a registered {type(found.registered).__name__}"
    ):
        mount = getattr(found.registered, "mount", found.registered)
        declared = _declarations((found.registered,))
    return _checked(found, mount, declared, None)


def examine_imported(
    found: FoundModule, module: ModuleType, path: Path | None = None
) -> LoadedModule:
    """Examine what was imported: the Python module itself, or the (dotted) attribute of it that was named.

    Raises:
        ModuleLoadError: There is no usable mount function.
    """
    with foreign_code(found.module_id, f"looking for mount in {module.__name__!r}"):
        target = find_target(module, found.attribute)
        mount = getattr(target, "mount", target)
        # Who may declare something about the module, best first: where mount was found, where it is defined, its package. A
        # package that only hosts modules, such as an application, declares nothing about any one of them.
        defined_in = sys.modules.get(getattr(mount, "__module__", None) or "")
        top = module.__name__.partition(".")[0]
        package = sys.modules.get(top) if top.startswith(MODULE_PREFIX) else None
        declared = _declarations((target, defined_in, module, package))
    if target is _MISSING or isinstance(mount, ModuleType):
        where = f"has no {found.attribute or 'mount'!r} in the Python module {module.__name__!r}"
        raise found.error(f" {where}; {_EXPECTED_MOUNT}", "invalid_entry_point")
    if path is None and isinstance(file := getattr(module, "__file__", None), str):
        path = Path(file).parent if hasattr(module, "__path__") else Path(file)
    return _checked(found, mount, declared, path)


def find_target(module: ModuleType, attribute: str) -> object:
    """What an entry point refers to; a sentinel when there is nothing of that name."""
    target: object = module
    for name in attribute.split(".") if attribute else ():
        target = getattr(target, name, _MISSING)
    return target


def _declarations(holders: tuple[object, ...]) -> tuple[Any, Any, Any]:
    """The kind, the callback and the backends that the first holder declares; None for what none does."""

    def first(name: str) -> Any:
        values = (getattr(holder, name, _MISSING) for holder in holders)
        return next((value for value in values if value is not _MISSING), None)

    return (
        first("__amplifier_module_type__"),
        first("on_session_ready"),
        first("__amplifier_backends__"),
    )


def _checked(
    found: FoundModule, mount: object, declared: tuple[Any, Any, Any], path: Path | None
) -> LoadedModule:
    kind, ready, backends = declared
    kind = kind if found.registered_type is None else found.registered_type
    if not callable(mount):
        raise found.error(
            f": mount is {mount!r}, which is not callable; {_EXPECTED_MOUNT}", "invalid_entry_point"
        )
    if not can_call(mount, None, None):
        expected = "expected one that can be called as mount(coordinator, config)"
        raise found.error(
            f": the signature is mount{inspect.signature(mount)}; {expected}", "invalid_entry_point"
        )
    complaint = None
    if ready is not None and not _is_async(ready):
        complaint = (
            f"module {found.module_id!r} ({found}): on_session_ready is {ready!r} and will not be called; "
            "expected async def on_session_ready(coordinator)"
        )
    return LoadedModule(
        module_id=found.module_id,
        module_type=type_from_id(found.module_id)
        if kind is None
        else check_declared_type(kind, found),
        mount=mount,
        on_session_ready=ready if complaint is None else None,
        origin=str(found),
        path=path,
        complaint=complaint,
        backends=_checked_backends(backends, found),
    )


def _is_async(fn: Any) -> bool:
    return inspect.iscoroutinefunction(fn) or (
        callable(fn) and inspect.iscoroutinefunction(type(fn).__call__)
    )


def _checked_backends(declared: object, found: FoundModule) -> tuple[str, ...] | None:
    if declared is None:
        return None
    names = (declared,) if isinstance(declared, str) else declared
    if (
        isinstance(names, tuple | list | set | frozenset)
        and all(isinstance(name, str) for name in names)
        and names
    ):
        return tuple(names)
    problem = f" declares __amplifier_backends__ = {declared!r}; expected a tuple of names, such as ('asyncio',)"
    raise found.error(problem, "invalid_module_metadata")


def usable_here(module: LoadedModule) -> LoadedModule:
    """A module that declares its backends, as it runs on the running one: trio runs it on an asyncio island if it needs asyncio.

    Raises:
        ModuleLoadError: The running backend is another one, and there is no island for the module's.
    """
    try:
        running = anyio.get_cancelled_exc_class().__module__.partition(".")[0]
    except RuntimeError:  # no event loop is running; the module may be meant for a later one
        return module
    if module.backends is None or running in module.backends:
        return module
    if running != "trio" or "asyncio" not in module.backends:
        raise ModuleLoadError(
            f"module {module.module_id!r} ({module.origin}) cannot run on {running}: it declares __amplifier_backends__ = "
            f"{module.backends!r}; run the session on {' or '.join(module.backends)}, or use another module",
            module_id=module.module_id,
            reason_code="validation_failed",
        )
    return module.on_island()


# ── entries of a plan that are no ids but the modules themselves ─────────────────────────────────

_EXPECTED: Final = {
    "tool": "a function, an object with name, description and execute(input)",
    "hook": "a function marked with @on('tool:pre', …)",
    "provider": "an object with name and complete(request)",
    "context": "an object with add_message, get_messages_for_request, get_messages, set_messages and clear",
    "orchestrator": "an object with execute(prompt, context, providers, tools, hooks)",
}


def load_thing(kind: str, spec: ModuleSpec) -> LoadedModule:
    """What the session mounts for a function, an instance or a mount function in a plan.

    Raises:
        ModuleLoadError: It is none that this section of a plan takes; the message says what it takes.
    """
    mount = _mount_of(kind, spec)
    found = FoundModule(module_id=spec.module, registered=mount, registered_type=kind)
    return usable_here(examine_registered(found))


def _mount_of(kind: str, spec: ModuleSpec) -> Any:
    thing = spec.thing
    if isinstance(thing, type):
        raise _error(
            kind,
            spec,
            f"the class {thing.__name__}; write {thing.__name__}(…) for an instance of it",
        )
    if callable(getattr(thing, "mount", None)):
        return thing
    if _is_mount(thing):
        return thing
    if kind != "hook" and isinstance(thing, CONTRACTS[cast("Any", kind)].protocol):

        async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
            return thing

        return mount
    if callable(thing) and kind in ("tool", "hook"):
        from amplifier.functions import mount_hook, mount_tool  # noqa: PLC0415 — for plans with functions

        try:
            return mount_tool(thing) if kind == "tool" else mount_hook(thing)
        except TypeError as error:
            raise _error(kind, spec, str(error)) from error
    hint = "; an agent is a tool in agent(…, tools=[…])" if hasattr(thing, "agent_name") else ""
    raise _error(kind, spec, f"{type(thing).__name__} {thing!r:.80}{hint}")


def _is_mount(thing: Any) -> bool:
    """Whether it is a mount function: it is called so, or its first parameter is the coordinator; the second is the configuration."""
    if not inspect.isroutine(thing):
        return False
    try:
        names = list(inspect.signature(thing).parameters)
    except (TypeError, ValueError):
        return False
    return len(names) == 2 and (
        thing.__name__ == "mount" or names[0].strip("_") in ("coordinator", "coord")
    )


def _error(kind: str, spec: ModuleSpec, found: str) -> ModuleLoadError:
    expected = (
        f"expected the id of a module, {_EXPECTED[kind]}, or a function mount(coordinator, config)"
    )
    return ModuleLoadError(
        f"{spec.path} is no {kind}: {expected}, got {found}",
        module_id=spec.module,
        reason_code="invalid_entry_point",
    )
