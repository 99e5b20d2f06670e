"""``amplifier models`` and ``keys``: the models of providers, and keys in the keyring."""

from __future__ import annotations

import json
import os
import re
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import click

from amplifier._internal.spelling import suggestion
from amplifier.cli._error_messages import error_message
from amplifier.cli._exit_codes import CommandError, Exit
from amplifier.cli.agent.configuration import keep_key, key_names, read_configuration, remove_key
from amplifier.cli.agent.default_plan import API_KEYS, available_providers, build_plan
from amplifier.cli.terminal.output import print_table
from amplifier.errors import AmplifierError
from amplifier.kernel import AmplifierSession
from amplifier.loading.loader import installed_ids
from amplifier.models import ChatRequest, Message, ModelInfo

from .shared_options import LazyGroup, backend_option, complete_provider, json_option

_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_SECONDS = 20.0
_MILLION = 1_000_000


@click.command()
@click.option(
    "-p",
    "--provider",
    metavar="NAME",
    shell_complete=complete_provider,
    help="Only those of this provider.",
)
@click.argument("search", default="")
@backend_option
@json_option
def models(provider: str | None, search: str, backend: str, as_json: bool) -> int:
    """List the models of all usable providers, or those with SEARCH in their name.

    A provider is usable if its key is set, or if it needs none. Prices are the maximum for a
    million tokens, in US dollars. The exit code is 1 if a provider returns no list.
    """
    installed, configuration = installed_ids(), read_configuration(Path.cwd())
    names = available_providers(installed, configuration) if provider is None else [provider]
    if not names:
        raise CommandError(
            "no key of a provider is set and none is configured; see `amplifier doctor`"
        )
    plans = {
        name: build_plan(installed, provider=name, configuration=configuration).plan
        for name in names
    }
    listed, problems = anyio.run(_list, plans, backend=backend)
    rows = [row for row in listed if search.casefold() in row["model"].casefold()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        columns = ["provider", "model", "context", "input", "output"]
        cells = [["" if row[key] is None else str(row[key]) for key in columns] for row in rows]
        print_table(columns, cells)
        click.echo("use one: amplifier run -p PROVIDER -m MODEL", err=True)
    for problem in problems:
        click.echo(problem, err=True)
    return Exit.FAILED if problems else Exit.OK


async def _list(plans: dict[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for name, plan in plans.items():
        # No turn runs, so the session needs neither a loop nor a context, whose import takes time.
        alone = {
            "session": {"orchestrator": _nothing, "context": _nothing},
            "providers": plan["providers"],
        }
        try:
            with anyio.fail_after(_SECONDS):
                async with AmplifierSession(alone) as session:
                    for source in (session.coordinator.get("providers") or {}).values():
                        rows += [_row(name, model, source) for model in await source.list_models()]
                    problems += [
                        f"{failure.module_id}: {error_message(failure.error)}"
                        for failure in session.failures
                    ]
        except (AmplifierError, TimeoutError) as error:
            problems.append(f"{name}: {error_message(error)}")
    return rows, problems


async def _nothing(coordinator: Any, config: Any) -> None:
    """Mount nothing."""


def _row(provider: str, model: ModelInfo, source: Any) -> dict[str, Any]:
    request = ChatRequest(messages=[Message(role="user", content="")], model=model.id)
    prices: dict[str, str | None] = {}
    for kind in ("input", "output"):
        tokens = {"input_tokens": 0, "output_tokens": 0, f"{kind}_tokens": _MILLION}
        known = None if model.pricing is None else getattr(model.pricing, f"{kind}_per_million")
        estimate = getattr(source, "estimate_cost", None)
        cost = known if known is not None or estimate is None else estimate(request, **tokens)
        prices[kind] = f"${Decimal(str(cost)):.2f}" if cost is not None else None
    return {
        "provider": provider.removeprefix("provider-"),
        "model": model.id,
        "context": model.context_window,
        **prices,
    }


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.pass_context
def keys(context: click.Context) -> None:
    """Keep keys in the keyring of this system; without a command, list their names.

    Every agent uses them. A variable of the environment takes precedence over the keyring. Values
    are never shown.
    """
    if context.invoked_subcommand is None:
        for name in key_names():
            is_hidden = bool(os.environ.get(name))
            state = "hidden by the environment" if is_hidden else "kept in the keyring"
            click.echo(f"{name}\t{state}")


@keys.command("set")
@click.argument("name")
def set_key(name: str) -> None:
    """Store the key NAME: that of a provider (anthropic), or any variable (GITHUB_TOKEN).

    The command prompts for it, or reads a line from standard input.
    """
    variable = _variable(name)
    stdin = sys.stdin
    text: str = (
        click.prompt(variable, hide_input=True, err=True) if stdin.isatty() else stdin.read()
    )
    value = text.strip()
    if not value or not value.isprintable():
        lines = len(value.splitlines())
        raise CommandError(
            f"expected {variable} as one line of text on standard input, got {lines} lines"
        )
    keep_key(variable, value)
    click.echo(f"{variable} is in the keyring", err=True)


@keys.command("remove")
@click.argument("name")
def remove(name: str) -> None:
    """Remove the key NAME from the keyring."""
    remove_key(_variable(name))


def _variable(name: str) -> str:
    """Return the variable for the name of a provider or of a variable."""
    known = {
        module_id.removeprefix("provider-"): variable for variable, module_id in API_KEYS.items()
    }
    variable = known.get(name.removeprefix("provider-"), name)
    if not _VARIABLE.fullmatch(variable):
        expected = f"a provider ({', '.join(known)}) or a variable such as GITHUB_TOKEN"
        raise CommandError(f"{name!r} is not a key{suggestion(name, known)}; expected {expected}")
    return variable
