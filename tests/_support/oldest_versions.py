"""The oldest AnyIO and trio that pyproject.toml allows, in a folder of their own.

``python -m tests._support.oldest_versions`` installs them. With the folder in front of the search path,
the environment of the tests has these instead of the newest ones. A second run does nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests._support.tree import ROOT

FOLDER = ROOT / ".oldest"
_TIMEOUT = 300.0


def floors() -> dict[str, str]:
    """Return the oldest versions that the project supports, by package."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = {name: set(re.findall(rf'"{name}>=([\d.]+)"', text)) for name in ("anyio", "trio")}
    for name, versions in found.items():
        if len(versions) != 1:
            raise RuntimeError(
                f"pyproject.toml: expected one oldest version of {name}, got {sorted(versions)}"
            )
    return {name: f"{versions.pop()}.0" for name, versions in found.items()}


def install() -> Path:
    """Install what is not there; return the folder.

    Raises:
        RuntimeError: pip failed, or pyproject.toml names several oldest versions.
    """
    wanted = [f"{name}=={version}" for name, version in floors().items()]
    done = FOLDER / ".ready"
    if done.is_file() and done.read_text(encoding="utf-8") == "\n".join(wanted):
        return FOLDER
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--upgrade",
    ]
    finished = subprocess.run(
        [*command, "--target", str(FOLDER), *wanted],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if finished.returncode:
        raise RuntimeError(f"pip install {' '.join(wanted)} failed:\n{finished.stderr[-2000:]}")
    done.write_text("\n".join(wanted), encoding="utf-8")
    return FOLDER


if __name__ == "__main__":
    install()
    sys.stdout.write(
        "".join(f"{name} {version}: in {FOLDER.name}\n" for name, version in floors().items())
    )
