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


@attrs.define(eq=False)
class _Replaced:
    """What stood in a slot before another module took it; it comes back when that module is undone."""

    point: str
    name: str | None
    module: Any
    owner: str | None
    by: str | None


class Mounts:
    """The modules of one session by mount point."""

    __slots__ = ("_owners", "_replaced", "points", "strict")

    def __init__(self, hooks: Any) -> None:
        self.points: dict[str, Any] = {
            "orchestrator": None,
            "providers": {},
            "tools": {},
            "context": None,
            "hooks": hooks,
            "module-source-resolver": None,
        }
        self._owners: dict[tuple[str, str | None], str] = {}
        self._replaced: list[_Replaced] = []
        self.strict = False

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
        """Empty a slot; an absent name is fine.

        Raises:
            ValueError: Unknown point, or a named point without a name.
            ContractError: A module (``owner``) tries to unmount what another one mounted.
        """
        point, name = self._resolve(point, name)
        if point == "hooks":
            return
        single = point in SINGLE_POINTS
        named = {} if single else self._named(point)
        if not single and name is None:
            raise ValueError(f"Name required to unmount from {point}")
        key = (point, None if single else name)
        holder = self._owners.get(key)
        if owner is not None and holder is not None and holder != owner:
            raise ContractError(
                f"module {owner!r} may not unmount {name or point!r}: it was mounted by {holder!r}", module=owner
            )
        self._owners.pop(key, None)
        if single:
            self.points[point] = None
        elif name is not None:
            named.pop(name, None)

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
        owner = self._owners.get((point, old))
        named = self._named(point)
        module = named.pop(old)
        self._owners.pop((point, old), None)
        self._restore(point, old, owner)
        self._take_slot(point, new, named.get(new), owner)
        named[new] = module

    def undo(self, owner: str) -> None:
        """Take away everything one module has mounted and put back what it had replaced."""
        for point, name, _ in self.mounted_by(owner):
            del self._owners[point, name]
            if name is None:
                self.points[point] = None
            else:
                self.points[point].pop(name, None)
            self._restore(point, name, owner)

    def clear_owned(self) -> None:
        """Empty every slot that a module filled; what the application mounted stays."""
        self._replaced.clear()
        for owner in set(self._owners.values()):
            self.undo(owner)

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
            if holder != owner or point == "orchestrator":
                what = f"{point} {name!r}" if name else point
                message = f"{what} mounted by {holder or 'the application'} is replaced by {owner or 'the application'}"
                if self.strict and holder != owner:
                    raise ContractError(f"{message}; session.strict forbids that: rename one of them", module=owner)
                logger.warning("%s", message)
            if owner is not None and holder != owner:
                self._replaced.append(_Replaced(point, name, present, holder, owner))
        if owner is None:
            self._owners.pop(key, None)
        else:
            self._owners[key] = owner

    def _restore(self, point: str, name: str | None, by: str | None) -> None:
        for entry in reversed(self._replaced):
            if (entry.point, entry.name, entry.by) == (point, name, by):
                self._replaced.remove(entry)
                if entry.owner is not None:
                    self._owners[point, name] = entry.owner
                if name is None:
                    self.points[point] = entry.module
                else:
                    self.points[point][name] = entry.module
                return
