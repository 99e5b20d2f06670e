"""Describe one run of the kit, and reject unknown or inapplicable names before it begins."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from amplifier._internal.spelling import did_you_mean, nearest_names
from amplifier.conformance.checks.registry import CHECKS, Check, all_clauses, checks_for
from amplifier.conformance.target.locate import BACKENDS, Target
from amplifier.contracts import clauses_for
from amplifier.errors import AmplifierError, MissingExtraError
from amplifier.loading.loader import missing_modules
from amplifier.plan.dicts import find_things

# The controller sends a job to each worker process as JSON. A clause that no check examined must
# not count as kept, and a module must not get a finding for a package that is missing here.


@attrs.frozen(kw_only=True)
class Job:
    """The examination of one module.

    Attributes:
        target: The located module.
        module_type: The type that the caller named. None to use the declared one.
        config: The configuration to mount it with.
        plan: The rest of the session's mount plan.
        profile: ``quick`` or ``thorough``.
        seed: Seed of every random choice.
        backends: The backends to run it on.
        only: Clause ids or names of checks, or all if empty.
        replay: A step and its case from `replay_token`. None to run all steps.
        skip: Names of the steps that are done, or that ended an earlier worker.
        has_hung: True if a worker has ended in a call of the module.
        seconds: Deadline of the worker in seconds, without those spent waiting for a processor.
        hash_seed: Seed for the hashes of texts in the worker. None gives each backend its own.
    """

    target: Target
    module_type: str | None = None
    config: dict[str, Any] = attrs.field(factory=dict)
    plan: dict[str, Any] = attrs.field(factory=dict)
    profile: str = "quick"
    seed: int = 0
    backends: list[str] = attrs.field(factory=lambda: list(BACKENDS))
    only: list[str] = attrs.field(factory=list)
    replay: str | None = None
    skip: list[str] = attrs.field(factory=list)
    has_hung: bool = False
    seconds: float = 0.0
    hash_seed: int | None = None

    def selects(self, check: Check) -> bool:
        """Return whether ``replay`` and ``only`` select a check."""
        if self.replay is not None:
            return self.replay.partition(":")[0] == check.name
        return (
            not self.only or check.name in self.only or not set(self.only).isdisjoint(check.clauses)
        )

    def covers(self, check: Check, clause: str) -> bool:
        """Return whether a run decides a clause by a check.

        ``only`` may name clauses, and a check examines others as well.
        """
        if not self.selects(check):
            return False
        return (
            self.replay is not None
            or not self.only
            or clause in self.only
            or check.name in self.only
        )


def replay_token(step: str, case: Any) -> str:
    """Encode a step and its case in one word for the command line."""
    packed = (
        base64.urlsafe_b64encode(json.dumps(case, separators=(",", ":")).encode())
        .decode()
        .rstrip("=")
    )
    return f"{step}:{packed}"


def read_replay_token(text: str) -> tuple[str, Any]:
    """Return the step and the case of a token.

    Raises:
        ValueError: The text is not a token.
    """
    step, _, packed = text.rpartition(":")
    return step, json.loads(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)))


_TOKEN = re.compile(r"[\w.]+:(asyncio|trio):[\w-]+", re.ASCII)
_MAX_CASE_LENGTH = 40


def cache_directory() -> Path:
    """Return the directory for cases of findings and tables of characters."""
    given = os.environ.get("XDG_CACHE_HOME")
    return Path(
        given if given and Path(given).is_absolute() else Path.home() / ".cache", "amplifier"
    )


def shortened(token: str) -> str:
    """Store a long case in a file, and return a token that names it.

    Return the token itself if its case is short, or the file cannot be written.
    """
    step, _, packed = token.rpartition(":")
    if len(packed) <= _MAX_CASE_LENGTH:
        return token
    name = hashlib.sha256(packed.encode()).hexdigest()[:10]
    try:
        file = _case_file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(packed, encoding="ascii")
    except OSError:
        return token
    return f"{step}:case-{name}"


def expanded(token: str) -> str:
    """Return a token that contains its case.

    Raises:
        InvalidSelection: The file with the case does not exist.
    """
    step, _, name = token.rpartition(":case-")
    if not step:
        return token
    try:
        return f"{step}:{_case_file(name).read_text(encoding='ascii')}"
    except (OSError, ValueError):
        raise InvalidSelection(
            f"replay {token!r}: the case is not in {_case_file(name)}; "
            "examine the module again, on the machine that is to replay it"
        ) from None


def _case_file(name: str) -> Path:
    return cache_directory() / "cases" / f"{name}.txt"


class InvalidSelection(AmplifierError, ValueError):
    """Raised for a selection that does not exist. The text has the given and the expected names."""


def require_packages(backends: Iterable[str]) -> None:
    """Check that all packages for running a module are installed.

    Raises:
        MissingExtraError: A package is missing. The error names it and its extra.
    """
    for package in ("hypothesis", "jsonschema_rs", *(name for name in backends if name == "trio")):
        if find_spec(package) is None:
            raise MissingExtraError("examining a module", extra="testing", missing=package)


def reject_unknown(
    backends: Sequence[str], only: Iterable[str] = (), replay: str | None = None
) -> None:
    """Check that every backend, clause and check exists.

    Raises:
        InvalidSelection: A backend, clause or check does not exist.
    """
    if isinstance(backends, str):
        raise InvalidSelection(
            f"backends is the text {backends!r}; expected a list such as [{backends!r}]"
        )
    if not backends:
        raise InvalidSelection(
            "backends is empty; expected 'asyncio', 'trio' or both; "
            "static=True only reads the module"
        )
    for name in backends:
        if name not in BACKENDS:
            raise InvalidSelection(f"backends holds {name!r}; expected 'asyncio' or 'trio'")
    if isinstance(only, str):
        raise InvalidSelection(
            f"only is the text {only!r}; expected a list of clauses or checks: [{only!r}]"
        )
    known = [*all_clauses(), *CHECKS]
    for name in only:
        if name not in known:
            noun = "check" if "." in name else "clause"
            raise InvalidSelection(
                f"only {name!r}: there is no such {noun}; {_nearest(name, known)}"
            )
    if replay is not None:
        _reject_bad_token(replay, backends)


def reject_unknown_modules(plan: Mapping[str, Any]) -> None:
    """Check that every module that a plan names by its id alone is installed.

    A session would continue without a missing module.

    Raises:
        InvalidSelection: A module is missing, or the plan has functions or objects, which can't be
            sent to another process.
    """
    for path, what in find_things(plan):
        raise InvalidSelection(
            f"plan: {path} is {what}; the module runs in a separate process, "
            "so name modules by their ids"
        )
    for path, problem in missing_modules(plan):
        raise InvalidSelection(f"plan: {path}: {problem}")


def reject_inapplicable(module_type: str | None, names: Iterable[str], *, static: bool) -> None:
    """Check that every clause or check applies to this type of module.

    Nothing is rejected while the type is not known.

    Raises:
        InvalidSelection: A clause or check belongs to another type, or needs to run the module.
    """
    if module_type is None:
        return
    # A check may examine clauses of several types. `find_target` has accepted this one.
    own = {clause.id for clause in clauses_for(module_type)}  # type: ignore[arg-type]
    for name in names:
        matches = [
            check
            for check in checks_for(module_type)
            if name == check.name or name in own.intersection(check.clauses)
        ]
        if not matches:
            raise InvalidSelection(
                f"only {name!r}: this is not looked at in a module of the type {module_type!r}"
            )
        if static and all(check.kind != "static" for check in matches):
            raise InvalidSelection(
                f"only {name!r}: this takes running the module; leave static out"
            )


def _reject_bad_token(replay: str, backends: Sequence[str]) -> None:
    try:
        step, _ = read_replay_token(replay)
    except ValueError:
        step = ""
    if not step or not _TOKEN.fullmatch(replay):
        raise InvalidSelection(
            f"replay {replay!r} is not what a report printed behind --replay; copy it whole"
        )
    name, _, backend = step.partition(":")
    if name not in CHECKS:
        raise InvalidSelection(
            f"replay {replay!r}: there is no check {name!r}; {_nearest(name, list(CHECKS))}"
        )
    if backend not in backends:
        raise InvalidSelection(
            f"replay {replay!r} is for {backend}; expected one for {', '.join(backends)}; "
            "add the backend"
        )


def _nearest(name: str, names: list[str]) -> str:
    near = nearest_names(name, names)
    if not near:
        return "expected a clause such as 'T5' or a check such as 'tool.is_a_tool'"
    exact = [other for other in near if other.casefold() == name.casefold()]
    return did_you_mean(*(exact or near))
