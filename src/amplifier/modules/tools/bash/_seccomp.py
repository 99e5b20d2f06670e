"""System calls that commands in a sandbox do not get: a table, and the filter program that the kernel runs for each call.

The table follows the default profiles of container runtimes. It holds what no ordinary program needs and what reaches past
namespaces: the kernel's keyrings, io_uring (which other filters do not see), userfaultfd, eBPF, mounts and further namespaces,
kernel modules, clocks, and sockets of families that lead out of the machine or into rarely used kernel code.
"""

from __future__ import annotations

import errno
import functools
import os
import struct
import sys

# name: (x86_64, aarch64); None where an architecture does not have it.
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "userfaultfd": (323, 282),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "vhangup": (153, 58),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "sysctl": (156, None),
}
_WITH_ARGUMENTS = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "unshare": (272, 97),
    "ioctl": (16, 29),
    "socket": (41, 198),
    "socketpair": (53, 199),
}
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7), "arm64": (1, 0xC00000B7)}
"""By the name of the machine: the column of the table, and the kernel's number for it."""

_NEW_NAMESPACES = 0x7E020080  # CLONE_NEWNS, CGROUP, UTS, IPC, USER, PID, NET and TIME
_CLONE_NEWTIME = 0x80  # the low byte of clone is a signal, so this flag is unshare's only
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI and TIOCLINUX put characters into a terminal, as if they were typed
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE = 0, 4
_X32 = 0x40000000


def _argument(index: int) -> int:
    """The offset of the low 32 bits of an argument; both architectures are little-endian."""
    return 16 + 8 * index


@functools.cache
def filter_program(*, inet: bool) -> bytes | None:
    """The filter, as the kernel reads it; None if there is no table for this machine.

    Programs of another architecture, such as 32-bit ones, have other numbers for their calls. They are killed.

    Args:
        inet: Whether sockets of the Internet families are allowed.
    """
    known = _ARCHITECTURES.get(os.uname().machine)
    if known is None or sys.byteorder != "little" or sys.maxsize < 1 << 32:
        return None
    column, architecture = known
    denied = _ERROR | errno.EPERM
    program = [
        *((_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL_PROCESS)),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if column == 0:
        program += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
    for numbers in _DENIED.values():
        if (number := numbers[column]) is not None:
            program += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, denied)]
    families = (_UNIX, _NETLINK, *((_INET, _INET6) if inet else ()))
    family = [
        (_LOAD, 0, 0, _argument(0)),
        *((_EQUAL, len(families) - index, 0, each) for index, each in enumerate(families)),
        (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        (_RETURN, 0, 0, _ALLOW),
    ]
    blocks = {
        # Its flags are in memory, which a filter cannot read; the C library then uses clone.
        "clone3": [(_RETURN, 0, 0, _ERROR | errno.ENOSYS)],
        "clone": _unless_any_bit(_NEW_NAMESPACES & ~_CLONE_NEWTIME, denied),
        "unshare": _unless_any_bit(_NEW_NAMESPACES, denied),
        "ioctl": [
            (_LOAD, 0, 0, _argument(1)),
            (_EQUAL, 1, 0, _TERMINAL_INPUT[0]),
            (_EQUAL, 0, 1, _TERMINAL_INPUT[1]),
            (_RETURN, 0, 0, denied),
            (_RETURN, 0, 0, _ALLOW),
        ],
        "socket": family,
        "socketpair": family,
    }
    for name, block in blocks.items():
        program += [(_EQUAL, 0, len(block), _WITH_ARGUMENTS[name][column]), *block]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _unless_any_bit(bits: int, otherwise: int) -> list[tuple[int, int, int, int]]:
    return [(_LOAD, 0, 0, _argument(0)), (_ANY_BIT, 0, 1, bits), (_RETURN, 0, 0, otherwise), (_RETURN, 0, 0, _ALLOW)]
