"""The objects of each contract as the other side uses them, and mount functions whose module lives on an island.

An adapter runs the async methods of its object on the side that the object comes from; arguments and results are adapted in turn.
Data crosses as it is. What comes back to its own side is the object itself, so a module finds its own objects as they are.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Hashable, Iterator, Mapping, MutableMapping
from contextlib import asynccontextmanager
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
"""How long a stream that is left early may take to close: the kernel's deadline of a cleanup."""
_END: Final = object()
_ISLAND: Final = "_asyncio_island"


class Contract:
    """What an adapter knows about the objects of one contract.

    Args:
        marks: Members by which they are known.
        awaited: Methods that run on the object's side even if they are not ``async def``.
        callbacks: Methods that take callbacks, sync or async, which run on the side they come from.
    """

    def __init__(self, marks: str = "", awaited: str = "", callbacks: str = "") -> None:
        self.marks, self.awaited, self.callbacks = (
            frozenset(each.split()) for each in (marks, awaited, callbacks)
        )


_CONTRACTS: Final = (
    Contract(  # coordinators
        "mount process_hook_result",
        callbacks="register_cleanup register_contributor register_step_wrapper host call_within run_shielded run_step start_soon",
    ),
    Contract("register emit", callbacks="register on"),  # hooks
    Contract("on_cancel trigger_callbacks", callbacks="on_cancel"),  # cancellation tokens
    Contract("complete get_info", "complete list_models"),  # providers
    Contract(
        "add_message get_messages", "add_message get_messages get_messages_for_request set_messages"
    ),  # contexts
    Contract("execute description name", "execute"),  # tools
    Contract("async_resolve", "async_resolve"),  # source resolvers
)
_ANY: Final = Contract()
"""Loops, sessions, approval systems: their async methods are declared as such."""


class Adapter:
    """An object of one side as the other side uses it."""

    __slots__ = (
        "__weakref__",
        "_island_contract",
        "_island_entered",
        "_island_side",
        "_island_target",
    )

    _island_contract: Contract
    _island_entered: list[Any]
    _island_side: Side
    _island_target: Any

    def __init__(self, side: Side, target: Any, contract: Contract) -> None:
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
        return self._island_side.shown(value, name in contract.awaited, name in contract.callbacks)

    def __setattr__(self, name: str, value: Any) -> None:
        side = self._island_side
        side.call_now(partial(setattr, self._island_target, name, side.other.shown(value)))

    def __delattr__(self, name: str) -> None:
        self._island_side.call_now(partial(delattr, self._island_target, name))


class Managed(Adapter):
    """An async context manager, which may be iterable: sessions and the streams of their turns."""

    __slots__ = ()

    async def __aenter__(self) -> Any:
        manager = asynccontextmanager(self._island_side.stream)(_held(self._island_target))
        value = await manager.__aenter__()
        self._island_entered.append(manager)
        return value

    async def __aexit__(self, *exc_info: Any) -> Any:
        return await self._island_entered.pop().__aexit__(*exc_info)

    def __aiter__(self) -> Any:
        return self._island_side.stream(aiter(self._island_target))


class _Points(MutableMapping[str, Any]):
    """The mount points of the other side, or what is mounted at one of them."""

    def __init__(self, side: Side, points: MutableMapping[str, Any]) -> None:
        self._side = side
        self._points = points

    def __getitem__(self, name: str) -> Any:
        value = self._points[name]
        return _Points(self._side, value) if isinstance(value, dict) else self._side.shown(value)

    def __setitem__(self, name: str, value: Any) -> None:
        self._side.call_now(partial(self._points.__setitem__, name, self._side.other.shown(value)))

    def __delitem__(self, name: str) -> None:
        self._side.call_now(partial(self._points.__delitem__, name))

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._points))

    def __len__(self) -> int:
        return len(self._points)


