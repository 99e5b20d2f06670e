"""Registrations with the coordinator: mounts and capabilities, contributors, step wrappers."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import partial
from inspect import isawaitable
from typing import Any, Final, TypeVar, cast, final

import anyio
import attrs

from amplifier.contracts import Step, StepWrapper, call_scope, contained_failure
from amplifier.contracts.cancellation import cancel_scope, current_time
from amplifier.errors import ContractError, DeadlineExceeded

from ..runtime.deadlines import DeadlinePassed, ReusableDeadline, TimeBudget, call_foreign
from ..runtime.owner import Owner, belongs_to
from ..runtime.watchdog import Watchdog

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

T = TypeVar("T")

Call = Callable[[], Awaitable[T]]
"""A model call or tool call, or a check before it."""

Limiter = AbstractAsyncContextManager[object]
"""A context manager around a call, such as `anyio.CapacityLimiter`."""

# ── slots ─────────────────────────────────────────────────────────────────────────────────────

SINGLE_POINTS = ("orchestrator", "context", "module-source-resolver")
NAMED_POINTS = ("providers", "tools")

_CAPABILITY = "capability"
"""The kind of slot that isn't a mount point."""

_EMPTY: Final = object()

Key = tuple[str, str | None]
"""A slot: its mount point or `_CAPABILITY`, and its name if that mount point holds several."""

_Layer = tuple[str | None, object]
"""The owner of a value, or None for the application, and the value."""


