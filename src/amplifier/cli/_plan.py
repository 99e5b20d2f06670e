"""``amplifier plan``: look at mount plans without running them."""

from __future__ import annotations

import json
from pathlib import Path

import click

from amplifier._json import redact_secrets
from amplifier.plan import check_plan

from ._catalogue import installed_ids
from ._composition import compose
from ._invocation import PLAN_FILE, complete_provider
from ._plan_files import PlanFileError, UnknownFormat, read_plan_file
from ._provision import missing_modules

__all__ = ["plan"]


@click.group()
def plan() -> None:
    """Look at mount plans."""


@plan.command()
@click.argument("file", type=PLAN_FILE)
@click.pass_context
def check(context: click.Context, file: Path) -> None:
    """Print everything that is wrong with the mount plan in FILE (YAML, TOML or JSON).

    Modules that nothing installed provides are problems; one with a source is not looked for, and no module's config is checked:
    only the module itself knows what may stand there.

    The exit code is 0 for a plan that can be used, 1 for one that cannot, 2 for a file of another kind. Warnings are
    printed too and change no exit code.
    """
    try:
        content = read_plan_file(file)
    except UnknownFormat as error:
        raise click.BadParameter(str(error)) from error
    except PlanFileError as error:
        raise click.ClickException(str(error)) from error
    problems, warnings = check_plan(content)
    problems = [*problems, *missing_modules(content)]
    for path, problem in problems:
        click.echo(f"{file}: {path}: {problem}")
    for warning in warnings:
        click.echo(f"{file}: warning: {warning}", err=True)
    if problems:
        context.exit(1)
    click.echo(f"{file}: ok")


@plan.command()
@click.argument("file", type=PLAN_FILE, required=False)
@click.option("-p", "--provider", metavar="NAME", shell_complete=complete_provider, help="As for `amplifier run`.")
@click.option("-m", "--model", metavar="NAME", help="As for `amplifier run`.")
def show(file: Path | None, provider: str | None, model: str | None) -> None:
    """Print the plan that `amplifier run` would use, as JSON: the default one, or that in FILE.

    Variables are filled in and secrets are taken out. Where the conversation and the events go is decided for each session.
    """
    made = compose(installed_ids(), file=file, provider=provider, model=model)
    for note in made.notes:
        click.echo(note, err=True)
    click.echo(json.dumps(redact_secrets(made.plan), indent=2, ensure_ascii=False))
