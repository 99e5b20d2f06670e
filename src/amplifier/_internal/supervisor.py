"""A program between the agent and a command, which ends everything that the command started."""

from __future__ import annotations

import contextlib
import ctypes
import marshal
import os
import resource
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

# The program is a "child subreaper": a process of the command that loses its parent becomes a child
# of this program, even with another session or environment, so no process escapes. The agent holds
# one end of a pipe. When that end is closed, even because the agent was killed, this program ends
# all processes below it and then itself.
#
# It runs in a separate Python without packages (``python -I -S``), and imports only modules of the
# standard library that load quickly, because the command waits for it. It is not read from its
# file: the agent passes on the code that it read when it started, see `BOOT`. The confinement is
# applied between fork and exec, which is safe because there is one thread.
#
#     lines on the status pipe:
#     "pid 123", then "status 0" (negative for a signal) or "error 2 No such file or directory"
#
# In the namespaces of bubblewrap, the same program is the first process (`init`). Only there can it
# see how the command ended, because bubblewrap reports a signal as an exit code. It writes the same
# lines, but "started" instead of "pid 123", and adds to the status 0 if no process was left
# running, and 1 otherwise. If bubblewrap fails before that, its exit code is in a line such as
# "unstarted 1".

PR_SET_DUMPABLE, PR_GET_DUMPABLE = 4, 3
_PR_SET_CHILD_SUBREAPER = 36
_KILL_SECONDS = 10.0
# Shells and bubblewrap report a signal as an exit code above this.
_SIGNALLED = 128


def prctl(option: int, value: int = 0) -> int:
    """Change an attribute of this process or thread. Return -1 if that fails."""
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))


# ── the program ──────────────────────────────────────────────────────────────────────────────────

# Program text for Python. Its argument is the number of a descriptor with the code of this file.
BOOT = "import marshal, os, sys; exec(marshal.loads(os.pread(int(sys.argv[1]), 1 << 24, 0)))"


def main() -> None:
    """Run as the supervisor or as the first process.

    The arguments are descriptors of the code, of the specification, and of pipes.
    """
    role, *descriptors = sys.argv[2], *map(int, (sys.argv[1], *sys.argv[3:]))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    code, specified, *pipes = descriptors
    specification = marshal.loads(os.pread(specified, 1 << 26, 0))
    if role == "init":
        # This keeps commands from opening the descriptors of this process.
        prctl(PR_SET_DUMPABLE, 0)
        os.close(code)
        os.close(specified)
        _be_init(specification, *pipes)
    else:
        _supervise(specification, (code, specified), *pipes)


