"""Make a tool call in a separate process and kill it before it acknowledges the result.

The process is ``python -m amplifier.conformance.target.interrupted``, with an `InterruptedCall`
as JSON on standard input.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import attrs

from amplifier.conformance.target.locate import LoadedTarget, Target, load
from amplifier.conformance.target.mounted import CheckContext
from amplifier.conformance.target.process import files_below
from amplifier.contracts import CurrentCall, call_scope
from amplifier.models import from_json, to_json

_PROCESS_SECONDS = 20.0
"""Deadline of one process, which spends most of its time on starting."""


@attrs.frozen(kw_only=True)
class InterruptedCall:
    """A tool call whose process is killed.

    Attributes:
        target: The module of the tool.
        config: The settings that the module is mounted with.
        plan: The rest of the mount plan.
        backend: The async backend.
        tool: The name of the tool.
        arguments: The input of the call.
        session_id: The session of the call, which with the call id makes its idempotency key.
        call_id: The id of the call.
    """

    target: Target
    config: dict[str, Any]
    plan: dict[str, Any]
    backend: str
    tool: str
    arguments: dict[str, Any]
    session_id: str
    call_id: str

    @property
    def current(self) -> CurrentCall:
        """The call, as the tool gets it while it runs and when it is reconciled."""
        return CurrentCall(
            kind="tool",
            session_id=self.session_id,
            turn_number=1,
            iteration=1,
            call_id=self.call_id,
            tool_name=self.tool,
        )

    def other(self) -> InterruptedCall:
        """Return a call with the same input and another id."""
        return attrs.evolve(self, call_id=f"{self.call_id}-other")


def call_and_kill(call: InterruptedCall, root: Path) -> bool:
    """Make a call in the current directory, and kill its process before it acknowledges the result.

    Args:
        call: The call.
        root: The parent of the private directories.

    Returns:
        True if the call succeeded and left an effect in the files that the process leaves behind.
    """
    command = [sys.executable, "-m", "amplifier.conformance.target.interrupted"]
    # This runs outside the event loop, because the kit may make the loop's time jump.
    try:
        done = subprocess.run(
            command,
            input=to_json(call).encode(),
            capture_output=True,
            timeout=_PROCESS_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    before = done.stdout.decode(errors="replace").rpartition("\n")[2]
    return done.returncode == -signal.SIGKILL and before not in ("", digest_of(root))


def digest_of(root: Path) -> str:
    """Return a digest of all files below a folder."""
    files = sorted((name, text) for name, text in files_below(root).items())
    return hashlib.sha256(repr(files).encode()).hexdigest()


async def _make_the_call(call: InterruptedCall, loaded: LoadedTarget) -> None:
    directory, temporary = Path.cwd(), Path(os.environ["TMPDIR"])
    beside: Any = SimpleNamespace(directory=directory, temporary=temporary)
    async with CheckContext(loaded=loaded, backend=call.backend).mount(beside=beside) as mounted:
        before = digest_of(directory.parent)
        with call_scope(call.current):
            result = await mounted.instances[call.tool].execute(call.arguments)
        if result.success is True:
            os.write(1, b"\n" + before.encode())
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Make the call on standard input, and kill this process."""
    call = from_json(InterruptedCall, sys.stdin.read())
    loaded = load(call.target, call.config, call.plan)
    anyio.run(_make_the_call, call, loaded, backend=call.backend)


if __name__ == "__main__":
    main()
