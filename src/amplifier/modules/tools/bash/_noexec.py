"""Become a program in a mount namespace where nothing below some folders can be executed.

bubblewrap has no such option. It can't take the flag away either: the kernel locks it for the namespaces below. Folders that
a command could exchange meanwhile are given with their device and inode, and mounted at places that it can't reach. Run with
``python -I -S``; arguments are a JSON object with ``noexec``, ``binds`` and ``limits``, and the command line of the program.
"""

import ctypes
import json
import os
import resource
import sys

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 32, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, name: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        sys.exit(f"{name}: {os.strerror(number)}")


def _mount(source: str | None, target: str, flags: int) -> None:
    given = None if source is None else os.fsencode(source)
    _checked(_libc.mount(given, os.fsencode(target), None, flags, None), f"mount {target}")


def main() -> None:
    """Set up the namespace and become the program."""
    given = json.loads(sys.argv[1])
    for name, most in given["limits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    if given["noexec"] or given["binds"]:
        _enter(given["noexec"], given["binds"])
    os.execv(sys.argv[2], sys.argv[2:])


def _enter(noexec: list[str], binds: list[tuple[str, list[int], str]]) -> None:
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_NEW_USER | _NEW_MOUNTS), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123 - no pathlib here: it would double the start-up time
            file.write(text)
    _mount(None, "/", _RECURSIVE | _PRIVATE)
    flags = _NOEXEC if noexec else 0
    for folder in noexec:
        _mount_without(flags, folder, folder)
    for path, expected, target in binds:
        descriptor = _open_folder(path)
        found = os.fstat(descriptor)
        if [found.st_dev, found.st_ino] != expected:
            sys.exit(f"{path} was replaced while git was started")
        _mount_without(flags, f"/proc/self/fd/{descriptor}", target)
        os.close(descriptor)


def _mount_without(flags: int, source: str, target: str) -> None:
    _mount(source, target, _BIND | _RECURSIVE)
    _mount(None, target, _REMOUNT | _BIND | _NOSUID | _NODEV | flags)


def _open_folder(path: str) -> int:
    """Open a folder without following links; of this namespace, since the kernel mounts nothing of another one."""
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for name in path.split("/")[1:]:
        inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        os.close(folder)
        folder = inner
    return folder


if __name__ == "__main__":
    main()
