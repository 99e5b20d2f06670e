"""What is wrapped on its way between an island and trio, and how.

Data crosses as it is. A function is wrapped, so that it runs on the side it comes from. So is an object that has async methods:
the coordinator, its hooks, tools, providers, contexts, loops, sessions. What comes back to its own side is unwrapped again, so a
module finds its own objects as they are.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import operator
import weakref
from collections.abc import Awaitable, Callable, Generator, Hashable
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from ._protocol import IslandProtocol
from ._residents import Manager, stream

_DATA: Final = (
    str,
    bytes,
    int,
    float,
    complex,
    bool,
    type(None),
    type,
    ModuleType,
    BaseException,
    set,
    frozenset,
    bytearray,
)
_FUNCTIONS: Final = (FunctionType, MethodType, functools.partial)
_AWAITED_BY_CONTRACT: Final = frozenset(
    {
        *("execute", "complete", "list_models", "async_resolve"),
        *("add_message", "get_messages_for_request", "get_messages", "set_messages"),
    }
)
"""Methods that are awaited by contract: they run on the island even if they are not ``async def``."""

_CALLBACKS_MAY_BE_ASYNC: Final = frozenset(
    {
        *("register", "on", "on_cancel", "register_cleanup", "register_contributor", "register_step_wrapper"),
        *("host", "run_section", "run_step", "start_soon"),
    }
)
"""Methods of the kernel that take callbacks, sync or async: what a module gives them runs on the island either way."""

_OWN_NAMES: Final = frozenset({"_get", "_island_border", "_island_home", "_island_managers", "_island_target"})


class Wrapped:
    """An object of one side as the other side sees it."""

    __slots__ = ("__weakref__", "_island_border", "_island_managers", "_island_target")

    _island_border: Border
    _island_managers: list[Manager]
    _island_target: Any

    def __init__(self, border: Border, target: Any) -> None:
        own = object.__setattr__
        own(self, "_island_border", border)
        own(self, "_island_target", target)
        own(self, "_island_managers", [])

    def __repr__(self) -> str:
        return repr(self._island_target)

    def __getattr__(self, name: str) -> Any:
        if name in _OWN_NAMES:
            raise AttributeError(name)
        return self._get(name)

    def _get(self, name: str) -> Any:
        raise NotImplementedError


class OfIsland(Wrapped):
    """An object of the island as code on trio sees it.

    Async methods run on the island. Attributes are read, and other methods called, in place: they are not awaited, and
    waiting for the island in another way would block trio.
    """

    __slots__ = ()

    def _get(self, name: str) -> Any:
        border, value = self._island_border, getattr(self._island_target, name)
        return border.called_by_kernel(value) if name in _AWAITED_BY_CONTRACT else border.for_trio(value)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._island_target, name, self._island_border.for_island(value))


class OfTrio(Wrapped):
    """An object of trio as code on the island sees it: async methods run on trio, others are called on trio's thread."""

    __slots__ = ()

    def _get(self, name: str) -> Any:
        border, value = self._island_border, getattr(self._island_target, name)
        if name in _CALLBACKS_MAY_BE_ASYNC and isinstance(value, _FUNCTIONS):
            return border.registrar(value)
        return border.for_island(value)

    def __setattr__(self, name: str, value: Any) -> None:
        border, target = self._island_border, self._island_target
        border.island.call_trio_now(setattr, target, name, border.for_trio(value))

    def __delattr__(self, name: str) -> None:
        self._island_border.island.call_trio_now(delattr, self._island_target, name)