@final
class NoopAwaitable:
    """The result of mounting. Awaiting it returns at once, without a checkpoint."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, None]:
        return
        # The yield makes this a generator, as ``__await__`` requires.
        yield


COMPLETED = NoopAwaitable()


# The current values are in plain dicts. Other code reads these directly and may write to them. A
# value that no module has put there belongs to the application.
#
# Several modules may use one slot. When the module on top is removed, the value that it had
# replaced comes back. For this, every slot in which a module has a value has a stack of layers in
# addition to the dict. The topmost value of the stack may be out of date, because the dict may have
# been changed.


class MountTable:
    """The mounted modules of one session, and the capabilities that they offer each other.

    Args:
        hooks: The hook registry, which is mounted at "hooks".

    Attributes:
        points: The mounted modules by mount point.
        capabilities: The capabilities by name.
        strict: True makes it an error to replace a module that another module has mounted.
        instance: The module that is being mounted, and the name that the plan gives its first
            provider. None if the plan gives no name.
        meter: Wraps a module at a named point into one that counts its calls. None without a
            budget.
    """

    __slots__ = ("_layers", "capabilities", "instance", "meter", "points", "strict")

    def __init__(self, hooks: object) -> None:
        self._layers: dict[Key, list[_Layer]] = {}
        self.points: dict[str, Any] = {
            "orchestrator": None,
            "providers": {},
            "tools": {},
            "context": None,
            "hooks": hooks,
            "module-source-resolver": None,
        }
        self.capabilities: dict[str, object] = {}
        self.instance: tuple[str, str] | None = None
        self.strict: bool = False
        self.meter: Callable[[str, object], object] | None = None

    # ── mount points ──

    def mount(self, point: str, module: object, name: str | None, owner: str | None) -> None:
        """Put a module at a point.

        Raises:
            ValueError: The point is unknown, is ``hooks``, or needs a name.
            TypeError: The name isn't a string.
            ContractError: In strict mode, the slot belongs to another module.
        """
        point, name = self._resolve(point, name)
        if point == "hooks":
            advice = "coordinator.hooks.register(event, handler)"
            raise ValueError(f"Hooks should be registered directly with the HookRegistry: {advice}")
        if point in SINGLE_POINTS:
            name = None
        else:
            if point == "providers" and self.instance is not None and self.instance[0] == owner:
                name, self.instance = self.instance[1], None
            name = getattr(module, "name", None) if name is None else name
            if name is None:
                advice = f"pass name=… or give {type(module).__name__} a `name` property"
                raise ValueError(f"Name required for {point}: {advice}")
            if not isinstance(name, str):
                raise TypeError(f"the name of a module at {point!r} must be a str, got {name!r}")
            self._check_named(point)
            module = module if self.meter is None else self.meter(point, module)
        self._put((point, name), module, owner)

    def unmount(self, point: str, name: str | None, owner: str | None = None) -> None:
        """Empty a slot. An unknown name is ignored.

        When a module empties it, the value that the module had replaced comes back.

        Raises:
            ValueError: The point is unknown or needs a name.
            ContractError: The owner tries to unmount something that another module has mounted.
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
                    f"module {owner!r} must not unmount {name or point!r}: it was mounted by "
                    f"{holder or 'the application'!r}",
                    module=owner,
                )
            return
        # The application empties the slot permanently, so that nothing comes back.
        self._set(key, [] if owner is None else layers[:-1])

    def get(self, point: str, name: str | None = None) -> Any:
        """Return the module, the dict of modules, or None.

        Raises:
            ValueError: The mount point is unknown.
        """
        try:
            mounted = self.points[point]
        except (KeyError, TypeError):
            point, name = self._resolve(point, name)
            mounted = self.points[point]
        if name is not None and point in NAMED_POINTS:
            return mounted.get(name)
        return mounted

    def owner_of(self, point: str, name: str | None = None) -> str | None:
        """Return the id of the module that filled a slot, or None if no module did."""
        layers = self._layers.get((point, None if point in SINGLE_POINTS else name))
        return layers[-1][0] if layers else None

    def mounted_by(self, owner: str) -> list[tuple[str, str | None, object]]:
        """Return one module's mounts as (point, name, instance)."""
        return [
            (*key, None if (module := self._present(key)) is _EMPTY else module)
            for key, layers in self._layers.items()
            if layers[-1][0] == owner and key[0] != _CAPABILITY
        ]

    def _resolve(self, point: object, name: str | None) -> tuple[str, str | None]:
        # The contracts allow these synonyms of two mount points.
        if point == "session" and name in ("orchestrator", "context"):
            return name, None
        if not isinstance(point, str) or point not in self.points:
            known = ", ".join(map(repr, self.points))
            raise ValueError(f"Unknown mount point: {point}; expected one of {known}")
        return point, name

    def _check_named(self, point: str) -> None:
        modules = self.points[point]
        if not isinstance(modules, dict):
            kind = type(modules).__name__
            problem = f"mount point {point!r} was replaced by {kind}"
            raise ValueError(f"{problem}; expected a dict of modules")

    # ── capabilities ──

    def register_capability(self, name: object, value: object, owner: str | None) -> None:
        """Offer ``value`` under ``name``. Replacing another module's value logs a warning.

        Raises:
            TypeError: The name isn't a non-empty string.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(
                f"a capability's name must be a non-empty str such as 'agents.list', got {name!r}"
            )
        self._put((_CAPABILITY, name), value, owner)

    # ── layers ──

    def _put(self, key: Key, value: object, owner: str | None) -> None:
        """Put a value on top of a slot. An older value of the same owner is dropped."""
        layers = self._layers_of(key)
        if layers:
            holder, present = layers[-1]
            if present is not _EMPTY and (holder != owner or key[0] == "orchestrator"):
                self._note_replaced(key, holder, owner)
        below = [layer for layer in layers if layer[0] != owner and layer[1] is not _EMPTY]
        self._set(key, [*below, (owner, value)])

    def _note_replaced(self, key: Key, holder: str | None, owner: str | None) -> None:
        point, name = key
        slot = f"{point} {name!r}" if name else point
        how = "registered" if point == _CAPABILITY else "mounted"
        before, after = holder or "the application", owner or "the application"
        message = f"{slot} {how} by {before} is replaced by {after}"
        if self.strict and holder != owner and point != _CAPABILITY:
            advice = "session.strict forbids that: rename one of them"
            raise ContractError(f"{message}; {advice}", module=owner)
        logger.warning("%s", message)

    def unregister_owner(self, module: str | None) -> None:
        """Remove the values of a module, or of all modules. Values below them come back."""
        for key, layers in reversed(list(self._layers.items())):
            if any(module in (None, owner) for owner, _ in layers if owner is not None):
                remaining = [
                    (owner, value)
                    for owner, value in self._layers_of(key)
                    if owner is None or module not in (None, owner)
                ]
                self._set(key, remaining)

    def _layers_of(self, key: Key) -> list[_Layer]:
        """Return the layers of a slot. The last one has the current value."""
        layers, present = self._layers.get(key, []), self._present(key)
        if layers:
            return [*layers[:-1], (layers[-1][0], present)]
        return [] if present is _EMPTY else [(None, present)]

    def _set(self, key: Key, layers: list[_Layer]) -> None:
        """Write the topmost value, and keep the layers if one of them belongs to a module."""
        point, name = key
        value = layers[-1][1] if layers else _EMPTY
        if name is None:
            self.points[point] = None if value is _EMPTY else value
        else:
            named = self.capabilities if point == _CAPABILITY else self.points[point]
            # The application may have replaced the dict with something else.
            if isinstance(named, dict) and value is not _EMPTY:
                named[name] = value
            elif isinstance(named, dict) and name in named:
                del named[name]
        if any(owner is not None for owner, _ in layers):
            self._layers[key] = layers
        elif key in self._layers:
            del self._layers[key]

    def _present(self, key: Key) -> object:
        point, name = key
        if name is None:
            present = self.points[point]
        else:
            named = self.capabilities if point == _CAPABILITY else self.points[point]
            present = named.get(name, _EMPTY) if isinstance(named, dict) else _EMPTY
        return _EMPTY if present is None and point != _CAPABILITY else present


def _of_module(owner: Owner | None) -> str:
    return "" if owner is None else f" of module {owner.name!r}"


# ── contributors ──────────────────────────────────────────────────────────────────────────────


@attrs.define(eq=False)
class Contributor:
    """One callback on one channel.

    Attributes:
        channel: The name of the channel.
        name: The name of the contributor, which need not be unique.
        callback: Returns the contribution. It may be async.
        owner: The module that registered it, or None for the application.
    """

    channel: str
    name: str
    callback: Callable[[], object]
    owner: Owner | None

    def __str__(self) -> str:
        module = "" if self.module == self.name else _of_module(self.owner)
        return f"Contributor {self.name!r}{module} on channel {self.channel!r}"

    @property
    def module(self) -> str | None:
        """The id of the module that registered it, or None for the application."""
        return None if self.owner is None else self.owner.name


class Contributions:
    """All contributors of one session.

    Contributors are called one after another, in the order of registration. Each has a deadline,
    and so does the whole collection. A contributor that fails or is late is logged and skipped, and
    the others still run (L4).
    """

    __slots__ = ("_channels",)

    def __init__(self) -> None:
        self._channels: dict[str, list[Contributor]] = {}

    def register(
        self, channel: object, name: object, callback: object, owner: Owner | None
    ) -> None:
        """Add a contributor. Its name need not be unique.

        Raises:
            TypeError: Channel or name isn't a non-empty string, or the callback isn't callable.
        """
        channel, name = _require_text("channel", channel), _require_text("name", name)
        if not callable(callback):
            raise TypeError(
                f"contributor {name!r} on channel {channel!r} needs a callable, got {callback!r}"
            )
        contributor = Contributor(channel, name, callback, owner)
        self._channels.setdefault(channel, []).append(contributor)

    def unregister_owner(self, module: str | None) -> None:
        """Remove the contributors of a module, or of all modules.

        Channels without contributors disappear.
        """
        remaining = {
            channel: [item for item in contributors if not belongs_to(item.owner, module)]
            for channel, contributors in self._channels.items()
        }
        self._channels = {channel: items for channel, items in remaining.items() if items}

    def as_dict(self) -> dict[str, list[dict[str, object]]]:
        """Return the name and the callback of each contributor by channel, in order."""
        return {
            channel: [{"name": item.name, "callback": item.callback} for item in contributors]
            for channel, contributors in self._channels.items()
        }

    async def collect(
        self,
        channel: str,
        *,
        each: float | None,
        total: float | None,
        watch: Watchdog | None = None,
    ) -> list[Any]:
        """Call every contributor of ``channel`` and return the results in order, without None.

        Args:
            channel: The name of the channel.
            each: The deadline of one contributor, or None for no limit.
            total: The time for all of them together, or None for no limit.
            watch: Reports contributors that don't react to their cancellation.
        """
        collected: list[Any] = []
        budget, deadline = TimeBudget.starting_now(total), ReusableDeadline(watch)
        try:
            for contributor in tuple(self._channels.get(channel, ())):
                try:
                    value = call_foreign(contributor.callback)
                    if isawaitable(value):
                        value = await deadline.run(value, budget.share(each), contributor)
                except DeadlinePassed as late:
                    logger.warning("%s was skipped: %s", contributor, late)
                except Exception as failure:
                    logger.warning("%s failed: %s", contributor, failure, exc_info=failure)
                else:
                    if value is not None:
                        collected.append(value)
            return collected
        finally:
            deadline.close()


def _require_text(argument: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError(f"a contributor's {argument} must be a non-empty str, got {value!r}")
    return value


# ── step wrappers ─────────────────────────────────────────────────────────────────────────────


@attrs.define(eq=False)
class _WrapperRegistration:
    """A step wrapper and the module that registered it."""

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

    def register(self, wrapper: StepWrapper, owner: Owner | None) -> Callable[[], None]:
        """Add a wrapper inside the current ones. Return a function that removes it.

        Raises:
            TypeError: The wrapper isn't callable.
        """
        if not callable(wrapper):
            raise TypeError(
                f"a step wrapper must be an async function (step, run), got {wrapper!r}"
            )
        registration = _WrapperRegistration(wrapper, owner)
        self._registered = (*self._registered, registration)
        return partial(self._remove, registration)

    def _remove(self, registration: _WrapperRegistration) -> None:
        """Remove a wrapper. Steps inside it continue. Idempotent."""
        self._registered = tuple(item for item in self._registered if item is not registration)

    def unregister_owner(self, module: str | None) -> None:
        """Remove the wrappers of a module, or of all modules."""
        self._registered = tuple(
            item for item in self._registered if not belongs_to(item.owner, module)
        )

    async def run(
        self,
        step: Step,
        run: Call[T],
        admit: Call[T | None] | None,
        limiter: Limiter | None,
        seconds: float | None,
    ) -> T:
        """Run a step inside all current wrappers.

        Args:
            step: The step.
            run: Makes the call.
            admit: Decides whether the call is made. Returns None, or a result to use instead.
            limiter: A context manager around ``admit`` and ``run``.
            seconds: The time that the wrappers have before the call, and again after it.
        """
        with call_scope(step.call):
            if self._registered:
                wrapped = _WrappedStep(self._registered, step, run, admit, limiter, seconds)
                return cast("T", await wrapped.run())
            return await _make_call(run, admit, limiter)


async def _make_call(
    run: Call[T],
    admit: Call[T | None] | None,
    limiter: Limiter | None,
    start: Call[None] | None = None,
) -> T:
    async with limiter or nullcontext():
        refusal = None if admit is None else await admit()
        if refusal is not None:
            return refusal
        if start is not None:
            await start()
        return await run()


# The deadline of the wrappers isn't a ReusableDeadline, which bounds one call into third-party code
# and treats a late result, or an error after the deadline, as a timeout. Here the orchestrator's
# call runs inside the wrappers. Once the call has been made, its result or error must reach the
# orchestrator even if a wrapper blocks for too long on the way out. Otherwise the step would be
# lost although it has happened. So a single plain cancel scope has a deadline for the way in, none
# while the call runs under its own deadline, and a new one for the way out.


@attrs.define(eq=False)
class _WrappedStep:
    """A step with wrappers around it."""

    _wrappers: tuple[_WrapperRegistration, ...]
    _step: Step
    _run: Call[object]
    _admit: Call[object] | None
    _limiter: Limiter | None
    _seconds: float | None
    _scope: anyio.CancelScope = attrs.field(factory=cancel_scope, init=False)

    async def run(self) -> object:
        try:
            await self._step.wait_for_previous()
            with self._scope:
                self._start_clock()
                return await self._enter(0)
        finally:
            self._step.leave_order()
        assert self._seconds is not None
        wrappers = ", ".join(map(str, self._wrappers))
        raise DeadlineExceeded(
            f"{wrappers}: step {self._step.key!r} was not entered or left within "
            f"{self._seconds:g} s; a wrapper may wait for its own storage, not for other steps",
            operation=wrappers,
            seconds=self._seconds,
        )

    def _start_clock(self) -> None:
        self._scope.deadline = math.inf if self._seconds is None else current_time() + self._seconds

    def _stop_clock(self) -> None:
        self._scope.deadline = math.inf

    async def _enter(self, depth: int) -> object:
        if depth == len(self._wrappers):
            return await self._make_call()
        registration = self._wrappers[depth]

        async def run() -> object:
            return await self._enter(depth + 1)

        try:
            return await registration.wrapper(self._step, run)
        except Exception:
            raise
        except BaseException as exc:  # foreign code
            raise contained_failure(exc, str(registration)) from exc

    async def _make_call(self) -> object:
        self._stop_clock()
        try:
            await self._step.wait_for_group()
            return await _make_call(self._run, self._admit, self._limiter, self._start)
        finally:
            self._start_clock()

    async def _start(self) -> None:
        """Run the step's own functions for its start, right before the call, under the deadline."""
        self._start_clock()
        await self._step.start()
        self._stop_clock()
