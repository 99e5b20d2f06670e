"""Reads a module's configuration from the mount plan into an attrs class whose fields declare what they accept.

Every built-in module follows one policy:

- A known key with a bad value is a problem that names the key, what was expected and what was found. One `PlanError`
  carries all problems of a configuration.
- An unknown key is ignored and logged as a warning with the nearest known key. A misspelt key also emits a
  `MisspellingWarning`, so that ``-W error::amplifier.errors.MisspellingWarning`` turns it into an error.
- A misspelling of a key that restricts what the module may do (``restricts=True``) is a problem, and so is an unknown key that
  is named like a restriction (``allowed_write_paths``) or was one in an older version: ignored, it would lift the restriction.

Example::

    @attrs.frozen(kw_only=True)
    class Options:
        timeout: float = option(seconds, default=30.0)
        tools: tuple[str, ...] = option(choices("grep", "glob"), default=("grep", "glob"))


    options = read_options(Options, "tool-search", config)
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

import attrs

from amplifier._internal.reading import *  # noqa: F403 — modules take what their options accept from here
from amplifier._internal.reading import Key, keys_of, read_record
from amplifier._internal.spelling import did_you_mean, misspelt_key, suggestion, warn_caller
from amplifier.errors import PlanError, Problem

logger = logging.getLogger("amplifier.modules.configuration")

_RESTRICTION: Final = re.compile(
    r"(?i)allow|den(?:y|ied)|block(?:ed|list)|forbid|restrict|read_?only|whitelist|blacklist"
)

OptionsT = TypeVar("OptionsT", bound=attrs.AttrsInstance)


def read_options(
    cls: type[OptionsT],
    module: str,
    config: Mapping[str, Any] | None,
    *,
    environment: Mapping[str, str] | None = None,
    former: Mapping[str, str] | None = None,
    **values: Any,
) -> OptionsT:
    """Read the configuration of a module.

    Args:
        cls: The attrs class of the result. Its ``__attrs_post_init__`` may raise a `PlanError` about fields that do
            not fit together.
        module: The module's id, for messages.
        config: The module's part of the mount plan.
        environment: Keys, each with the environment variable to read if the configuration has no value for it.
        former: Keys of older versions that restricted something, each with what to use instead.
        values: Fields that are not options, and defaults that differ from those of the class.

    Raises:
        PlanError: The configuration is wrong; it lists all problems.
    """
    known = keys_of(cls)
    problems: list[Problem] = []

    def unknown(key: Any, path: str) -> None:
        if former is not None and key in former:
            problems.append((f"$.{key}", f"there is no such key any more; {former[key]}"))
        else:
            problems.extend(_unknown_key(module, key, known))

    given = read_record(known, config or {}, "$", problems, unknown)
    for key, variable in (environment or {}).items():
        value = os.environ.get(variable, "").strip()
        if value and not given.get(known[key].name):
            try:
                given[known[key].name] = known[key].kind.read(value)
            except PlanError as error:
                problems += [
                    (f"$.{key}", f"environment variable {variable}: {problem}")
                    for _, problem in error.problems
                ]
    if problems:
        raise PlanError(problems, subject=f"invalid config of {module}")
    try:
        return cls(**{**values, **given})
    except PlanError as error:
        raise PlanError(error.problems, subject=f"invalid config of {module}") from None


def _unknown_key(module: str, key: str, known: Mapping[str, Key]) -> list[Problem]:
    """Log an unknown key, which is then ignored; a problem if that would lift a restriction."""
    meant = misspelt_key(key, known)
    all_of_them = f"known keys: {', '.join(known) or 'none'}"
    if meant is not None and known[meant].restricts:
        return [(f"$.{key}", f"unknown key; {did_you_mean(meant)}")]
    if meant is None and _RESTRICTION.search(
        str(key)
    ):  # often the key of another module for the same job
        return [(f"$.{key}", f"unknown key for a restriction; {all_of_them}")]
    if meant is not None:
        warn_of_misspelt_key(module, f"$.{key}", meant)
    else:
        logger.warning(
            "%s: $.%s: unknown key, ignored%s",
            module,
            key,
            suggestion(key, known) or f"; {all_of_them}",
        )
    return []


def warn_of_misspelt_key(module: str, path: str, meant: str) -> None:
    """Log and emit a `MisspellingWarning` for a misspelt key, which is ignored."""
    message = f"{module}: {path}: unknown key, ignored; {did_you_mean(meant)}"
    logger.warning("%s", message)
    warn_caller(message, "amplifier.")
