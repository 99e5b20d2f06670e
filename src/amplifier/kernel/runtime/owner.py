"""The module that owns a registration."""

from __future__ import annotations

from typing import final

from amplifier.contracts import OnFailure
from amplifier.errors import SessionStateError

# The tables of mount points, handlers, contributors and step wrappers keep the owner with each
# registration. Each table has a method ``unregister_owner``, which removes the registrations of one
# module, or of all. Undoing a module and closing a session call it on each of them.


@final
class Owner:
    """One module of one session.

    Attributes:
        name: The id of the module.
        on_failure: The failure policy of handlers that the module registers without one.
        is_undone: True once the registrations of the module have been removed.
        is_closed: True once the session has closed.
    """

    __slots__ = ("is_closed", "is_undone", "name", "on_failure")

    def __init__(self, name: str, on_failure: OnFailure = "continue") -> None:
        self.name: str = name
        self.on_failure: OnFailure = on_failure
        self.is_undone: bool = False
        self.is_closed: bool = False

    def check(self, operation: str, *, undone_may: bool = False) -> None:
        """Refuse a registration that comes too late.

        Args:
            operation: The registration, for the message, such as "a mount".
            undone_may: Allow an undone module to register while the session is open.

        Raises:
            SessionStateError: The module was undone, or its session has closed.
        """
        if self.is_closed:
            raise SessionStateError(
                f"{operation} of module {self.name!r} comes too late: its session is closed"
            )
        if self.is_undone and not undone_may:
            raise SessionStateError(
                f"{operation} of module {self.name!r} is refused: everything the module had "
                "registered was taken back, because it failed or was removed"
            )


def belongs_to(owner: Owner | None, module: str | None) -> bool:
    """Return whether an owner is this module.

    If ``module`` is None, return whether it is a module at all.
    """
    return owner is not None and module in (None, owner.name)
