"""A program between the agent and a command: starts the command confined, and outlives everything that the command started.

It is a "child subreaper": a process of the command that loses its parent becomes a child of this program, whatever it did to
its session and environment, so nothing gets out of its sight. The agent holds one end of a pipe; when that end is closed, also
because the agent was killed, this program ends all processes below it and then itself.

It runs in a Python of its own without any package (``python -I -S``), so it imports the standard library only. It is not read
from its file then: `processes` hands over the code that the agent has read when it began, see `BOOT`. The confinement is
applied between fork and exec, which is safe here because there is one thread.

    status pipe, lines:  "pid 123", then "status 0" (negative for a signal) or "error 2 No such file or directory"

In the namespaces of bubblewrap the same program is the first process (`init`). It alone can see there how the command ended:
bubblewrap reports a signal as an exit code. It writes the same lines, "started" instead of "pid 123", and adds to the status
how many processes were left running, 0 or 1 for more. If bubblewrap fails before that, its exit code is in "unstarted 1".

Only modules that are quick to import are used: a command waits for this program to start.
"""

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

PR_SET_DUMPABLE, PR_GET_DUMPABLE = 4, 3
_PR_SET_CHILD_SUBREAPER = 36
_LAST_KILLING = 10.0
_SIGNALLED = 128
"""An exit code above this is a signal to shells and to bubblewrap."""


def prctl(option: int, value: int = 0) -> int:
    """Change an attribute of this process or thread; -1 if the system refuses."""
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))


# ── the program ──────────────────────────────────────────────────────────────────────────────────

BOOT = "import marshal, os, sys; exec(marshal.loads(os.pread(int(sys.argv[1]), 1 << 24, 0)))"
"""What Python is given as its program; the argument is the number of a descriptor with the code of this file."""


def main() -> None:
    """Be the supervisor or the first process; arguments are descriptors: of the code, of the specification, and pipes."""
    role, *descriptors = sys.argv[2], *map(int, (sys.argv[1], *sys.argv[3:]))
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    code, given, *pipes = descriptors
    specification = marshal.loads(os.pread(given, 1 << 26, 0))
    if role == "init":
        prctl(PR_SET_DUMPABLE, 0)  # commands cannot open its descriptors
        os.close(code)
        os.close(given)
        _be_init(specification, *pipes)
    else:
        _supervise(specification, (code, given), *pipes)


def _supervise(
    specification: dict[str, Any], described: tuple[int, int], status: int, control: int
) -> None:
    """Run one command.

    Args:
        specification: The command and its confinement, see `StartedProcess`.
        described: Descriptors with the code of this program and with the specification, for the first process.
        status: The pipe to report on.
        control: The pipe whose end ends everything.
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
    for stream in (0, 1, 2):  # the command's output is at its end when the command has closed it
        os.close(stream)
    is_started = "wrapper" not in specification
    if problem or is_started:
        _report(status, problem or f"pid {shell}")
    is_reported = bool(problem)
    watched, written, code, is_all = [control, ended_read, inner], b"", None, True
    while True:
        ended = os.waitid(os.P_PID, shell, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        while (
            inner in watched and select.select([inner], [], [], 0)[0]
        ):  # what it wrote comes before the wrapper's end
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
        has_ended = (
            ended and inner not in watched
        )  # a command may have killed the wrapper, but not the first process
        if not is_reported and (has_ended or (code is not None and not is_all)):
            if code is None and ended is not None:
                code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                if (
                    is_started and "wrapper" in specification and code > _SIGNALLED
                ):  # the first process was killed
                    code = _SIGNALLED - code
            _report(status, f"status {code}" if is_started else f"pid {shell}\nunstarted {code}")
            is_reported = True
        _reap_all_but(
            shell
        )  # its id has to stay its own until the agent has stopped sending signals to it
        ready = select.select(watched, [], [])[0]
        if control in ready:
            break
        if ended_read in ready:
            os.read(ended_read, 4096)
    end_everything()


def _be_init(specification: dict[str, Any], report: int) -> None:
    """Start the command, report how it ends, and reap every process that loses its parent."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which a first process does not get
    if (path := _misplaced(specification.get("mounts", {}))) is not None:
        os.write(
            2,
            f"{path!a} was replaced while the sandbox was set up; the command was not started\n".encode(),
        )
        return
    problem, shell = _forked(lambda: _become(specification, specification.get("inner_limits", {})))
    for stream in (0, 1, 2):
        os.close(stream)
    _report(report, problem or "started")
    with contextlib.suppress(ChildProcessError):  # when there is no process left
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
    """One of some paths that is no mount of what was expected there; None if all are.

    bubblewrap follows links. Another command that runs could make a folder a link between the check and the mount, and what is
    outside would become writable.
    """
    with open("/proc/self/mountinfo", "rb") as file:  # noqa: PTH123 — no pathlib here
        names = [line.split(b" ")[4] for line in file]
    points = {os.fsdecode(name.decode("unicode_escape").encode("latin-1")) for name in names}
    return next(
        (path for path in expected if path not in points or _identity(path) != expected[path]), None
    )


