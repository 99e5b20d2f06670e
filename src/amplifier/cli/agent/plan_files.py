"""Reads mount plans from YAML, TOML and JSON files; the kernel reads no files."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amplifier.cli.core.exit_codes import CommandError
from amplifier.errors import MissingExtraError

__all__ = ["PlanFileError", "UnknownFormat", "read_plan_file"]


class PlanFileError(CommandError):
    """The file cannot be read or parsed; the message has the reason."""


class UnknownFormat(PlanFileError):
    """The file's extension is none that a plan has."""


def read_plan_file(file: Path) -> Any:
    """The file's content as plain data.

    Raises:
        PlanFileError: It cannot be read or parsed.
        MissingExtraError: It is YAML and PyYAML is not installed.
    """
    parse = _PARSERS.get(file.suffix.lower())
    if parse is None:
        raise UnknownFormat(f"{file.name!r} ends in {file.suffix!r}; expected one of {', '.join(_PARSERS)}")
    try:
        return parse(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanFileError(f"{file}: the plan cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise PlanFileError(f"{file}: not valid {file.suffix[1:].upper()}: {error}") from error
    except RecursionError as error:
        raise PlanFileError(f"{file}: nested too deeply to be a mount plan") from error


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
