"""``amplifier module new``: writes a module package that conforms, from the templates in ``scaffold/``."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template

import click

from amplifier.cli.core.exit_codes import CommandError
from amplifier.contracts import CONTRACTS
from amplifier.plan import is_module_id, type_from_id

from .shared_options import debug_option

__all__ = ["new"]

_FIRST_WORDS = {"orchestrator": "loop", "hook": "hooks", "resolver": "resolver"}


@click.command("new")
@click.argument("name")
@click.option("--type", "kind", metavar="TYPE", help="tool, provider, hook, context, orchestrator or resolver.")
@click.option(
    "--into", type=click.Path(file_okay=False, path_type=Path), default=Path(), help="Where; here if left out."
)
@debug_option
def new(name: str, kind: str | None, into: Path) -> None:
    """Write a module package called NAME that keeps its contract as it is."""
    kind = kind or type_from_id(name)
    if kind is None or kind not in CONTRACTS:
        given = "missing" if kind is None else repr(kind)
        raise CommandError(f"--type is {given}; expected one of {', '.join(CONTRACTS)}")
    module_id = name if type_from_id(name) is not None else f"{_FIRST_WORDS.get(kind, kind)}-{name}"
    if not is_module_id(module_id):
        raise CommandError(
            f"{name!r} cannot be the name of a module; expected lower-case letters, digits, '-' and '_', starting with a letter"
        )
    folder = into / f"amplifier-module-{module_id}"
    if folder.exists():
        raise CommandError(f"{folder} is there already; choose another name, or remove it")
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
        "suite": f"{kind.capitalize()}Conformance",
    }


def _filled(template: str, words: dict[str, str]) -> str:
    text = files("amplifier.cli.commands").joinpath("scaffold", template).read_text(encoding="utf-8")
    return Template(text).substitute(words)
