"""``amplifier module``: list, describe, write and check modules."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

import anyio
import click

from amplifier._internal.json import visible_text
from amplifier._internal.spelling import did_you_mean
from amplifier.cli._error_messages import error_message
from amplifier.cli._exit_codes import CommandError, Exit
from amplifier.cli.terminal.output import Output, StandardStreams, print_table
from amplifier.contracts import CONTRACTS
from amplifier.errors import AmplifierError, ModuleLoadError, ModuleNotFoundError
from amplifier.loading import FoundModule, LoadedModule, ModuleLoader
from amplifier.loading.discovery import BUILT_IN_SOURCE, nearest_module
from amplifier.loading.loader import (
    ON_ISLAND,
    all_modules,
    installed_ids,
    missing_package,
    runs_on_island,
)
from amplifier.models import to_dict, to_json
from amplifier.plan import is_module_id, type_from_id

from .shared_options import LazyGroup, completion, json_option, open_store

if TYPE_CHECKING:
    from amplifier.conformance import Report


@click.group(cls=LazyGroup)
def module() -> None:
    """List and describe installed modules, check one, create one."""


@module.command("list")
@click.option(
    "--type", "kind", metavar="KIND", help="Only modules of this kind, such as tool or provider."
)
@json_option
def list_modules(kind: str | None, as_json: bool) -> None:
    """List every module that can be named in a plan. Files are read; no module is imported.

    If several modules have one id, a plan gets the third-party one rather than the built-in one.
    The others are listed as not used, with the source that pins them in a plan.
    """
    if kind is not None and kind not in CONTRACTS:
        raise CommandError(f"--type is {kind!r}; expected one of {', '.join(CONTRACTS)}")
    modules = [entry for entry in all_modules() if kind in (None, entry.info.type)]
    if as_json:
        click.echo(json.dumps([_description(entry) for entry in modules], indent=2))
        return
    print_table(
        ["module", "kind", "version", "description", "from"],
        [[e.info.id, e.info.type, e.info.version, _remark(e), _origin(e)] for e in modules],
    )


def _description(entry: FoundModule) -> dict[str, Any]:
    about = {"from": entry.origin, "source": entry.source, "in_use": entry.is_used}
    return {**to_dict(entry.info), **about, "missing": _missing(entry)}


def _missing(entry: FoundModule) -> dict[str, str] | None:
    lacking = missing_package(entry.info.id) if entry.source == BUILT_IN_SOURCE else None
    return None if lacking is None else {"package": lacking[0], "extra": lacking[1]}


def _remark(entry: FoundModule) -> str:
    lacking = _missing(entry)
    text = entry.info.description if lacking is None else f"needs {_how_to_get(lacking)}"
    return f"{text} ({ON_ISLAND})" if entry.needs_asyncio else text


def _origin(entry: FoundModule) -> str:
    if entry.is_used:
        return entry.origin
    state = "contested" if entry.is_contested else "not used"
    return f"{entry.origin} ({state}; source: {json.dumps(entry.source)})"


def _how_to_get(lacking: dict[str, str]) -> str:
    return f"{lacking['package']}: pip install 'amplifier[{lacking['extra']}]'"


@module.command("show")
@click.argument("module_id", metavar="MODULE", shell_complete=completion(installed_ids))
@json_option
def show_module(module_id: str, as_json: bool) -> None:
    """Show one MODULE. It is imported for this, not mounted."""
    matches = [entry for entry in all_modules() if entry.info.id == module_id]
    if not matches:
        near = nearest_module(module_id, installed_ids())
        advice = f"{did_you_mean(near)} " if near else ""
        raise CommandError(
            f"no module {module_id!r} is installed; "
            f"{advice}`amplifier module list` shows all of them"
        )
    facts = {**_description(matches[0]), "others": [_origin(other) for other in matches[1:]]}
    loader = ModuleLoader()
    try:
        loaded: LoadedModule = anyio.run(loader.load, module_id)
    except AmplifierError as error:
        facts |= {"loads": False, "problem": error_message(error)}
    else:
        facts |= {"loads": True, "origin": loaded.origin, "about": _about(loaded)}
        if runs_on_island(loaded):
            facts["backends"] = ON_ISLAND
    finally:
        loader.cleanup()
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    if facts["missing"] is not None:
        facts["missing"] = _how_to_get(facts["missing"])
    for name, value in facts.items():
        if value not in (None, "", {}, []):
            text = visible_text("\n".join(value) if isinstance(value, list) else str(value))
            click.echo(f"{name.replace('_', ' '):14} {text.replace(chr(10), chr(10) + ' ' * 15)}")


def _about(loaded: LoadedModule) -> str:
    """Return the first paragraph of the docstring of the package that defines `mount`."""
    name = getattr(loaded.mount, "__module__", "") or ""
    parts = name.split(".")
    # `mount` may be in a private module, whose public parent has the docstring for users.
    while len(parts) > 1 and parts[-1].startswith("_"):
        parts.pop()
    documented = inspect.getdoc(sys.modules.get(".".join(parts))) or ""
    return documented.partition("\n\n")[0]


# ── a new module, from the templates in scaffold/ ──

_FIRST_WORDS = {"orchestrator": "loop", "hook": "hooks", "resolver": "resolver"}


@module.command("new")
@click.argument("name")
@click.option(
    "--type",
    "kind",
    metavar="TYPE",
    help="tool, provider, hook, context, orchestrator or resolver.",
)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="The parent folder; by default this one.",
)
def new(name: str, kind: str | None, into: Path) -> None:
    """Write a module package called NAME that keeps its contract as it is."""
    kind = kind or type_from_id(name)
    if kind is None or kind not in CONTRACTS:
        value = "missing" if kind is None else repr(kind)
        raise CommandError(f"--type is {value}; expected one of {', '.join(CONTRACTS)}")
    module_id = name if type_from_id(name) is not None else f"{_FIRST_WORDS.get(kind, kind)}-{name}"
    if not is_module_id(module_id):
        raise CommandError(
            f"{name!r} cannot be the name of a module; "
            "expected lower-case letters, digits, '-' and '_', starting with a letter"
        )
    folder = into / f"amplifier-module-{module_id}"
    if folder.exists():
        raise CommandError(f"{folder} already exists; choose another name, or remove it")
    words = _words_for(module_id, kind)
    package = words["package"]
    contents = {
        f"{package}/__init__.py": f"{kind}.py.txt",
        f"{package}/py.typed": None,
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "readme.md.txt",
        "tests/test_conformance.py": "test_conformance.py.txt",
    }
    for file, template in contents.items():
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("" if template is None else _filled(template, words), encoding="utf-8")
    click.echo(f"{folder} is ready. Next: amplifier module validate {folder}")


def _words_for(module_id: str, kind: str) -> dict[str, str]:
    own = module_id.replace("_", "-").split("-")
    rest = own[1:] or own
    return {
        "module_id": module_id,
        "package": f"amplifier_module_{module_id.replace('-', '_')}",
        "kind": kind,
        "title": " ".join(rest).capitalize(),
        "class_name": "".join(word.capitalize() for word in [*rest, kind]),
        "member_name": "_".join(rest),
    }


def _filled(template: str, words: dict[str, str]) -> str:
    text = (
        files("amplifier.cli.commands").joinpath("scaffold", template).read_text(encoding="utf-8")
    )
    return Template(text).substitute(words)


# ── checking a module ──

_VERDICT_EXITS = {"conforms": Exit.OK, "violations": Exit.FAILED, "unchecked": Exit.USAGE}
_BACKEND = click.Choice(["asyncio", "trio"])
_HAS_MOUNT = "every_module.has_a_mount"
REPORT_FILE = click.Path(dir_okay=False, path_type=Path)


@module.command("validate")
@click.argument("target", metavar="PATH_OR_ID")
@click.option(
    "--type", "module_type", metavar="TYPE", help="The module's type, where it does not declare it."
)
@click.option(
    "--config",
    metavar="JSON",
    help="The config to mount it with; {directory} is replaced by a fresh directory.",
)
@click.option("--plan", metavar="JSON", help="Other parts of its session's plan, such as agents.")
@click.option("--static", is_flag=True, help="Run nothing of the module; read its files only.")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=_BACKEND,
    default=_BACKEND.choices,
    help="Default: both.",
)
@click.option("--thorough", is_flag=True, help="More inputs, and every await is cancelled.")
@click.option("--strict", is_flag=True, help="Recommendations count, too.")
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed gives the same result."
)
@click.option(
    "--only", multiple=True, metavar="CLAUSE", help="Only this clause or check; may be given again."
)
@click.option(
    "--replay", metavar="TOKEN", help="Reproduce one finding, by the token from its report."
)
@click.option("-v", "--verbose", is_flag=True, help="List kept and unexamined clauses, too.")
@click.option("--html", type=REPORT_FILE, help="Write the report as a page.")
@click.option("--junit", type=REPORT_FILE, help="Write it as JUnit XML: a test for each clause.")
@json_option
def validate(
    target: str, html: Path | None, junit: Path | None, verbose: bool, as_json: bool, **options: Any
) -> int:
    """Check a module against its contract: a folder, a file, an installed id, or a package.

    Everything but --static runs the module, in a separate process with its own home folder.

    Exit codes: 0 it conforms, 1 it breaks a required clause, 2 it could not be checked.
    """
    files = {"html": html, "junit": junit}
    reports = {name: file for name, file in files.items() if file is not None}
    reject_unwritable(reports)
    streams = StandardStreams()
    announce(visible_text(target, multiline=False), streams, quiet=as_json)
    with show_progress(streams, quiet=as_json):
        # Importing it takes a second.
        from amplifier.conformance import Report, check_module  # noqa: PLC0415

    try:
        options |= {name: _read_object(f"--{name}", options[name]) for name in ("config", "plan")}
        with show_progress(streams, quiet=as_json) as progress:
            report = anyio.run(partial(check_module, target, progress=progress, **options))
    except (AmplifierError, CommandError, OSError) as error:
        # Otherwise a service that only reads these would mistake the failure for a clean check.
        about = {
            "module": target,
            "source": target,
            "seed": options["seed"],
            "notes": [error_message(error)],
        }
        publish(Report(verdict="unchecked", **about), reports)
        if isinstance(error, ModuleNotFoundError | ModuleLoadError):
            from amplifier.conformance.target.suggest import fitting_command  # noqa: PLC0415

            if (command := fitting_command(target)) is not None:
                raise CommandError(
                    f"{error_message(error)}\nTry: {command}", exit_code=Exit.USAGE
                ) from error
        raise
    if any(found.check == _HAS_MOUNT for found in report.violations):
        from amplifier.conformance.target.suggest import fitting_command  # noqa: PLC0415

        command = fitting_command(target)
        if command is not None and command.startswith("amplifier validate"):
            report.notes.append(f"if it is not meant to be a module, try: {command}")
    return finish(report, reports, streams, verbose=verbose, as_json=as_json)


def finish(
    report: Report,
    files: dict[str, Path],
    streams: StandardStreams,
    *,
    verbose: bool,
    as_json: bool,
) -> int:
    """Print a report, write its files, store it, and return the exit code of its verdict."""
    if as_json:
        streams.out.line(to_json(report))
    else:
        show_report(report, streams.out, verbose=verbose)
    publish(report, files)
    # A report that can't be stored is only missing from the page that lists reports.
    with suppress(OSError):
        open_store().keep_report(report.module, report.verdict, "\n".join(report.lines()))
    return _VERDICT_EXITS[report.verdict]


def publish(report: Report, files: dict[str, Path]) -> None:
    """Write a report in every requested form other than text."""
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
        raise CommandError(
            f'{option} is {text!r}; expected a JSON object such as \'{{"path": "x"}}\''
        )
    return value


def reject_unwritable(files: dict[str, Path]) -> None:
    """Reject files that can't be written, before the check takes minutes."""
    for name, file in files.items():
        if not file.parent.is_dir():
            raise CommandError(
                f"--{name} {str(file)!r}: there is no folder {str(file.parent)!r}; make it first"
            )
    if len({file.absolute() for file in files.values()}) < len(files):
        raise CommandError(
            f"--html and --junit name the same file {str(files['html'])!r}; give each its own"
        )


