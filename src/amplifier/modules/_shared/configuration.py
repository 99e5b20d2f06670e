"""Read a module's configuration from the mount plan into an attrs class.

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

# Modules import the kinds of options from here.
from amplifier._internal.reading import *  # noqa: F403
from amplifier._internal.reading import Key, keys_of, read_record
from amplifier._internal.spelling import did_you_mean, misspelt_key, suggestion, warn_caller
from amplifier.errors import PlanError, Problem

logger = logging.getLogger("amplifier.modules.configuration")

# Every built-in module follows one policy:
#
# - A known key with a bad value is a problem that names the key, the expected value and the actual
#   value. One `PlanError` lists all problems of a configuration.
# - An unknown key is ignored, and a warning with the nearest known key is logged. A misspelt key
#   also emits a `MisspellingWarning`, which ``-W error::amplifier.errors.MisspellingWarning`` turns
#   into an error.
# - Ignoring a misspelt restriction would lift it. So a misspelling of a key that limits the module
#   (``restricts=True``) is a problem. So is an unknown key that is named like a restriction
#   (``allowed_write_paths``) or was one in an older version.

_RESTRICTION: Final = re.compile(
    r"(?i)allow|den(?:y|ied)|block(?:ed|list)|forbid|restrict|read_?only|whitelist|blacklist"
)

OptionsT = TypeVar("OptionsT", bound=attrs.AttrsInstance)


def read_options(
    cls: type[OptionsT],
    module: str,
    config: Mapping[str, object] | None,
    *,
    environment: Mapping[str, str] | None = None,
    former: Mapping[str, str] | None = None,
    **values: Any,
) -> OptionsT:
    """Read the configuration of a module.

    Args:
        cls: The attrs class of the result. Its fields declare the values that they accept, and its
            ``__attrs_post_init__`` may raise a `PlanError` about fields that contradict each other.
        module: The module's id, for messages.
        config: The module's part of the mount plan.
        environment: Environment variables to read if the configuration has no value, by key.
        former: Restricting keys of older versions, each with advice on its replacement.
        values: Values of fields that aren't options, and defaults that override the class's own.

    Raises:
        PlanError: The configuration is invalid. The error lists all problems.
    """
    known = keys_of(cls)
    problems: list[Problem] = []

    def unknown(key: Any, path: str) -> None:
        if former is not None and key in former:
            problems.append((f"$.{key}", f"this key was removed; {former[key]}"))
        else:
            problems.extend(_unknown_key(module, key, known))

    fields = read_record(known, config or {}, "$", problems, unknown)
    for key, variable in (environment or {}).items():
        value = os.environ.get(variable, "").strip()
        if value and not fields.get(known[key].name):
            try:
                fields[known[key].name] = known[key].kind.read(value)
            except PlanError as error:
                problems += [
                    (f"$.{key}", f"environment variable {variable}: {problem}")
                    for _, problem in error.problems
                ]
    if problems:
        raise PlanError(problems, subject=f"invalid config of {module}")
    try:
        return cls(**{**values, **fields})
    except PlanError as error:
        raise PlanError(error.problems, subject=f"invalid config of {module}") from None


def _unknown_key(module: str, key: str, known: Mapping[str, Key]) -> list[Problem]:
    """Log an unknown key, or return a problem if ignoring it would lift a restriction."""
    meant = misspelt_key(key, known)
    known_keys = f"known keys: {', '.join(known) or 'none'}"
    if meant is not None and known[meant].restricts:
        return [(f"$.{key}", f"unknown key; {did_you_mean(meant)}")]
    # Such a key is often another module's name for the same restriction.
    if meant is None and _RESTRICTION.search(str(key)):
        return [(f"$.{key}", f"unknown key for a restriction; {known_keys}")]
    if meant is not None:
        warn_of_misspelt_key(module, f"$.{key}", meant)
    else:
        logger.warning(
            "%s: $.%s: unknown key, ignored%s",
            module,
            key,
            suggestion(key, known) or f"; {known_keys}",
        )
    return []


def warn_of_misspelt_key(module: str, path: str, meant: str) -> None:
    """Log and emit a `MisspellingWarning` for a misspelt key, which is ignored."""
    message = f"{module}: {path}: unknown key, ignored; {did_you_mean(meant)}"
    logger.warning("%s", message)
    warn_caller(message, "amplifier.")
