"""``amplifier module validate``: checks that a module keeps its contract.

Exit codes: 0 it conforms, 1 it breaks a required clause, 2 it could not be checked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import click

from amplifier._json import visible_text
from amplifier.cli.core.error_messages import error_message
from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.cli.terminal.output import Output, StandardStreams
from amplifier.conformance import Report, check_module
from amplifier.errors import AmplifierError
from amplifier.models import to_json

from .shared_options import json_option, open_store

_EXITS = {"conforms": Exit.OK, "violations": Exit.FAILED, "unchecked": Exit.USAGE}
_BACKEND = click.Choice(["asyncio", "trio"])
_FILE = click.Path(dir_okay=False, path_type=Path)


@click.command("validate")
@click.argument("target", metavar="PATH_OR_ID")
@click.option("--type", "module_type", metavar="TYPE", help="The module's type, where it does not declare it.")
@click.option("--config", metavar="JSON", help="What to mount it with; {directory} is replaced by a fresh directory.")
@click.option("--plan", metavar="JSON", help="What else the plan of its session holds, such as agents.")
@click.option("--static", is_flag=True, help="Run nothing of the module; read its files only.")
@click.option("--backend", "backends", multiple=True, type=_BACKEND, default=_BACKEND.choices, help="Default: both.")
@click.option("--thorough", is_flag=True, help="More inputs, and every await is cancelled.")
@click.option("--strict", is_flag=True, help="Recommendations count, too.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same result.")
@click.option("--only", multiple=True, metavar="CLAUSE", help="Only this clause or check; may be given again.")
@click.option("--replay", metavar="TOKEN", help="Reproduce one finding, by the token from its report.")
@click.option("-v", "--verbose", is_flag=True, help="List kept and unexamined clauses, too.")
@click.option("--html", type=_FILE, help="Write the report as a page.")
@click.option("--junit", type=_FILE, help="Write it as JUnit XML: a test for each clause.")
@json_option
def validate(target: str, html: Path | None, junit: Path | None, verbose: bool, as_json: bool, **options: Any) -> int:
    """Check a module against its contract: a folder, a file, an installed id, or a package.

    Everything but --static runs the module, in a process of its own with a home of its own.

    Exit codes: 0 it conforms, 1 it breaks a required clause, 2 it could not be checked.
    """
    files = {"html": html, "junit": junit}
    wanted = {name: file for name, file in files.items() if file is not None}
    _reject_unwritable(wanted)
    streams = StandardStreams()
    try:
        options |= {name: _read_object(f"--{name}", options[name]) for name in ("config", "plan")}
        with _progress(streams, quiet=as_json) as progress:
            report = anyio.run(functools.partial(check_module, target, progress=progress, **options))
    except (AmplifierError, CommandError, OSError) as error:
        # A service that only reads these would otherwise take a check that never began for one without findings.
        about = {"module": target, "source": target, "seed": options["seed"], "notes": [error_message(error)]}
        _publish(Report(verdict="unchecked", **about), wanted)
        raise
    if as_json:
        streams.out.line(to_json(report))
    else:
        _show(report, streams.out, verbose=verbose)
    _publish(report, wanted)
    with suppress(OSError):  # the page that lists reports does without this one
        open_store().keep_report(report.module, report.verdict, "\n".join(report.lines()))
    return _EXITS[report.verdict]


def _publish(report: Report, files: dict[str, Path]) -> None:
    """Write a report in every form that was asked for besides the text."""
    for name, file in files.items():
        _write(name, file, report)


def _read_object(option: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CommandError(f"{option} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CommandError(f'{option} is {text!r}; expected a JSON object such as \'{{"path": "x"}}\'')
    return value


def _reject_unwritable(files: dict[str, Path]) -> None:
    """Reject files that cannot be written, before minutes are spent."""
    for name, file in files.items():
        if not file.parent.is_dir():
            raise CommandError(f"--{name} {str(file)!r}: there is no folder {str(file.parent)!r}; make it first")
    if len({file.absolute() for file in files.values()}) < len(files):
        raise CommandError(f"--html and --junit name the same file {str(files['html'])!r}; give each its own")


def _write(name: str, file: Path, report: Report) -> None:
    if name == "html":
        from amplifier.conformance.page import write_page as write  # noqa: PLC0415 — for those who want one
    else:
        from amplifier.conformance._report import write_junit as write  # noqa: PLC0415 — as above
    try:
        file.write_text(write(report), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--{name} {str(file)!r} cannot be written: {error.strerror}") from error


@contextmanager
def _progress(streams: StandardStreams, *, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show at a terminal what is being checked and for how long; it is gone when the block is left."""
    if quiet or not streams.share_a_terminal or not streams.err.can_move_cursor:
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 — only for a terminal
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415
    from rich.table import Column  # noqa: PLC0415

    # Without markup, as the text may hold brackets; one line at any width, or it could not be removed.
    text = TextColumn(
        "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1)
    )
    columns = (SpinnerColumn(), TimeElapsedColumn(table_column=Column(min_width=7)), text)
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as shown:
        task = shown.add_task("starting", total=None)

        def update(step: str, done: int, total: int) -> None:
            shown.update(task, description=visible_text(f"{done}/{total} {step}", multiline=False), refresh=True)

        yield update


def _show(report: Report, out: Output, *, verbose: bool) -> None:
    for line in report.lines(verbose=verbose, paint=out.styled):
        out.line(line)
