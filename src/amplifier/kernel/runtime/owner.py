"""A module as the owner of what it registers.

MountTable, handlers, contributors and step wrappers each keep the owner beside what was registered, and take back what one module registered,
or any, with a method ``unregister_owner``: undoing a module and closing a session call it on each of them.
"""

from __future__ import annotations

from typing import final

from amplifier.contracts import OnFailure
from amplifier.errors import SessionStateError


@final
class Owner:
    """One module of one session.

    Attributes:
        name: Its id.
        on_failure: What its handlers are if they do not say.
        is_undone: What it had registered was taken back.
        is_closed: So was everything else, because the session has closed.
    """

    __slots__ = ("is_closed", "is_undone", "name", "on_failure")

    def __init__(self, name: str, on_failure: OnFailure = "continue") -> None:
        self.name: str = name
        self.on_failure: OnFailure = on_failure
        self.is_undone: bool = False
        self.is_closed: bool = False

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


def belongs_to(owner: Owner | None, module: str | None) -> bool:
    """Whether it is this module's; with None, whether it is any module's and not the application's."""
    return owner is not None and module in (None, owner.name)
