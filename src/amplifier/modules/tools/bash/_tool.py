"""bash: one command in a shell of its own, and the mounting of the tool."""

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
"""Variables every command gets if they are set; no credentials, sockets of agents, or hooks into programs among them."""


# ── environment ───────────────────────────────────────────────────────────────────────────────────
# The environment of a command: an allow-list of the variables of this process, since others may hold API keys.


def clean_environment(passed: Iterable[str], added: Mapping[str, str]) -> dict[str, str]:
    """The environment of one command.

    Args:
        passed: Further variables to pass on, if they are set.
        added: Variables of the plan; they override those of this process.
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
_MOST_TRIES = 3
"""For bubblewrap: a socket of another program that was to be covered may be gone when it starts."""


class BashTool(BuiltinTool):
    """Runs commands.

    Args:
        options: How.
        shell: With which program.
        directory: Where; asked for every command.
        workers: The module's threads.
        sandbox: How its commands are confined.
        coordinator: The session's, for questions to the user.
    """

    _name = "bash"
    _description = (
        "Run a command in bash and return its stdout, stderr and returncode. Every command gets a new shell in the working "
        "directory: cd and variables do not last. There is no terminal and no input. When the command ends, whatever it "
        "left running in the background is ended too. Of long output the middle is left out; write it to a file instead."
    )
    _input = tool_input(
        command=option(_COMMAND, doc="The command, as in a script."),
        timeout=option(
            whole(1, 86_400),
            None,
            "Seconds after which it is ended; more than this session allows means as long as allowed.",
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
        # Without -- a command that begins with a dash would be taken for an option.
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
                f" Commands run in a sandbox: only the working directory can be changed, {network}, the user's home folder is "
                "hidden, and temporary files do not last."
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
        except Stopped:  # by `stop_all`; a cancelled call does not get here
            raise ToolFailure("Cancelled", "ended, because the session is being closed") from None
        settled = outcome[1].settled
        notes = [*settled.notes, *await self._ask_about(settled.aside)]
        if notes:
            await self._tell("\n".join(notes))
        return _result(*outcome, seconds, notes)

    async def _ask_about(self, kept: Sequence[Aside]) -> list[str]:
        """Ask about places that programs outside obey, and that a command has made; returns a sentence about each.

        They are out of the way until someone allows them.
        """
        if not kept:
            return []
        listed = "\n".join(f"{shown(each.path, 500)} ({each.reason})" for each in kept)
        question = HookResult(
            action="ask_user",
            approval_prompt=f"Keep what a command has made, and other programs obey by themselves?\n{listed}",
            approval_options=["Keep", "Leave aside"],
            approval_default="deny",
        )
        is_allowed = False
        if len(listed) <= _MAX_QUESTION_CHARACTERS:
            with contextlib.suppress(NoOneToAskError):
                answer = await self._coordinator.process_hook_result(question, TOOL_POST, _MODULE)
                is_allowed = answer.action == "continue"
        if is_allowed:
            return await anyio.to_thread.run_sync(lambda: [_kept(each) for each in kept])
        return [
            f"{each.path} is not allowed, and is called {each.name} now: {each.reason}"
            for each in kept
        ]

    async def _tell(self, text: str) -> None:
        message = HookResult(user_message=text, user_message_level="warning")
        await self._coordinator.process_hook_result(message, TOOL_POST, _MODULE)

    def _run_command(
        self, command: str, directory: str, seconds: float, stop: Stop
    ) -> tuple[Outcome, Confined]:
        self._running.add(stop)
        try:
            for _ in range(_MOST_TRIES - 1):
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
        """Ask every running command to end; whether there was any."""
        running = self._running.copy()
        for stop in running:
            stop.request()
        return bool(running)


def _kept(each: Aside) -> str:
    if each.put_back():
        return f"{each.path} was allowed: {each.reason}"
    return f"{each.path} was allowed, and is still called {each.name}: it was changed meanwhile, or something else has its name"


_DENIED = re.compile(
    r"Permission denied|Read-only file system|Operation not permitted|Device or resource busy|Address family not supported|Network is unreachable|[Nn]ame resolution"
    r"|Could not resolve host|Name or service not known|File size limit|Cannot allocate memory|MemoryError"
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
        error = {"message": f"not finished after {seconds:g} s, and ended", "type": "Timeout"}
    elif outcome.returncode < 0:
        error = {"message": f"ended by {signal_name(-outcome.returncode)}", "type": "Signal"}
    else:
        error = {"message": f"exit code {outcome.returncode}", "type": "ExitCode"}
    if confined.explanation is not None and _DENIED.search(f"{output['stderr']}{output['stdout']}"):
        # For the model, which can do it another way, and for the user, who can change the plan.
        output["sandbox"] = confined.explanation
        error["message"] += f" ({confined.explanation})"
    return ToolResult(success=False, output=output, error=error)


# ── hidden environment ────────────────────────────────────────────────────────────────────────────
# Keeps commands of the same user from reading the memory and the environment of this process, where API keys are.
#
# A process that is not "dumpable" belongs to root in ``/proc``. It cannot be attached to by a debugger of the same
# user, and writes no core file. The state is one for the process: the last session that needs it gives it back.

_lock = threading.Lock()
_users = 0
_before = 1


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


# ── mounting ──────────────────────────────────────────────────────────────────────────────────────

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

    # Time is kept by the command itself, which then still has an answer to give; waiting for a free thread has no limit.
    workers = Workers(threads=options.max_parallel, timeout=math.inf)
    tool = BashTool(options, shell, directory, workers, sandbox, coordinator)

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
            f"{_MODULE} found no bash on the search path; name a shell in its config as 'shell'",
            module_id=_MODULE,
        )
    return options, shell, Path.cwd()