class Border:
    """Wraps and unwraps what crosses between one island and trio."""

    __slots__ = ("_awaited", "_for_island", "_for_trio", "island")

    def __init__(self, island: IslandProtocol) -> None:
        self.island: IslandProtocol = island
        # By identity, so that a cleanup that is returned and registered, or an instance that is returned and mounted, is
        # the same one on the other side. What is wrapped lives as long as its wrapper.
        self._for_trio: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
        self._awaited: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()
        self._for_island: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()

    def for_trio(self, value: Any) -> Any:
        """A value of the island as code on trio gets it; a sync function is called in place, on trio's thread."""
        return self._crossing(value, OfTrio, self._for_trio, self._make_for_trio, self.for_trio)

    def called_by_kernel(self, value: Any) -> Any:
        """As `for_trio`, but a sync function is awaited by its caller and runs on the island."""
        return self._crossing(value, OfTrio, self._awaited, self._make_awaited, self.called_by_kernel)

    def for_island(self, value: Any) -> Any:
        """A value of trio as code on the island gets it."""
        return self._crossing(value, OfIsland, self._for_island, self._make_for_island, self.for_island)

    def _crossing(
        self,
        value: Any,
        foreign: type[Wrapped],
        known: weakref.WeakValueDictionary[Hashable, Any],
        make: Callable[[Any], Any],
        again: Callable[[Any], Any],
    ) -> Any:
        if isinstance(value, _DATA):
            return value
        if isinstance(value, dict | list | tuple):
            return _with_members(value, again)
        if getattr(type(value), "_island_home", None) is not None or isinstance(value, FunctionType):
            home = getattr(value, "_island_home", None)
            if home is not None and value._island_border is self:
                return value._island_target if home is foreign else value
        key = _key(value)
        made = known.get(key)
        if made is None:
            made = make(value)
            if made is not value:
                known[key] = made
        return made

    # ── functions and objects of the island ──

    def _make_for_trio(self, value: Any) -> Any:
        island = self.island
        if inspect.iscoroutine(value) or isinstance(value, asyncio.Future):
            return _Awaitable(island.call, value, self.for_trio)
        if _is_stream(value):
            return stream(island, island.call, value, self.for_trio)
        if inspect.isasyncgenfunction(_bare(value)):
            return self._marked(
                lambda *args, **kwargs: stream(
                    island, island.call, value(*self._in(args), **self._in(kwargs)), self.for_trio
                ),
                value,
                OfIsland,
            )
        if _is_async(value):
            return self._make_awaited(value)
        if isinstance(value, _FUNCTIONS):

            def calling(*args: Any, **kwargs: Any) -> Any:
                return self.for_trio(value(*self._in(args), **self._in(kwargs)))

            return self._marked(calling, value, OfIsland)
        return _class_for(value, OfIsland)(self, value) if is_live(value) else value

    def _make_awaited(self, value: Any) -> Any:
        if not isinstance(value, _FUNCTIONS) and (is_live(value) or not callable(value)):
            return self.for_trio(value)
        if inspect.isasyncgenfunction(_bare(value)):
            return self.for_trio(value)
        island = self.island

        async def calling(*args: Any, **kwargs: Any) -> Any:
            return self.for_trio(await island.call(value, *self._in(args), **self._in(kwargs)))

        return self._marked(calling, value, OfIsland)

    def _in(self, values: Any) -> Any:
        if type(values) is dict:
            return {name: self.for_island(value) for name, value in values.items()}
        return tuple(map(self.for_island, values))

    # ── functions and objects of trio ──

    def _make_for_island(self, value: Any) -> Any:
        island = self.island
        if inspect.iscoroutine(value):
            return _Awaitable(island.call_trio, value, self.for_island)
        if _is_stream(value):
            return stream(island, island.call_trio, value, self.for_island)
        bare = _bare(value if isinstance(value, _FUNCTIONS) or not callable(value) else type(value).__call__)
        if inspect.isasyncgenfunction(bare):
            return self._marked(
                lambda *args, **kwargs: stream(
                    island, island.call_trio, value(*self._out(args), **self._out(kwargs)), self.for_island
                ),
                value,
                OfTrio,
            )
        if inspect.iscoroutinefunction(bare):

            async def awaiting(*args: Any, **kwargs: Any) -> Any:
                return self.for_island(await island.call_trio(value, *self._out(args), **self._out(kwargs)))

            return self._marked(awaiting, value, OfTrio)
        if isinstance(value, (*_FUNCTIONS, BuiltinFunctionType)):

            def calling(*args: Any, **kwargs: Any) -> Any:
                return self.for_island(island.call_trio_now(value, *self._out(args), **self._out(kwargs)))

            return self._marked(calling, value, OfTrio)
        return _class_for(value, OfTrio)(self, value) if is_live(value) else value

    def registrar(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the kernel that takes callbacks, as code on the island calls it."""
        behind = self.for_island(method)

        @functools.wraps(method)
        def registering(*args: Any, **kwargs: Any) -> Any:
            return behind(*map(self.called_by_kernel, args), **{k: self.called_by_kernel(v) for k, v in kwargs.items()})

        return registering

    def _out(self, values: Any) -> Any:
        if type(values) is dict:
            return {name: self.for_trio(value) for name, value in values.items()}
        return tuple(map(self.for_trio, values))

    def _marked(
        self, wrapper: Callable[..., Any], value: Callable[..., Any], home: type[Wrapped]
    ) -> Callable[..., Any]:
        functools.update_wrapper(wrapper, value, updated=())
        vars(wrapper).update(_island_border=self, _island_target=value, _island_home=home)
        return wrapper


class _Awaitable:
    """Something to be awaited that belongs to the other side."""

    __slots__ = ("__weakref__", "_awaitable", "_hop", "_wrap")

    def __init__(self, hop: Callable[..., Awaitable[Any]], awaitable: Any, wrap: Callable[[Any], Any]) -> None:
        self._hop = hop
        self._awaitable = awaitable
        self._wrap = wrap

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._run().__await__()

    async def _run(self) -> Any:
        return self._wrap(await self._hop(lambda: self._awaitable))


# ── what a value is ──────────────────────────────────────────────────────────────────────────────

_live_classes: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


def is_live(value: Any) -> bool:
    """Whether an object has async methods, and so belongs to a loop."""
    kind = type(value)
    known = _live_classes.get(kind)
    if known is None:
        known = _live_classes[kind] = _has_async_methods(kind)
    if known:
        return True
    return any(
        _is_async(member) for member in getattr(value, "__dict__", {}).values() if isinstance(member, _FUNCTIONS)
    )


def _has_async_methods(kind: type) -> bool:
    if hasattr(kind, "__aenter__") or hasattr(kind, "__anext__"):
        return True
    # The kernel's views have the methods of what is behind them.
    if kind.__module__.startswith("amplifier.") and "__getattr__" in vars(kind):
        return True
    return any(
        _is_async(member) for base in kind.__mro__ for name, member in vars(base).items() if not name.startswith("__")
    )


def _is_async(member: Any) -> bool:
    bare = _bare(member)
    return inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare)


def _bare(member: Any) -> Any:
    while isinstance(member, functools.partial | MethodType | staticmethod | classmethod):
        member = member.func if isinstance(member, functools.partial) else member.__func__
    return member


def _is_stream(value: Any) -> bool:
    return inspect.isasyncgen(value)


def _key(value: Any) -> Hashable:
    """Equal for the same object; a bound method is a new object each time it is looked up."""
    if type(value) is MethodType:
        return id(value.__self__), id(value.__func__)
    return id(value)


def _with_members(value: Any, cross: Callable[[Any], Any]) -> Any:
    """A container with its members wrapped; the container itself if there is nothing to wrap."""
    members = list(value.values()) if isinstance(value, dict) else list(value)
    crossed = [member if isinstance(member, (*_DATA, dict, list, tuple)) else cross(member) for member in members]
    if all(new is old for new, old in zip(crossed, members, strict=True)):
        return value
    if isinstance(value, dict):
        return dict(zip(value, crossed, strict=True))
    return crossed if isinstance(value, list) else tuple(crossed)


# ── classes of wrapped objects ───────────────────────────────────────────────────────────────────


def _class_for(value: Any, base: type[Wrapped]) -> type[Wrapped]:
    """A class with the names of an object: from Python 3.12 on ``isinstance`` with a Protocol looks at the class only."""
    kind = type(value)
    names = {name for name in (*dir(kind), *getattr(value, "__dict__", ())) if not name.startswith("__")}
    body: dict[str, Any] = {name: _attribute(name) for name in names - _OWN_NAMES}
    body.update({name: method for name, method in _SPECIAL.items() if hasattr(kind, name)})
    body.update(
        __slots__=(),
        __module__=kind.__module__,
        __qualname__=kind.__qualname__,
        __doc__=kind.__doc__,
        _island_home=base,
    )
    return type(kind.__name__, (base,), body)


def _attribute(name: str) -> property:
    def get(self: Wrapped) -> Any:
        return self._get(name)

    return property(get)


# ── operators of wrapped objects ─────────────────────────────────────────────────────────────────


def _sides(self: Wrapped) -> tuple[Callable[..., Awaitable[Any]], Callable[[Any], Any], Callable[[Any], Any]]:
    """How to call the object's side, how values come from there, and how they go there."""
    border = self._island_border
    if isinstance(self, OfIsland):
        return border.island.call, border.for_trio, border.for_island
    return border.island.call_trio, border.for_island, border.for_trio


def _call(self: Wrapped, *args: Any, **kwargs: Any) -> Any:
    _, wrap, _ = _sides(self)
    return wrap(self._island_target.__call__)(*args, **kwargs)


async def _enter(self: Wrapped) -> Any:
    hop, wrap, _ = _sides(self)
    manager = Manager(self._island_border.island, hop, self._island_target, wrap)
    value = await manager.__aenter__()
    self._island_managers.append(manager)
    return value


async def _exit(self: Wrapped, *exc_info: Any) -> bool:
    return await self._island_managers.pop().__aexit__(*exc_info)


def _iterate(self: Wrapped) -> Any:
    hop, wrap, _ = _sides(self)
    return stream(self._island_border.island, hop, aiter(self._island_target), wrap)


async def _next(self: Wrapped) -> Any:
    hop, wrap, _ = _sides(self)
    return wrap(await hop(type(self._island_target).__anext__, self._island_target))


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Wrapped, *args: Any) -> Any:
        _, wrap, unwrap = _sides(self)
        method, given = getattr(operator, name), tuple(map(unwrap, args))
        if isinstance(self, OfIsland):
            return wrap(method(self._island_target, *given))
        return wrap(self._island_border.island.call_trio_now(method, self._island_target, *given))

    return operate


_SPECIAL: Final[dict[str, Callable[..., Any]]] = {
    "__call__": _call,
    "__aenter__": _enter,
    "__aexit__": _exit,
    "__aiter__": _iterate,
    "__anext__": _next,
    **{name: _operator(name) for name in ("__getitem__", "__setitem__", "__delitem__", "__contains__")},
    "__len__": lambda self: len(self._island_target),
    "__iter__": lambda self: iter([*map(_sides(self)[1], self._island_target)]),
    "__bool__": lambda self: bool(self._island_target),
}
