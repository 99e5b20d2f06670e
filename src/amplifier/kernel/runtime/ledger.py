"""The ledger of one session: who registered what, and what takes it back.

Everything that belongs to a module, places, handlers, contributors and wrappers alike, is in it; undoing a module and the closing of the
session are one walk through it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import final

from amplifier.contracts import OnFailure
from amplifier.errors import SessionStateError


@final
class Ledger:
    """All that the modules of one session have registered, in the order in which they did.

    Attributes:
        entries: What there is now: whose it is, and what takes it back. Who takes something back by another way than `undo` strikes
            it out.
        owners: Those who may have registered it.
    """

    __slots__ = ("entries", "owners")

    def __init__(self) -> None:
        self.entries: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        self.owners: list[Owner] = []

    def undo(self, module: str | None) -> None:
        """Take back everything that a module registered, the latest first; it may register nothing any more.

        With None, for the closing, everything that any module registered; what the application registered stays.
        """
        for key, (owner, take_back) in reversed(list(self.entries.items())):
            if module in (None, owner):
                take_back()
                self.entries.pop(key, None)
        for each in self.owners:
            if module is None:
                each.is_closed = True
            elif each.name == module:
                each.is_undone = True
        if module is None:
            self.owners.clear()


@final
class Owner:
    """A module as the owner of what it registers.

    Attributes:
        name: Its id.
        on_failure: What its handlers are if they do not say.
        is_undone: What it had registered was taken back.
        is_closed: So was everything else, because the session has closed.
    """

    __slots__ = ("_entries", "is_closed", "is_undone", "name", "on_failure")

    def __init__(self, name: str, on_failure: OnFailure, ledger: Ledger) -> None:
        self.name: str = name
        self.on_failure: OnFailure = on_failure
        self.is_undone: bool = False
        self.is_closed: bool = False
        self._entries = ledger.entries
        ledger.owners.append(self)

    def enter(self, key: Hashable, take_back: Callable[[], None]) -> None:
        """It has registered something."""
        self._entries[key] = self.name, take_back

    def strike(self, key: Hashable) -> None:
        """That is gone."""
        self._entries.pop(key, None)

    def check(self, what: str, *, undone_may: bool = False) -> None:
        """Refuse what comes too late.

        Args:
            what: For the message.
            undone_may: Accept it from a module that was undone as long as the session is open.

        Raises:
            SessionStateError: The module was undone, or its session has closed.
        """
        if self.is_closed:
            raise SessionStateError(f"{what} of module {self.name!r} comes too late: its session is closed")
        if self.is_undone and not undone_may:
            raise SessionStateError(
                f"{what} of module {self.name!r} is refused: everything the module had registered was taken back, "
                "because it failed or was removed"
            )
