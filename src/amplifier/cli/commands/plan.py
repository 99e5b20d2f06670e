"""``amplifier plan``: checks and prints mount plans without running them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import click

from amplifier._internal.json import redact_secrets, visible_text
from amplifier.cli._exit_codes import CommandError, Exit
from amplifier.cli.agent.configuration import read_configuration
from amplifier.cli.agent.default_plan import build_plan, with_storage_paths
from amplifier.cli.agent.plan_files import PlanFileError, UnknownFormat, read_plan_file
from amplifier.errors import PlanError, Problem
from amplifier.loading.loader import installed_ids, missing_modules
from amplifier.plan import check_plan, expand_variables, plan_schema

from .shared_options import PLAN_FILE, LazyGroup, complete_provider


@click.group(cls=LazyGroup)
def plan() -> None:
    """Check and print mount plans."""


@plan.command()
@click.argument("file", type=PLAN_FILE)
@click.pass_context
def check(context: click.Context, file: Path) -> None:
    """Print all problems of the mount plan in FILE (YAML, TOML or JSON).

    A misspelt section or key is a problem; one that resembles nothing known is a warning. Missing
    modules are problems, too, and so are built-in ones whose extra is not installed, and an id that
    several third-party distributions claim while the plan pins none. A module with the path of its
    source is not checked, and neither is any module's config, because only the module itself has
    its keys. Variables are replaced, and a note names those that are not set here.

    The exit code is 0 for a plan without problems and warnings, 1 for one with any, 2 for a file of
    another kind.
    """
    try:
        content = read_plan_file(file)
    except UnknownFormat as error:
        raise click.BadParameter(str(error)) from error
    except PlanFileError as error:
        raise CommandError(str(error), exit_code=Exit.FAILED) from error
    content, malformed, unset = _expanded(content)
    problems, warnings = check_plan(content)
    problems = [*malformed, *problems, *missing_modules(content)]
    for path, problem in problems:
        _show_line(f"{file}: {path}: {problem}")
    for warning in warnings:
        _show_line(f"{file}: warning: {warning}", err=True)
    for note in unset:
        _show_line(f"{file}: note: {note}", err=True)
    if problems or warnings:
        context.exit(Exit.FAILED)
    click.echo(f"{file}: ok")


def _show_line(text: str, *, err: bool = False) -> None:
    """Print a line about a plan, whose keys and values may contain anything."""
    click.echo(visible_text(text, multiline=False), err=err)


def _expanded(content: Any) -> tuple[Any, list[Problem], list[str]]:
    """Return the plan with replaced variables, their problems, and notes about unset ones.

    Variables may be set only where the plan is used, so a plan can be checked without its keys.
    """
    if not isinstance(content, dict):
        return content, [], []
    try:
        return expand_variables(content, os.environ), [], []
    except PlanError as error:
        problems = [
            (path, text, re.match(r"variable '(\w+)' is not set", text))
            for path, text in error.problems
        ]
    malformed = [(path, text) for path, text, unset in problems if unset is None]
    notes = [f"{path}: {text}" for path, text, unset in problems if unset is not None]
    if malformed:
        return content, malformed, notes
    unchanged = {unset[1]: f"${{{unset[1]}}}" for _, _, unset in problems if unset is not None}
    return expand_variables(content, os.environ | unchanged), [], notes


@plan.command()
@click.argument("file", type=PLAN_FILE, required=False)
@click.option(
    "-p",
    "--provider",
    metavar="NAME",
    shell_complete=complete_provider,
    help="As for `amplifier run`.",
)
@click.option("-m", "--model", metavar="NAME", help="As for `amplifier run`.")
def show(file: Path | None, provider: str | None, model: str | None) -> None:
    """Print the plan that `amplifier run` would use, as JSON: the default one, or that in FILE.

    Variables are replaced and secrets are removed. Each session has its own paths for the
    conversation and the events.
    """
    configuration = read_configuration(Path.cwd()) if file is None else None
    agent_plan = build_plan(
        installed_ids(), file=file, provider=provider, model=model, configuration=configuration
    )
    for note in agent_plan.notes:
        _show_line(note, err=True)
    text = json.dumps(redact_secrets(agent_plan.plan), indent=2, ensure_ascii=False)
    # JSON has its own escapes for control and invisible characters.
    if visible_text(text) != text:
        text = json.dumps(json.loads(text), indent=2)
    click.echo(text)


@plan.command()
@click.argument("file", type=PLAN_FILE, required=False)
@click.option(
    "--time",
    "seconds",
    type=click.FloatRange(min=1),
    default=60,
    show_default=True,
    help="Seconds to search.",
)
@click.option(
    "--sessions",
    type=click.IntRange(min=1),
    help="Number of sessions, in place of the time; then the seed decides the result.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed draws the same cases."
)
@click.option(
    "--backend",
    "backends",
    multiple=True,
    type=click.Choice(["asyncio", "trio"]),
    help="Default: both.",
)
@click.option("--case", metavar="JSON", help="Replay one case of a report.")
def prove(
    file: Path | None,
    seconds: float,
    sessions: int | None,
    seed: int,
    backends: tuple[str, ...],
    case: str | None,
) -> int:
    """Run the modules of the plan in FILE together, by default the default plan, and test the laws.

    A script takes the place of the model. Conversations are generated, faults injected, and the
    agent is cancelled at its awaits. A broken law is reduced to the fewest modules and steps. The
    modules run for real, in a fresh folder that is also the home folder.

    Exit codes: 0 every law holds, 1 one is broken, 2 the plan cannot be run.
    """
    # It needs an extra.
    from amplifier.conformance.proof import examine_plan  # noqa: PLC0415

    configuration = read_configuration(Path.cwd()) if file is None else None
    agent_plan = build_plan(installed_ids(), file=file, configuration=configuration)
    try:
        replayed = None if case is None else json.loads(case)
    except ValueError as error:
        raise CommandError(f"--case is not JSON: {error}") from error
    proof = examine_plan(
        with_storage_paths(agent_plan.plan, sessions=Path("sessions")),
        seconds=seconds,
        sessions=sessions,
        seed=seed,
        backends=backends or ("asyncio", "trio"),
        case=replayed,
        alarm=True,
    )
    for line in proof.lines():
        _show_line(line)
    return Exit.FAILED if proof.broken else Exit.OK


@plan.command()
def schema() -> None:
    """Print the JSON Schema of mount plans, for editors that complete and check them."""
    click.echo(json.dumps(plan_schema(), indent=2, ensure_ascii=False))
