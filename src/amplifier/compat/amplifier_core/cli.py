"""The published command line: ``amplifier-core validate TYPE PATH`` and ``amplifier-core list-types``."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any

from .validation import (
    ContextValidator,
    HookValidator,
    OrchestratorValidator,
    ProviderValidator,
    ToolValidator,
    ValidationResult,
)

__all__ = ["VALIDATORS", "main", "print_result"]

VALIDATORS: dict[str, Any] = {
    "provider": ProviderValidator,
    "tool": ToolValidator,
    "hook": HookValidator,
    "orchestrator": OrchestratorValidator,
    "context": ContextValidator,
}

_ABOUT = {
    "provider": "language models",
    "tool": "what an agent can do",
    "hook": "observing and deciding",
    "orchestrator": "the loop of a turn",
    "context": "what is remembered",
}


def print_result(result: ValidationResult) -> None:
    """Show a result, one line for each check."""
    lines = [f"  {'✓' if c.passed else '✗'} [{c.severity}] {c.name}: {c.message}" for c in result.checks]
    print("\n".join([result.summary(), "", *lines]))  # noqa: T201 — this is a command line


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave with its exit status: 0 passed, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(prog="amplifier-core", description="Module validation tools.")
    parser.add_argument("--version", action="version", version="amplifier-core, version 1.0.0")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list-types", help="list the types of modules that can be validated")
    validate = commands.add_parser("validate", help="check that a module is one")
    validate.add_argument("module_type", choices=list(VALIDATORS))
    validate.add_argument("module_path")
    validate.add_argument("--entry-point", "-e", help="not used")
    validate.add_argument("--quiet", "-q", action="store_true", help="show the summary only")
    given = parser.parse_args(arguments)
    if given.command == "list-types":
        print("\n".join(f"  {kind:13} {about}" for kind, about in _ABOUT.items()))  # noqa: T201 — as above
        return
    if not Path(given.module_path).exists():
        parser.error(f"path {given.module_path!r} does not exist")
    print(f"Validating {given.module_type} module: {given.module_path}\n")  # noqa: T201 — as above
    result = asyncio.run(VALIDATORS[given.module_type]().validate(given.module_path, given.entry_point))
    if given.quiet:
        print(result.summary())  # noqa: T201 — as above
    else:
        print_result(result)
    sys.exit(0 if result.passed else 1)


if __name__ == "__main__":
    main()
