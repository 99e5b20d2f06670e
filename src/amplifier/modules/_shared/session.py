"""The directories of a module's session, and shielded work in it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVarTuple, Unpack

import anyio

from amplifier.contracts import Coordinator

Ts = TypeVarTuple("Ts")


def default_sessions_directory() -> Path:
    """Return the user's directory of sessions, following the XDG base directory specification.

    A relative ``XDG_STATE_HOME`` is ignored, as the specification requires.
    """
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".local" / "state"
    return base / "amplifier" / "sessions"


def working_directory(coordinator: Coordinator, default: Path) -> Path:
    """Return the session's working directory, or `default`.

    An application may set or change the directory at any time.
    """
    value = coordinator.get_capability("session.working_dir")
    return default / value if isinstance(value, str | Path) else default


async def run_shielded(
    coordinator: Coordinator | None,
    fn: Callable[[Unpack[Ts]], Awaitable[None]],
    *args: *Ts,
    name: str,
) -> None:
    """Run ``fn(*args)`` to its end. A cancellation of the caller is delivered afterwards.

    Args:
        coordinator: Runs the work in a child task (see `Coordinator.run_shielded`). Without a
            coordinator, this function starts the task. The end of an asyncio loop cancels it.
        fn: The work, which must end in bounded time.
        args: Arguments of ``fn``.
        name: Name of the work in reports.
    """
    if coordinator is not None:
        await coordinator.run_shielded(fn, *args, name=name)
        return
    failures: list[BaseException] = []

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await fn(*args)
            # The error is raised below, where no task group wraps it.
            except BaseException as error:  # noqa: BLE001
                failures.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    # Popping the error breaks the reference cycle between the error and this frame.
    if failures:
        raise failures.pop()
