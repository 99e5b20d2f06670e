"""The options of tool-bash."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, TypeAlias, get_args

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


def _is_name(value: object) -> bool:
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
    """The options of tool-bash.

    Attributes:
        working_dir: The folder that commands run in. None for the session's working directory.
        shell: The path of the shell. None for the bash on the search path.
        timeout: Seconds for a command that sets no timeout. None for `DEFAULT_TIMEOUT`, or
            `max_timeout` if that is shorter.
        max_timeout: Maximum timeout that a command may set.
        max_output_bytes: Maximum number of bytes that are kept of each of the two streams.
        max_parallel: Maximum number of commands that run at the same time.
        kill_grace: Seconds between asking processes to end and killing them.
        env: Environment variables for every command.
        pass_env: Names of variables of this process that commands may read, in addition to the
            usual ones.
        sandbox: The sandbox of commands: ``"bwrap"`` for bubblewrap, ``"off"`` for none.
            ``"auto"`` uses bubblewrap where it works.
        network: True if commands in a sandbox may use the network.
        writable: Folders that commands in a sandbox may write to, in addition to the working
            directory.
        readable: Files and folders in hidden folders, such as the home folder, that commands in a
            sandbox may read.
        hidden: Further files and folders that are hidden from commands in a sandbox.
        max_memory_mb: Maximum memory of one process in a sandbox, and of all temporary files
            together, in MiB.
        max_processes: Maximum number of processes of a command in a sandbox at a time.
        max_file_mb: Maximum size of a file that a process in a sandbox writes, in MiB.
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
