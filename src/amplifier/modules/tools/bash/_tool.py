"""The tool `bash`, which runs one command in a new shell, and the mounting of the module."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import attrs

from amplifier._internal.programs import find_program
from amplifier._internal.supervisor import PR_GET_DUMPABLE, PR_SET_DUMPABLE, prctl
from amplifier.contracts import Coordinator
from amplifier.errors import ModuleLoadError, NoOneToAskError
from amplifier.events import TOOL_POST
from amplifier.models import HookResult, ToolResult

from ..._shared.configuration import read_options
from ..._shared.failure import ToolFailure, shown
from ..._shared.processes import signal_name
from ..._shared.protected_places import protected_places
from ..._shared.session import working_directory
from ..._shared.worker_threads import Stop, Stopped, Workers, poll_until
from .._base import BuiltinTool, characters, option, tool_input, whole
from ._aside import Aside
from ._command import Outcome, run_command
from ._confinement import Confined, Sandbox, choose_sandbox, import_warning
from ._options import DEFAULT_TIMEOUT, BashOptions

logger = logging.getLogger("amplifier.modules.tools")

PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "TERM", "LANG", "LANGUAGE"),
    *("LC_ALL", "LC_COLLATE", "LC_CTYPE", "LC_MESSAGES", "LC_MONETARY", "LC_NUMERIC", "LC_TIME"),
)
"""Variables that every command gets if they are set.

Other variables may hold API keys, sockets of agents, or hooks into programs.
"""


# ── environment ───────────────────────────────────────────────────────────────────────────────────


def clean_environment(passed: Iterable[str], added: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of one command.

    Args:
        passed: Names of further variables of this process to pass on, if they are set.
        added: Variables of the plan. They override those of this process.
    """
    environment = {name: os.environ[name] for name in (*PASSED_ON, *passed) if name in os.environ}
    environment.setdefault("PATH", os.defpath)
    environment.setdefault("TERM", "dumb")
    return {**environment, **added}


_COMMAND = attrs.evolve(
    characters(1, 100_000, pattern=r"^[^\u0000]*$", examples=["ls -l", "echo hello"]),
    expected="text without NUL characters",
    accepts=lambda value: isinstance(value, str) and "\0" not in value,
)
_MAX_QUESTION_CHARACTERS = 100_000
_MAX_STARTS = 3
"""Maximum number of starts of bubblewrap for one command.

A start fails if another program's socket, which bubblewrap was to cover, is removed first.
"""


