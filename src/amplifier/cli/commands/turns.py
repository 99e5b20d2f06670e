"""``amplifier turns``: the turns of an engine, a page with them, and a worker."""

from __future__ import annotations

import importlib
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, get_args

import anyio
import attrs
import click

from amplifier._internal.json import visible_text
from amplifier.durable import DurableEngine, SessionFactory, TurnState, TurnStatus, open_engine

from .shared_options import import_http_server

_T = TypeVar("_T")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_TURN = click.argument("turn_id", metavar="ID")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
@click.option(
    "-e",
    "--engine",
    "url",
    metavar="ENGINE",
    envvar="AMPLIFIER_TURNS",
    required=True,
    help="A file, sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE.",
)
@click.pass_context
def turns(context: click.Context, url: str) -> None:
    """List, show, stop, resume and release the turns of an engine, or run a worker.

    The variable AMPLIFIER_TURNS names the engine if there is no option.
    """
    file = url.removeprefix("sqlite:///")
    if "://" not in file and context.invoked_subcommand != "work" and not Path(file).exists():
        raise click.UsageError(
            f"there is no file {file}, so there are no turns; name the engine that workers use"
        )
    context.obj = url


def _on_engine(url: str, do: Callable[[DurableEngine], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        async with open_engine(url) as engine:
            return await do(engine)

    return anyio.run(run)


def _moment(context: click.Context, parameter: click.Parameter, text: str | None) -> float | None:
    """Read a time, or a duration before now: 90s, 10m, 2h, 7d."""
    if text is None:
        return None
    try:
        if text[-1:] in _UNITS:
            return time.time() - timedelta(**{_UNITS[text[-1]]: float(text[:-1])}).total_seconds()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise click.BadParameter(
            f"{text!r} is not a time; write 90s, 10m, 2h, 7d, or 2026-01-31T12:00"
        ) from None


@turns.command("list")
@click.option(
    "-s", "--state", type=click.Choice(get_args(TurnState)), help="Only those in this state."
)
@click.option("--session", metavar="ID", help="Only those of this session.")
@click.option(
    "--since",
    callback=_moment,
    metavar="TIME",
    help="Only those started since: 10m, 2h, 7d, or a time.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(1, 1_000_000),
    default=100,
    show_default=True,
    help="The maximum number.",
)
@_JSON
@click.pass_obj
def list_turns(
    url: str,
    state: TurnState | None,
    session: str | None,
    since: float | None,
    limit: int,
    as_json: bool,
) -> None:
    """List turns, the one started last first, and count all of them."""

    async def read(engine: DurableEngine) -> tuple[list[TurnStatus], dict[str, Any]]:
        turns = await engine.list(state=state, session=session, since=since, limit=limit)
        return turns, attrs.asdict(await engine.counts())

    listed, counts = _on_engine(url, read)
    if as_json:
        content = {"turns": [attrs.asdict(turn) for turn in listed], "counts": counts}
        click.echo(json.dumps(content, indent=2))
        return
    for turn in listed:
        columns = [
            f"{turn.turn_id:36}",
            f"{turn.state:9}",
            _local_time(turn.started),
            f"{_line(turn.session_id):20}",
            f"attempt {turn.attempt}, takeovers {turn.takeovers}",
            _line(turn.error or ""),
        ]
        click.echo("  ".join(columns).rstrip())
    states = ", ".join(f"{count} {name}" for name, count in counts["states"].items()) or "no turns"
    click.echo(f"{states}; the oldest open one is {counts['oldest']:.0f} s old", err=True)


def _local_time(moment: float) -> str:
    return datetime.fromtimestamp(moment).astimezone().isoformat(sep=" ", timespec="seconds")


def _line(text: str) -> str:
    return visible_text(text, multiline=False)


@turns.command("show")
@_TURN
@_JSON
@click.pass_obj
def show_turn(url: str, turn_id: str, as_json: bool) -> None:
    """Show the state of a turn, the reason if it is held or failed, and its open question."""
    status = attrs.asdict(_on_engine(url, lambda engine: engine.status(turn_id)))
    if as_json:
        click.echo(json.dumps(status, indent=2))
        return
    for name, value in status.items():
        if value not in (None, ()):
            click.echo(f"{name.replace('_', ' '):12} {visible_text(str(value), multiline=True)}")


@turns.command("stop")
@_TURN
@click.option("--graceful", is_flag=True, help="Let running tools finish.")
@click.option("--reason", metavar="TEXT", help="For the events of the turn.")
@click.pass_obj
def stop_turn(url: str, turn_id: str, graceful: bool, reason: str | None) -> None:
    """Request the end of a turn. A turn that has ended is not changed."""
    _on_engine(url, lambda engine: engine.stop(turn_id, graceful=graceful, reason=reason))


@turns.command("resume")
@_TURN
@click.pass_obj
def resume_turn(url: str, turn_id: str) -> None:
    """Continue a held turn with the workers' current plan."""
    _on_engine(url, lambda engine: engine.resume(turn_id))


@turns.command("release")
@_TURN
@click.pass_obj
def release_turn(url: str, turn_id: str) -> None:
    """Take a running turn away from its worker, and let another one continue it."""
    _on_engine(url, lambda engine: engine.release(turn_id))


@turns.command("work")
@click.argument("factory", metavar="MODULE:FUNCTION")
@click.option(
    "-c",
    "--concurrency",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Turns at a time.",
)
@click.option(
    "--drain",
    type=float,
    default=30.0,
    show_default=True,
    help="Seconds for running calls after a SIGTERM.",
)
@click.pass_obj
def work(url: str, factory: str, concurrency: int, drain: float) -> None:
    """Run turns with the sessions of MODULE:FUNCTION, until SIGTERM or Ctrl-C.

    Running calls may then finish, and the turns are handed over to other workers.
    """
    sys.path.insert(0, "")
    module, _, name = factory.partition(":")
    try:
        make_session = getattr(importlib.import_module(module), name or "make_session")
    except (ImportError, AttributeError, ValueError) as error:
        problem = (
            f"{error}; expected a function that makes the session of an id, "
            "such as my_agent:make_session"
        )
        raise click.BadParameter(problem, param_hint="MODULE:FUNCTION") from error

    _on_engine(url, lambda engine: work_until_signal(engine, make_session, concurrency, drain))


async def work_until_signal(
    engine: DurableEngine, make_session: SessionFactory, concurrency: int, drain: float
) -> None:
    """Run turns until SIGTERM or Ctrl-C, and drain."""
    # The other commands save the time of this import.
    from amplifier.cli.agent.signals import until_signal  # noqa: PLC0415

    worker = anyio.CancelScope()

    async def run() -> None:
        with worker:
            await engine.work(make_session, concurrency=concurrency, drain=drain)

    await until_signal(run, worker.cancel, handled=(signal.SIGTERM, signal.SIGINT))


@turns.command("page")
@click.option("--open", "open_browser", is_flag=True, help="Open it in the browser.")
@click.option(
    "--backend", type=click.Choice(["asyncio", "trio"]), default="asyncio", help="The event loop."
)
@click.pass_obj
def show_page(url: str, open_browser: bool, backend: str) -> Any:
    """Serve a page with the turns on this machine, until Ctrl-C.

    It has their states, counts and ages, and buttons for the other commands.
    """
    return import_http_server("turns page").serve_turns(
        open_engine(url), backend=backend, open_browser=open_browser
    )
