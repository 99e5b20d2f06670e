"""Directories for one mounted module: working directory, home and temporary files."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from amplifier.conformance.harness.llm_server.server_process import SERVICE, SERVICE_HOST, service_address

CANARY = "canary.txt"
"""A user's file in the working directory; it must be there, unchanged, to the end."""


@contextmanager
def private_directories(shared_root: Path | None = None) -> Iterator[tuple[Path, Path]]:
    """Create a working directory with the canary in it, a home and a directory for temporary files; remove them at the end.

    Temporary files get the same names every time, so that the contents of two directories can be compared.

    Args:
        shared_root: The parent of another module's directories, whose home and temporary directory to use.
    """
    before = Path.cwd()
    saved = {name: os.environ.get(name) for name in ("HOME", "TMPDIR")}
    with tempfile.TemporaryDirectory(prefix="module-", ignore_cleanup_errors=True) as root:
        directory, home, temporary = Path(root, "work"), Path(root, "home"), Path(root, "tmp")
        for folder in (directory, home, temporary):
            folder.mkdir()
        (directory / CANARY).write_text("this file belongs to the user\n", encoding="utf-8")
        if shared_root is not None:
            home, temporary = shared_root / "home", shared_root / "tmp"
        os.environ["HOME"], os.environ["TMPDIR"] = str(home), str(temporary)
        tempfile.tempdir = None  # so that TMPDIR is read again
        names = tempfile._name_sequence  # type: ignore[attr-defined]  # there is no other way to name them
        tempfile._name_sequence = map("{:08d}".format, itertools.count())  # type: ignore[attr-defined]
        os.chdir(directory)
        try:
            yield directory, temporary
        finally:
            os.chdir(before)
            for name, value in saved.items():
                os.environ.pop(name, None)
                if value is not None:
                    os.environ[name] = value
            tempfile.tempdir = None
            tempfile._name_sequence = names  # type: ignore[attr-defined]


def fill_placeholders(config: Any, directory: Path) -> Any:
    """A configuration with ``{directory}``, ``{service}`` and ``{service_host}`` replaced by their values."""
    if isinstance(config, str):
        served = config.replace(SERVICE, service_address()) if SERVICE in config else config
        if SERVICE_HOST in config:
            served = served.replace(SERVICE_HOST, service_address().partition("//")[2])
        return served.replace("{directory}", str(directory))
    if isinstance(config, dict):
        return {key: fill_placeholders(value, directory) for key, value in config.items()}
    if isinstance(config, list):
        return [fill_placeholders(value, directory) for value in config]
    return config
