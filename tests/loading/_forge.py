"""Real packages, roots and distributions on disk, for the tests of this folder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

MOUNT = "async def mount(coordinator, config):\n    return None\n"


def write(file: Path, text: str = "") -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return file


def package(parent: Path, name: str, body: str = MOUNT, **submodules: str) -> Path:
    """A package with that ``__init__``."""
    write(parent / name / "__init__.py", body)
    for submodule, text in submodules.items():
        write(parent / name / f"{submodule}.py", text)
    return parent / name


def root(parent: Path, module_id: str, body: str = MOUNT, **neighbours: str) -> Path:
    """A module's checkout, with files beside its package."""
    directory = parent / f"amplifier-module-{module_id}"
    package(directory, f"amplifier_module_{module_id.replace('-', '_')}", body)
    for neighbour, text in neighbours.items():
        write(directory / f"{neighbour}.py", text)
    return directory


def distribution(
    site: Path, name: str, entry_points: Mapping[str, str], version: str = "1.0"
) -> Path:
    """The metadata of an installed distribution; its packages are written separately."""
    metadata = site / f"{name}-{version}.dist-info"
    write(
        metadata / "METADATA",
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nSummary: About {name}\n\nx\n",
    )
    lines = "".join(f"{module_id} = {value}\n" for module_id, value in entry_points.items())
    write(
        metadata / "entry_points.txt",
        f"[console_scripts]\nignored = no:no\n\n[amplifier.modules]\n{lines}\n[other]\na = b\n",
    )
    return metadata


def forget_imports(folder: Path) -> None:
    """Forget the Python modules that were imported from below a folder."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def run_python(code: str, cwd: Path) -> str:
    """Run a program in an interpreter of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


class Coordinator:
    """All that a loader may ask of one: what is mounted at a point."""

    def __init__(self, resolver: object = None) -> None:
        self.resolver = resolver
        self.asked: list[str] = []

    def get(self, mount_point: str) -> object:
        self.asked.append(mount_point)
        if self.resolver is None:
            raise ValueError(f"nothing is mounted at {mount_point}")
        return self.resolver
