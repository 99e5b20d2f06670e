"""A module's conformance as tests of its author's own suite: one test for each clause and backend.

    test_my_tool = conformance_tests("amplifier_module_tool_mine")

`amplifier.pytest_plugin`, which pytest loads by itself, makes tests of it. A path that is not absolute is looked for beside the file that names it, and then in the working
directory. Nothing here imports pytest.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio
import attrs

from amplifier._spelling import did_you_mean, nearest
from amplifier.conformance.engine.controller import check_module
from amplifier.conformance.engine.job import InvalidSelection, reject_unknown, require_packages
from amplifier.conformance.report.model import ClauseOutcome, Finding, Report, cause_lines, causes_of
from amplifier.conformance.target.locate import find_target, is_path
from amplifier.contracts import clauses_for
from amplifier.errors import AmplifierError

__all__ = [
    "Suite",
    "conformance_tests",
    "described_as_text",
    "findings_of",
    "is_gap",
    "was_absent",
    "was_examined",
]


def _as_tuple(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


@attrs.frozen(kw_only=True)
class Suite:
    """What is to be checked, and which failures are known.

    Attributes:
        module: A folder, a .py file, the id of an installed module, or the name of an importable package.
        module_type: Its type, where neither the module nor its id names it.
        config: What to mount it with; ``{directory}`` in a text is replaced by a directory of each session's own.
        plan: What else the plan of its session holds.
        xfail: Clauses that are known to be broken, with the reason.
        backends: What to run it on.
        thorough: Draw more cases and try every suspension point.
        seed: Equal seeds draw equal cases.
    """

    module: str
    module_type: str | None = None
    config: dict[str, Any] = attrs.field(factory=dict)
    plan: dict[str, Any] = attrs.field(factory=dict)
    xfail: dict[str, str] = attrs.field(factory=dict)
    backends: tuple[str, ...] = attrs.field(default=("asyncio", "trio"), converter=_as_tuple)
    thorough: bool = False
    seed: int = 0

    def clauses(self) -> list[str]:
        """The clauses that the module is bound by; known without running it.

        Raises:
            AmplifierError: The module is not there, its type is not known, or something that running it takes is missing.
        """
        reject_unknown(self.backends)
        require_packages(self.backends)
        found = find_target(self.module, self.module_type)
        if found.module_type is None:
            raise AmplifierError(f"the type of {self.module!r} is not known; set module_type")
        return [clause.id for clause in clauses_for(found.module_type)]  # type: ignore[arg-type]  # a known type

    def run(self) -> Report:
        """Examine the module; the same suite is examined once in a process."""
        key = json.dumps(attrs.asdict(attrs.evolve(self, xfail={})), sort_keys=True, default=str)
        with _lock:
            if key not in _reports:
                _reports[key] = anyio.run(self._examine)
            return _reports[key]

    async def _examine(self) -> Report:
        return await check_module(
            self.module,
            module_type=self.module_type,
            config=self.config,
            plan=self.plan,
            thorough=self.thorough,
            seed=self.seed,
            backends=self.backends,
        )


_reports: dict[str, Report] = {}
_lock = threading.Lock()


def findings_of(report: Report, clause: str, backend: str) -> list[Finding]:
    """What was found against a clause on a backend, or without running anything."""
    outcome = next(outcome for outcome in report.clauses if outcome.id == clause)
    return [found for found in outcome.findings if found.backend is None or backend in found.backend]


def was_examined(outcome: ClauseOutcome, backend: str) -> bool:
    """Whether a clause was examined on a backend, or without running anything."""
    return backend in outcome.backends or (outcome.status == "kept" and not outcome.backends)


def is_gap(report: Report, outcome: ClauseOutcome, backend: str) -> bool:
    """Whether a required clause was to be examined on a backend and was not, so that the module cannot pass."""
    if outcome.level != "required" or backend not in report.backends or was_examined(outcome, backend):
        return False
    return outcome.status != "broken" and not (outcome.id == "A18" and report.backends == ["asyncio"])


def was_absent(report: Report) -> bool:
    """Whether mount gave nothing to examine: it declined, failed, or put the module at a wrong place."""
    own = [outcome for outcome in report.clauses if outcome.level == "required" and outcome.id[0] != "A"]
    return sum(outcome.status != "not_checked" for outcome in own) <= 1  # that about the mount point does not need it


def described_as_text(findings: Sequence[Finding]) -> str:
    """Findings as one text, those of one cause together."""
    return "\n".join(line for cause in causes_of(findings) for line in cause_lines(cause))


def conformance_tests(module: str | Path, **options: Any) -> Suite:
    """The tests of a module in one line; the options are those of `Suite`.

    Raises:
        ValueError: There is no such option, or it is not what it should be.
    """
    for name in options:
        if name not in _OPTIONS:
            raise InvalidSelection(f"conformance_tests takes no {name!r}; {_suggestion(name)}")
    caller = sys._getframe(1).f_globals.get("__file__")
    return _make_suite("conformance_tests", {**options, "module": _resolve_path(module, caller)})


_OPTIONS = tuple(field.name for field in attrs.fields(Suite))
_MAPPINGS = ("config", "plan", "xfail")


def _make_suite(owner: str, options: dict[str, Any]) -> Suite:
    for name in _MAPPINGS:
        if not isinstance(options.get(name, {}), Mapping):
            raise InvalidSelection(f"{name} of {owner} is {options[name]!r}; expected a dict")
    copied = {name: dict(options[name]) for name in _MAPPINGS if name in options}
    return Suite(**{**options, **copied})


def _resolve_path(module: str | Path, file: str | None) -> str:
    """A module, with a path that is not absolute taken from the folder of the file that names it, if it is there."""
    path = Path(module).expanduser()
    if file is None or path.is_absolute() or not is_path(module):
        return str(module)
    beside = Path(file).resolve().parent / path
    return str(beside) if beside.exists() or not path.exists() else str(module)


def _suggestion(name: str) -> str:
    near = nearest(name, _OPTIONS)
    return did_you_mean(near) if near else f"expected one of {', '.join(_OPTIONS)}"
