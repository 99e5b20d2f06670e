"""The command ``amplifier``: `commands.main` starts it, `commands.app` lists the commands."""

from __future__ import annotations

from amplifier.cli.commands.main import main

__all__ = ["main"]
