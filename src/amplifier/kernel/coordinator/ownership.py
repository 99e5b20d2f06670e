"""What modules register with the coordinator: the places that they fill; contributors of channels; wrappers around calls.

Several modules may fill one place, a mount point or a capability. When the module on top goes, what it had replaced comes back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import nullcontext
from functools import partial
from inspect import isawaitable
from typing import Any, Final, final

import anyio
import attrs

from amplifier.contracts import Step, StepWrapper, call_scope, contained_failure
from amplifier.contracts._cancellation import cancel_scope, current_time
from amplifier.errors import ContractError, DeadlineExceeded

from ..runtime.deadlines import DeadlinePassed, ReusableDeadline, TimeBudget, call_foreign
from ..runtime.owner import Owner, belongs_to
from ..runtime.watchdog import Watchdog

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

Call = Callable[[], Awaitable[Any]]

# ── places ───────────────────────────────────────────────────────────────────────────────────────

SINGLE_POINTS = ("orchestrator", "context", "module-source-resolver")
NAMED_POINTS = ("providers", "tools")
_CAPABILITY = "capability"
"""The kind of place that no mount point has."""

_EMPTY: Final[Any] = object()

Key = tuple[str, str | None]
"""A place: its mount point, or that it is a capability, and its name where there are several."""

_Layer = tuple[str | None, Any]
"""A value in a place, and whose it is."""


@final
class NoopAwaitable:
    """What mounting returns. Awaiting it returns at once, without a checkpoint: the work is done already."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield  # makes this a generator, which is what __await__ must return


COMPLETED = NoopAwaitable()