def _write(name: str, file: Path, report: Report) -> None:
    if name == "html":
        from amplifier.conformance.page import write_page as write  # noqa: PLC0415
    else:
        from amplifier.conformance.report import write_junit as write  # noqa: PLC0415
    try:
        file.write_text(write(report), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"--{name} {str(file)!r} cannot be written: {error.strerror}") from error


def announce(subject_name: str, streams: StandardStreams, *, quiet: bool) -> None:
    """Announce the check if there is no progress line, as in a script."""
    if not quiet and not streams.share_a_terminal:
        click.echo(f"examining {subject_name}", err=True)


@contextmanager
def show_progress(
    streams: StandardStreams, *, quiet: bool
) -> Iterator[Callable[[str, int, int], None] | None]:
    """Show the current check and the time at a terminal, until the block exits."""
    if quiet or not streams.share_a_terminal or not streams.err.can_move_cursor:
        yield None
        return
    # Only needed at a terminal.
    from rich.console import Console  # noqa: PLC0415
    from rich.progress import (  # noqa: PLC0415
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column  # noqa: PLC0415

    # Disable markup, because the text may contain brackets. Text longer than one line could not be
    # erased.
    text = TextColumn(
        "{task.description}",
        markup=False,
        table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1),
    )
    columns = (SpinnerColumn(), TimeElapsedColumn(table_column=Column(min_width=7)), text)
    with Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as shown:
        task = shown.add_task("starting", total=None)

        def update(step: str, done: int, total: int) -> None:
            description = visible_text(f"{done}/{total} {step}", multiline=False)
            shown.update(task, description=description, refresh=True)

        yield update


def show_report(report: Report, out: Output, *, verbose: bool) -> None:
    """Print a report as text."""
    for line in report.lines(verbose=verbose, paint=out.styled):
        out.line(line)
