"""``amplifier session``: list, show, trace, resume, fork and delete stored sessions."""

from __future__ import annotations

import json
import re
import shutil
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
import click

from amplifier._internal.json import visible_text
from amplifier._internal.programs import open_in_browser
from amplifier._internal.regular_files import replace_file
from amplifier.cli._exit_codes import CommandError, Exit
from amplifier.cli.commands.run import prompt_argument, run_options, start_run
from amplifier.cli.commands.shared_options import (
    GlobalOptions,
    LazyGroup,
    complete_session,
    import_http_server,
    json_option,
    open_store,
)
from amplifier.cli.terminal.output import is_terminal, print_table
from amplifier.shared_sessions.checkpoints import undo_stored
from amplifier.store.sessions import EVENTS_FILE
from amplifier.tracing import (
    compare,
    totals,
    write_comparison_text,
    write_page,
    write_summary,
    write_text,
)
from amplifier.tracing.sessions import (
    heading_of_message,
    read_trace,
    text_of_message,
    write_conversation,
)

_ALL_COLUMNS = 120
"""Width of a terminal with room for all columns of a session."""

_HEADINGS = {
    "session_id": "session",
    "updated": "last used",
    "status": "status",
    "provider": "provider",
    "title": "began with",
    "directory": "folder",
}

_SESSION = click.argument("session_id", metavar="ID", shell_complete=complete_session)


@click.group(cls=LazyGroup)
def session() -> None:
    """Look at, trace, resume, fork and delete stored sessions.

    An ID may be shortened to a unique prefix; `last` is the session used last.
    """


@session.command("list")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Only the latest ones.")
@click.option(
    "-a",
    "--all",
    "with_children",
    is_flag=True,
    help="Also the sessions of tasks that agents delegated.",
)
@click.option("--here", is_flag=True, help="Only those that were begun in this folder.")
@click.option(
    "-s",
    "--search",
    metavar="TEXT",
    default="",
    help="Only those with this in id, title, provider or folder.",
)
@click.option(
    "--cost", "with_cost", is_flag=True, help="Also the cost of each, from the event logs."
)
@json_option
def list_sessions(
    limit: int | None, with_children: bool, here: bool, search: str, with_cost: bool, as_json: bool
) -> None:
    """List sessions, the one used last first."""
    store, folder = open_store(), str(Path.cwd()) if here else None
    records = [
        record
        for record in store.records(with_children=with_children)
        if (folder is None or record.directory == folder)
        and search.casefold() in "\n".join(filter(None, attrs.astuple(record))).casefold()
    ][:limit]
    listed = [attrs.asdict(record) for record in records]
    for row in listed if with_cost else ():
        cost = totals(read_trace(store, row["session_id"])).cost
        row["cost"] = str(cost) if cost else None
    if as_json:
        click.echo(json.dumps(listed, indent=2))
        return
    if not listed:
        which = "like that" if here or search else "yet"
        click.echo(f"There is no session {which} in {store.root}.", err=True)
        return
    shown = list(_HEADINGS)
    # Scripts get the stored values, people a shorter form.
    if sys.stdout.isatty():
        home = re.compile(f"^{re.escape(str(Path.home()))}(?=/)")
        for row in listed:
            row["updated"] = _in_local_time(row["updated"] or "")
            row["directory"] = home.sub("~", row["directory"] or "")
            row["provider"] = (row["provider"] or "").removeprefix("provider-")
        if (columns := shutil.get_terminal_size().columns) < _ALL_COLUMNS:
            narrow = columns < _ALL_COLUMNS // 2
            shown = (
                ["session_id", "title"] if narrow else ["session_id", "updated", "status", "title"]
            )
    shown += ["cost"] if with_cost else []
    rows = [[row[name] or "" for name in shown] for row in listed]
    print_table([_HEADINGS.get(name, name) for name in shown], rows, cut=("began with", "folder"))


def _in_local_time(moment: str) -> str:
    """Return a stored time in the local time zone, and other text unchanged."""
    try:
        return f"{datetime.fromisoformat(moment).astimezone():%Y-%m-%d %H:%M}"
    except (ValueError, OverflowError):
        return moment


