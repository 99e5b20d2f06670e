"""Adapters for objects of each contract, and for the mount functions of modules on an island."""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import anyio

from amplifier.errors import ModuleLoadError, SessionStateError

from ._portal import Island, Resident

_DATA: Final = (
    str,
    bytes,
    int,
    float,
    bool,
    type(None),
    type,
    ModuleType,
    BaseException,
    set,
    frozenset,
)
_FUNCTIONS: Final = (FunctionType, MethodType, partial, BuiltinFunctionType)
_CLOSING_SECONDS: Final = 10.0
"""Seconds to close an abandoned stream, as for a cleanup in the kernel."""
_END: Final = object()
_ISLAND: Final = "_asyncio_island"


class Contract:
    """The members of a contract that an adapter treats specially, as names separated by spaces.

    Args:
        marks: Members by which objects of the contract are recognized.
        awaited: Methods that run on the object's side even if they aren't ``async def``.
        callbacks: Methods that take callbacks, sync or async, which run on the side they come from.
    """

    def __init__(self, marks: str = "", awaited: str = "", callbacks: str = "") -> None:
        self.marks: frozenset[str] = frozenset(marks.split())
        self.awaited: frozenset[str] = frozenset(awaited.split())
        self.callbacks: frozenset[str] = frozenset(callbacks.split())


_CONTRACTS: Final = (
    # coordinators
    Contract(
        "mount process_hook_result",
        callbacks="register_cleanup register_contributor register_step_wrapper host call_within"
        " run_shielded run_step start_soon",
    ),
    # hooks
    Contract("register emit", callbacks="register on"),
    # cancellation tokens
    Contract("on_cancel trigger_callbacks", callbacks="on_cancel"),
    # providers
    Contract("complete get_info", "complete list_models"),
    # contexts
    Contract(
        "add_message get_messages", "add_message get_messages get_messages_for_request set_messages"
    ),
    # tools
    Contract("execute description name", "execute"),
    # source resolvers
    Contract("async_resolve", "async_resolve"),
)
_ANY: Final = Contract()
"""The contract of loops, sessions and approval systems, which declare their async methods."""

# An adapter runs the async methods of its object on the side that the object comes from. It adapts
# arguments and results in turn. Data crosses unchanged. An object that returns to its own side is
# passed on without its adapter, so that a module gets its own objects back.


class Adapter:
    """Stands for an object of one side on the other side."""

    __slots__ = (
        "__weakref__",
        "_island_contract",
        "_island_entered",
        "_island_side",
        "_island_target",
    )

    _island_contract: Contract
    _island_entered: list[AbstractAsyncContextManager[object]]
    _island_side: Side
    _island_target: Any

    def __init__(self, side: Side, target: object, contract: Contract) -> None:
        for name, value in (
            ("side", side),
            ("target", target),
            ("contract", contract),
            ("entered", []),
        ):
            object.__setattr__(self, f"_island_{name}", value)

    def __repr__(self) -> str:
        return repr(self._island_target)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_island_"):
            raise AttributeError(name)
        value, contract = getattr(self._island_target, name), self._island_contract
        if isinstance(value, MutableMapping) and name == "mount_points":
            return _Points(self._island_side, value)
        return self._island_side.adapt(value, name in contract.awaited, name in contract.callbacks)

    def __setattr__(self, name: str, value: object) -> None:
        side = self._island_side
        side.call_now(partial(setattr, self._island_target, name, side.other.adapt(value)))

    def __delattr__(self, name: str) -> None:
        self._island_side.call_now(partial(delattr, self._island_target, name))


class Managed(Adapter):
    """Adapter of an async context manager, which may be iterable, such as a stream of a turn."""

    __slots__ = ()

    async def __aenter__(self) -> object:
        manager = asynccontextmanager(self._island_side.stream)(_hold_open(self._island_target))
        value = await manager.__aenter__()
        self._island_entered.append(manager)
        return value

    async def __aexit__(self, *exc_info: Any) -> bool | None:
        return await self._island_entered.pop().__aexit__(*exc_info)

    def __aiter__(self) -> AsyncGenerator[object, None]:
        return self._island_side.stream(aiter(self._island_target))


class _Points(MutableMapping[str, Any]):
    """The mount points of the other side, or the modules mounted at one of them."""

    def __init__(self, side: Side, points: MutableMapping[str, Any]) -> None:
        self._side = side
        self._points = points

    def __getitem__(self, name: str) -> Any:
        value = self._points[name]
        return _Points(self._side, value) if isinstance(value, dict) else self._side.adapt(value)

    def __setitem__(self, name: str, value: object) -> None:
        self._side.call_now(partial(self._points.__setitem__, name, self._side.other.adapt(value)))

    def __delitem__(self, name: str) -> None:
        self._side.call_now(partial(self._points.__delitem__, name))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._points))

    def __len__(self) -> int:
        return len(self._points)


