"""Mount points, single and named. Who mounted what, and what it replaced, is in `ownership`.

Everything happens at the call; `Done` is what a caller may await afterwards, or not (the contracts show both).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from typing import Any, final

from amplifier.errors import ContractError

from .ownership import EMPTY, Key, Ledger, Slot, SlotTable

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

SINGLE_POINTS = ("orchestrator", "context", "module-source-resolver")
NAMED_POINTS = ("providers", "tools")

_SESSION_SYNONYM = "session"

_NOBODY: frozenset[str | None] = frozenset()  # shared: each empty frozenset is an object of its own


@final
class Done:
    """Awaiting it returns at once, without a checkpoint: the work is done already."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return
        yield  # makes this a generator, which is what __await__ must return


DONE = Done()


class Mounts(SlotTable):
    """The modules of one session by mount point.

    Attributes:
        strict: Replacing what another module mounted is an error.
        instances: Modules whose provider moves to a name of its own right after its mount; until then it may replace
            another instance.
        meter: Puts what is mounted at a named point inside something that counts its calls; None without a budget.
    """

    __slots__ = ("instances", "meter", "points", "strict")

    def __init__(self, hooks: Any, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.points: dict[str, Any] = {
            "orchestrator": None,
            "providers": {},
            "tools": {},
            "context": None,
            "hooks": hooks,
            "module-source-resolver": None,
        }
        self.instances: frozenset[str | None] = _NOBODY
        self.strict: bool = False
        self.meter: Callable[[str, Any], Any] | None = None

    def mount(self, point: str, module: Any, name: str | None, owner: str | None) -> None:
        """Put a module at a point.

        Raises:
            ValueError: Unknown point, ``hooks``, or a named point without a name.
            TypeError: The name is not a string.
            ContractError: In strict mode, the slot belongs to another module.
        """
        point, name = self._resolve(point, name)
        if point in SINGLE_POINTS:
            present = self.points[point]
            if present is not None:
                self._check_replacing(point, None, owner)
            self.cover(point, EMPTY if present is None else present, owner)
            self.points[point] = module
            return
        if point == "hooks":
            raise ValueError(
                "Hooks should be registered directly with the HookRegistry: coordinator.hooks.register(event, handler)"
            )
        named = self._named(point)
        if name is None:
            name = getattr(module, "name", None)
            if name is None:
                raise ValueError(
                    f"Name required for {point}: pass name=… or give {type(module).__name__} a `name` property"
                )
        if not isinstance(name, str):
            raise TypeError(f"the name of a module at {point!r} must be a str, got {name!r}")
        self._put(named, point, name, module, owner)

    def unmount(self, point: str, name: str | None, owner: str | None = None) -> None:
        """Empty a slot; an absent name is fine. A module gives back what its own had replaced.

        Raises:
            ValueError: Unknown point, or a named point without a name.
            ContractError: A module (``owner``) tries to unmount what another module mounted.
        """
        point, name = self._resolve(point, name)
        if point == "hooks":
            return
        key: Key = point
        if point not in SINGLE_POINTS:
            if name is None:
                raise ValueError(f"Name required to unmount from {point}")
            key = (point, name)
        present, slot = self._present(key), self._entries.get(key)
        if owner is None:
            slot = None  # for good: nothing comes back
        elif self.holder(key) != owner:
            if present is None:
                return
            raise ContractError(
                f"module {owner!r} may not unmount {name or point!r}: "
                f"it was mounted by {self.holder(key) or 'the application'!r}",
                module=owner,
            )
        self.uncover(key, slot)

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
        return self.holder(point if name is None or point in SINGLE_POINTS else (point, name))

    def mounted_by(self, owner: str) -> list[tuple[str, str | None, Any]]:
        """Everything one module has mounted: (point, name, module)."""
        return [
            (*_parts(key), self._present(key))
            for key, slot in self._entries.items()
            if isinstance(slot, Slot) and slot.table is self and slot.owner == owner
        ]

    def rename(self, point: str, old: str, new: str) -> None:
        """Move a module to another name and let what ``old`` held before come back."""
        owner, named = self.holder((point, old)), self._named(point)
        module = named[old]
        self.uncover((point, old), self._entries.get((point, old)))
        self._put(named, point, new, module, owner)

    def write(self, key: Key, value: Any) -> None:
        """Put a value, or `EMPTY`, where it is read."""
        if isinstance(key, str):
            self.points[key] = None if value is EMPTY else value
            return
        named = self.points[key[0]]
        if not isinstance(named, dict):  # the application has put something else there by hand
            return
        if value is EMPTY:
            named.pop(key[1], None)
        else:
            named[key[1]] = value

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

    def _present(self, key: Any) -> Any:
        point, name = _parts(key)
        return self.points[point] if name is None else self._named(point).get(name)

    def _put(self, named: dict[str, Any], point: str, name: str, module: Any, owner: str | None) -> None:
        present = named.get(name)
        if present is not None:
            self._check_replacing(point, name, owner)
        self.cover((point, name), EMPTY if present is None else present, owner)
        named[name] = module if self.meter is None else self.meter(point, module)

    def _check_replacing(self, point: str, name: str | None, owner: str | None) -> None:
        """Log, or in strict mode refuse, that a module takes the place of another one."""
        holder = self.owner_of(point, name)
        if (holder != owner or point == "orchestrator") and not (point == "providers" and owner in self.instances):
            what = f"{point} {name!r}" if name else point
            message = f"{what} mounted by {holder or 'the application'} is replaced by {owner or 'the application'}"
            if self.strict and holder != owner:
                raise ContractError(f"{message}; session.strict forbids that: rename one of them", module=owner)
            logger.warning("%s", message)


def _parts(key: Any) -> tuple[str, str | None]:
    """The mount point and the name of a slot."""
    return (key, None) if isinstance(key, str) else key
