"""``amplifier config`` and ``permissions``: what is configured and where, what of a project is trusted and allowed."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import click

from amplifier._internal.json import redact_secrets, visible_text
from amplifier.cli._exit_codes import CommandError
from amplifier.cli.agent.configuration import (
    Project,
    Value,
    read_configuration,
    rule_in_words,
    user_file,
)
from amplifier.cli.agent.default_plan import API_KEYS, build_plan
from amplifier.cli.terminal.output import print_table
from amplifier.loading.loader import installed_ids

from .shared_options import LazyGroup, json_option


@click.group(cls=LazyGroup, invoke_without_command=True)
@json_option
@click.pass_context
def config(context: click.Context, as_json: bool) -> None:
    """Show what is configured, and where each value comes from.

    The user's file is config.toml in the configuration folder; a project's is .amplifier/config.toml. Both may have provider, model,
    theme (dark, light or plain), [[rules]], [mcpServers.NAME] and [modules.ID]. A project's file can only tighten rules until it is trusted.
    """
    if context.invoked_subcommand is not None:
        return
    found, rows = read_configuration(Path.cwd()), list[list[str]]()
    values = dict(found.values)
    if "provider" not in values:
        made = build_plan(installed_ids(), configuration=found)
        key = next(
            (name for name, module_id in API_KEYS.items() if module_id == made.provider), None
        )
        values["provider"] = Value(
            made.provider, "default: no key is set" if key is None else f"default: {key} is set"
        )
    shown = {
        path: attrs.evolve(each, value=redact_secrets({path: each.value})[path])
        for path, each in values.items()
    }
    if as_json:
        click.echo(
            json.dumps(
                {path: attrs.asdict(each) for path, each in shown.items()}, indent=2, default=str
            )
        )
    else:
        for path, each in sorted(shown.items()):
            text = (
                each.value
                if isinstance(each.value, str)
                else json.dumps(each.value, ensure_ascii=False, default=str)
            )
            rows.append([path, text, each.origin])
        print_table(["value", "is", "from"], rows)
    if not user_file().exists():
        click.echo(f"your own file would be {user_file()}", err=True)
    for note in found.notes:
        click.echo(note, err=True)


@config.command()
@click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default="."
)
@click.option("--revoke", is_flag=True, help="Do not trust it any more.")
def trust(folder: Path, revoke: bool) -> None:
    """Trust the configuration of the project in FOLDER as it is now: its servers, modules and rules are used.

    It has to be trusted again after it has changed.
    """
    project = Project(folder)
    if (problem := project.problem()) is not None:
        raise CommandError(f"{project.file} cannot be trusted: {problem}")
    if not project.file.exists():
        raise CommandError(f"there is no {project.file} to trust")
    if not revoke:
        read_configuration(folder)  # what no command would accept is not trusted
    project.change(trusted=None if revoke else project.digest())
    click.echo(
        visible_text(
            f"{'not trusted any more' if revoke else 'trusted as it is now'}: {project.file}"
        )
    )


@click.command()
@click.option(
    "--revoke", type=click.IntRange(min=1), metavar="NUMBER", help="Ask again from now on."
)
@json_option
def permissions(revoke: int | None, as_json: bool) -> None:
    """Show, or revoke, what was allowed for good in the project of this folder.

    A question for permission offers it as `p`. `amplifier config` shows all rules, with those of the configuration.
    """
    project = Project(Path.cwd())
    rules = list(project.state().get("rules", []))
    if revoke is not None:
        if revoke > len(rules):
            raise CommandError(f"there is no permission {revoke}; there are {len(rules)}")
        click.echo(f"revoked: {rule_in_words(rules.pop(revoke - 1))}")
        project.change(rules=rules)
    elif as_json:
        click.echo(json.dumps(rules, indent=2))
    elif rules:
        print_table(
            ["", "allowed"],
            [[str(number), rule_in_words(rule)] for number, rule in enumerate(rules, 1)],
        )
    else:
        click.echo(f"Nothing is allowed for good in {project.root}.", err=True)
