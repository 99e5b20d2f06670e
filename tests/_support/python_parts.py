"""Environments of their own for packages from PyPI that tests need beside the project's."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests._support.tree import ROOT

_PATIENCE = 600.0


def install(folder: Path, packages: Mapping[str, str]) -> bool:
    """Install what is not there; returns whether there was anything to do.

    Args:
        folder: Where the environment is.
        packages: Exact versions.

    Raises:
        RuntimeError: pip failed.
    """
    wanted = [f"{package}=={version}" for package, version in packages.items()]
    done = folder / ".ready"
    if done.is_file() and done.read_text(encoding="utf-8") == "\n".join(wanted):
        return False
    python = folder / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
    ):
        finished = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
        if finished.returncode:
            raise RuntimeError(f"{' '.join(command[:4])} failed:\n{finished.stderr[-2000:]}")
    done.write_text("\n".join(wanted), encoding="utf-8")
    return True
