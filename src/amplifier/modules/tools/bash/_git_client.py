"""The git of a sandbox. It sends a call to the broker, or becomes the real git on its reply."""

import array
import contextlib
import json
import os
import socket
import stat
import sys

# This program is run with ``python -I -S``. The arguments are the socket, the real git, the folders
# of temporary files, the folders that the broker can read itself, and the arguments of the call.

MAX_FILES = 200
PASSED = ("GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "TZ")
PASSED_PREFIXES = ("GIT_AUTHOR_", "GIT_COMMITTER_")


def _temporary_files(arguments: list[str], folders: list[str], shared: list[str]) -> list[str]:
    """Return the files of a call that exist only in the sandbox, such as a message in ``/tmp``."""
    files = list[str]()
    for word in arguments:
        for text in (word, word.partition("=")[2], word[2:]):
            path = os.path.abspath(text) if text else ""  # noqa: PTH100
            is_inside = any(path.startswith(f"{folder}/") for folder in folders)
            is_inside = is_inside and not any(path.startswith(f"{folder}/") for folder in shared)
            if is_inside and path not in files and os.path.isfile(path):  # noqa: PTH113
                files.append(path)
    return files[:MAX_FILES]


def main() -> None:
    """Send the call to the broker, and exit with the exit code of the call."""
    address, real, folders, shared, *arguments = sys.argv[1:]
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED or name.startswith(PASSED_PREFIXES)
    }
    files = _temporary_files(arguments, folders.split(":"), shared.split(":"))
    descriptors = [0, 1, 2]
    for path in [*files]:
        try:
            descriptors.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            files.remove(path)
    reply = b"plain"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as broker:
        broker.connect(address)
        text = json.dumps([arguments, os.getcwd(), passed, files]).encode()  # noqa: PTH109
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        broker.sendmsg([len(text).to_bytes(4, "big")], sent)
        broker.sendall(text)
        reply = b"".join(iter(lambda: broker.recv(1 << 16), b"")) or b"exit 125"
    word, _, rest = reply.decode(errors="surrogateescape").partition(" ")
    if word == "exit":
        sys.exit(int(rest))
    # The broker has expanded an alias of the user.
    os.execv(real, [real, *(json.loads(rest) if rest else arguments)])


if __name__ == "__main__":
    # Otherwise the socket would get the number of a standard stream that a script has closed.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            is_device = stat.S_ISCHR(os.stat(os.devnull).st_mode)  # noqa: PTH116
            os.open(os.devnull, os.O_RDWR if is_device else os.O_RDONLY)
    main()
