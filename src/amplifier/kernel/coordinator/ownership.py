"""Who registered what in one session, kept once: slots as stacks, and the ledger that takes back what modules registered.

Mounts and capabilities are slots: several modules may fill one, and when the module on top goes, what it had replaced comes back.
Everything that belongs to a module, slots, handlers and contributors alike, is an entry of the ledger; undoing a module and the
closing of the session are one walk through it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final, Protocol, final

from amplifier.errors import SessionStateError

EMPTY: Final[Any] = object()
"""The value of a slot with nothing in it."""

Key = str | tuple[str, str]
"""A slot, by the name of its kind or by that and a name of its own."""

Layer = tuple[str | None, Any]
"""Owner and value; the application is None."""


class Entry(Protocol):
    """Something that one or more modules registered."""

    def withdraw(self, key: Any, owner: str) -> None:
        """Take back what a module registered here, and strike the entry out if no other module did."""

    def drop(self, key: Any) -> None:
        """Take back what every module registered here; the entry has been struck out."""


class Registry(Protocol):
    """Where registrations are kept."""

    def remove(self, registration: Any) -> None:
        """Remove one, and strike it out of the ledger."""


class Registration:
    """An entry that belongs to one module: a base class for what is registered once and removed as a whole.

    Attributes:
        owner: The module; None for the application.
        kept_by: Only a module's registration knows it: an application's stays after the closing and must not form a cycle.
    """

    __slots__ = ()

    owner: str | None
    kept_by: Registry | None

    def withdraw(self, key: object, owner: str) -> None:
        """Remove it if this module registered it."""
        if owner == self.owner:
            self.drop(key)

    def drop(self, key: object) -> None:
        """Remove it."""
        if self.kept_by is not None:
            self.kept_by.remove(self)


@final
class Ledger:
    """All that the modules of one session have registered, in the order in which they did.

    It also knows which modules may register. Each undoing begins a new generation; a view keeps the one it was made in.

    Attributes:
        entries: What there is now. Whoever adds to it takes out what is gone by another way than `undo`.
        generation: A view of this generation may register; for an older one, `check` decides.
    """

    __slots__ = ("_closed", "_undone", "entries", "generation")

    def __init__(self) -> None:
        self.entries: dict[Hashable, Entry] = {}
        self.generation: int = 0
        self._closed = -1
        self._undone: dict[str, int] | None = None

    def enter(self, key: Hashable, entry: Entry) -> None:
        """A module has registered something."""
        self.entries[key] = entry

    def strike(self, key: Hashable) -> None:
        """It is gone."""
        self.entries.pop(key, None)

    def undo(self, owner: str) -> None:
        """Take back everything a module registered, the latest first; its views may register nothing any more."""
        for key, entry in reversed(list(self.entries.items())):
            entry.withdraw(key, owner)
        self._undone = {**(self._undone or {}), owner: self.generation}
        self.generation += 1

    def undo_all(self) -> None:
        """Take back everything that modules registered; what the application registered stays. For the closing."""
        entries = list(self.entries.items())
        self.entries.clear()
        for key, entry in reversed(entries):
            entry.drop(key)
        self._undone, self._closed = None, self.generation
        self.generation += 1

    def check(self, owner: str, generation: int, what: str, *, undone_may: bool = False) -> None:
        """Refuse what comes too late.

        Args:
            owner: The module that registers something.
            generation: Of the view through which it does.
            what: For the message.
            undone_may: Accept it from a module that was undone as long as the session is open.

        Raises:
            SessionStateError: The module was undone, or its session has closed.
        """
        if generation <= self._closed:
            raise SessionStateError(f"{what} of module {owner!r} comes too late: its session is closed")
        if self._undone is not None and not undone_may and generation <= self._undone.get(owner, -1):
            raise SessionStateError(
                f"{what} of module {owner!r} is refused: everything the module had registered was taken back, "
                "because it failed or was removed"
            )


@final
class Slot:
    """A place that several modules may fill: a stack of layers.

    The value on top is where it is read (see `SlotTable`); here are its owner and the layers below it.
    """

    __slots__ = ("below", "owner", "table")

    def __init__(self, table: SlotTable, owner: str | None, below: tuple[Layer, ...]) -> None:
        self.table: SlotTable = table
        self.owner: str | None = owner
        self.below: tuple[Layer, ...] = below

    def withdraw(self, key: Key, owner: str) -> None:
        """Take out a module's layer; if it was on top, the one below comes back."""
        if self.owner == owner:
            self.table.uncover(key, self)
        else:
            self.below = tuple(layer for layer in self.below if layer[0] != owner)
            self.table.settle(key, self)

    def drop(self, key: Key) -> None:
        """Take out all layers but the application's."""
        if not self.below:
            self.table.write(key, EMPTY)
        elif self.owner is not None:
            self.table.write(key, next((value for owner, value in self.below if owner is None), EMPTY))


class SlotTable:
    """Slots of one kind. The values on top are in plain dicts, which are read without us and may be written by hand.

    What the application put into a slot alone needs no entry: a value without one is the application's.
    """

    __slots__ = ("_entries",)

    def __init__(self, ledger: Ledger) -> None:
        self._entries: dict[Hashable, Any] = ledger.entries

    def holder(self, key: Key) -> str | None:
        """The module whose value is on top; None for the application, or if the slot is empty."""
        slot = self._entries.get(key)
        return None if slot is None else slot.owner

    def cover(self, key: Key, present: Any, owner: str | None) -> None:
        """Note that ``owner`` puts a value on top of ``present``; writing it is up to the caller.

        What the same owner had in this slot is not covered but gone.
        """
        slot = self._entries.get(key)
        if slot is None:
            if owner is not None:
                self._entries[key] = Slot(self, owner, () if present is EMPTY else ((None, present),))
            return
        layers = slot.below if present is EMPTY else (*slot.below, (slot.owner, present))
        slot.below = tuple(layer for layer in layers if layer[0] != owner)
        slot.owner = owner
        self.settle(key, slot)

    def uncover(self, key: Key, slot: Slot | None) -> None:
        """Take away the value on top, so that the one below comes back."""
        if slot is None or not slot.below:
            self._entries.pop(key, None)
            self.write(key, EMPTY)
            return
        *below, (owner, value) = slot.below
        slot.owner, slot.below = owner, tuple(below)
        self.settle(key, slot)
        self.write(key, value)

    def settle(self, key: Key, slot: Slot) -> None:
        """Forget a slot in which no module has anything any more."""
        if slot.owner is None and not slot.below:
            self._entries.pop(key, None)

    def write(self, key: Any, value: Any) -> None:
        """Put a value, or `EMPTY`, where it is read."""
        raise NotImplementedError
