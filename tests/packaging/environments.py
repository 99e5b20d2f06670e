"""Building distributions, and empty environments to install them into; no index is needed for either."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement


def built(source: Path, target: Path, *options: str) -> list[Path]:
    command = [
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        *options,
        "--outdir",
        str(target),
        str(source),
    ]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return sorted(target.iterdir())


class Environment:
    """A virtual environment with the wheel, what the wheel asks for, and nothing else.

    Args:
        folder: Where it is made.
        wheel: The wheel of this project.
        extra: Which of its extras is wanted as well.
    """

    def __init__(self, folder: Path, wheel: Path, extra: str = "") -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.bin = folder / "bin"
        (self.packages,) = folder.glob("lib/python*/site-packages")
        self.distributions: set[str] = set()
        self.install(wheel)
        self._bring(Distribution.at(next(self.packages.glob("amplifier-*.dist-info"))), extra)

    def install(self, *wheels: Path) -> None:
        """Install wheels without what they ask for."""
        install = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            str(self.bin / "python"),
            "install",
            "--quiet",
        ]
        subprocess.run(
            [*install, "--no-deps", "--no-index", *map(str, wheels)],
            check=True,
            capture_output=True,
        )

    def _bring(self, installed: Distribution, extra: str = "") -> None:
        """Copy what a distribution needs, with one of its extras, and what that needs."""
        self.distributions.add(installed.name)
        for text in installed.requires or []:
            needed = Requirement(text)
            if needed.name in self.distributions or (
                needed.marker and not needed.marker.evaluate({"extra": extra})
            ):
                continue
            found = distribution(needed.name)
            for file in found.files or []:
                source = Path(str(found.locate_file(file)))
                if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
                    continue
                (self.packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, self.packages / file)
            self._bring(found)

    def run(self, *command: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
        # Compiled once for all programs, and beside the packages, whose size is measured.
        compiled = str(self.bin.parent / "compiled")
        clean = {
            "PATH": os.pathsep.join([str(self.bin), os.defpath]),
            "HOME": str(cwd),
            "PYTHONPYCACHEPREFIX": compiled,
        }
        program = [str(self.bin / command[0]), *command[1:]]
        return subprocess.run(
            program,
            cwd=cwd,
            env={**clean, **variables},
            capture_output=True,
            text=True,
            check=False,
        )

    def python(self, program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-I", "-W", "error", "-c", program, cwd=cwd)


def write_wheel(
    folder: Path, name: str, files: Mapping[str, str], entry_points: str, version: str = "1.0"
) -> Path:
    """A wheel of pure Python, as published modules have them.

    Args:
        folder: Where to.
        name: The distribution's name.
        files: The text of each file, by its path in site-packages.
        entry_points: The text of ``entry_points.txt``.
        version: The distribution's version.
    """
    stem = f"{name.replace('-', '_')}-{version}"
    about = f"{stem}.dist-info"
    metadata = {
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: The published {name}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": entry_points,
    }
    record = "".join(f"{path},,\n" for path in [*files, *metadata, f"{about}/RECORD"])
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, **metadata, f"{about}/RECORD": record}.items():
            archive.writestr(path, text)
    return wheel
