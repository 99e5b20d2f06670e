"""Become a program in a mount namespace where nothing below some folders can be executed."""

import ctypes
import json
import os
import resource
import sys

# bubblewrap has no such option. Nor can it remove the flag, because the kernel locks the flag for
# the namespaces below. Folders that a command could replace meanwhile are passed with their device
# and inode, and are mounted where the command can't reach them. It runs under ``python -I -S``. Its
# arguments are a JSON object with ``noexec``, ``binds`` and ``limits``, and a command line.

_NEW_USER, _NEW_MOUNTS = 0x10000000, 0x00020000
_NOSUID, _NODEV, _NOEXEC, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 32, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, name: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        sys.exit(f"{name}: {os.strerror(number)}")


def _mount(source: str | None, target: str, flags: int) -> None:
    encoded = None if source is None else os.fsencode(source)
    _checked(_libc.mount(encoded, os.fsencode(target), None, flags, None), f"mount {target}")


def main() -> None:
    """Set up the namespace, then become the program."""
    job = json.loads(sys.argv[1])
    for name, limit in job["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    if job["noexec"] or job["binds"]:
        _enter(job["noexec"], job["binds"])
    os.execv(sys.argv[2], sys.argv[2:])


def _enter(noexec: list[str], binds: list[tuple[str, list[int], str]]) -> None:
    user, group = os.geteuid(), os.getegid()
    _checked(_libc.unshare(_NEW_USER | _NEW_MOUNTS), "unshare")
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        # Importing pathlib would double the start-up time.
        with open(f"/proc/self/{name}", "w") as file:  # noqa: PTH123
            file.write(text)
    _mount(None, "/", _RECURSIVE | _PRIVATE)
    flags = _NOEXEC if noexec else 0
    for folder in noexec:
        _mount_without(flags, folder, folder)
    for path, expected, target in binds:
        descriptor = _open_folder(path)
        info = os.fstat(descriptor)
        if [info.st_dev, info.st_ino] != expected:
            sys.exit(f"{path} was replaced while git was started")
        _mount_without(flags, f"/proc/self/fd/{descriptor}", target)
        os.close(descriptor)


def _mount_without(flags: int, source: str, target: str) -> None:
    _mount(source, target, _BIND | _RECURSIVE)
    _mount(None, target, _REMOUNT | _BIND | _NOSUID | _NODEV | flags)


def _open_folder(path: str) -> int:
    """Open a folder of this namespace without following links.

    The kernel refuses to mount a folder that was opened in another namespace.
    """
    folder = os.open("/", os.O_PATH | os.O_DIRECTORY)
    for name in path.split("/")[1:]:
        inner = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
        os.close(folder)
        folder = inner
    return folder


if __name__ == "__main__":
    main()