class Side:
    """One of the two sides. It adapts its values for the other one."""

    other: Side

    def __init__(self, island: Island, *, is_trio: bool) -> None:
        self.island = island
        self._is_trio = is_trio
        # Adapters by the identity of their object, so that a cleanup that is both returned and
        # registered has a single adapter on the other side, like an instance that is both returned
        # and mounted. An adapter keeps its object alive.
        self._known: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()

    async def call(self, fn: Callable[[], Any], resident: Resident | None = None) -> Any:
        """Call a sync or async function on this side and wait for it."""
        return await self.island.cross(fn, to_trio=self._is_trio, resident=resident)

    def call_now(self, fn: Callable[[], Any]) -> Any:
        """Call a sync function on trio, or in place for the island.

        Waiting for the island would block trio.
        """
        return self.island.call_trio_now(fn) if self._is_trio else fn()

    def adapt(self, value: Any, awaited: bool = False, callbacks: bool = False) -> Any:
        """Return a value of this side for code on the other side.

        A function that is ``awaited`` runs here even if it is sync.
        """
        if isinstance(value, _DATA):
            return value
        if isinstance(value, Mapping | list | tuple):
            return _with_members(value, partial(self.adapt, awaited=awaited))
        home = None
        if isinstance(value, FunctionType | Adapter):
            home = getattr(value, "_island_side", None)
        if home is not None and home.island is self.island:
            return value if home is self else value._island_target
        # A bound method is a new object each time it is looked up.
        key = (id(value.__self__), id(value.__func__)) if type(value) is MethodType else id(value)
        adapter = self._known.get((key, awaited, callbacks))
        if adapter is None:
            adapter = self._new_adapter(value, awaited, callbacks)
            if adapter is not value:
                self._known[key, awaited, callbacks] = adapter
        return adapter

    def _new_adapter(self, value: Any, awaited: bool, callbacks: bool) -> Any:
        kind: Any = type(value)
        if inspect.iscoroutine(value) or isinstance(value, asyncio.Future):
            return self._awaiting(value)
        if hasattr(kind, "__anext__") and not hasattr(kind, "__aenter__"):
            return self.stream(value)
        if isinstance(value, _FUNCTIONS):
            return self._function(value, awaited, callbacks)
        own = getattr(value, "__dict__", {})
        names, is_async = _members(kind)
        names = names | own.keys()
        contract = next((known for known in _CONTRACTS if known.marks <= names), None)
        if contract is not None or is_async or any(map(_is_async, own.values())):
            return self._object(value, contract or _ANY, names)
        if callable(value) and (awaited or _is_async(kind.__call__)):
            return self._function(value, awaited, callbacks)
        return value

    def _object(self, value: object, contract: Contract, names: frozenset[str]) -> object:
        kind = type(value)
        base = Managed if hasattr(kind, "__aenter__") else Adapter
        # From Python 3.12 on, ``isinstance`` with a Protocol examines only the class.
        members = {name: _member(name) for name in names if not name.startswith("_")}
        return type(
            kind.__name__, (base,), {**members, "__slots__": (), "__module__": kind.__module__}
        )(self, value, contract)

    def _function(self, fn: Callable[..., Any], awaited: bool, callbacks: bool) -> Any:
        def bind(args: tuple[object, ...], kwargs: dict[str, object]) -> Callable[[], Any]:
            cross = partial(self.other.adapt, awaited=callbacks)
            return partial(
                fn, *map(cross, args), **{name: cross(value) for name, value in kwargs.items()}
            )

        def streaming(*args: object, **kwargs: object) -> object:
            return self.stream(bind(args, kwargs)())

        async def awaiting(*args: object, **kwargs: object) -> object:
            return self.adapt(await self.call(bind(args, kwargs)))

        def calling(*args: object, **kwargs: object) -> object:
            return self.adapt(self.call_now(bind(args, kwargs)))

        bare = _bare(fn if isinstance(fn, _FUNCTIONS) else type(fn).__call__)
        is_stream = inspect.isasyncgenfunction(bare)
        adapter: Any = (
            streaming if is_stream else awaiting if awaited or _is_async(bare) else calling
        )
        functools.update_wrapper(adapter, fn, updated=())
        adapter._island_side, adapter._island_target = self, fn
        return adapter

    async def _awaiting(self, awaitable: object) -> object:
        return self.adapt(await self.call(lambda: awaitable))

    # ── several calls in one task ──

    async def stream(self, iterator: Any) -> AsyncGenerator[object, None]:
        """Iterate an async iterator of this side, one item at a time.

        An exception thrown into this generator is thrown into the iterator.
        """
        resident = Resident(iterator)
        step = partial(anext, iterator, _END)
        try:
            while (item := await self.call(step, resident)) is not _END:
                step = partial(anext, iterator, _END)
                try:
                    yield self.adapt(item)
                except BaseException as exc:
                    if isinstance(exc, GeneratorExit) or not hasattr(iterator, "athrow"):
                        raise
                    step = partial(_throw, iterator, exc)
        finally:
            # Break the reference cycle with the traceback.
            del step
            if not resident.is_over:
                with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                    await self.call(resident.end, resident)


