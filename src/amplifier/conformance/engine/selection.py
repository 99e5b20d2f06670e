"""What can be asked of the kit: everything else is refused before anything is examined.

A clause that nobody could look at must not count as kept, and a module must not be blamed for a package that is missing
here. Above stand `check_module` and the suites; below stands the table of checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from amplifier._spelling import did_you_mean, nearest_names
from amplifier.conformance.harness.check_registry import CHECKS, all_clauses, checks_for
from amplifier.errors import AmplifierError, MissingExtraError

from .step_runner import read_token

BACKENDS = ("asyncio", "trio")

_TOKEN = re.compile(r"[\w.]+:(asyncio|trio):[\w-]+", re.ASCII)


class AskedInVain(AmplifierError, ValueError):
    """The kit was asked for something that it does not have; the text says what was found and what to ask for."""


def refuse_missing_parts(backends: Iterable[str]) -> None:
    """See that everything is installed that running a module takes.

    Raises:
        MissingExtraError: Something is not; it names the package and the extra.
    """
    for package in ("hypothesis", "jsonschema_rs", *(name for name in backends if name == "trio")):
        if find_spec(package) is None:
            raise MissingExtraError("examining a module", extra="testing", missing=package)


def refuse_unknown(backends: Sequence[str], only: Iterable[str] = (), replay: str | None = None) -> None:
    """See that every name is one that there is.

    Raises:
        AskedInVain: One is not.
    """
    _refuse_unknown_backends(backends)
    if isinstance(only, str):
        raise AskedInVain(f"only is the text {only!r}; expected a list of clauses or checks: [{only!r}]")
    clauses = all_clauses()
    for name in only:
        if name not in clauses and name not in CHECKS:
            raise AskedInVain(f"only {name!r}: there is no such {_noun(name)}; {_nearest(name, [*clauses, *CHECKS])}")
    if replay is not None:
        _refuse_bad_token(replay, backends)


def refuse_foreign(
    module_type: str | None, *, static: bool, only: Iterable[str] = (), replay: str | None = None
) -> None:
    """See that every name means something for this type of module; nothing is said of one that is not known yet.

    Raises:
        AskedInVain: One is of another type, or is only looked at by running the module.
    """
    if module_type is None:
        return
    replayed = [] if replay is None else [replay.partition(":")[0]]
    for name in [*only, *replayed]:
        found = [each for each in checks_for(module_type) if name == each.name or name in each.clauses]
        asked = f"replay {replay!r}" if name in replayed else f"only {name!r}"
        if not found:
            raise AskedInVain(
                f"{asked}: this is not looked at in a module of the type {module_type!r}; {_own(module_type)}"
            )
        if static and (name in replayed or all(each.kind != "static" for each in found)):
            raise AskedInVain(f"{asked}: this takes running the module; leave static out")


def _refuse_unknown_backends(backends: Sequence[str]) -> None:
    if isinstance(backends, str):
        raise AskedInVain(f"backends is the text {backends!r}; expected a list such as [{backends!r}]")
    if not backends:
        raise AskedInVain("backends is empty; expected 'asyncio', 'trio' or both; static=True only reads the module")
    for name in backends:
        if name not in BACKENDS:
            raise AskedInVain(f"backends holds {name!r}; expected 'asyncio' or 'trio'")


def _refuse_bad_token(replay: str, backends: Sequence[str]) -> None:
    whole = "is not what a report printed behind --replay; copy it whole"
    if not _TOKEN.fullmatch(replay):
        raise AskedInVain(f"replay {replay!r} {whole}")
    try:
        step, _ = read_token(replay)
    except ValueError as error:
        raise AskedInVain(f"replay {replay!r} {whole}") from error
    name, _, backend = step.partition(":")
    if name not in CHECKS:
        raise AskedInVain(f"replay {replay!r}: there is no check {name!r}; {_nearest(name, list(CHECKS))}")
    if backend not in backends:
        raise AskedInVain(
            f"replay {replay!r} is for {backend}; expected one for {', '.join(backends)}; add the backend"
        )


def _noun(name: str) -> str:
    return "check" if "." in name else "clause"


def _nearest(name: str, names: list[str]) -> str:
    """What may have been meant."""
    near = nearest_names(name, names)
    if not near:
        return "expected a clause such as 'T5' or a check such as 'tool.is_a_tool'"
    exact = [each for each in near if each.casefold() == name.casefold()]
    return did_you_mean(*(exact or near))


def _own(module_type: str) -> str:
    own = list(dict.fromkeys(clause for check in checks_for(module_type) for clause in check.clauses))
    first = sorted(own, key=lambda each: (each[0], int(each[1:])))
    groups = {each[0]: [other for other in first if other[0] == each[0]] for each in first}
    return "expected one of " + " and ".join(f"{group[0]} to {group[-1]}" for group in groups.values())
