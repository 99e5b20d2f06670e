"""What modules use of their session: its directories, and work that nothing cuts off."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from amplifier.contracts import Coordinator


def default_sessions_directory() -> Path:
    """The user's directory of sessions by the XDG base directory rules, which ignore a relative ``XDG_STATE_HOME``."""
    configured = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = configured if configured.is_absolute() else Path.home() / ".local" / "state"
    return base / "amplifier" / "sessions"


def working_directory(coordinator: Coordinator, default: Path) -> Path:
    """The session's working directory, or `default`; an application may set or change it at any time."""
    value = coordinator.get_capability("session.working_dir")
    return default / value if isinstance(value, str | Path) else default


async def run_shielded(
    coordinator: Coordinator | None, fn: Callable[..., Awaitable[None]], *args: Any, name: str
) -> None:
    """Run ``fn(*args)`` to its end; a cancellation of the caller is delivered afterwards.

    Args:
        coordinator: Runs the work in a child task, see `Coordinator.run_shielded`. Without one, this
            function starts the child task. The end of an asyncio loop cancels the child as well.
        fn: The work, which must end in bounded time.
        args: Its arguments.
        name: For reports.
    """
    if coordinator is not None:
        await coordinator.run_shielded(fn, *args, name=name)
        return
    failures: list[BaseException] = []

    async def run() -> None:
        with anyio.CancelScope(shield=True):
            try:
                await fn(*args)
            except BaseException as error:  # noqa: BLE001 - raised below, where no task group wraps it
                failures.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(run)
    if failures:
        raise failures.pop()  # popped, so that the error does not hold a frame that holds the error