@session.command("show")
@_SESSION
@click.option("--full", is_flag=True, help="Show tool calls and tool output in full length.")
@json_option
def show_session(session_id: str, full: bool, as_json: bool) -> None:
    """Show the conversation of a session. It may be open in another process.

    Tool calls and tool output are shortened. --json prints everything. `amplifier session trace`
    shows the steps with their times.
    """
    store = open_store()
    record = store.find(session_id)
    messages = store.transcript(record.session_id)
    total = totals(read_trace(store, record.session_id))
    if as_json:
        # The sums of the event log, or null without one.
        activity = {**attrs.asdict(total), "cost": None if total.cost is None else str(total.cost)}
        shown = {
            **attrs.asdict(record),
            "activity": activity if total.turns or total.steps else None,
            "messages": messages,
        }
        click.echo(json.dumps(shown, indent=2))
    else:
        for name, value in attrs.asdict(record).items():
            if value is not None:
                click.echo(f"{name.replace('_', ' '):12} {visible_text(value, multiline=False)}")
        if total.turns or total.steps:
            click.echo(f"{'activity':12} {write_summary(total)}")
        for message in messages:
            click.echo(f"\n{click.style(heading_of_message(message), bold=True)}")
            click.echo(text_of_message(message, full=full))


@session.command("export")
@_SESSION
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="A new file.",
)
@click.option(
    "--html", is_flag=True, help="A page instead of Markdown; also if FILE ends in .html."
)
def export_session(session_id: str, output: Path | None, html: bool) -> None:
    """Write the conversation of a session as Markdown, or as a page without scripts."""
    store = open_store()
    record = store.find(session_id)
    page = html or (output is not None and output.suffix == ".html")
    written = write_conversation(
        record.title or record.session_id, store.transcript(record.session_id), page=page
    )
    if output is None:
        click.echo(written.encode(errors="backslashreplace"), nl=False)
        return
    with output.open("x", encoding="utf-8", errors="backslashreplace") as new:
        new.write(written)
    click.echo(output)


@session.command("to-test")
@_SESSION
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default="tests",
    metavar="FOLDER",
    show_default=True,
)
def write_session_test(session_id: str, output: Path) -> None:
    """Write a session as a pytest that replays it offline on both backends, without secrets."""
    # Only this command needs the doubles.
    from amplifier.testing.sessions import write_test  # noqa: PLC0415

    store = open_store()
    record = store.find(session_id)
    session_id, log = record.session_id, store.folder(record.session_id) / EVENTS_FILE
    click.echo(write_test(session_id, store.transcript(session_id), output, log))


@session.command("trace")
@click.argument("session_id", metavar="[ID]", default="last", shell_complete=complete_session)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="The file to write; - for standard output.",
)
@click.option("--open", "open_browser", is_flag=True, help="Open the page in the browser.")
@click.option("--text", "as_text", is_flag=True, help="Print text instead of writing a page.")
@click.option(
    "--compare",
    "other_id",
    metavar="ID",
    shell_complete=complete_session,
    help="Compare with this session, as text.",
)
@click.option("--live", is_flag=True, help="Follow the session in the browser while it runs.")
@click.option(
    "--backend",
    type=click.Choice(["asyncio", "trio"]),
    default="asyncio",
    help="The event loop of --live.",
)
def trace_session(
    session_id: str,
    output: Path | None,
    open_browser: bool,
    as_text: bool,
    other_id: str | None,
    live: bool,
    backend: str,
) -> Any:
    """Show the turns, model calls, tool calls, approvals and errors of a session with their times.

    The command writes one HTML page, by default trace-ID.html, which loads nothing and needs no
    network. It is readable by you alone, because it holds the session's event log. The default
    session is the most recently used one.
    """
    store = open_store()
    record = store.find(session_id)
    if live:
        if as_text or other_id is not None or output is not None:
            raise click.UsageError(
                "--live shows one session in the browser; leave out --text, --compare and --output"
            )
        server = import_http_server("--live")
        return server.follow_session(
            store, record.session_id, backend=backend, open_browser=open_browser
        )
    as_text = as_text or other_id is not None
    if open_browser and as_text:
        raise click.UsageError("--open opens a page; leave out --text and --compare")
    trace = read_trace(store, record.session_id)
    if other_id is None:
        content = write_text(trace) if as_text else write_page(trace)
    else:
        other = store.find(other_id)
        content = write_comparison_text(compare(trace, read_trace(store, other.session_id)))
    if (as_text and output is None) or output == Path("-"):
        if open_browser:
            raise click.UsageError("--open needs a file; leave out --output -")
        click.echo(content.encode(errors="backslashreplace"), nl=False)
        return Exit.OK
    path = Path(f"trace-{record.session_id}.html") if output is None else output
    # Don't replace a device or a folder.
    if path.exists() and not path.is_file():
        raise CommandError(f"{path} is not a regular file; `-o -` writes to standard output")
    replace_file(path, content.encode(errors="backslashreplace"))
    click.echo(path)
    if open_browser and not open_in_browser(path.absolute().as_uri()):
        raise CommandError(
            f"no browser could be started; open {path.absolute()} yourself", exit_code=Exit.FAILED
        )
    return Exit.OK


