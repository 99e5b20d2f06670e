"""The filters of system calls: made by libseccomp as they are, and right for both architectures."""

from __future__ import annotations

import errno
import struct
import sys

import pytest

from tests._support import seccomp_filters
from tests._support.seccomp_filters import (
    ARCHITECTURES,
    FOLDER,
    load_library,
    make_filter,
    system_call,
)

ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS, NO_FAMILY = (
    0x50000 | number for number in (errno.EPERM, errno.ENOSYS, errno.EAFNOSUPPORT)
)
TOKENS = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
I386, X32 = 0x40000003, 0x40000000
# From the kernel's tables, so that a wrong name in the script is found as well.
NUMBERS = {
    "x86_64": {
        "keyctl": 250,
        "add_key": 248,
        "request_key": 249,
        "userfaultfd": 323,
        "bpf": 321,
        "perf_event_open": 298,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "openat2": 437,
        "memfd_create": 319,
        "memfd_secret": 447,
        "ioctl": 16,
        "chmod": 90,
        "fchmod": 91,
        "fchmodat": 268,
        "creat": 85,
        "mknod": 133,
        "mknodat": 259,
        "open": 2,
        "openat": 257,
        "socket": 41,
        "socketpair": 53,
        "read": 0,
        "execve": 59,
        "clone": 56,
        "mmap": 9,
    },
    "aarch64": {
        "keyctl": 219,
        "add_key": 217,
        "request_key": 218,
        "userfaultfd": 282,
        "bpf": 280,
        "perf_event_open": 241,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "openat2": 437,
        "memfd_create": 279,
        "memfd_secret": 447,
        "ioctl": 29,
        "fchmod": 52,
        "fchmodat": 53,
        "mknodat": 33,
        "openat": 56,
        "socket": 198,
        "socketpair": 199,
        "read": 63,
        "execve": 221,
        "clone": 220,
        "mmap": 222,
    },
}
VERDICTS: list[tuple[str, tuple[int, ...], int]] = [
    *(
        (name, (), EPERM)
        for name in ("keyctl", "add_key", "request_key", "userfaultfd", "bpf", "perf_event_open")
    ),
    *(
        (name, (), ENOSYS)
        for name in ("io_uring_setup", "io_uring_enter", "io_uring_register", "openat2")
    ),
    *((name, (), ENOSYS) for name in ("memfd_create", "memfd_secret")),
    *((name, (), ALLOW) for name in ("read", "execve", "clone", "mmap")),
    ("ioctl", (0, 0x5412), EPERM),
    ("ioctl", (0, 0x541C), EPERM),
    # The kernel reads 32 bits of it.
    ("ioctl", (0, 0xFFFFFFFF_00005412), EPERM),
    ("ioctl", (0, 0x5413), ALLOW),
    *((name, (0, 0o4755), EPERM) for name in ("chmod", "fchmod", "creat", "mknod")),
    *((name, (0, 0o2755), ALLOW) for name in ("chmod", "fchmod", "creat", "mknod")),
    *((name, (0, 0, 0o4755), EPERM) for name in ("fchmodat", "mknodat")),
    *((name, (0, 0, 0o755), ALLOW) for name in ("fchmodat", "mknodat")),
    ("open", (0, 0o101, 0o4755), EPERM),
    ("open", (0, 0o1, 0o4755), ALLOW),
    ("openat", (0, 0, 0o100, 0o4755), EPERM),
    ("openat", (0, 0, 0o20000000, 0o4755), EPERM),
    ("openat", (0, 0, 0o20200000, 0o4000), EPERM),
    ("openat", (0, 0, 0o100, 0o755), ALLOW),
    ("openat", (0, 0, 0, 0o4755), ALLOW),
    *((name, (family,), ALLOW) for name in ("socket", "socketpair") for family in (1, 2, 10, 16)),
    *(
        (name, (family,), NO_FAMILY)
        for name in ("socket", "socketpair")
        for family in (0, 3, 9, 17, 38, 40, 1 << 40)
    ),
]


def run_filter(program: bytes, token: int, number: int, arguments: tuple[int, ...] = ()) -> int:
    """Return the verdict of a program about a system call, as the kernel's interpreter of classic BPF does."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=iIQ6Q", number, token, 0, *padded)
    steps = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, on_true, on_false, value = steps[at]
        at += 1
        if code == 0x20:  # load a word
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif code == 0x54:  # and
            accumulator &= value
        elif code == 0x06:  # return
            return value
        elif code == 0x05:  # jump
            at += value
        else:
            tests = {
                0x15: accumulator == value,
                0x25: accumulator > value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }
            at += on_true if tests[code] else on_false


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_filter_decides_about_each_call(architecture: str) -> None:
    program = (FOLDER / f"{architecture}.bpf").read_bytes()
    numbers, token = NUMBERS[architecture], TOKENS[architecture]
    judged = [
        (name, arguments, verdict, run_filter(program, token, numbers[name], arguments))
        for name, arguments, verdict in VERDICTS
        if name in numbers
    ]
    assert len(judged) > 40
    assert [row for row in judged if row[2] != row[3]] == []


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_foreign_architecture_calls_end_process(architecture: str) -> None:
    program = (FOLDER / f"{architecture}.bpf").read_bytes()
    others = [token for name, token in TOKENS.items() if name != architecture]
    for token in (*others, I386):
        assert run_filter(program, token, 0) == KILL
    if architecture == "x86_64":
        assert run_filter(program, TOKENS["x86_64"], X32 | 250) == KILL


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there are sandboxes for Linux only"
)
def test_filters_match_libseccomp() -> None:
    library = load_library()
    if library is None:
        pytest.skip("needs libseccomp: make parts")
    for architecture in ARCHITECTURES:
        assert (
            make_filter(library, architecture) == (FOLDER / f"{architecture}.bpf").read_bytes()
        ), architecture
        for name, number in NUMBERS[architecture].items():
            assert system_call(library, architecture, name) == number, (architecture, name)


def test_omitted_rule_changes_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    library = load_library()
    if library is None:
        pytest.skip("needs libseccomp: make parts")
    monkeypatch.setattr(seccomp_filters, "DENIED", seccomp_filters.DENIED[1:])
    for architecture in ARCHITECTURES:
        program = make_filter(library, architecture)
        assert run_filter(program, TOKENS[architecture], NUMBERS[architecture]["keyctl"]) == ALLOW
        assert program != (FOLDER / f"{architecture}.bpf").read_bytes()
