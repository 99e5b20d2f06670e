"""Make the filters of system calls that commands get in bubblewrap, one file for each architecture.

Run it as ``python -m tests._support.seccomp_filters --write`` whenever a rule below changes. Without
the option it compares. It needs the library libseccomp, which most systems have. Where it is not
installed, ``make parts`` unpacks Debian's package in the project's own ``.bubblewrap`` folder.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests._support.bubblewrap import FOLDER as PARTS

FOLDER = Path(__file__).parents[2] / "src" / "amplifier" / "modules" / "tools" / "bash" / "seccomp"
ARCHITECTURES = ("x86_64", "aarch64")

# bubblewrap's namespaces and its lack of capabilities close mounts, ptrace, chroot and the like. These they leave open.
DENIED = ("keyctl", "add_key", "request_key", "userfaultfd", "bpf", "perf_event_open")
# Programs take these for missing and do without. io_uring would get past any filter. openat2 has the mode of a new file in
# memory, where a filter cannot look. The content of a memfd is counted by no limit, that of a file in /tmp is.
MISSING = (
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "openat2",
    "memfd_create",
    "memfd_secret",
)
# They put characters into a terminal as if they were typed.
TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
# UNIX, the Internet, and the kernel's list of network interfaces. AF_VSOCK reaches the host of a virtual machine.
FAMILIES = (1, 2, 10, 16)
# A program with it would run with the rights of the agent's user for everybody. The bit for a group is needed:
# `git init --shared` sets it.
SETUID = 0o4000
MODES = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "creat": 1,
    "mknod": 1,
    "mknodat": 2,
}
CREATING = {"open": (1, 2), "openat": (2, 3)}  # the mode counts with one of these flags only
CREATE, NAMELESS = 0o100, 0o20000000  # O_CREAT, and O_TMPFILE without O_DIRECTORY


# ── libseccomp ────────────────────────────────────────────────────────────────────────────────────

_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_BAD_ARCHITECTURE, _OPTIMIZE = 2, 8
_EQUAL, _GREATER, _MASKED = 4, 6, 7
_PATIENCE = 120.0


class _Condition(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


def load_library() -> ctypes.CDLL | None:
    """Return libseccomp, or None if it is neither installed nor fetched."""
    name = ctypes.util.find_library("seccomp") or next(
        map(str, PARTS.rglob("libseccomp.so.2")), None
    )
    if name is None:
        return None
    library = ctypes.CDLL(name)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_release.argtypes = (ctypes.c_void_p,)
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    for function in (library.seccomp_arch_add, library.seccomp_arch_remove):
        function.argtypes = (ctypes.c_void_p, ctypes.c_uint32)
    library.seccomp_arch_resolve_name.restype = ctypes.c_uint32
    library.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
    library.seccomp_syscall_resolve_name_arch.argtypes = (ctypes.c_uint32, ctypes.c_char_p)
    library.seccomp_rule_add_exact_array.argtypes = (
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint),
        ctypes.POINTER(_Condition),
    )
    library.seccomp_export_bpf.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return library


def fetch() -> bool:
    """Fetch it from Debian; return False where that does not work (no Debian, no network)."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return False
    PARTS.mkdir(exist_ok=True)
    try:
        fetching = ["apt-get", "download", "--quiet", "libseccomp2"]
        subprocess.run(fetching, cwd=PARTS, capture_output=True, timeout=_PATIENCE, check=True)
        for package in PARTS.glob("libseccomp2_*.deb"):
            subprocess.run(
                ["dpkg", "-x", package, PARTS], capture_output=True, timeout=_PATIENCE, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def system_call(library: ctypes.CDLL, architecture: str, name: str) -> int:
    """Return the number of a system call; negative if the architecture has none of that name."""
    token = library.seccomp_arch_resolve_name(architecture.encode())
    return int(library.seccomp_syscall_resolve_name_arch(token, name.encode()))


def make_filter(library: ctypes.CDLL, architecture: str) -> bytes:
    """Return the program that the kernel runs at each system call."""
    token = library.seccomp_arch_resolve_name(architecture.encode())
    rules = library.seccomp_init(_ALLOW)

    def check(result: int, what: str) -> None:
        if result != 0:
            raise OSError(-result, f"libseccomp refuses {what}")

    def deny(action: int, name: str, *conditions: tuple[int, int, int, int]) -> None:
        if system_call(library, architecture, name) >= 0:
            number = library.seccomp_syscall_resolve_name(name.encode())
            array = (_Condition * max(len(conditions), 1))(
                *(_Condition(*each) for each in conditions)
            )
            check(
                library.seccomp_rule_add_exact_array(rules, action, number, len(conditions), array),
                name,
            )

    try:
        check(library.seccomp_attr_set(rules, _BAD_ARCHITECTURE, _KILL_PROCESS), "an attribute")
        check(library.seccomp_attr_set(rules, _OPTIMIZE, 2), "an attribute")
        if library.seccomp_arch_add(rules, token) != -errno.EEXIST:
            check(library.seccomp_arch_remove(rules, 0), "an architecture")
        refused, unknown, family_unknown = (
            _ERRNO | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)
        )
        for name in DENIED:
            deny(refused, name)
        for name in MISSING:
            deny(unknown, name)
        for request in TERMINAL_INPUT:
            deny(refused, "ioctl", (1, _MASKED, 0xFFFFFFFF, request))
        for name, mode in MODES.items():
            deny(refused, name, (mode, _MASKED, SETUID, SETUID))
        for name, (flags, mode) in CREATING.items():
            for flag in (CREATE, NAMELESS):
                deny(refused, name, (flags, _MASKED, flag, flag), (mode, _MASKED, SETUID, SETUID))
        for name in ("socket", "socketpair"):
            for family in range(max(FAMILIES)):
                if family not in FAMILIES:
                    deny(family_unknown, name, (0, _EQUAL, family, 0))
            deny(family_unknown, name, (0, _GREATER, max(FAMILIES), 0))
        with tempfile.TemporaryFile() as file:
            check(library.seccomp_export_bpf(rules, file.fileno()), "to write its program")
            file.seek(0)
            return file.read()
    finally:
        library.seccomp_release(rules)


def main() -> int:
    """Compare the files, or with ``--write`` write them; return the exit code."""
    library = load_library() or (load_library() if fetch() else None)
    if library is None:
        print("libseccomp is not installed and could not be fetched")
        return 0
    different = []
    for architecture in ARCHITECTURES:
        path, program = FOLDER / f"{architecture}.bpf", make_filter(library, architecture)
        if "--write" in sys.argv:
            path.write_bytes(program)
        elif path.read_bytes() != program:
            different.append(str(path))
        print(f"{path.name}: {len(program)} bytes")
    if different:
        print(f"not what this script makes: {', '.join(different)}", file=sys.stderr)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