class BashTool(BuiltinTool):
    """The tool that runs commands.

    Args:
        options: The configuration.
        shell: The path of the shell.
        directory: Called for every command to get the working directory.
        workers: The module's threads.
        sandbox: The sandbox of the commands.
        coordinator: The coordinator of the session.
    """

    _name = "bash"
    _description = (
        "Run a command in bash and return its stdout, stderr and returncode. Every command gets a "
        "new shell in the working directory: cd and variables do not last. There is no terminal "
        "and no input. When the command ends, processes that it left running in the background are "
        "ended too. The middle of long output is left out; write it to a file instead."
    )
    _input = tool_input(
        command=option(_COMMAND, doc="The command, as in a script."),
        timeout=option(
            whole(1, 86_400),
            None,
            "Seconds after which the command is ended, up to the limit of this session.",
        ),
    )

    def __init__(
        self,
        options: BashOptions,
        shell: str,
        directory: Callable[[], Path],
        workers: Workers,
        sandbox: Sandbox,
        coordinator: Coordinator,
    ) -> None:
        # Without --, a command that begins with a dash would be read as an option.
        quiet = ("--noprofile", "--norc") if Path(shell).name == "bash" else ()
        self._shell = (shell, *quiet, "-c", "--")
        self._options = options
        self._directory = directory
        self._workers = workers
        self._sandbox = sandbox
        self._coordinator = coordinator
        self._running: set[Stop] = set()
        if sandbox.kind != "off":
            network = "the network is reachable" if sandbox.network else "there is no network"
            self._description += (
                f" Commands run in a sandbox: only the working directory can be changed, {network},"
                " the user's home folder is hidden, and temporary files do not last."
            )

    async def _run(self, values: dict[str, Any]) -> ToolResult:
        seconds = min(
            values.get("timeout", self._options.timeout or DEFAULT_TIMEOUT),
            self._options.max_timeout,
        )
        directory = str(self._directory())
        try:
            outcome = await self._workers.run(
                lambda stop: self._run_command(values["command"], directory, seconds, stop),
                label=f"bash {shown(ascii(values['command']), 80)}",
            )
        except Stopped:
            # `stop_all` stopped the command. A cancelled call doesn't get here.
            raise ToolFailure("Cancelled", "ended, because the session is being closed") from None
        report = outcome[1].report
        notes = [*report.notes, *await self._ask_about(report.aside)]
        if notes:
            await self._tell_user("\n".join(notes))
        return _result(*outcome, seconds, notes)

    async def _ask_about(self, files: Sequence[Aside]) -> list[str]:
        """Ask the user about files that a command has made and that control other programs.

        The files have been renamed, and get their names back if the user allows it.

        Returns:
            A sentence about each file.
        """
        if not files:
            return []
        lines = "\n".join(f"{shown(file.path, 500)} ({file.reason})" for file in files)
        question = HookResult(
            action="ask_user",
            approval_prompt=f"Keep files of a command that other programs run or obey?\n{lines}",
            approval_options=["Keep", "Leave aside"],
            approval_default="deny",
        )
        is_allowed = False
        if len(lines) <= _MAX_QUESTION_CHARACTERS:
            with contextlib.suppress(NoOneToAskError):
                answer = await self._coordinator.process_hook_result(question, TOOL_POST, _MODULE)
                is_allowed = answer.action == "continue"
        if is_allowed:
            return await anyio.to_thread.run_sync(lambda: [_put_back(file) for file in files])
        return [
            f"{file.path} is not allowed, and was renamed to {file.name}: {file.reason}"
            for file in files
        ]

    async def _tell_user(self, text: str) -> None:
        message = HookResult(user_message=text, user_message_level="warning")
        await self._coordinator.process_hook_result(message, TOOL_POST, _MODULE)

    def _run_command(
        self, command: str, directory: str, seconds: float, stop: Stop
    ) -> tuple[Outcome, Confined]:
        self._running.add(stop)
        try:
            for _ in range(_MAX_STARTS - 1):
                outcome, confined = self._run_once(command, directory, seconds, stop)
                if not outcome.is_unstarted:
                    return outcome, confined
            return self._run_once(command, directory, seconds, stop)
        finally:
            self._running.discard(stop)

    def _run_once(
        self, command: str, directory: str, seconds: float, stop: Stop
    ) -> tuple[Outcome, Confined]:
        environment = clean_environment(self._options.pass_env, self._options.env)
        with ExitStack() as stack:
            try:
                confined = stack.enter_context(
                    self._sandbox.confined([*self._shell, command], directory, environment)
                )
            except ValueError as error:
                raise ToolFailure("Sandbox", str(error)) from None
            return run_command(confined, directory, self._options, stop, seconds), confined

    def stop_all(self) -> bool:
        """Tell every running command to stop, and return whether there was any."""
        running = self._running.copy()
        for stop in running:
            stop.request()
        return bool(running)


def _put_back(file: Aside) -> str:
    if file.put_back():
        return f"{file.path} was allowed: {file.reason}"
    problem = "it was changed meanwhile, or something else has its name"
    return f"{file.path} was allowed, but still has the name {file.name}: {problem}"


_DENIED = re.compile(
    r"Permission denied|Read-only file system|Operation not permitted|Device or resource busy"
    r"|Address family not supported|Network is unreachable|[Nn]ame resolution"
    r"|Could not resolve host|Name or service not known|File size limit|Cannot allocate memory"
    r"|MemoryError"
)


