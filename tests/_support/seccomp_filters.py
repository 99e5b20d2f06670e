"""Make the filters of system calls that commands get in bubblewrap, one file for each architecture.

It needs libseccomp's own bindings, which are no package for an environment: Debian's ``python3-seccomp`` for the system's
Python. Run it with that one, ``/usr/bin/python3 tests/_support/seccomp_filters.py``, whenever a rule below changes.
``--check`` compares instead of writing, which is what the tests do where the bindings are installed.
"""

from __future__ import annotations

import errno
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "src" / "amplifier" / "modules" / "tools" / "bash" / "seccomp"
ARCHITECTURES = ("x86_64", "aarch64")

# bubblewrap's namespaces and its lack of capabilities close mounts, ptrace, chroot and the like. These they leave open.
DENIED = ("keyctl", "add_key", "request_key", "userfaultfd", "bpf", "perf_event_open")
# Programs take these for missing and do without. io_uring would get past any filter. openat2 has the mode of a new file in
# memory, where a filter cannot look. The content of a memfd is counted by no limit, that of a file in /tmp is.
MISSING = ("io_uring_setup", "io_uring_enter", "io_uring_register", "openat2", "memfd_create", "memfd_secret")
# They put characters into a terminal as if they were typed.
TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
# UNIX, the Internet, and the kernel's list of network interfaces. AF_VSOCK reaches the host of a virtual machine.
FAMILIES = (1, 2, 10, 16)
# A program with it would run with the rights of the agent's user for everybody. The bit for a group is needed:
# `git init --shared` sets it.
SETUID = 0o4000
MODES = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "creat": 1, "mknod": 1, "mknodat": 2}
CREATING = {"open": (1, 2), "openat": (2, 3)}  # the mode counts with one of these flags only
CREATE, NAMELESS = 0o100, 0o20000000  # O_CREAT, and O_TMPFILE without O_DIRECTORY


def make_filter(architecture: str) -> bytes:
    """Return the program that the kernel runs at each system call."""
    # It is not of the environment that types are checked in, see above.
    seccomp: Any = importlib.import_module("seccomp")

    rules = seccomp.SyscallFilter(seccomp.ALLOW)
    rules.set_attr(seccomp.Attr.ACT_BADARCH, seccomp.KILL_PROCESS)
    rules.set_attr(seccomp.Attr.CTL_OPTIMIZE, 2)
    native = seccomp.Arch(getattr(seccomp.Arch, architecture.upper()))
    if not rules.exist_arch(native):
        rules.add_arch(native)
        rules.remove_arch(seccomp.Arch())
    refused, unknown = seccomp.ERRNO(errno.EPERM), seccomp.ERRNO(errno.ENOSYS)

    def deny(action: object, name: str, *arguments: object) -> None:
        number = seccomp.resolve_syscall(native, name)
        if number >= 0:
            rules.add_rule_exactly(action, name, *arguments)

    for name in DENIED:
        deny(refused, name)
    for name in MISSING:
        deny(unknown, name)
    for request in TERMINAL_INPUT:
        deny(refused, "ioctl", seccomp.Arg(1, seccomp.MASKED_EQ, 0xFFFFFFFF, request))
    for name, mode in MODES.items():
        deny(refused, name, seccomp.Arg(mode, seccomp.MASKED_EQ, SETUID, SETUID))
    for name, (flags, mode) in CREATING.items():
        for flag in (CREATE, NAMELESS):
            is_set = seccomp.Arg(flags, seccomp.MASKED_EQ, flag, flag)
            deny(refused, name, is_set, seccomp.Arg(mode, seccomp.MASKED_EQ, SETUID, SETUID))
    for name in ("socket", "socketpair"):
        for family in range(max(FAMILIES)):
            if family not in FAMILIES:
                deny(seccomp.ERRNO(errno.EAFNOSUPPORT), name, seccomp.Arg(0, seccomp.EQ, family))
        deny(seccomp.ERRNO(errno.EAFNOSUPPORT), name, seccomp.Arg(0, seccomp.GT, max(FAMILIES)))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def main() -> int:
    """Write the files, or compare them; returns the exit code."""
    different = []
    for architecture in ARCHITECTURES:
        path, program = FOLDER / f"{architecture}.bpf", make_filter(architecture)
        if "--check" not in sys.argv:
            path.write_bytes(program)
        elif path.read_bytes() != program:
            different.append(str(path))
        print(f"{path.name}: {len(program)} bytes")
    if different:
        print(f"not what this script makes: {', '.join(different)}", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
