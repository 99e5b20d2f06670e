"""``amplifier turns``: the commands of the engines, and a page with the same, for which a server is needed."""

from __future__ import annotations

from typing import Any

import click

from amplifier.durable import open_engine
from amplifier.durable._commands import turns

from .shared_options import import_http_server


@turns.command("page")
@click.option("--open", "open_browser", is_flag=True, help="Open it in the browser.")
@click.option("--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", help="The event loop.")
@click.pass_obj
def show_page(url: str, open_browser: bool, backend: str) -> Any:
    """Serve a page with the turns, on this machine, until Ctrl-C: their states, counts and ages, and buttons for the other commands."""
    return import_http_server("turns page").serve_turns(open_engine(url), backend=backend, open_browser=open_browser)