def _supervise(
    specification: dict[str, Any], described: tuple[int, int], status: int, control: int
) -> None:
    """Run one command.

    Args:
        specification: The command and its confinement, see `StartedProcess`.
        described: Descriptors of the code of this program and of the specification, for the first
            process.
        status: Pipe for reports.
        control: Pipe. Closing its other end ends everything.
    """
    adopt_orphans()
    ended_read, ended_write = os.pipe()
    os.set_blocking(ended_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended_write, warn_on_full_buffer=False)
    inner, report = os.pipe()
    problem, shell = _forked(lambda: _become_command(specification, described, report))
    os.close(report)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    # The output ends once the command has closed it, so it must not stay open here.
    for stream in (0, 1, 2):
        os.close(stream)
    is_started = "wrapper" not in specification
    if problem or is_started:
        _report(status, problem or f"pid {shell}")
    is_reported = bool(problem)
    watched, written, code, is_all = [control, ended_read, inner], b"", None, True
    while True:
        ended = os.waitid(os.P_PID, shell, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        # Everything that the first process wrote is read before the wrapper's end counts.
        while inner in watched and select.select([inner], [], [], 0)[0]:
            data = os.read(inner, 4096)
            written += data
            if not data:
                watched.remove(inner)
        *lines, written = written.split(b"\n")
        for line in map(bytes.decode, lines):
            word, _, rest = line.partition(" ")
            if word == "error":
                _report(status, line)
                is_reported = True
            elif word == "started":
                _report(status, f"pid {shell}")
                is_started = True
            elif word == "status":
                code, is_all = int(rest.split()[0]), rest.endswith(" 0")
        # A command may have killed the wrapper, but not the first process.
        has_ended = ended and inner not in watched
        if not is_reported and (has_ended or (code is not None and not is_all)):
            if code is None and ended is not None:
                code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                # The first process was killed.
                if is_started and "wrapper" in specification and code > _SIGNALLED:
                    code = _SIGNALLED - code
            _report(status, f"status {code}" if is_started else f"pid {shell}\nunstarted {code}")
            is_reported = True
        # The command is not reaped here, so that its id is not reused while the agent may signal
        # it.
        _reap_all_but(shell)
        ready = select.select(watched, [], [])[0]
        if control in ready:
            break
        if ended_read in ready:
            os.read(ended_read, 4096)
    end_everything()


def _be_init(specification: dict[str, Any], report: int) -> None:
    """Start the command, report how it ends, and reap every process that loses its parent."""
    # The kernel does not deliver signals with the default action to a first process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if (path := _misplaced(specification.get("mounts", {}))) is not None:
        reason = "was replaced while the sandbox was set up; the command was not started"
        os.write(2, f"{path!a} {reason}\n".encode())
        return
    problem, shell = _forked(lambda: _become(specification, specification.get("inner_limits", {})))
    for stream in (0, 1, 2):
        os.close(stream)
    _report(report, problem or "started")
    # The loop ends once no process is left.
    with contextlib.suppress(ChildProcessError):
        while True:
            ended, status = os.wait()
            if ended == shell:
                code = os.waitstatus_to_exitcode(status)
                try:
                    while os.waitpid(-1, os.WNOHANG)[0]:
                        pass
                except ChildProcessError:
                    _report(report, f"status {code} 0")
                    return
                _report(report, f"status {code} 1")


def _misplaced(expected: dict[str, tuple[int, int] | None]) -> str | None:
    """Return a path at which something unexpected is mounted, or None.

    bubblewrap follows links. Another running command could turn a folder into a link between the
    check and the mount, and files outside would become writable.
    """
    with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123 — no pathlib here
        names = [line.split(b" ")[4] for line in file]
    points = {os.fsdecode(name.decode("unicode_escape").encode("latin-1")) for name in names}
    for path, identity in expected.items():
        if path not in points or _identity(path) != identity:
            return path
    return None


def _identity(path: str | int) -> tuple[int, int]:
    status = os.stat(path)  # noqa: PTH116 — no pathlib here
    return status.st_dev, status.st_ino


def _report(status: int, lines: str) -> None:
    # If the agent has ended, the control pipe will show it.
    with contextlib.suppress(OSError):
        os.write(status, lines.encode(errors="replace") + b"\n")


def _forked(become: Callable[[], None]) -> tuple[str, int]:
    """Fork a process that calls a function to execute a program.

    Returns:
        The problem if that failed, or an empty text, and the id of the process.
    """
    failed, failing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)
            # Python ignores SIGPIPE and SIGXFSZ, and `_become_command` SIGTERM.
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            become()
        # The agent raises the error. No other code may run in this process.
        except BaseException as error:  # noqa: BLE001
            code, text = 0, repr(error)
            if isinstance(error, OSError):
                code, text = error.errno or 0, str(error.strerror)
            _report(failing, f"error {code} {text}".replace("\n", " "))
        os._exit(126)
    os.close(failing)
    # The pipe is closed once the program is executed.
    problem = os.read(failed, 4096)
    os.close(failed)
    return problem.decode().rstrip("\n"), child


def _become_command(specification: dict[str, Any], described: tuple[int, int], report: int) -> None:
    """Execute the command or its wrapper, and never return."""
    os.setsid()
    if "wrapper" not in specification:
        _become(specification, specification.get("limits", {}))
    _limit(specification.get("limits", {}))
    # The wrapper ends with the command. If it ended first, the command would be killed at once,
    # without time for its cleanup.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    # The few hundred instructions of the filter fit into any pipe.
    described_filter, filling = os.pipe()
    os.write(filling, specification["seccomp"])
    os.close(filling)
    for descriptor in (*described, report, described_filter):
        os.set_inheritable(descriptor, True)
    code, specified = map(str, described)
    init = (sys.executable, "-I", "-S", "-c", BOOT, code, "init", specified, str(report))
    wrapper = [*specification["wrapper"], "--seccomp", str(described_filter), "--"]
    os.execve(wrapper[0], [*wrapper, *init], os.environ)


def _become(specification: dict[str, Any], limits: dict[str, int]) -> None:
    _limit(limits)
    arguments = specification["arguments"]
    os.execve(arguments[0], arguments, specification["environment"])


def _limit(limits: dict[str, int]) -> None:
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, name), (limit, limit))


def _children() -> list[int]:
    path = f"/proc/self/task/{os.getpid()}/children"
    try:
        with open(path) as file:  # noqa: PTH123 — no pathlib here
            return [int(word) for word in file.read().split()]
    # The kernel may be built without this file.
    except OSError:
        return []


def _reap_all_but(shell: int) -> None:
    for child in _children():
        if child != shell:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def adopt_orphans() -> None:
    """Become the parent of descendants that lose their parent, on Linux only."""
    if sys.platform.startswith("linux"):
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_everything() -> None:
    """Kill children until there are none. The children of a killed process become our children."""
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        for child in _children():
            # The process may have ended, or belong to another user.
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


if __name__ == "__main__":
    main()
