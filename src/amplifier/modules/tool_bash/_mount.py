"""Reads the plan and mounts the tool."""

from __future__ import annotations

import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs

from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError, PlanError

from .._tool_base import Workers, count, read_config, seconds
from ._tool import BashOptions, BashTool

_MODULE = "tool-bash"
_WORKING_DIR = "session.working_dir"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SHORTEST_LOOK, _LONGEST_LOOK = 0.001, 0.02
_DEFAULT_TIMEOUT, _DEFAULT_MOST = 120.0, 600.0


def _variables(value: Any) -> str | None:
    if isinstance(value, dict) and all(
        isinstance(name, str) and _NAME.fullmatch(name) and isinstance(text, str) and "\0" not in text
        for name, text in value.items()
    ):
        return None
    # Not the values: the plan is where secrets for commands stand.
    return "expected a mapping from names of environment variables to texts"


def _names(value: Any) -> str | None:
    if isinstance(value, list | tuple) and all(isinstance(name, str) and _NAME.fullmatch(name) for name in value):
        return None
    return f"expected a list of names of environment variables, got {value!r}"


def _directory(value: Any) -> str | None:
    if isinstance(value, str) and value and "\0" not in value and Path(value).expanduser().is_dir():
        return None
    return f"expected an existing directory, got {value!r}"


def _program(value: Any) -> str | None:
    if isinstance(value, str) and Path(value).is_absolute() and Path(value).is_file():
        return None
    return f"expected the absolute path of a shell, got {value!r}"


_CHECKS = {
    "working_dir": _directory,
    "shell": _program,
    "timeout": seconds,
    "max_timeout": seconds,
    "max_output_bytes": count(2),
    "max_parallel": count(1),
    "kill_grace": seconds,
    "env": _variables,
    "pass_env": _names,
}


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount bash.

    Args:
        coordinator: The session's.
        config: See the module's reference page for the keys.

    Raises:
        PlanError: The config is wrong.
        ModuleLoadError: There is no shell, or the system has no process groups.
    """
    if sys.platform == "win32":
        raise ModuleLoadError(f"{_MODULE} needs a system with process groups", module_id=_MODULE)
    given, start = await anyio.to_thread.run_sync(_read, config)

    def directory() -> Path:
        value = given.get("working_dir") or coordinator.get_capability(_WORKING_DIR)
        # An application may offer a string or a Path; anything else is no directory we could use.
        return start / value if isinstance(value, str | Path) else start

    # Time is kept by the command itself, which then still has an answer to give; waiting for a free thread has no limit.
    workers = Workers(threads=given.get("max_parallel", 8), timeout=math.inf)
    fields = {field.name for field in attrs.fields(BashOptions)}
    tool = BashTool(BashOptions(**{name: value for name, value in given.items() if name in fields}), directory, workers)

    async def end_commands() -> None:
        # Only what somebody runs outside of any turn can be there still: a turn's commands ended with it.
        pause = _SHORTEST_LOOK
        while tool.stop_all():
            await anyio.sleep(pause)
            pause = min(2 * pause, _LONGEST_LOOK)

    coordinator.register_cleanup(end_commands)
    await coordinator.mount("tools", tool)


def _read(config: dict[str, Any] | None) -> tuple[dict[str, Any], Path]:
    """The config with paths as they are meant, and the directory they start from; asks the file system."""
    given = read_config(_MODULE, config, _CHECKS)
    given.setdefault("max_timeout", max(_DEFAULT_MOST, given.get("timeout", 0)))
    given.setdefault("timeout", min(_DEFAULT_TIMEOUT, given["max_timeout"]))
    if given["timeout"] > given["max_timeout"]:
        problem = f"expected at most max_timeout, {given['max_timeout']:g}, got {given['timeout']:g}"
        raise PlanError([("$.timeout", problem)], subject=f"invalid config of {_MODULE}")
    if "working_dir" in given:
        given["working_dir"] = Path(given["working_dir"]).expanduser()
    given["shell"] = _shell(given.get("shell") or shutil.which("bash"))
    given["pass_env"] = tuple(given.get("pass_env", ()))
    return given, Path.cwd()


def _shell(program: str | None) -> tuple[str, ...]:
    if program is None:
        raise ModuleLoadError(
            f"{_MODULE} found no bash on the search path; name a shell in its config as 'shell'", module_id=_MODULE
        )
    # Without -- a command that begins with a dash would be taken for an option.
    quiet = ("--noprofile", "--norc") if Path(program).name == "bash" else ()
    return (program, *quiet, "-c", "--")
