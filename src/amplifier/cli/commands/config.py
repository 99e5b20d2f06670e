"""``amplifier config`` and ``permissions``: settings, their files, trust and permissions."""

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
    """Show the configuration, and where each value comes from.

    The user's file is config.toml in the configuration folder; a project's is
    .amplifier/config.toml. Both may have provider, model, theme (dark, light or plain), [[rules]],
    [mcpServers.NAME] and [modules.ID]. A project's file can only tighten rules until it is trusted.
    """
    if context.invoked_subcommand is not None:
        return
    configuration = read_configuration(Path.cwd())
    values = dict(configuration.values)
    if "provider" not in values:
        provider = build_plan(installed_ids(), configuration=configuration).provider
        keys = (name for name, module_id in API_KEYS.items() if module_id == provider)
        key = next(keys, None)
        reason = "default: no key is set" if key is None else f"default: {key} is set"
        values["provider"] = Value(provider, reason)
    shown = {
        path: attrs.evolve(entry, value=redact_secrets({path: entry.value})[path])
        for path, entry in values.items()
    }
    if as_json:
        content = {path: attrs.asdict(entry) for path, entry in shown.items()}
        click.echo(json.dumps(content, indent=2, default=str))
    else:
        rows = [[path, _as_text(entry.value), entry.origin] for path, entry in shown.items()]
        print_table(["value", "is", "from"], sorted(rows))
    if not user_file().exists():
        click.echo(f"your own file would be {user_file()}", err=True)
    for note in configuration.notes:
        click.echo(note, err=True)


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


@config.command()
@click.argument(
    "folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default="."
)
@click.option("--revoke", is_flag=True, help="Stop trusting it.")
def trust(folder: Path, revoke: bool) -> None:
    """Trust the configuration of the project in FOLDER as it is now.

    Its servers, modules and rules are used. After a change it has to be trusted again.
    """
    project = Project(folder)
    if (problem := project.problem()) is not None:
        raise CommandError(f"{project.file} cannot be trusted: {problem}")
    if not project.file.exists():
        raise CommandError(f"there is no {project.file} to trust")
    if not revoke:
        # An invalid file can't be trusted.
        read_configuration(folder)
    project.change(trusted=None if revoke else project.digest())
    state = "no longer trusted" if revoke else "trusted as it is now"
    click.echo(visible_text(f"{state}: {project.file}"))


@click.command()
@click.option(
    "--revoke", type=click.IntRange(min=1), metavar="NUMBER", help="Ask again from now on."
)
@json_option
def permissions(revoke: int | None, as_json: bool) -> None:
    """Show, or revoke, the permanent permissions in the project of this folder.

    A question for permission offers one as `p`. `amplifier config` shows all rules, with those of
    the configuration.
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
        click.echo(f"Nothing is permanently allowed in {project.root}.", err=True)
