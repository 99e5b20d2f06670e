"""Standard input and output as a protocol's own: nothing else in the process can read the one or write to the other.

The descriptors 0 and 1 are moved away. In their place are the null device and standard error, so what modules print, and what
their child processes write, ends up in the client's log instead of between two messages.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from amplifier.modules._shared.message_lines import read_chunk, write_all

_WRITE_AT_ONCE = 4096
"""A pipe that is ready takes this many bytes without blocking (PIPE_BUF)."""


class StandardStreams:
    """Two descriptors as byte streams; they stay in blocking mode, because other processes may share them."""

    def __init__(self, source: int, target: int) -> None:
        self._source = source
        self._target = target

    async def receive(self) -> bytes:
        """The next bytes; empty at the end of input."""
        return await read_chunk(self._source)

    async def send(self, data: bytes) -> None:
        """Write everything.

        Raises:
            OSError: The reader has gone, or the system refuses.
        """
        await write_all(self._target, data, chunk=_WRITE_AT_ONCE)


@contextmanager
def taken_standard_streams() -> Iterator[StandardStreams]:
    """Take standard input and output for the protocol; at the end they are put back."""
    sys.stdout.flush()
    source, target = os.dup(0), os.dup(1)  # not inherited by child processes
    null = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(null, 0)
        os.dup2(2, 1)
        yield StandardStreams(source, target)
    finally:
        sys.stdout.flush()
        os.dup2(source, 0)
        os.dup2(target, 1)
        for descriptor in (null, source, target):
            os.close(descriptor)