class MountTable:
    """The modules of one session by mount point, and the capabilities that they offer each other.

    The values on top are in plain dicts, which are read without us and may be written by hand. A value that no module put there is
    the application's.

    Attributes:
        points: What is mounted where.
        capabilities: What is offered under which name.
        strict: Replacing what another module mounted is an error.
        instance: The module that is being mounted and the name that the plan gives to its first provider, whatever the
            module calls it; None if it gives none.
        meter: Puts what is mounted at a named point inside something that counts its calls; None without a budget.
    """

    __slots__ = ("_layers", "capabilities", "instance", "meter", "points", "strict")

    def __init__(self, hooks: Any) -> None:
        self._layers: dict[Key, list[_Layer]] = {}  # of the places in which a module has something
        self.points: dict[str, Any] = {
            "orchestrator": None,
            "providers": {},
            "tools": {},
            "context": None,
            "hooks": hooks,
            "module-source-resolver": None,
        }
        self.capabilities: dict[str, Any] = {}
        self.instance: tuple[str, str] | None = None
        self.strict: bool = False
        self.meter: Callable[[str, Any], Any] | None = None

    # ── mount points ──

    def mount(self, point: str, module: Any, name: str | None, owner: str | None) -> None:
        """Put a module at a point.

        Raises:
            ValueError: Unknown point, ``hooks``, or a named point without a name.
            TypeError: The name is not a string.
            ContractError: In strict mode, the place belongs to another module.
        """
        point, name = self._resolve(point, name)
        if point == "hooks":
            raise ValueError(
                "Hooks should be registered directly with the HookRegistry: coordinator.hooks.register(event, handler)"
            )
        if point in SINGLE_POINTS:
            name = None
        else:
            if point == "providers" and self.instance is not None and self.instance[0] == owner:
                name, self.instance = self.instance[1], None
            name = getattr(module, "name", None) if name is None else name
            if name is None:
                raise ValueError(
                    f"Name required for {point}: pass name=… or give {type(module).__name__} a `name` property"
                )
            if not isinstance(name, str):
                raise TypeError(f"the name of a module at {point!r} must be a str, got {name!r}")
            self._check_named(point)
            module = module if self.meter is None else self.meter(point, module)
        self._put((point, name), module, owner)

    def unmount(self, point: str, name: str | None, owner: str | None = None) -> None:
        """Empty a place; an absent name is fine. A module gives back what its own had replaced.

        Raises:
            ValueError: Unknown point, or a named point without a name.
            ContractError: A module (``owner``) tries to unmount what another module mounted.
        """
        point, name = self._resolve(point, name)
        if point == "hooks":
            return
        if point not in SINGLE_POINTS:
            self._check_named(point)
            if name is None:
                raise ValueError(f"Name required to unmount from {point}")
        key = (point, None if point in SINGLE_POINTS else name)
        layers = self._layers_of(key)
        holder, present = layers[-1] if layers else (None, _EMPTY)
        if owner not in (None, holder):
            if present is not _EMPTY:
                raise ContractError(
                    f"module {owner!r} may not unmount {name or point!r}: it was mounted by {holder or 'the application'!r}",
                    module=owner,
                )
            return
        self._set(key, [] if owner is None else layers[:-1])  # by the application for good: nothing comes back

    def get(self, point: str, name: str | None = None) -> Any:
        """The module, the dict of modules, or None.

        Raises:
            ValueError: Unknown mount point.
        """
        try:
            found = self.points[point]
        except (KeyError, TypeError):
            point, name = self._resolve(point, name)
            found = self.points[point]
        if name is not None and point in NAMED_POINTS:
            return found.get(name)
        return found

    def owner_of(self, point: str, name: str | None = None) -> str | None:
        """The module that mounted it, if a module did."""
        layers = self._layers.get((point, None if point in SINGLE_POINTS else name))
        return layers[-1][0] if layers else None

    def mounted_by(self, owner: str) -> list[tuple[str, str | None, Any]]:
        """Everything one module has mounted: (point, name, module)."""
        return [
            (*key, None if (module := self._present(key)) is _EMPTY else module)
            for key, layers in self._layers.items()
            if layers[-1][0] == owner and key[0] != _CAPABILITY
        ]

    def _resolve(self, point: Any, name: str | None) -> tuple[str, str | None]:
        if point == "session" and name in ("orchestrator", "context"):  # a synonym in the contracts
            return name, None
        if not isinstance(point, str) or point not in self.points:
            known = ", ".join(map(repr, self.points))
            raise ValueError(f"Unknown mount point: {point}; expected one of {known}")
        return point, name

    def _check_named(self, point: str) -> None:
        named = self.points[point]
        if not isinstance(named, dict):
            raise ValueError(
                f"mount point {point!r} was replaced by {type(named).__name__}; expected a dict of modules"
            )

    # ── capabilities ──

    def register_capability(self, name: Any, value: Any, owner: str | None) -> None:
        """Offer ``value`` under ``name``; the last one wins, over another module's with a warning.

        Raises:
            TypeError: The name is not a non-empty string.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"a capability's name must be a non-empty str such as 'agents.list', got {name!r}")
        self._put((_CAPABILITY, name), value, owner)

    # ── layers ──

    def _put(self, key: Key, value: Any, owner: str | None) -> None:
        """Put a value on top of what is there. What the same owner had in this place is not covered but gone."""
        layers = self._layers_of(key)
        if layers and layers[-1][1] is not _EMPTY and (layers[-1][0] != owner or key[0] == "orchestrator"):
            self._note_replaced(key, layers[-1][0], owner)
        below = [layer for layer in layers if layer[0] != owner and layer[1] is not _EMPTY]
        self._set(key, [*below, (owner, value)])

    def _note_replaced(self, key: Key, holder: str | None, owner: str | None) -> None:
        point, name = key
        what = f"{point} {name!r}" if name else point
        how = "registered" if point == _CAPABILITY else "mounted"
        message = f"{what} {how} by {holder or 'the application'} is replaced by {owner or 'the application'}"
        if self.strict and holder != owner and point != _CAPABILITY:
            raise ContractError(f"{message}; session.strict forbids that: rename one of them", module=owner)
        logger.warning("%s", message)

    def unregister_owner(self, module: str | None) -> None:
        """Take out the layers of a module, or of all; below one that was on top, the next comes back. Interrupted, it can be done again."""
        for key, layers in reversed(list(self._layers.items())):
            if any(module in (None, owner) for owner, _ in layers if owner is not None):
                left = [each for each in self._layers_of(key) if each[0] is None or module not in (None, each[0])]
                self._set(key, left)

    def _layers_of(self, key: Key) -> list[_Layer]:
        """What is in a place, the value on top last, which may have been written by hand."""
        layers, present = self._layers.get(key, []), self._present(key)
        if layers:
            return [*layers[:-1], (layers[-1][0], present)]
        return [] if present is _EMPTY else [(None, present)]

    def _set(self, key: Key, layers: list[_Layer]) -> None:
        """Write the value on top and note whose it is and what it covers, as long as a module has something there."""
        point, name = key
        value = layers[-1][1] if layers else _EMPTY
        named = self.capabilities if point == _CAPABILITY else self.points if name is None else self.points[point]
        is_dict = isinstance(named, dict)  # or the application has put something else there by hand
        is_owned = [owner for owner, _ in layers if owner is not None]
        # No call from here on, so Ctrl-C does not come between.
        if name is None:
            named[point] = None if value is _EMPTY else value
        elif is_dict and value is not _EMPTY:
            named[name] = value
        elif is_dict and name in named:
            del named[name]
        if is_owned:
            self._layers[key] = layers
        elif key in self._layers:
            del self._layers[key]

    def _present(self, key: Key) -> Any:
        point, name = key
        if name is None:
            present = self.points[point]
        else:
            named = self.capabilities if point == _CAPABILITY else self.points[point]
            present = named.get(name, _EMPTY) if isinstance(named, dict) else _EMPTY
        return _EMPTY if present is None and point != _CAPABILITY else present


def _of_module(owner: Owner | None) -> str:
    return "" if owner is None else f" of module {owner.name!r}"


# ── contributors ─────────────────────────────────────────────────────────────────────────────────


@attrs.define(eq=False)
class Contributor:
    """One callback on one channel."""

    channel: str
    name: str
    callback: Callable[[], Any]
    owner: Owner | None

    def __str__(self) -> str:
        module = "" if self.module == self.name else _of_module(self.owner)
        return f"Contributor {self.name!r}{module} on channel {self.channel!r}"

    @property
    def module(self) -> str | None:
        """The id of the module that registered it; None for the application."""
        return None if self.owner is None else self.owner.name


class Contributions:
    """All contributors of one session.

    They are called one after another, in registration order, each under its deadline and the whole collection under another; a
    failing or late one is logged by name and skipped, never the rest of the channel (L4).
    """

    __slots__ = ("_channels",)

    def __init__(self) -> None:
        self._channels: dict[str, list[Contributor]] = {}

    def register(self, channel: Any, name: Any, callback: Any, owner: Owner | None) -> None:
        """Add a contributor; equal names are allowed.

        Raises:
            TypeError: Channel or name is not a non-empty string, or the callback cannot be called.
        """
        for what, value in (("channel", channel), ("name", name)):
            if not isinstance(value, str) or not value:
                raise TypeError(f"a contributor's {what} must be a non-empty str, got {value!r}")
        if not callable(callback):
            raise TypeError(f"contributor {name!r} on channel {channel!r} needs a callable, got {callback!r}")
        contributor = Contributor(channel, name, callback, owner)
        self._channels.setdefault(channel, []).append(contributor)

    def unregister_owner(self, module: str | None) -> None:
        """Remove the contributors of a module, or of all, and the channels that have none any more."""
        left = {name: [c for c in each if not belongs_to(c.owner, module)] for name, each in self._channels.items()}
        self._channels = {name: contributors for name, contributors in left.items() if contributors}

    def as_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Channel → name and callback of each contributor, in order."""
        return {
            channel: [{"name": c.name, "callback": c.callback} for c in contributors]
            for channel, contributors in self._channels.items()
        }

    async def collect(
        self, channel: str, *, each: float | None, total: float | None, watch: Watchdog | None = None
    ) -> list[Any]:
        """Call every contributor of ``channel`` and return what is not None, in order."""
        collected: list[Any] = []
        budget, calls = TimeBudget.starting_now(total), ReusableDeadline(watch)
        try:
            for contributor in tuple(self._channels.get(channel, ())):
                try:
                    value = call_foreign(contributor.callback)
                    if isawaitable(value):
                        value = await calls.run(value, budget.share(each), contributor)
                except DeadlinePassed as late:
                    logger.warning("%s was skipped: %s", contributor, late)
                except Exception as failure:
                    logger.warning("%s failed: %s", contributor, failure, exc_info=failure)
                else:
                    if value is not None:
                        collected.append(value)
            return collected
        finally:
            calls.close()