class Side:
    """One of the two sides, and how its values look on the other one."""

    other: Side

    def __init__(self, island: Island, *, is_trio: bool) -> None:
        self.island = island
        self._is_trio = is_trio
        # By identity, so that a cleanup that is returned and registered, or an instance that is returned and mounted, is
        # the same one on the other side. What is adapted lives as long as its adapter.
        self._known: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()

    async def call(self, fn: Callable[[], Any], resident: Resident | None = None) -> Any:
        """Call a sync or async function on this side and wait for it."""
        return await self.island.cross(fn, to_trio=self._is_trio, resident=resident)

    def call_now(self, fn: Callable[[], Any]) -> Any:
        """Call a sync function on trio; one of the island in place, for waiting for the island would block trio."""
        return self.island.call_trio_now(fn) if self._is_trio else fn()

    def shown(self, value: Any, awaited: bool = False, callbacks: bool = False) -> Any:
        """A value of this side as code on the other side gets it; a function that is ``awaited`` runs here even if it is sync."""
        if isinstance(value, _DATA):
            return value
        if isinstance(value, Mapping | list | tuple):
            return _with_members(value, partial(self.shown, awaited=awaited))
        home = (
            getattr(value, "_island_side", None)
            if isinstance(value, FunctionType | Adapter)
            else None
        )
        if home is not None and home.island is self.island:
            return value if home is self else value._island_target
        # A bound method is a new object each time it is looked up.
        which = (id(value.__self__), id(value.__func__)) if type(value) is MethodType else id(value)
        made = self._known.get((which, awaited, callbacks))
        if made is None:
            made = self._made(value, awaited, callbacks)
            if made is not value:
                self._known[which, awaited, callbacks] = made
        return made

    def _made(self, value: Any, awaited: bool, callbacks: bool) -> Any:
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
        contract = next((each for each in _CONTRACTS if each.marks <= names), None)
        if contract is not None or is_async or any(map(_is_async, own.values())):
            return self._object(value, contract or _ANY, names)
        if callable(value) and (awaited or _is_async(kind.__call__)):
            return self._function(value, awaited, callbacks)
        return value

    def _object(self, value: Any, contract: Contract, names: frozenset[str]) -> Any:
        kind = type(value)
        base = Managed if hasattr(kind, "__aenter__") else Adapter
        # From Python 3.12 on ``isinstance`` with a Protocol looks at the class only.
        members = {name: _member(name) for name in names if not name.startswith("_")}
        return type(
            kind.__name__, (base,), {**members, "__slots__": (), "__module__": kind.__module__}
        )(self, value, contract)

    def _function(self, fn: Callable[..., Any], awaited: bool, callbacks: bool) -> Any:
        def given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
            cross = partial(self.other.shown, awaited=callbacks)
            return partial(
                fn, *map(cross, args), **{name: cross(value) for name, value in kwargs.items()}
            )

        def streaming(*args: Any, **kwargs: Any) -> Any:
            return self.stream(given(args, kwargs)())

        async def awaiting(*args: Any, **kwargs: Any) -> Any:
            return self.shown(await self.call(given(args, kwargs)))

        def calling(*args: Any, **kwargs: Any) -> Any:
            return self.shown(self.call_now(given(args, kwargs)))

        bare = _bare(fn if isinstance(fn, _FUNCTIONS) else type(fn).__call__)
        is_stream = inspect.isasyncgenfunction(bare)
        adapter: Any = (
            streaming if is_stream else awaiting if awaited or _is_async(bare) else calling
        )
        functools.update_wrapper(adapter, fn, updated=())
        adapter._island_side, adapter._island_target = self, fn
        return adapter

    async def _awaiting(self, awaitable: Any) -> Any:
        return self.shown(await self.call(lambda: awaitable))

    # ── what needs one task on this side for several calls ──

    async def stream(self, iterator: Any) -> AsyncGenerator[Any, None]:
        """Iterate an async iterator of this side; it is asked for one item at a time, and gets what is thrown in."""
        resident = Resident(iterator)
        step = partial(anext, iterator, _END)
        try:
            while (item := await self.call(step, resident)) is not _END:
                step = partial(anext, iterator, _END)
                try:
                    yield self.shown(item)
                except BaseException as exc:
                    if isinstance(exc, GeneratorExit) or not hasattr(iterator, "athrow"):
                        raise
                    step = partial(_throw, iterator, exc)
        finally:
            del step  # an exception that names its own frame is a reference cycle
            if not resident.is_over:
                with anyio.move_on_after(_CLOSING_SECONDS, shield=True):
                    await self.call(resident.end, resident)


