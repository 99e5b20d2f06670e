"""``amplifier module``: which modules there are, and what one of them is."""

from __future__ import annotations

import inspect
import json
import sys
from typing import Any

import anyio
import click

from amplifier._json import visible_text
from amplifier.contracts import CONTRACTS
from amplifier.errors import AmplifierError
from amplifier.loading import LoadedModule, ModuleLoader
from amplifier.models import ModuleInfo, to_dict

from ._catalogue import installed_ids, installed_modules, one_line_about
from ._complaints import complaint
from ._composition import needs
from ._exits import CommandError
from ._invocation import debug_option, json_option
from ._lazy import LazyGroup
from ._nearest import nearest_module
from ._tables import print_table

__all__ = ["module"]


@click.group(cls=LazyGroup, lazy={"new": "_scaffold:new", "validate": "_validate:validate"})
def module() -> None:
    """Look at the modules that are installed, check one, begin one."""


def _complete_module(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    return [module_id for module_id in installed_ids() if module_id.startswith(incomplete)]


@module.command("list")
@click.option("--type", "kind", metavar="KIND", help="Only modules of this kind, such as tool or provider.")
@json_option
@debug_option
def list_modules(kind: str | None, as_json: bool) -> None:
    """List every module that can be named in a plan. Files are read; no module is imported."""
    if kind is not None and kind not in CONTRACTS:
        raise CommandError(f"--type is {kind!r}; expected one of {', '.join(CONTRACTS)}")
    found = [info for info in installed_modules() if kind in (None, info.type)]
    if as_json:
        click.echo(json.dumps([_facts(info) for info in found], indent=2))
        return
    print_table(
        ["module", "kind", "version", "what it is"],
        [[info.id, info.type, info.version, _remark(info)] for info in found],
    )


def _facts(info: ModuleInfo) -> dict[str, Any]:
    return {**to_dict(info), "description": one_line_about(info), "missing": _missing(info.id)}


def _missing(module_id: str) -> dict[str, str] | None:
    lacking = needs(module_id)
    return None if lacking is None else {"package": lacking[0], "extra": lacking[1]}


def _remark(info: ModuleInfo) -> str:
    lacking = _missing(info.id)
    return one_line_about(info) if lacking is None else f"needs {_how_to_get(lacking)}"


def _how_to_get(lacking: dict[str, str]) -> str:
    return f"{lacking['package']}: pip install 'amplifier[{lacking['extra']}]'"


@module.command("show")
@click.argument("module_id", metavar="MODULE", shell_complete=_complete_module)
@json_option
@debug_option
def show_module(module_id: str, as_json: bool) -> None:
    """Show one MODULE. It is imported for this, not mounted."""
    found = [info for info in installed_modules() if info.id == module_id]
    if not found:
        near = nearest_module(module_id, [info.id for info in installed_modules()])
        advice = f"did you mean {near!r}? " if near else ""
        raise CommandError(f"no module {module_id!r} is installed; {advice}`amplifier module list` shows all of them")
    facts = _facts(found[0])
    try:
        loaded: LoadedModule = anyio.run(ModuleLoader().load, module_id)
    except AmplifierError as error:
        facts |= {"loads": False, "problem": complaint(error)}
    else:
        facts |= {"loads": True, "origin": loaded.origin, "about": _about(loaded)}
    if as_json:
        click.echo(json.dumps(facts, indent=2))
        return
    if facts["missing"] is not None:
        facts["missing"] = _how_to_get(facts["missing"])
    for name, value in facts.items():
        if value not in (None, "", {}):
            text = visible_text(str(value))
            click.echo(f"{name.replace('_', ' '):14} {text.replace(chr(10), chr(10) + ' ' * 15)}")


def _about(loaded: LoadedModule) -> str:
    """The first paragraph of the documentation of the package that mounts it."""
    name = getattr(loaded.mount, "__module__", "") or ""
    parts = name.split(".")
    # `mount` may live in a file behind the door; the door's docstring is what users are to read.
    while len(parts) > 1 and parts[-1].startswith("_"):
        parts.pop()
    documented = inspect.getdoc(sys.modules.get(".".join(parts))) or ""
    return documented.partition("\n\n")[0]
