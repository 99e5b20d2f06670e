"""MCP servers from the registries: ``python -m tests._support.mcp_servers``.

Those for Node are installed with `node_parts`. Those from PyPI have an environment of their own in ``.mcp-servers``, because they need other versions of the
SDK than this project. A second run finds everything in place and does nothing.
"""

from __future__ import annotations

import subprocess
import sys

from tests._support import node_parts
from tests._support.tree import ROOT

FOLDER = ROOT / ".mcp-servers"

PACKAGES = {"mcp-server-time": "2026.10.19", "mcp-server-fetch": "2026.10.24"}
"""Exact versions."""

_PATIENCE = 600.0


def node_server(package: str) -> tuple[str, str]:
    """Node, and the program of a server that is written for it."""
    return node_parts.node(), node_parts.program(f"@modelcontextprotocol/{package}", "dist/index.js")


def python_server(name: str) -> str:
    """The command of a server from PyPI; installs what is missing first."""
    install()
    return str(FOLDER / "bin" / name)


def install() -> bool:
    """Install what is not there; returns whether there was anything to do.

    Raises:
        RuntimeError: pip failed.
    """
    wanted = [f"{package}=={version}" for package, version in PACKAGES.items()]
    done = FOLDER / ".ready"
    if done.is_file() and done.read_text(encoding="utf-8") == "\n".join(wanted):
        return False
    python = FOLDER / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(FOLDER)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted],
    ):
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=_PATIENCE, check=False)
        if finished.returncode:
            raise RuntimeError(f"{' '.join(command[:4])} failed:\n{finished.stderr[-2000:]}")
    done.write_text("\n".join(wanted), encoding="utf-8")
    return True


if __name__ == "__main__":
    state = "installed" if install() else "in place"
    sys.stdout.write("".join(f"{package} {version}: {state}\n" for package, version in PACKAGES.items()))
