"""The options of tool-bash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import attrs

from amplifier.errors import PlanError

from ..._shared.configuration import (
    Kind,
    choice,
    existing_directory,
    flag,
    list_of,
    mapping_of_secrets,
    option,
    seconds,
    whole_number,
)

DEFAULT_TIMEOUT = 120.0
_DEFAULT_MAX_TIMEOUT = 600.0
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


SandboxChoice: TypeAlias = Literal["auto", "bwrap", "off"]

_paths = list_of(
    "absolute paths, or paths that begin with ~",
    lambda value: isinstance(value, str) and value.startswith(("/", "~/")),
)
_shell = Kind(
    "the absolute path of a shell",
    lambda value: isinstance(value, str) and Path(value).is_absolute() and Path(value).is_file(),
)
_variables = mapping_of_secrets(
    "a mapping from names of environment variables to texts",
    _is_name,
    lambda text: "\0" not in text,
)


@attrs.frozen(kw_only=True)
class BashOptions:
    """How commands are run.

    Attributes:
        working_dir: Where commands run; the session's working directory if absent.
        shell: The shell; the bash on the search path if absent.
        timeout: Seconds for a command that sets no timeout; `DEFAULT_TIMEOUT`, or `max_timeout` if that is shorter.
        max_timeout: The longest timeout that a command may set.
        max_output_bytes: Kept of each of the two streams.
        max_parallel: Commands at the same time.
        kill_grace: Seconds between asking processes to end and killing them.
        env: Variables for every command.
        pass_env: Names of variables of this process that commands may see, in addition to the usual ones.
        sandbox: How commands are confined: ``"bwrap"`` by bubblewrap, ``"off"`` not at all. ``"auto"`` is bubblewrap where
            it works, else off.
        network: Whether commands in a sandbox reach the network.
        writable: Folders that commands in a sandbox may write to, in addition to the working directory.
        readable: Files and folders in hidden places, such as the home folder, that commands in a sandbox may read.
        hidden: Further files and folders that commands in a sandbox do not see.
        max_memory_mb: Memory that one process in a sandbox can have, and all its temporary files together, in MiB.
        max_processes: Processes that a command in a sandbox can have at a time.
        max_file_mb: The largest file that a process in a sandbox can write, in MiB.
    """

    working_dir: Path | None = option(existing_directory, default=None)
    shell: str | None = option(_shell, default=None)
    timeout: float | None = option(seconds, default=None)
    max_timeout: float = option(
        seconds,
        default=attrs.Factory(
            lambda self: max(_DEFAULT_MAX_TIMEOUT, self.timeout or 0), takes_self=True
        ),
    )
    max_output_bytes: int = option(whole_number(2), default=100_000)
    max_parallel: int = option(whole_number(1), default=8)
    kill_grace: float = option(seconds, default=1.0)
    env: Mapping[str, str] = option(_variables, default=attrs.Factory(dict))
    pass_env: tuple[str, ...] = option(
        list_of("names of environment variables", _is_name), default=()
    )
    sandbox: SandboxChoice = option(
        choice(*get_args(SandboxChoice)), default="auto", restricts=True
    )
    network: bool = option(flag, default=False, restricts=True)
    writable: tuple[str, ...] = option(_paths, default=(), restricts=True)
    readable: tuple[str, ...] = option(_paths, default=(), restricts=True)
    hidden: tuple[str, ...] = option(_paths, default=(), restricts=True)
    max_memory_mb: int = option(whole_number(64), default=4096, restricts=True)
    max_processes: int = option(whole_number(8), default=512, restricts=True)
    max_file_mb: int = option(whole_number(1), default=4096, restricts=True)

    def __attrs_post_init__(self) -> None:
        if self.timeout is not None and self.timeout > self.max_timeout:
            problem = f"expected at most max_timeout, {self.max_timeout:g}, got {self.timeout:g}"
            raise PlanError([("$.timeout", problem)])
