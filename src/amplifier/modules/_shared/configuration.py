"""Reads a module's configuration from the mount plan into an attrs class whose fields declare what they accept.

Every built-in module follows one policy:

- A known key with a bad value is a problem that names the key, what was expected and what was found. One `PlanError`
  carries all problems of a configuration.
- An unknown key is ignored and logged as a warning with the nearest known key. A misspelt key also emits a
  `MisspellingWarning`, so that ``-W error::amplifier.errors.MisspellingWarning`` turns it into an error.
- A misspelling of a key that restricts what the module may do (``restricts=True``) is a problem, and so is an unknown key that
  is named like a restriction (``allowed_write_paths``): ignored, it would lift the restriction.

Example::

    @attrs.frozen(kw_only=True)
    class Options:
        timeout: float = option(seconds, default=30.0)
        tools: tuple[str, ...] = option(choices("grep", "glob"), default=("grep", "glob"))


    options = read_options(Options, "tool-search", config)
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs

from amplifier._spelling import cut_short, did_you_mean, misspelt, suggestion, warn_caller
from amplifier.errors import PlanError, Problem

logger = logging.getLogger("amplifier.modules.configuration")

_OPTION: Final = "amplifier.option"
_MOST_SHOWN: Final = 200
_RESTRICTION: Final = re.compile(
    r"(?i)allow|den(?:y|ied)|block(?:ed|list)|forbid|restrict|read_?only|whitelist|blacklist"
)

OptionsT = TypeVar("OptionsT", bound=attrs.AttrsInstance)


def _unchanged(value: Any) -> Any:
    return value


@attrs.frozen
class Kind:
    """Which values an option accepts.

    Attributes:
        expected: Completes the message ``expected …, got …``.
        accepts: Whether a value is of this kind.
        convert: Makes the value of the field from an accepted value. It may raise a `PlanError` whose paths are
            relative to the value (``$[0].name``).
        is_secret: Messages and ``repr`` do not show the value.
    """

    expected: str
    accepts: Callable[[Any], bool]
    convert: Callable[[Any], Any] = _unchanged
    is_secret: bool = False

    def read(self, value: Any) -> Any:
        """Check and convert a value.

        Raises:
            PlanError: The value is not of this kind; paths are relative to the value.
        """
        if not self.accepts(value):
            found = type(value).__name__ if self.is_secret else f"{value!r:.{_MOST_SHOWN}}"
            raise PlanError([("$", f"expected {self.expected}, got {found}")])
        return self.convert(value)


@attrs.frozen
class Option:
    """One key of a configuration.

    Attributes:
        name: The field that holds the value.
        kind: Which values are accepted.
        aliases: Other keys with the same meaning.
        restricts: Whether a misspelling of the key is a problem.
    """

    name: str
    kind: Kind
    aliases: tuple[str, ...]
    restricts: bool


def option(
    kind: Kind,
    *,
    default: Any = attrs.NOTHING,
    key: str = "",
    aliases: tuple[str, ...] = (),
    restricts: bool = False,
) -> Any:
    """Declare a field of an attrs class that is read from the configuration.

    Args:
        kind: Which values are accepted.
        default: The value without the key, or an `attrs.Factory`.
        key: The key, if it is not the name of the field.
        aliases: Other keys with the same meaning.
        restricts: The option restricts what the module may do, so a misspelling of its key is a problem.
    """
    metadata = {_OPTION: (key, kind, aliases, restricts)}
    return attrs.field(default=default, metadata=metadata, repr=not kind.is_secret)


def options_of(cls: type[attrs.AttrsInstance]) -> dict[str, Option]:
    """The options of a class by their keys, aliases included."""
    found: dict[str, Option] = {}
    for field in attrs.fields(cls):
        if _OPTION in field.metadata:
            key, kind, aliases, restricts = field.metadata[_OPTION]
            declared = Option(field.name, kind, aliases, restricts)
            found |= dict.fromkeys((key or field.name, *aliases), declared)
    return found


def read_options(
    cls: type[OptionsT],
    module: str,
    config: Mapping[str, Any] | None,
    *,
    environment: Mapping[str, str] | None = None,
    **values: Any,
) -> OptionsT:
    """Read the configuration of a module.

    Args:
        cls: The attrs class of the result. Its ``__attrs_post_init__`` may raise a `PlanError` about fields that do
            not fit together.
        module: The module's id, for messages.
        config: The module's part of the mount plan.
        environment: Keys, each with the environment variable to read if the configuration has no value for it.
        values: Fields that are not options, and defaults that differ from those of the class.

    Raises:
        PlanError: The configuration is wrong; it lists all problems.
    """
    known = options_of(cls)
    given: dict[str, Any] = {}
    problems: list[Problem] = []
    keys: dict[str, str] = {}
    for key, value in (config or {}).items():
        if key not in known:
            problems += _unknown_key(module, key, known)
            continue
        name = known[key].name
        if name in keys:
            problems.append((f"$.{key}", f"has the same meaning as $.{keys[name]}; expected one of the two"))
            continue
        keys[name] = key
        try:
            given[name] = known[key].kind.read(value)
        except PlanError as error:
            problems += _nested(f"$.{key}", error)
    for key, variable in (environment or {}).items():
        value = os.environ.get(variable, "").strip()
        if value and not given.get(known[key].name):
            try:
                given[known[key].name] = known[key].kind.read(value)
            except PlanError as error:
                problems += [
                    (f"$.{key}", f"environment variable {variable}: {problem}") for _, problem in error.problems
                ]
    if problems:
        raise PlanError(problems, subject=f"invalid config of {module}")
    try:
        return cls(**{**values, **given})
    except PlanError as error:
        raise PlanError(error.problems, subject=f"invalid config of {module}") from None


def _unknown_key(module: str, key: str, known: Mapping[str, Option]) -> list[Problem]:
    """Log an unknown key, which is then ignored; a problem if that would lift a restriction."""
    meant = misspelt_key(key, known)
    all_of_them = f"known keys: {', '.join(known) or 'none'}"
    if meant is not None and known[meant].restricts:
        return [(f"$.{key}", f"unknown key; {did_you_mean(meant)}")]
    if meant is None and _RESTRICTION.search(str(key)):  # often the key of another module for the same job
        return [(f"$.{key}", f"unknown key for a restriction; {all_of_them}")]
    if meant is not None:
        warn_of_misspelt_key(module, f"$.{key}", meant)
    else:
        logger.warning("%s: $.%s: unknown key, ignored%s", module, key, suggestion(key, known) or f"; {all_of_them}")
    return []


def _nested(path: str, error: PlanError) -> list[Problem]:
    """The problems of a value with paths that begin at the configuration."""
    return [(f"{path}{inner.removeprefix('$')}", problem) for inner, problem in error.problems]


def misspelt_key(key: object, known: Iterable[str]) -> str | None:
    """The known key that an unknown one is a misspelling or an abbreviation of."""
    names = frozenset(known)
    return misspelt(key, names) or cut_short(key, names)


def warn_of_misspelt_key(module: str, path: str, meant: str) -> None:
    """Log and emit a `MisspellingWarning` for a misspelt key, which is ignored."""
    message = f"{module}: {path}: unknown key, ignored; {did_you_mean(meant)}"
    logger.warning("%s", message)
    warn_caller(message, "amplifier.")


# ── kinds of values ──────────────────────────────────────────────────────────────────────────────

anything: Final = Kind("anything", lambda value: True)
flag: Final = Kind("true or false", lambda value: isinstance(value, bool))


def whole_number(least: int | None = None) -> Kind:
    """A whole number, of at least `least`."""
    bound = "" if least is None else f" of at least {least}"
    return Kind(
        f"a whole number{bound}",
        lambda value: isinstance(value, int) and not isinstance(value, bool) and (least is None or value >= least),
    )


def number(least: float = -math.inf, most: float = math.inf, *, above: bool = False, what: str = "a number") -> Kind:
    """A finite number.

    Args:
        least: The smallest one.
        most: The largest one.
        above: Whether it has to be larger than `least`.
        what: What the number means, with its article.
    """
    bounds = [] if math.isinf(least) else [f"above {least:g}" if above else f"of at least {least:g}"]
    bounds += [] if math.isinf(most) else [f"at most {most:g}"]
    return Kind(
        f"{what} {' and '.join(bounds)}".strip(),
        lambda value: _is_finite(value) and (value > least if above else value >= least) and value <= most,
    )


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


seconds: Final = Kind("a positive number of seconds", lambda value: _is_finite(value) and value > 0)
delay: Final = Kind("a number of seconds", lambda value: _is_finite(value) and value >= 0)


def optional(kind: Kind, *, null: str = "") -> Kind:
    """What another kind accepts, or null.

    Args:
        kind: The other kind.
        null: What null means, such as ``for no limit``.
    """
    return attrs.evolve(
        kind,
        expected=f"{kind.expected}, or null {null}".strip(),
        accepts=lambda value: value is None or kind.accepts(value),
        convert=lambda value: None if value is None else kind.convert(value),
    )


no_limit_or_seconds: Final = optional(seconds, null="for no limit")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


text: Final = Kind("a non-empty text", _is_text)
any_text: Final = Kind("text", lambda value: isinstance(value, str))
secret: Final = Kind("text", lambda value: isinstance(value, str), is_secret=True)


def choice(*words: str) -> Kind:
    """One of some words."""
    return Kind(f"one of {', '.join(map(repr, words))}", lambda value: isinstance(value, str) and value in words)


def list_of(plural: str, accepts: Callable[[Any], bool], *, least: int = 0) -> Kind:
    """A list, read as a tuple.

    Args:
        plural: What the items are, for messages.
        accepts: Whether an item is one of them.
        least: The smallest number of items.
    """
    return Kind(
        f"a list of {f'at least {least} ' if least else ''}{plural}",
        lambda value: isinstance(value, list | tuple) and len(value) >= least and all(map(accepts, value)),
        convert=tuple,
    )


def texts(*, least: int = 0) -> Kind:
    """A list of non-empty texts."""
    return list_of("non-empty texts", _is_text, least=least)


def choices(*words: str) -> Kind:
    """A list of some words."""
    return list_of(", ".join(map(repr, words)), lambda item: isinstance(item, str) and item in words)


def list_each(plural: str, kind: Kind, *, least: int = 0) -> Kind:
    """A list whose items are read one by one into a tuple; each problem has the path of its item.

    Args:
        plural: What the items are, for messages.
        kind: Which items are accepted.
        least: The smallest number of items.
    """

    def convert(items: Any) -> tuple[Any, ...]:
        read: list[Any] = []
        problems: list[Problem] = []
        for index, item in enumerate(items):
            try:
                read.append(kind.read(item))
            except PlanError as error:
                problems += _nested(f"$[{index}]", error)
        if problems:
            raise PlanError(problems)
        return tuple(read)

    return Kind(
        f"a list of {f'at least {least} ' if least else ''}{plural}",
        lambda value: isinstance(value, list | tuple) and len(value) >= least,
        convert,
    )


def object_with(kinds: Mapping[str, Kind]) -> Kind:
    """An object with some of these members; unlike in a configuration, an unknown member is a problem."""

    def convert(members: Any) -> dict[str, Any]:
        read: dict[str, Any] = {}
        problems: list[Problem] = []
        for key, value in members.items():
            if key not in kinds:
                hint = suggestion(key, kinds) or f"; expected one of {', '.join(kinds)}"
                problems.append((f"$.{key}", f"unknown key{hint}"))
                continue
            try:
                read[key] = kinds[key].read(value)
            except PlanError as error:
                problems += _nested(f"$.{key}", error)
        if problems:
            raise PlanError(problems)
        return read

    return Kind(f"an object with {', '.join(kinds)}", lambda value: isinstance(value, Mapping), convert)


mapping: Final = Kind(
    "an object", lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value), convert=dict
)


def mapping_of_secrets(
    what: str, accepts_name: Callable[[str], bool] = bool, accepts_text: Callable[[str], bool] = lambda text: True
) -> Kind:
    """An object of texts that messages do not show."""
    return Kind(
        what,
        lambda value: (
            isinstance(value, Mapping)
            and all(
                isinstance(name, str) and accepts_name(name) and isinstance(item, str) and accepts_text(item)
                for name, item in value.items()
            )
        ),
        convert=dict,
        is_secret=True,
    )


def _is_path(value: Any) -> bool:
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value)) and "\0" not in str(value)


def _expanded(value: Any) -> Path:
    return Path(value).expanduser()


directory_name: Final = Kind("the name of a folder", _is_path, _expanded)
file_name: Final = Kind("the name of a file", _is_path, _expanded)
existing_directory: Final = Kind(
    "an existing directory", lambda value: _is_path(value) and _expanded(value).is_dir(), _expanded
)
existing_file: Final = Kind("an existing file", lambda value: _is_path(value) and _expanded(value).is_file(), _expanded)


def _without_credentials(value: str) -> str:
    if "@" in value.split("/")[2]:  # the value is not shown: logs would keep the password
        raise PlanError([("$", "expected a URL without a user name and password")])
    return value


url: Final = Kind(
    "a URL that begins with http:// or https://",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")),
    _without_credentials,
)