# ── step wrappers ────────────────────────────────────────────────────────────────────────────────


@attrs.define(eq=False)
class _WrapperRegistration:
    """One wrapper, and the module that registered it."""

    wrapper: StepWrapper
    owner: Owner | None

    def __str__(self) -> str:
        name = getattr(self.wrapper, "__qualname__", None) or type(self.wrapper).__qualname__
        return f"step wrapper {name!r}{_of_module(self.owner)}"


class StepWrappers:
    """The step wrappers of one session, outermost first."""

    __slots__ = ("_registered",)

    def __init__(self) -> None:
        self._registered: tuple[_WrapperRegistration, ...] = ()

    def register(self, wrapper: Any, owner: Owner | None) -> Callable[[], None]:
        """Add a wrapper inside of those that are there.

        Raises:
            TypeError: It cannot be called.
        """
        if not callable(wrapper):
            raise TypeError(f"a step wrapper must be an async function (step, run), got {wrapper!r}")
        registration = _WrapperRegistration(wrapper, owner)
        self._registered = (*self._registered, registration)
        return partial(self._remove, registration)

    def _remove(self, registration: _WrapperRegistration) -> None:
        """Remove a wrapper; steps that are inside of it go on. Nothing happens if it was removed before."""
        self._registered = tuple(each for each in self._registered if each is not registration)

    def unregister_owner(self, module: str | None) -> None:
        """Remove the wrappers of a module, or of all."""
        self._registered = tuple(each for each in self._registered if not belongs_to(each.owner, module))

    async def run(self, step: Step, run: Call, admit: Call | None, limiter: Any, seconds: float | None) -> Any:
        """Run a step inside of all wrappers that are registered now; ``seconds`` is for their own work, each way."""
        with call_scope(step.call):
            if self._registered:
                return await _WrappedStep(self._registered, step, run, admit, limiter, seconds).run()
            return await _make_call(run, admit, limiter)


