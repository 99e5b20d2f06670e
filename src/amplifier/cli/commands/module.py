"""``amplifier module``: lists installed modules and describes one."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

import anyio
import click

from amplifier._json import visible_text
from amplifier._spelling import did_you_mean
from amplifier.cli.core.error_messages import error_message
from amplifier.cli.core.exit_codes import CommandError
from amplifier.cli.core.installed_modules import (
    BUILT_IN_SOURCE,
    ON_ISLAND,
    all_modules,
    installed_ids,
    missing_package,
    modules_on_island,
    nearest_module,
)
from amplifier.cli.terminal.output import print_table
from amplifier.contracts import CONTRACTS
from amplifier.errors import AmplifierError
from amplifier.loading import FoundModule, LoadedModule, ModuleLoader
from amplifier.models import to_dict

from .lazy_group import LazyGroup
from .shared_options import debug_option, json_option

__all__ = ["module"]


@click.group(cls=LazyGroup, lazy={"new": "module_new:new", "validate": "module_validate:validate"})
def module() -> None:
    """List and describe installed modules, check one, create one."""


def _complete_module(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [module_id for module_id in installed_ids() if module_id.startswith(incomplete)]


@module.command("list")
@click.option("--type", "kind", metavar="KIND", help="Only modules of this kind, such as tool or provider.")
@json_option
@debug_option
def list_modules(kind: str | None, as_json: bool) -> None:
    """List every module that can be named in a plan. Files are read; no module is imported.

    Where several modules have one id, a plan gets the third-party one rather than the built-in one; the others are listed as not used,
    with the source that pins them in a plan.
    """
    if kind is not None and kind not in CONTRACTS:
        raise CommandError(f"--type is {kind!r}; expected one of {', '.join(CONTRACTS)}")
    found = [entry for entry in all_modules() if kind in (None, entry.info.type)]
    if as_json:
        click.echo(json.dumps([_description(entry) for entry in found], indent=2))
        return
    print_table(
        ["module", "kind", "version", "what it is", "from"],
        [[e.info.id, e.info.type, e.info.version, _remark(e), _origin(e)] for e in found],
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
    why = "contested" if entry.is_contested else "not used"
    return f"{entry.origin} ({why}; source: {json.dumps(entry.source)})"


def _how_to_get(lacking: dict[str, str]) -> str:
    return f"{lacking['package']}: pip install 'amplifier[{lacking['extra']}]'"


@module.command("show")
@click.argument("module_id", metavar="MODULE", shell_complete=_complete_module)
@json_option
@debug_option
def show_module(module_id: str, as_json: bool) -> None:
    """Show one MODULE. It is imported for this, not mounted."""
    found = [entry for entry in all_modules() if entry.info.id == module_id]
    if not found:
        near = nearest_module(module_id, installed_ids())
        advice = f"{did_you_mean(near)} " if near else ""
        raise CommandError(f"no module {module_id!r} is installed; {advice}`amplifier module list` shows all of them")
    facts = {**_description(found[0]), "others": [_origin(other) for other in found[1:]]}
    loader = ModuleLoader()
    try:
        loaded: LoadedModule = anyio.run(loader.load, module_id)
    except AmplifierError as error:
        facts |= {"loads": False, "problem": error_message(error)}
    else:
        facts |= {"loads": True, "origin": loaded.origin, "about": _about(loaded)}
        if modules_on_island([module_id]):
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
    """The first paragraph of the docstring of the package that defines `mount`."""
    name = getattr(loaded.mount, "__module__", "") or ""
    parts = name.split(".")
    # `mount` may be defined in a private module; its public parent has the docstring for users.
    while len(parts) > 1 and parts[-1].startswith("_"):
        parts.pop()
    documented = inspect.getdoc(sys.modules.get(".".join(parts))) or ""
    return documented.partition("\n\n")[0]