@session.command("resume")
@click.argument("session_id", metavar="[ID]", default="last", shell_complete=complete_session)
@prompt_argument
@run_options
@click.pass_obj
def resume_session(
    global_options: GlobalOptions, /, session_id: str, prompt: tuple[str, ...], **options: Any
) -> int:
    """Continue a session, by default the latest one: a chat, or one turn with PROMPT.

    A turn whose process was killed continues where it was. Finished tool calls keep their results,
    and you are asked before an interrupted tool call is repeated, unless its tool declares whether
    that is safe. With PROMPT that turn is abandoned.

    The session keeps its provider, model, plan and directory, unless options change them.
    """
    return start_run(global_options, prompt=prompt, resume=session_id, **options)


@session.command("fork")
@_SESSION
@click.option(
    "--turns", type=click.IntRange(min=0), help="Copy only this many turns from the beginning."
)
def fork_session(session_id: str, turns: int | None) -> None:
    """Copy a session's conversation into a new session and print the new id."""
    store = open_store()
    origin = store.find(session_id)
    messages = store.transcript(origin.session_id)
    starts = [index for index, message in enumerate(messages) if message.get("role") == "user"]
    if turns is not None and turns < len(starts):
        messages = messages[: starts[turns]]
    elif turns is not None and turns > len(starts):
        counted = "1 turn" if len(starts) == 1 else f"{len(starts)} turns"
        click.echo(
            f"session {origin.session_id!r} has only {counted}; all of them are copied",
            err=True,
        )
    click.echo(store.copy(origin, messages))


@session.command("undo")
@click.argument("session_id", metavar="[ID]", default="last", shell_complete=complete_session)
@click.option("--redo", is_flag=True, help="Repeat the turn that was taken back last.")
def undo_session(session_id: str, redo: bool) -> None:
    """Take back the latest turn: its messages and its changes to files, even by commands.

    Run it again for the turn before. Files that were changed since then stay as they are, and git's
    index and history are not touched.
    """
    store = open_store()
    for line in undo_stored(store, store.find(session_id).session_id, redo=redo):
        click.echo(line)


@session.command("delete")
@click.argument(
    "session_ids", metavar="ID...", nargs=-1, required=True, shell_complete=complete_session
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def delete_sessions(session_ids: tuple[str, ...], yes: bool) -> None:
    """Delete sessions with all of their data."""
    store = open_store()
    records = list({record.session_id: record for record in map(store.find, session_ids)}.values())
    if not yes and not is_terminal(sys.stdin):
        raise CommandError("there is no terminal to ask at; confirm with --yes")
    for record in [] if yes else records:
        click.echo(
            f"{record.session_id}  {visible_text(record.title or '', multiline=False)}", err=True
        )
    plural = "this session" if len(records) == 1 else f"these {len(records)} sessions"
    if not yes and not click.confirm(f"Delete {plural}? It cannot be undone", err=True):
        raise CommandError("nothing was deleted", exit_code=Exit.FAILED)
    for record in records:
        store.delete(record.session_id)
        click.echo(f"deleted {record.session_id}")
