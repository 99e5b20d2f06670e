"""``amplifier plan``: look at mount plans without running them."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from amplifier.errors import MissingExtraError
from amplifier.plan import check_plan

__all__ = ["plan"]


@click.group()
def plan() -> None:
    """Look at mount plans."""


@plan.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.pass_context
def check(context: click.Context, file: Path) -> None:
    """Print everything that is wrong with the mount plan in FILE (YAML, TOML or JSON).

    The exit code is 0 for a plan that can be used, 1 for one that cannot, 2 for a file of another kind. Warnings are
    printed too and change no exit code.
    """
    problems, warnings = check_plan(_read(file))
    for path, problem in problems:
        click.echo(f"{file}: {path}: {problem}")
    for warning in warnings:
        click.echo(f"{file}: warning: {warning}", err=True)
    if problems:
        context.exit(1)
    click.echo(f"{file}: ok")


def _read(file: Path) -> Any:
    """The file's content as plain data; what cannot be parsed ends the command with the reason."""
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise click.BadParameter(f"{file.name!r} ends in {file.suffix!r}; expected one of {', '.join(_PARSERS)}")
    try:
        return parse(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{file}: not valid {file.suffix[1:].upper()}: {error}") from error
    except RecursionError as error:
        raise click.ClickException(f"{file}: nested too deeply to be a mount plan") from error


def _parse_yaml(text: str) -> Any:
    try:
        import yaml  # noqa: PLC0415  # belongs to an extra; plans in TOML and JSON do without
    except ModuleNotFoundError as error:
        raise MissingExtraError("reading YAML plans", extra="cli", missing="pyyaml") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".yaml": _parse_yaml,
    ".yml": _parse_yaml,
    ".toml": tomllib.loads,
    ".json": json.loads,
}
