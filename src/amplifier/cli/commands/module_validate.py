"""``amplifier module validate``: does a module keep its contract?

Above it stands `_module`, below it the conformance kit. Exit codes: 0 it conforms, 1 it breaks a required clause, 2 it could
not be checked.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import click

from amplifier._json import visible_text
from amplifier.cli.core.exit_codes import CommandError, Exit
from amplifier.cli.terminal.tables import print_table
from amplifier.conformance import Report, check_module
from amplifier.conformance.suites import described_as_text
from amplifier.models import to_json

from .invocation import debug_option, json_option

__all__ = ["validate"]

_MARKS = {"kept": "kept", "broken": "BROKEN", "not_applicable": "-", "not_checked": "not examined"}
_EXITS = {"conforms": Exit.OK, "violations": Exit.FAILED, "unchecked": Exit.USAGE}


@click.command("validate")
@click.argument("target", metavar="PATH_OR_ID")
@click.option("--type", "kind", metavar="TYPE", help="The module's type, if the module does not declare it.")
@click.option("--config", metavar="JSON", help="Config to mount it with; {directory} is replaced by a fresh directory.")
@click.option("--plan", metavar="JSON", help="What else the plan of its session holds, such as agents.")
@click.option("--static", is_flag=True, help="Run nothing of the module; read its files only.")
@click.option("--backend", "backends", multiple=True, type=click.Choice(["asyncio", "trio"]), help="Default: both.")
@click.option("--thorough", is_flag=True, help="More inputs, and every await is cancelled.")
@click.option("--seed", type=int, default=0, show_default=True, help="The same seed gives the same result.")
@click.option("--only", multiple=True, metavar="CLAUSE", help="Only this clause or check; may be given again.")
@click.option("--replay", metavar="TOKEN", help="Reproduce one finding, with the token from a report.")
@click.option("--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write the report as a page.")
@json_option
@debug_option
def validate(
    target: str,
    kind: str | None,
    config: str | None,
    plan: str | None,
    static: bool,
    backends: tuple[str, ...],
    thorough: bool,
    seed: int,
    only: tuple[str, ...],
    replay: str | None,
    page: Path | None,
    as_json: bool,
) -> int:
    """Check a module against its contract: a folder, a file, an installed id, or a package.

    Everything but --static runs the module, in a process of its own with a home of its own.
    """
    options: dict[str, Any] = {
        "module_type": kind,
        "config": _read_object("--config", config),
        "plan": _read_object("--plan", plan),
        "static": static,
        "thorough": thorough,
        "seed": seed,
        "backends": backends or ("asyncio", "trio"),
        "only": only,
        "replay": replay,
    }
    if page is not None and not page.parent.is_dir():  # before minutes are spent
        raise CommandError(f"--html {str(page)!r}: there is no folder {str(page.parent)!r}; make it first")
    with _progress(quiet=as_json) as progress:
        report = anyio.run(_check, target, {**options, "progress": progress})
    if page is not None:
        from amplifier.conformance.page import write_page  # noqa: PLC0415 — for those who want one

        page.write_text(write_page(report), encoding="utf-8")
    if as_json:
        click.echo(to_json(report))
    else:
        _show(report)
    return _EXITS[report.verdict]


async def _check(target: str, options: dict[str, Any]) -> Report:
    return await check_module(target, **options)


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


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A line on the terminal that says what is being checked."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console  # noqa: PLC0415 — only for a terminal
    from rich.status import Status  # noqa: PLC0415

    with Status("looking", console=Console(stderr=True)) as status:

        def tell(step: str, done: int, total: int) -> None:
            status.update(f"{done}/{total} {visible_text(step, multiline=False)}")

        yield tell


def _show(report: Report) -> None:
    rows = [[each.id, _MARKS[each.status], each.level, each.text] for each in report.clauses]
    print_table(["clause", "status", "level", "promise"], rows)
    for found in [*report.violations, *report.recommendations]:
        click.echo("")
        click.echo(visible_text(described_as_text([found])))
    for text in [*(f"limitation: {each}" for each in report.limitations), *(f"note: {each}" for each in report.notes)]:
        click.echo(visible_text(text))
    click.echo(
        visible_text(
            f"\n{report.module} ({report.type}): {report.verdict}; {report.counts}, "
            f"{report.seconds:.1f} s, seed {report.seed}"
        )
    )
