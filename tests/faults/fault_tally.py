"""Counts which of the faults hold on which backend, from the outcomes of `tests/faults`."""

from __future__ import annotations

import re

from tests.faults.fault_list import FAULTS

BACKENDS = ("asyncio", "trio")

_NAME = re.compile(r"tests/faults/.*::test_f(\d\d[a-z]?)_\w*\[(.+)\]$")


class Tally:
    """A fault holds on a backend where it was tested and nothing failed."""

    def __init__(self) -> None:
        self._passed: dict[str, set[str]] = {backend: set() for backend in BACKENDS}
        self._failed: dict[str, set[str]] = {backend: set() for backend in BACKENDS}
        self.tests = 0

    def note(self, test: str, *, passed: bool) -> None:
        """One test has ended; what is no test of a fault does not count."""
        match = _NAME.search(test)
        if match is None:
            return
        self.tests += 1
        for backend in set(BACKENDS) & set(match[2].split("-")):
            (self._passed if passed else self._failed)[backend].add(f"F{match[1]}")

    def holds(self, fault: str, backend: str) -> bool:
        """Whether one fault holds on one backend."""
        return fault in self._passed[backend] and fault not in self._failed[backend]

    def line(self) -> str:
        """The count in one line."""
        held = {
            backend: sum(self.holds(fault, backend) for fault in FAULTS) for backend in BACKENDS
        }
        return f"faults: {held['asyncio']} of {len(FAULTS)} hold on asyncio, {held['trio']} on trio"
