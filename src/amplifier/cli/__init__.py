"""The command ``amplifier``: ``_main`` starts it, ``_app`` lists the commands, then one file per noun."""

from __future__ import annotations

from amplifier.cli.commands.main import main

__all__ = ["main"]
