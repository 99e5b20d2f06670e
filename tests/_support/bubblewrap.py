"""bubblewrap for the tests: the installed one, else Debian's package in the project's own ``.bubblewrap`` folder.

``python -m tests._support.bubblewrap`` fetches it; a second run finds it in place and does nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from tests._support.tree import ROOT

FOLDER = ROOT / ".bubblewrap"
_PATIENCE = 120.0


def find_bubblewrap() -> str | None:
    """The program; fetched if it is not installed, None where that does not work (no Debian, no network)."""
    installed = shutil.which("bwrap")
    if installed is not None:
        return installed
    program = FOLDER / "usr" / "bin" / "bwrap"
    if not program.exists() and not _fetched():
        return None
    return str(program)


def _fetched() -> bool:
    if not sys.platform.startswith("linux") or shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return False
    FOLDER.mkdir(exist_ok=True)
    try:
        fetching = ["apt-get", "download", "--quiet", "bubblewrap"]
        subprocess.run(fetching, cwd=FOLDER, capture_output=True, timeout=_PATIENCE, check=True)
        for package in FOLDER.glob("bubblewrap_*.deb"):
            subprocess.run(["dpkg", "-x", package, FOLDER], capture_output=True, timeout=_PATIENCE, check=True)
    except (OSError, subprocess.SubprocessError):
        return False
    return (FOLDER / "usr" / "bin" / "bwrap").exists()


if __name__ == "__main__":
    print(find_bubblewrap() or "bubblewrap is not installed and could not be fetched")
