"""The capability registry: named values that modules offer one another, with who offered them."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger("amplifier.coordinator")


class Capabilities:
    """Names and values of one session; `values` is read directly by the coordinator's hot getter."""

    __slots__ = ("_covered", "_owners", "values")

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._owners: dict[str, str] = {}
        self._covered: dict[str, list[tuple[Any, str | None]]] = {}

    def register(self, name: Any, value: Any, owner: str | None) -> None:
        """Offer ``value`` under ``name``; the last registration wins, over another module's with a warning.

        Raises:
            TypeError: The name is not a non-empty string.
        """
        if not isinstance(name, str) or not name:
            raise TypeError(f"a capability's name must be a non-empty str such as 'agents.list', got {name!r}")
        if name in self.values:
            holder = self._owners.get(name)
            if holder != owner:
                logger.warning(
                    "capability %r registered by %s is replaced by %s",
                    name,
                    holder or "the application",
                    owner or "the application",
                )
                self._covered.setdefault(name, []).append((self.values[name], holder))
        if name in self._covered:  # what its owner registers again is not covered but gone
            self._covered[name] = [(value, holder) for value, holder in self._covered[name] if holder != owner]
        self.values[name] = value
        if owner is None:
            self._owners.pop(name, None)
        else:
            self._owners[name] = owner

    def undo(self, owner: str) -> None:
        """Withdraw what one module offered and put back what it had replaced."""
        for name, covered in list(self._covered.items()):
            self._covered[name] = [(value, holder) for value, holder in covered if holder != owner]
        for name in [name for name, holder in self._owners.items() if holder == owner]:
            del self._owners[name]
            del self.values[name]
            if covered := self._covered.pop(name, []):
                self.values[name], holder = covered.pop()
                if covered:
                    self._covered[name] = covered
                if holder is not None:
                    self._owners[name] = holder

    def clear_owned(self) -> None:
        """Withdraw everything modules offered; what the application offered stays."""
        covered = [holder for layers in self._covered.values() for _, holder in layers if holder is not None]
        for owner in {*self._owners.values(), *covered}:
            self.undo(owner)
