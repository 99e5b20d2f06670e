"""MCP servers from the registries: ``python -m tests._support.mcp_servers``.

Those for Node are installed with `node_parts`. Those from PyPI have an environment of their own in ``.mcp-servers``, because they need other versions of the
SDK than this project. A second run finds everything in place and does nothing.
"""

from __future__ import annotations

import sys

from tests._support import node_parts, python_parts
from tests._support.tree import ROOT

FOLDER = ROOT / ".mcp-servers"

PACKAGES = {"mcp-server-time": "2026.10.19"}
"""The exact version."""


def node_server(package: str) -> tuple[str, str]:
    """Node, and the program of a server that is written for it."""
    return node_parts.node(), node_parts.program(
        f"@modelcontextprotocol/{package}", "dist/index.js"
    )


def python_server(name: str) -> str:
    """The command of a server from PyPI; installs what is missing first."""
    install()
    return str(FOLDER / "bin" / name)


def install() -> bool:
    """Install what is not there; returns whether there was anything to do."""
    return python_parts.install(FOLDER, PACKAGES)


if __name__ == "__main__":
    state = "installed" if install() else "in place"
    sys.stdout.write(
        "".join(f"{package} {version}: {state}\n" for package, version in PACKAGES.items())
    )