async def _held(manager: Any) -> AsyncGenerator[Any, None]:
    """A context manager as a generator: both need one task from the first step to the last."""
    async with manager as value:
        yield value


async def _throw(generator: AsyncGenerator[Any, None], exc: BaseException) -> Any:
    try:
        return await generator.athrow(exc)
    except StopAsyncIteration:
        return _END


def _with_members(value: Any, cross: Callable[[Any], Any]) -> Any:
    """A container with its members adapted; the container itself if there is nothing to adapt."""
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
def _members(kind: Any) -> tuple[frozenset[str], bool]:
    """The names of a class's members, and whether it has async methods, so that its objects belong to a loop."""
    members = (
        member
        for base in kind.__mro__
        for name, member in vars(base).items()
        if not name.startswith("__")
    )
    return frozenset(dir(kind)), hasattr(kind, "__aenter__") or any(map(_is_async, members))


def _member(name: str) -> property:
    return property(lambda self: Adapter.__getattr__(self, name))


def _is_async(member: Any) -> bool:
    bare = _bare(member)
    return inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare)


def _bare(member: Any) -> Any:
    while isinstance(member, partial | MethodType | staticmethod | classmethod):
        member = member.func if isinstance(member, partial) else member.__func__
    return member


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


def on_island(fn: Callable[..., Any], module_id: str) -> Callable[..., Any]:
    """A ``mount`` or ``on_session_ready`` with the same signature whose module lives on the island of the session it is called in."""

    @functools.wraps(fn)
    async def calling(coordinator: Any, *args: Any) -> Any:
        here = _side_of(coordinator, module_id)
        return here.shown(
            await here.call(partial(fn, here.other.shown(coordinator), *args)), awaited=True
        )

    @functools.wraps(fn)
    def entering(coordinator: Any, *args: Any) -> Any:  # a structured mount
        here = _side_of(coordinator, module_id)
        return here.shown(fn(here.other.shown(coordinator), *args), awaited=True)

    return calling if inspect.iscoroutinefunction(inspect.unwrap(fn)) else entering


def _side_of(coordinator: Any, module_id: str) -> Side:
    """The island's side in a session. The island is started for its first asyncio-only module, and ends after the cleanups of all."""
    here: Side | None = getattr(coordinator, _ISLAND, None)
    if here is not None:
        return here
    if not hasattr(coordinator, "cleanups"):
        raise ModuleLoadError(
            f"module {module_id!r} needs asyncio, and {coordinator!r} has no asyncio island to run it on in trio; mount it "
            "through a session or an amplifier.ModuleCoordinator, or run on asyncio",
            module_id=module_id,
            reason_code="mount_failed",
        )
    if coordinator.hosting.is_shut:
        raise SessionStateError(
            f"session {coordinator.session_id!r} is closed; it starts no asyncio island any more"
        )

    async def end() -> None:
        setattr(coordinator, _ISLAND, None)  # a session that is opened again gets another
        await island.stop()

    island = Island(coordinator.session_id)
    coordinator.cleanups.push(end, None, what="asyncio island")
    here, there = Side(island, is_trio=False), Side(island, is_trio=True)
    here.other, there.other = there, here
    setattr(coordinator, _ISLAND, here)  # of the session: its coordinators share their attributes
    return here