async def _make_call(run: Call, admit: Call | None, limiter: Any, start: Call | None = None) -> Any:
    async with limiter or nullcontext():
        refused = None if admit is None else await admit()
        if refused is not None:
            return refused
        if start is not None:
            await start()
        return await run()


@attrs.define(eq=False)
class _WrappedStep:
    """One step with wrappers around it.

    One cancel scope has the deadline of the wrappers. It is infinite while the call itself runs, which has its own.
    """

    _around: tuple[_WrapperRegistration, ...]
    _step: Step
    _run: Call
    _admit: Call | None
    _limiter: Any
    _seconds: float | None
    _scope: anyio.CancelScope = attrs.field(factory=cancel_scope, init=False)

    async def run(self) -> Any:
        try:
            await self._step.wait_for_previous()
            with self._scope:
                self._arm()
                return await self._enter(0)
        finally:
            self._step.leave_order()
        assert self._seconds is not None
        wrappers = ", ".join(map(str, self._around))
        raise DeadlineExceeded(
            f"{wrappers}: step {self._step.key!r} was not entered or left within {self._seconds:g} s; a wrapper may wait "
            "for its own storage, not for other steps",
            operation=wrappers,
            seconds=self._seconds,
        )

    def _arm(self) -> None:
        self._scope.deadline = math.inf if self._seconds is None else current_time() + self._seconds

    async def _enter(self, depth: int) -> Any:
        if depth == len(self._around):
            return await self._make_call()
        registration = self._around[depth]

        async def run() -> Any:
            return await self._enter(depth + 1)

        try:
            return await registration.wrapper(self._step, run)
        except Exception:
            raise
        except BaseException as exc:  # a wrapper is foreign code
            raise contained_failure(exc, str(registration)) from exc

    async def _make_call(self) -> Any:
        self._scope.deadline = math.inf
        try:
            await self._step.wait_for_group()
            return await _make_call(self._run, self._admit, self._limiter, self._start)
        finally:
            self._arm()

    async def _start(self) -> None:
        self._arm()
        await self._step.start()
        self._scope.deadline = math.inf