def _identity(path: str | int) -> tuple[int, int]:
    found = os.stat(path)  # noqa: PTH116 — no pathlib here
    return found.st_dev, found.st_ino


def _report(status: int, lines: str) -> None:
    with contextlib.suppress(OSError):  # the agent is gone; the control pipe will show it
        os.write(status, lines.encode(errors="replace") + b"\n")


def _forked(become: Callable[[], None]) -> tuple[str, int]:
    """Start a process; returns the problem if it could not become what it is to be, and its id."""
    failed, failing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.set_wakeup_fd(-1)
            # Python ignores SIGPIPE and SIGXFSZ, and `_become_command` SIGTERM.
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)
            become()
        except BaseException as error:  # noqa: BLE001 — nothing may run past this point; the agent raises it
            code, text = (
                (error.errno, error.strerror) if isinstance(error, OSError) else (0, repr(error))
            )
            _report(failing, f"error {code or 0} {text}".replace("\n", " "))
        os._exit(126)
    os.close(failing)
    problem = os.read(failed, 4096)  # at its end when the program has been executed
    os.close(failed)
    return problem.decode().rstrip("\n"), child


def _become_command(specification: dict[str, Any], described: tuple[int, int], report: int) -> None:
    """Become the command or its wrapper; never returns."""
    os.setsid()
    if "wrapper" not in specification:
        _become(specification, specification.get("limits", {}))
    _limit(specification.get("limits", {}))
    # The wrapper ends with what it wraps. Ended itself, it would take that along, without any time to tidy up.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    described_filter, filling = os.pipe()  # a few hundred instructions fit into any pipe
    os.write(filling, specification["seccomp"])
    os.close(filling)
    for descriptor in (*described, report, described_filter):
        os.set_inheritable(descriptor, True)
    code, given = map(str, described)
    init = (sys.executable, "-I", "-S", "-c", BOOT, code, "init", given, str(report))
    wrapper = [*specification["wrapper"], "--seccomp", str(described_filter), "--"]
    os.execve(wrapper[0], [*wrapper, *init], os.environ)


def _become(specification: dict[str, Any], limits: dict[str, int]) -> None:
    _limit(limits)
    arguments = specification["arguments"]
    os.execve(arguments[0], arguments, specification["environment"])


def _limit(limits: dict[str, int]) -> None:
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, name), (most, most))


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:  # noqa: PTH123 — no pathlib here
            return [int(word) for word in file.read().split()]
    except OSError:  # the kernel was built without this file
        return []


def _reap_all_but(shell: int) -> None:
    for child in _children():
        if child != shell:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, os.WNOHANG)


def adopt_orphans() -> None:
    """Become the parent of every process below this one that loses its own; on Linux only."""
    if sys.platform.startswith("linux"):
        prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_everything() -> None:
    """Kill children until there are none; the children of each become ours when it dies."""
    give_up = time.monotonic() + _LAST_KILLING
    while time.monotonic() < give_up:
        for child in _children():
            with contextlib.suppress(OSError):  # gone, or another user's
                os.kill(child, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.002)


if __name__ == "__main__":
    main()
