"""bubblewrap for the tests: the installed one, else Debian's package in the project's own ``.bubblewrap`` folder.

``python -m tests._support.bubblewrap`` fetches it. A second run finds it in place and does nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from tests._support.tree import ROOT

FOLDER = ROOT / ".bubblewrap"
_PATIENCE = 120.0


def find_bubblewrap() -> str | None:
    """Return the program, or None if it is neither installed nor fetched."""
    program = FOLDER / "usr" / "bin" / "bwrap"
    return shutil.which("bwrap") or (str(program) if program.exists() else None)


def fetch() -> bool:
    """Fetch it from Debian; return False where that does not work (no Debian, no network)."""
    if (
        not sys.platform.startswith("linux")
        or shutil.which("apt-get") is None
        or shutil.which("dpkg") is None
    ):
        return False
    FOLDER.mkdir(exist_ok=True)
    try:
        fetching = ["apt-get", "download", "--quiet", "bubblewrap"]
        subprocess.run(fetching, cwd=FOLDER, capture_output=True, timeout=_PATIENCE, check=True)
        for package in FOLDER.glob("bubblewrap_*.deb"):
            subprocess.run(
                ["dpkg", "-x", package, FOLDER], capture_output=True, timeout=_PATIENCE, check=True
            )
    except (OSError, subprocess.SubprocessError):
        return False
    return (FOLDER / "usr" / "bin" / "bwrap").exists()


if __name__ == "__main__":
    found = find_bubblewrap() or (find_bubblewrap() if fetch() else None)
    print(found or "bubblewrap is not installed and could not be fetched")
