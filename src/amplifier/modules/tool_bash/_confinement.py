"""What a command may do: which files it sees and changes, whether it reaches the network, how much it may use.

`choose_sandbox` decides once per mount how that is enforced; `Sandbox.confine` prepares one command. `_bubblewrap` and
`_shared.supervisor` enforce it.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeAlias

import attrs

from amplifier.errors import ModuleLoadError

from .._shared.started_process import can_supervise
from .._shared.supervisor import MINIMUM_ABI, landlock_abi
from ._bubblewrap import bubblewrap_arguments, bubblewrap_problem
from ._options import BashOptions
from ._places import extra_writable, find_places, link_home, visible_roots

SandboxKind: TypeAlias = Literal["bwrap", "landlock", "off"]

_MODULE = "tool-bash"
_MIB = 1 << 20
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/tty", "/dev/ptmx", "/dev/pts")


@attrs.frozen(kw_only=True)
class Confined:
    """A command as it is started.

    Attributes:
        arguments: The program and its arguments.
        supervision: What the supervisor applies; None for no supervisor.
        explanation: What the sandbox allows, for a command that failed; None without a sandbox.
    """

    arguments: Sequence[str]
    supervision: dict[str, Any] | None
    explanation: str | None = None


@attrs.frozen(kw_only=True)
class Sandbox:
    """How the commands of one session are confined.

    Attributes:
        kind: What enforces it.
        program: The path of bubblewrap.
    """

    kind: SandboxKind
    options: BashOptions
    program: str = ""

    @property
    def network(self) -> bool:
        """Whether commands reach the network."""
        return self.kind == "off" or self.options.network

    @contextmanager
    def temporary_folder(self) -> Iterator[str | None]:
        """A folder as the home and for the temporary files of one command; None if the sandbox makes its own."""
        if self.kind != "landlock":
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="amplifier-", ignore_cleanup_errors=True) as folder:
            yield os.path.realpath(folder)

    def confine(self, arguments: Sequence[str], directory: str, temporary: str | None) -> Confined:
        """Prepare one command.

        Args:
            arguments: The shell with its command.
            directory: The working directory, which the command may change.
            temporary: A folder that the command may change: for temporary files, and as its home.

        Raises:
            ValueError: The working directory is the root of the file system, so there is nothing to be confined to.
        """
        if self.kind == "off":
            return Confined(arguments=arguments, supervision={} if can_supervise() else None)
        workspace = os.path.realpath(directory)
        if workspace == "/":
            raise ValueError("the working directory is /, and a sandbox cannot confine a command to that")
        options = self.options
        places = find_places(options, workspace, temporary)
        limits = {
            "RLIMIT_CORE": 0,
            "RLIMIT_FSIZE": options.max_file_mb * _MIB,
            "RLIMIT_DATA": options.max_memory_mb * _MIB,
        }
        explanation = (
            f"the sandbox ({self.kind}) allows writing below {', '.join([workspace, *extra_writable(options)])} only"
            f"{'' if options.network else ', allows no network'} and hides the home folder"
        )
        if self.kind == "bwrap":
            wrapped = bubblewrap_arguments(
                self.program,
                places,
                directory=workspace,
                network=options.network,
                # The kernel does not count the processes of root.
                max_processes=None if os.geteuid() == 0 else options.max_processes,
            )
            return Confined(arguments=[*wrapped, *arguments], supervision={"limits": limits}, explanation=explanation)
        if temporary is not None:
            link_home(places, temporary)
        landlock = {
            "readable": [*visible_roots(places.hidden), *places.readable],
            "writable": list(places.writable),
            "devices": list(_DEVICES),
            "network": options.network,
        }
        return Confined(
            arguments=arguments, supervision={"limits": limits, "landlock": landlock}, explanation=explanation
        )


def sandbox_here() -> tuple[SandboxKind, str | None]:
    """What ``sandbox: "auto"`` means in the current directory, and why commands are not confined if they are not."""
    sandbox, problem = choose_sandbox(BashOptions(), str(Path.cwd()))
    return sandbox.kind, problem


def choose_sandbox(options: BashOptions, directory: str) -> tuple[Sandbox, str | None]:
    """Find out how commands can be confined here; starts programs to try it.

    Returns:
        The sandbox, and a warning if commands are not confined although the plan did not turn the sandbox off.

    Raises:
        ModuleLoadError: The plan asks for a sandbox that does not work here.
    """
    wanted = options.sandbox
    if wanted == "off":
        return Sandbox(kind="off", options=options), None
    problems = []
    if not sys.platform.startswith("linux"):
        problems.append(f"there is no sandbox for {sys.platform}")
    elif not can_supervise():
        problems.append("the supervisor of commands does not start with this interpreter")
    elif os.path.realpath(directory) == "/":
        problems.append("the working directory is /, which leaves nothing to protect")
    else:
        if wanted in ("auto", "bwrap"):
            program = shutil.which("bwrap")
            problem = "bubblewrap (bwrap) is not installed" if program is None else bubblewrap_problem(program)
            if program is not None and problem is None:
                return Sandbox(kind="bwrap", options=options, program=program), None
            problems.append(problem or "")
        if wanted in ("auto", "landlock"):
            abi = landlock_abi()
            if abi >= MINIMUM_ABI:
                return Sandbox(kind="landlock", options=options), None
            problems.append(f"the kernel has Landlock {abi or 'not at all'}, {MINIMUM_ABI} is needed")
    reason = "; ".join(problems)
    if wanted != "auto":
        raise ModuleLoadError(
            f"{_MODULE}: the plan asks for the sandbox {wanted!r}, which does not work here: {reason}. Install what is "
            "missing, or set sandbox to 'auto' or 'off'",
            module_id=_MODULE,
        )
    return Sandbox(kind="off", options=options), f"commands run without a sandbox: {reason}"