async def _hold_open(
    manager: AbstractAsyncContextManager[object],
) -> AsyncGenerator[object, None]:
    """Keep a context manager open in a generator. Both have to run in a single task."""
    async with manager as value:
        yield value


async def _throw(generator: AsyncGenerator[object, None], exc: BaseException) -> object:
    try:
        return await generator.athrow(exc)
    except StopAsyncIteration:
        return _END


def _with_members(value: Any, cross: Callable[[object], object]) -> Any:
    """Return a container with adapted members, or the container itself if none needs an adapter."""
    members = list(value.values()) if isinstance(value, Mapping) else list(value)
    crossed = [
        member if isinstance(member, (*_DATA, Mapping, list, tuple)) else cross(member)
        for member in members
    ]
    if all(new is old for new, old in zip(crossed, members, strict=True)):
        return value
    if isinstance(value, Mapping):
        return dict(zip(value, crossed, strict=True))
    return crossed if isinstance(value, list) else tuple(crossed)


@functools.lru_cache(maxsize=1024)
def _members(kind: type) -> tuple[frozenset[str], bool]:
    """Return the names of a class's members, and whether it has async methods.

    An object with async methods belongs to an event loop.
    """
    members = (
        member
        for base in kind.__mro__
        for name, member in vars(base).items()
        if not name.startswith("__")
    )
    return frozenset(dir(kind)), hasattr(kind, "__aenter__") or any(map(_is_async, members))


def _member(name: str) -> property:
    return property(lambda self: Adapter.__getattr__(self, name))


def _is_async(member: object) -> bool:
    bare = _bare(member)
    return inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare)


def _bare(member: Any) -> Any:
    while isinstance(member, partial | MethodType | staticmethod | classmethod):
        member = member.func if isinstance(member, partial) else member.__func__
    return member


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


def on_island(fn: Callable[..., Any], module_id: str) -> Callable[..., Any]:
    """Wrap a ``mount`` or ``on_session_ready``, so that it runs on the island of the session."""

    @functools.wraps(fn)
    async def calling(coordinator: Any, *args: object) -> object:
        here = _side_of(coordinator, module_id)
        return here.adapt(
            await here.call(partial(fn, here.other.adapt(coordinator), *args)), awaited=True
        )

    # Used for a structured mount.
    @functools.wraps(fn)
    def entering(coordinator: Any, *args: object) -> object:
        here = _side_of(coordinator, module_id)
        return here.adapt(fn(here.other.adapt(coordinator), *args), awaited=True)

    return calling if inspect.iscoroutinefunction(inspect.unwrap(fn)) else entering


def _side_of(coordinator: Any, module_id: str) -> Side:
    """Return the island's side in a session.

    The first asyncio-only module starts the island, which ends after the cleanups of all such
    modules.
    """
    here: Side | None = getattr(coordinator, _ISLAND, None)
    if here is not None:
        return here
    if not hasattr(coordinator, "cleanups"):
        raise ModuleLoadError(
            f"module {module_id!r} needs asyncio, and {coordinator!r} has no asyncio island to run "
            "it on in trio; mount it through a session or an amplifier.ModuleCoordinator, or run "
            "on asyncio",
            module_id=module_id,
            reason_code="mount_failed",
        )
    if coordinator.hosting.is_shut:
        raise SessionStateError(
            f"session {coordinator.session_id!r} is closed and can't start an asyncio island"
        )

    async def end() -> None:
        # Remove the island, so that a reopened session starts a new one.
        setattr(coordinator, _ISLAND, None)
        await island.stop()

    island = Island(coordinator.session_id)
    coordinator.cleanups.push(end, None, what="asyncio island")
    here, there = Side(island, is_trio=False), Side(island, is_trio=True)
    here.other, there.other = there, here
    # All coordinators of a session share their attributes.
    setattr(coordinator, _ISLAND, here)
    return here