def _result(outcome: Outcome, confined: Confined, seconds: float, notes: list[str]) -> ToolResult:
    streams = {"stdout": outcome.stdout, "stderr": outcome.stderr}
    output: dict[str, Any] = {name: capture.text() for name, capture in streams.items()}
    output["returncode"] = outcome.returncode
    if any(capture.is_cut for capture in streams.values()):
        output["truncated"] = True
        output |= {
            f"{name}_total_bytes": capture.total
            for name, capture in streams.items()
            if capture.is_cut
        }
    if outcome.left_running:
        output["note"] = (
            f"processes left running in the background were ended: {outcome.left_running}"
        )
    if notes:
        output["protected"] = notes
    if outcome.returncode == 0:
        return ToolResult(output=output)
    if outcome.returncode is None:
        error = {"message": f"timed out after {seconds:g} s", "type": "Timeout"}
    elif outcome.returncode < 0:
        error = {"message": f"ended by {signal_name(-outcome.returncode)}", "type": "Signal"}
    else:
        error = {"message": f"exit code {outcome.returncode}", "type": "ExitCode"}
    if confined.explanation is not None and _DENIED.search(f"{output['stderr']}{output['stdout']}"):
        # The model can find another way, and the user can change the plan.
        output["sandbox"] = confined.explanation
        error["message"] += f" ({confined.explanation})"
    return ToolResult(success=False, output=output, error=error)


# ── hidden environment ────────────────────────────────────────────────────────────────────────────
# Commands of the same user must not read the memory and the environment of this process, which
# contain API keys. A process that is not "dumpable" belongs to root in ``/proc``, no debugger of
# the same user can attach to it, and it writes no core file. All sessions share this state of the
# process. The last session restores it.

_lock = threading.Lock()
_users = 0
_before = 1


def hide_environment() -> Callable[[], None]:
    """Make this process not dumpable. This has an effect only on Linux.

    Returns:
        A function that undoes the change, and that may be called twice.
    """
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


# ── mounting ──────────────────────────────────────────────────────────────────────────────────────

_MODULE = "tool-bash"
SANDBOX = "bash.sandbox"
"""The capability with a description of the sandbox, a dict with ``kind`` and ``network``."""


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount bash.

    Args:
        coordinator: The coordinator of the session.
        config: The keys of `BashOptions`.

    Raises:
        PlanError: The config is invalid.
        ModuleLoadError: There is no shell, the system has no process groups, or the sandbox of the
            plan doesn't work.
    """
    if sys.platform == "win32":
        raise ModuleLoadError(f"{_MODULE} needs a system with process groups", module_id=_MODULE)
    options, shell, start = await anyio.to_thread.run_sync(_read, config)
    first = (
        working_directory(coordinator, start)
        if options.working_dir is None
        else start / options.working_dir
    )
    sandbox, warning = await anyio.to_thread.run_sync(
        choose_sandbox, options, str(first), protected_places(coordinator)
    )
    for text in (warning, import_warning(sandbox, str(first))):
        if text is not None:
            logger.warning("%s: %s", _MODULE, text)

    def directory() -> Path:
        return (
            working_directory(coordinator, start)
            if options.working_dir is None
            else start / options.working_dir
        )

    # The command measures its own time, so that its output is returned even when the time is up.
    # Waiting for a free thread has no limit.
    workers = Workers(threads=options.max_parallel, timeout=math.inf)
    tool = BashTool(options, shell, directory, workers, sandbox, coordinator)

    async def end_commands() -> None:
        # The commands of a turn end with the turn, so only commands outside of turns remain.
        await poll_until(lambda: not tool.stop_all())

    coordinator.register_cleanup(end_commands)
    if sandbox.kind == "off":
        coordinator.register_cleanup(hide_environment())
    coordinator.register_capability(SANDBOX, {"kind": sandbox.kind, "network": sandbox.network})
    await coordinator.mount("tools", tool)


def _read(config: dict[str, Any] | None) -> tuple[BashOptions, str, Path]:
    """Return the options, the shell and the start of relative paths. This function blocks."""
    options = read_options(BashOptions, _MODULE, config)
    shell = options.shell or find_program("bash")
    if shell is None:
        raise ModuleLoadError(
            f"{_MODULE} found no bash on the search path; set 'shell' in its config to a shell",
            module_id=_MODULE,
        )
    return options, shell, Path.cwd()
