"""The git that a command finds first in a sandbox: hands a call to the broker, and becomes the real git where that says so.

Run with ``python -I -S``; arguments are the socket, the real git, the folders of temporary files, the
folders that the broker sees itself, and the call's own arguments.
"""

import array
import contextlib
import json
import os
import socket
import stat
import sys

MAX_FILES = 200
PASSED = ("GIT_EDITOR", "GIT_SEQUENCE_EDITOR", "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "TZ")
PASSED_PREFIXES = ("GIT_AUTHOR_", "GIT_COMMITTER_")


def _temporary_files(arguments: list[str], folders: list[str], seen: list[str]) -> list[str]:
    """Return the files that a call names and that only exist in the sandbox, such as a message in ``/tmp``."""
    found = list[str]()
    for word in arguments:
        for text in (word, word.partition("=")[2], word[2:]):
            path = os.path.normpath(os.path.join(os.getcwd(), text)) if text else ""  # noqa: PTH109, PTH118
            is_inside = any(path.startswith(f"{folder}/") for folder in folders)
            is_inside = is_inside and not any(path.startswith(f"{folder}/") for folder in seen)
            if is_inside and path not in found and os.path.isfile(path):  # noqa: PTH113
                found.append(path)
    return found[:MAX_FILES]


def main() -> None:
    """Hand over the call and end as it ends."""
    address, real, folders, seen, *arguments = sys.argv[1:]
    passed = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED or name.startswith(PASSED_PREFIXES)
    }
    files = _temporary_files(arguments, folders.split(":"), seen.split(":"))
    descriptors = [0, 1, 2]
    for path in [*files]:
        try:
            descriptors.append(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
        except OSError:
            files.remove(path)
    answer = b"plain"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as broker:
        broker.connect(address)
        text = json.dumps([arguments, os.getcwd(), passed, files]).encode()  # noqa: PTH109 - no pathlib here
        sent = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        broker.sendmsg([len(text).to_bytes(4, "big")], sent)
        broker.sendall(text)
        answer = b"".join(iter(lambda: broker.recv(1 << 16), b"")) or b"exit 125"
    word, _, rest = answer.decode(errors="surrogateescape").partition(" ")
    if word == "exit":
        sys.exit(int(rest))
    # An alias of the user's is replaced by what it stands for.
    os.execv(real, [real, *(json.loads(rest) if rest else arguments)])


if __name__ == "__main__":
    # Descriptors that a script closed would be taken by the socket.
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(
                os.devnull,
                os.O_RDWR if stat.S_ISCHR(os.stat(os.devnull).st_mode) else os.O_RDONLY,  # noqa: PTH116
            )
    main()
