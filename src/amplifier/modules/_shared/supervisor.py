"""A program between the agent and a command: starts the command confined, and outlives everything that the command started.

It is a "child subreaper": a process of the command that loses its parent becomes a child of this program, whatever it did to
its session and environment, so nothing gets out of its sight. The agent holds one end of a pipe; when that end is closed, also
because the agent was killed, this program ends all processes below it and then itself.

It runs in a Python of its own without any package (``python -I -S``), so it imports the standard library only. The
confinement is applied between fork and exec, which is safe here because there is one thread.

    status pipe, lines:  "pid 123", then "status 0" (negative for a signal) or "error 2 No such file or directory"

Only modules that are quick to import are used: a command waits for this program to start.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import marshal
import os
import resource
import select
import signal
import sys
import time
from typing import Any

PR_SET_DUMPABLE, PR_GET_DUMPABLE = 4, 3
_PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 24, 36, 38
_MOST_CAPABILITIES = 64
_LAST_KILLING = 10.0


def prctl(option: int, value: int = 0) -> int:
    """Change an attribute of this process or thread; -1 if the system refuses."""
    return int(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0))


# ── Landlock ─────────────────────────────────────────────────────────────────────────────────────

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same numbers on every architecture
_RULE_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_CHANGES_IN_FOLDERS = sum(1 << bit for bit in range(4, 14))  # remove, make anything, refer
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_WRITE = _WRITE_FILE | _CHANGES_IN_FOLDERS | _TRUNCATE
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_TCP = 0b11
_SCOPE = 0b11
MINIMUM_ABI = 4
"""The version of Landlock that restricts TCP; older ones are not used."""


class _RulesetAttributes(ctypes.Structure):
    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_abi() -> int:
    """The version of Landlock that the kernel supports; 0 for none."""
    if not sys.platform.startswith("linux") or os.uname().machine.startswith("mips"):
        return 0
    return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), 1)))


def _restrict(*, readable: list[str], writable: list[str], devices: list[str], network: bool) -> None:
    """Restrict this process and what it starts, for ever.

    Raises:
        OSError: The kernel refuses; the process must not go on.
    """
    abi = landlock_abi()
    if abi < MINIMUM_ABI:
        raise OSError(38, f"Landlock {MINIMUM_ABI} or newer is needed, the kernel has {abi}")
    libc = ctypes.CDLL(None, use_errno=True)

    def checked(result: int) -> int:
        if result < 0:
            raise OSError(ctypes.get_errno(), "Landlock: " + os.strerror(ctypes.get_errno()))
        return result

    handled = _READ | _WRITE  # not ioctl: programs ask devices for their properties
    attributes = _RulesetAttributes(handled, 0 if network else _TCP, _SCOPE if abi >= 6 else 0)
    size = ctypes.sizeof(attributes) if abi >= 6 else 16
    ruleset = checked(libc.syscall(_CREATE_RULESET, ctypes.byref(attributes), ctypes.c_size_t(size), 0))
    rules = [("/", _READ_DIR), *((path, _READ) for path in readable), *((path, _READ | _WRITE) for path in writable)]
    for path, allowed in [*rules, *((path, _READ_FILE | _WRITE_FILE | _TRUNCATE) for path in devices)]:
        try:
            parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:  # what is not there needs no rule
            continue
        try:
            is_folder = os.path.isdir(f"/proc/self/fd/{parent}")  # noqa: PTH112 — no pathlib here: it would double the start-up time
            rule = _PathBeneath(allowed if is_folder else allowed & _OF_FILES & handled, parent)
            result = libc.syscall(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
            if (
                result >= 0 or ctypes.get_errno() != errno.EBADFD
            ):  # a pipe, as /dev/stdin may be, is in no file system and needs no rule
                checked(result)
        finally:
            os.close(parent)
    if os.geteuid() == 0:  # with its capabilities root may read the memory and the environment of any process
        for capability in range(_MOST_CAPABILITIES):
            prctl(_PR_CAPBSET_DROP, capability)
    if prctl(_PR_SET_NO_NEW_PRIVS, 1) != 0:
        raise OSError(ctypes.get_errno(), "PR_SET_NO_NEW_PRIVS")
    checked(libc.syscall(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


# ── the program ──────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Run one command: arguments are the numbers of two pipes, the confinement (marshalled, in hex), and the command."""
    status, control, confinement, arguments = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4:]
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    ended_read, ended_write = os.pipe()
    os.set_blocking(ended_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(ended_write, warn_on_full_buffer=False)
    shell = os.fork()
    if shell == 0:
        _start(status, marshal.loads(bytes.fromhex(confinement)), arguments)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    for stream in (0, 1, 2):  # the command's output is at its end when the command has closed it
        os.close(stream)
    _report(status, f"pid {shell}")
    is_reported = False
    while True:
        if not is_reported and (ended := os.waitid(os.P_PID, shell, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
            _report(status, f"status {code}")
            is_reported = True
        _reap_all_but(shell)  # its id has to stay its own until the agent has stopped sending signals to it
        ready = select.select([control, ended_read], [], [])[0]
        if control in ready:
            break
        os.read(ended_read, 4096)
    _end_everything()


def _report(status: int, line: str) -> None:
    with contextlib.suppress(OSError):  # the agent is gone; the control pipe will show it
        os.write(status, line.replace("\n", " ").encode(errors="replace") + b"\n")


def _start(status: int, confinement: dict[str, Any], arguments: list[str]) -> None:
    """Become the command; never returns."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
            signal.signal(number, signal.SIG_DFL)
        for name, most in confinement.get("limits", {}).items():
            resource.setrlimit(getattr(resource, name), (most, most))
        if "landlock" in confinement:
            _restrict(**confinement["landlock"])
        os.execve(arguments[0], arguments, os.environ)
    except BaseException as error:  # noqa: BLE001 — nothing may run past this point; the agent raises it
        code, text = (error.errno, error.strerror) if isinstance(error, OSError) else (0, repr(error))
        _report(status, f"error {code or 0} {text}")
    os._exit(126)


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


def _end_everything() -> None:
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
