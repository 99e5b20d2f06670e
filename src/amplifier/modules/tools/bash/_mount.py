"""Reads the configuration and mounts the tool."""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from amplifier._programs import find_program
from amplifier._supervisor import PR_GET_DUMPABLE, PR_SET_DUMPABLE, prctl
from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError

from ..._shared.configuration import read_options
from ..._shared.session_files import working_directory
from ..._shared.worker_threads import Workers, poll_until
from ._confinement import choose_sandbox, import_warning
from ._options import BashOptions
from ._tool import BashTool

_lock = threading.Lock()
_users = 0
_before = 1


# ── hidden environment ────────────────────────────────────────────────────────────────────────────
# Keeps commands of the same user from reading the memory and the environment of this process, where API keys are.
#
# A process that is not "dumpable" belongs to root in ``/proc``. It cannot be attached to by a debugger of the same
# user, and writes no core file. The state is one for the process: the last session that needs it gives it back.


def hide_environment() -> Callable[[], None]:
    """Make this process not dumpable; returns the function that undoes it, which may be called twice. Linux only."""
    global _users, _before  # noqa: PLW0603 — the state belongs to the process, not to a session
    is_used = sys.platform.startswith("linux")
    if is_used:
        with _lock:
            if _users == 0:
                _before = prctl(PR_GET_DUMPABLE)
                prctl(PR_SET_DUMPABLE, 0)
            _users += 1

    def undo() -> None:
        nonlocal is_used
        global _users  # noqa: PLW0603 — as above
        with _lock:
            if is_used:
                is_used = False
                _users -= 1
                if _users == 0 and _before == 1:
                    prctl(PR_SET_DUMPABLE, 1)

    return undo


logger = logging.getLogger("amplifier.modules.tools")

_MODULE = "tool-bash"

SANDBOX = "bash.sandbox"
"""The capability by which others learn how commands are confined: an object with `kind` and `network`."""


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount bash.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
        ModuleLoadError: There is no shell, the system has no process groups, or the sandbox of the plan does not work.
    """
    if sys.platform == "win32":
        raise ModuleLoadError(f"{_MODULE} needs a system with process groups", module_id=_MODULE)
    options, shell, start = await anyio.to_thread.run_sync(_read, config)
    first = working_directory(coordinator, start) if options.working_dir is None else start / options.working_dir
    sandbox, warning = await anyio.to_thread.run_sync(choose_sandbox, options, str(first))
    for text in (warning, import_warning(sandbox, str(first))):
        if text is not None:
            logger.warning("%s: %s", _MODULE, text)

    def directory() -> Path:
        return working_directory(coordinator, start) if options.working_dir is None else start / options.working_dir

    # Time is kept by the command itself, which then still has an answer to give; waiting for a free thread has no limit.
    workers = Workers(threads=options.max_parallel, timeout=math.inf)
    tool = BashTool(options, shell, directory, workers, sandbox)

    async def end_commands() -> None:
        # Only a command that runs outside of any turn can be left: a turn's commands ended with it.
        await poll_until(lambda: not tool.stop_all())

    coordinator.register_cleanup(end_commands)
    if sandbox.kind == "off":
        coordinator.register_cleanup(hide_environment())
    coordinator.register_capability(SANDBOX, {"kind": sandbox.kind, "network": sandbox.network})
    await coordinator.mount("tools", tool)


def _read(config: dict[str, Any] | None) -> tuple[BashOptions, str, Path]:
    """Read the configuration, the shell and the directory that relative paths start from; asks the file system."""
    options = read_options(BashOptions, _MODULE, config)
    shell = options.shell or find_program("bash")
    if shell is None:
        raise ModuleLoadError(
            f"{_MODULE} found no bash on the search path; name a shell in its config as 'shell'", module_id=_MODULE
        )
    return options, shell, Path.cwd()
