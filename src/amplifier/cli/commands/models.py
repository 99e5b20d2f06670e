"""``amplifier models``: what the providers offer; ``amplifier keys``: their keys in the system's keyring."""

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
    """List the models of every provider that can be used now, or those with SEARCH in their name.

    A provider can be used if its key is set, or if it needs none. Prices are the highest that a million tokens may cost, in US dollars.
    The exit code is 1 if a provider gives no list.
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
    found, problems = anyio.run(_list, plans, backend=backend)
    rows = [row for row in found if search.casefold() in row["model"].casefold()]
    if as_json:
        click.echo(json.dumps(rows, indent=2))
    elif rows:
        words = ["provider", "model", "context", "input", "output"]
        print_table(
            words, [["" if row[word] is None else str(row[word]) for word in words] for row in rows]
        )
        click.echo("use one: amplifier run -p PROVIDER -m MODEL", err=True)
    for problem in problems:
        click.echo(problem, err=True)
    return Exit.FAILED if problems else Exit.OK


async def _list(plans: dict[str, dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for name, plan in plans.items():
        # No turn is run, so the session needs neither a loop nor a context, which would take long to import.
        alone = {
            "session": {"orchestrator": _nothing, "context": _nothing},
            "providers": plan["providers"],
        }
        try:
            with anyio.fail_after(_SECONDS):
                async with AmplifierSession(alone) as session:
                    for each in (session.coordinator.get("providers") or {}).values():
                        rows += [_row(name, model, each) for model in await each.list_models()]
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
    """Keep keys in the keyring of this system, where every agent finds them; without a command, list their names.

    A variable of the environment comes before the keyring. Values are never shown.
    """
    if context.invoked_subcommand is None:
        for name in key_names():
            click.echo(
                f"{name}\t{'hidden by the environment' if os.environ.get(name) else 'kept in the keyring'}"
            )


@keys.command("set")
@click.argument("name")
def set_key(name: str) -> None:
    """Keep the key NAME: that of a provider (anthropic), or any variable (GITHUB_TOKEN). Asks for it, or reads the line that standard input has."""
    variable = _variable(name)
    stdin = sys.stdin
    given: str = (
        click.prompt(variable, hide_input=True, err=True) if stdin.isatty() else stdin.read()
    )
    value = given.strip()
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
    """The variable that a provider or a variable is named by."""
    known = {
        module_id.removeprefix("provider-"): variable for variable, module_id in API_KEYS.items()
    }
    variable = known.get(name.removeprefix("provider-"), name)
    if not _VARIABLE.fullmatch(variable):
        expected = f"a provider ({', '.join(known)}) or a variable such as GITHUB_TOKEN"
        raise CommandError(f"{name!r} names no key{suggestion(name, known)}; expected {expected}")
    return variable
