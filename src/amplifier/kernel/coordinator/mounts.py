"""Mount points, single and named, with who mounted what.

Everything happens at the call; `Done` is what a caller may await afterwards, or not (the contracts show both).
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, final

import attrs

from amplifier.errors import ContractError

logger = logging.getLogger("amplifier.coordinator")

SINGLE_POINTS = ("orchestrator", "context", "module-source-resolver")
NAMED_POINTS = ("providers", "tools")

_SESSION_SYNONYM = "session"


@final
class Done:
    """Awaiting it returns at once, without a checkpoint: the work is done already."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield  # makes this a generator, which is what __await__ must return


DONE = Done()


_Slot = tuple[str, str | None]
"""A mount point and, where it has names, the name."""


@attrs.frozen(eq=False)
class _Covered:
    """What stood in a slot before somebody else took it; it comes back when what covers it goes."""

    module: Any
    owner: str | None


class Mounts:
    """The modules of one session by mount point.

    Attributes:
        strict: Replacing what another module mounted is an error.
        instances: Modules whose provider moves to a name of its own right after its mount; until then it may stand over
            another instance.
    """

    __slots__ = ("_covered", "_owners", "instances", "points", "strict")

    def __init__(self, hooks: Any) -> None:
        self.points: dict[str, Any] = {
            "orchestrator": None,
            "providers": {},
            "tools": {},
            "context": None,
            "hooks": hooks,
            "module-source-resolver": None,
        }
        self._owners: dict[_Slot, str] = {}
        self._covered: dict[_Slot, list[_Covered]] = {}
        self.instances: frozenset[str | None] = frozenset()
        self.strict: bool = False

    def mount(self, point: str, module: Any, name: str | None, owner: str | None) -> None:
        """Put a module at a point.

        Raises:
            ValueError: Unknown point, ``hooks``, or a named point without a name.
            TypeError: The name is not a string.
            ContractError: In strict mode, the slot belongs to another module.
        """
        point, name = self._resolve(point, name)
        if point == "hooks":
            raise ValueError(
                "Hooks should be registered directly with the HookRegistry: coordinator.hooks.register(event, handler)"
            )
        if point in SINGLE_POINTS:
            self._take_slot(point, None, self.points[point], owner)
            self.points[point] = module
            return
        named = self._named(point)
        if name is None:
            name = getattr(module, "name", None)
            if name is None:
                raise ValueError(
                    f"Name required for {point}: pass name=… or give {type(module).__name__} a `name` property"
                )
        if not isinstance(name, str):
            raise TypeError(f"the name of a module at {point!r} must be a str, got {name!r}")
        self._take_slot(point, name, named.get(name), owner)
        named[name] = module

    def unmount(self, point: str, name: str | None, owner: str | None = None) -> None:
        """Empty a slot; an absent name is fine. A module gives back what its own had replaced.

        Raises:
            ValueError: Unknown point, or a named point without a name.
            ContractError: A module (``owner``) tries to unmount what somebody else mounted.
        """
        point, name = self._resolve(point, name)
        if point == "hooks":
            return
        slot = (point, None) if point in SINGLE_POINTS else (point, name)
        if slot[1] is None and point not in SINGLE_POINTS:
            raise ValueError(f"Name required to unmount from {point}")
        present, holder = self._present(slot), self._owners.get(slot)
        if owner is not None and present is not None and holder != owner:
            raise ContractError(
                f"module {owner!r} may not unmount {name or point!r}: it was mounted by {holder or 'the application'!r}",
                module=owner,
            )
        if owner is None:
            self._covered.pop(slot, None)
        self._uncover(slot)

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
        return self._owners.get((point, None if point in SINGLE_POINTS else name))

    def mounted_by(self, owner: str) -> list[tuple[str, str | None, Any]]:
        """Everything one module has mounted: (point, name, module)."""
        return [
            (point, name, self.points[point] if name is None else self.points[point].get(name))
            for (point, name), holder in self._owners.items()
            if holder == owner
        ]

    def rename(self, point: str, old: str, new: str) -> None:
        """Move a module to another name and let what ``old`` held before come back."""
        owner, module = self._owners.get((point, old)), self._named(point)[old]
        self._uncover((point, old))
        self._take_slot(point, new, self._present((point, new)), owner)
        self._named(point)[new] = module

    def undo(self, owner: str) -> None:
        """Take away everything one module has mounted and put back what it had replaced."""
        for slot, covered in list(self._covered.items()):
            self._covered[slot] = [layer for layer in covered if layer.owner != owner]
        for slot in [slot for slot, holder in self._owners.items() if holder == owner]:
            self._uncover(slot)

    def clear_owned(self) -> None:
        """Empty every slot that a module filled; what the application mounted stays."""
        if not self._covered:
            for slot in list(self._owners):
                self._uncover(slot)
            return
        for owner in {*self._owners.values(), *self._covering_owners()}:
            self.undo(owner)

    def _covering_owners(self) -> list[str]:
        return [layer.owner for covered in self._covered.values() for layer in covered if layer.owner is not None]

    def _resolve(self, point: Any, name: str | None) -> tuple[str, str | None]:
        if point == _SESSION_SYNONYM and name in ("orchestrator", "context"):
            return name, None
        if not isinstance(point, str) or point not in self.points:
            known = ", ".join(map(repr, self.points))
            raise ValueError(f"Unknown mount point: {point}; expected one of {known}")
        return point, name

    def _named(self, point: str) -> dict[str, Any]:
        named = self.points[point]
        if not isinstance(named, dict):
            raise ValueError(
                f"mount point {point!r} was replaced by {type(named).__name__}; expected a dict of modules"
            )
        return named

    def _take_slot(self, point: str, name: str | None, present: Any, owner: str | None) -> None:
        key = (point, name)
        if present is not None:
            holder = self._owners.get(key)
            if (holder != owner or point == "orchestrator") and not (point == "providers" and owner in self.instances):
                what = f"{point} {name!r}" if name else point
                message = f"{what} mounted by {holder or 'the application'} is replaced by {owner or 'the application'}"
                if self.strict and holder != owner:
                    raise ContractError(f"{message}; session.strict forbids that: rename one of them", module=owner)
                logger.warning("%s", message)
            if holder != owner:
                self._covered.setdefault(key, []).append(_Covered(present, holder))
        if key in self._covered:  # what its owner mounts again is not covered but gone
            self._covered[key] = [layer for layer in self._covered[key] if layer.owner != owner]
        if owner is None:
            self._owners.pop(key, None)
        else:
            self._owners[key] = owner

    def _present(self, slot: _Slot) -> Any:
        point, name = slot
        return self.points[point] if name is None else self._named(point).get(name)

    def _uncover(self, slot: _Slot) -> None:
        """Empty a slot, or put back what was covered last."""
        point, name = slot
        self._owners.pop(slot, None)
        covered = self._covered.get(slot)
        below = covered.pop() if covered else None
        if not covered:
            self._covered.pop(slot, None)
        if below is not None and below.owner is not None:
            self._owners[slot] = below.owner
        if name is None:
            self.points[point] = None if below is None else below.module
        elif below is None:
            self._named(point).pop(name, None)
        else:
            self._named(point)[name] = below.module
