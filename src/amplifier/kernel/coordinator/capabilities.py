"""The capability registry: named values that modules offer one another. Who offered what is in `ownership`."""

from __future__ import annotations

import logging
from typing import Any

from .ownership import EMPTY, Ledger, SlotTable

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

_KIND = "capability"
"""What keys begin with; no mount point has this name."""


class Capabilities(SlotTable):
    """Names and values of one session; `values` is read directly by the coordinator's hot getter."""

    __slots__ = ("values",)

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self.values: dict[str, Any] = {}

    def register(self, name: Any, value: Any, owner: str | None) -> None:
        """Offer ``value`` under ``name``; the last registration wins, over another module's with a warning.

        Raises:
            TypeError: The name is not a non-empty string.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"a capability's name must be a non-empty str such as 'agents.list', got {name!r}")
        key = (_KIND, name)
        present = self.values.get(name, EMPTY)
        if present is not EMPTY and (holder := self.holder(key)) != owner:
            logger.warning(
                "capability %r registered by %s is replaced by %s",
                name,
                holder or "the application",
                owner or "the application",
            )
        self.cover(key, present, owner)
        self.values[name] = value

    def write(self, key: tuple[str, str], value: Any) -> None:
        """Put a value, or `EMPTY`, where it is read."""
        if value is EMPTY:
            self.values.pop(key[1], None)
        else:
            self.values[key[1]] = value
