"""A module's conformance as tests of its author's own suite: one test for each clause and backend.

    class TestMyTool(ToolConformance):
        module = "amplifier_module_tool_mine"

    test_my_tool = conformance_tests("amplifier_module_tool_mine")

Either form will do; `amplifier.pytest_plugin`, which pytest loads by itself, makes tests of them. Nothing here imports
pytest. Above stands that plugin; below stands `check_module`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import anyio
import attrs

from amplifier.contracts import clauses_for
from amplifier.errors import AmplifierError

from ._report import Finding, Report, described
from ._run import check_module
from ._subject import find_subject

__all__ = [
    "Conformance",
    "ContextConformance",
    "HookConformance",
    "OrchestratorConformance",
    "ProviderConformance",
    "ResolverConformance",
    "Suite",
    "ToolConformance",
    "conformance_tests",
    "described_as_text",
    "findings_of",
    "suite_of",
]


@attrs.frozen(kw_only=True)
class Suite:
    """What is to be checked, and which failures are known.

    Attributes:
        module: A folder, a .py file, the id of an installed module, or the name of an importable package.
        module_type: Its type, where neither the module nor its id says it.
        config: What to mount it with; ``{directory}`` in a text stands for a directory of each scene's own.
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
    backends: tuple[str, ...] = ("asyncio", "trio")
    thorough: bool = False
    seed: int = 0

    def clauses(self) -> list[str]:
        """The clauses that the module is bound by; known without running it.

        Raises:
            AmplifierError: The module is not there, or its type is not known.
        """
        found = find_subject(self.module, self.module_type)
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


def described_as_text(findings: Sequence[Finding]) -> str:
    """Findings as one text."""
    return "\n".join(line for found in findings for line in described(found))


class Conformance:
    """Base of the classes below; use the one of your module's type.

    Attributes:
        module: See `Suite`; so for the others.
    """

    module: ClassVar[str | Path] = ""
    module_type: ClassVar[str | None] = None
    config: ClassVar[Mapping[str, Any]] = {}
    plan: ClassVar[Mapping[str, Any]] = {}
    xfail: ClassVar[Mapping[str, str]] = {}
    backends: ClassVar[Sequence[str]] = ("asyncio", "trio")
    thorough: ClassVar[bool] = False
    seed: ClassVar[int] = 0


class ToolConformance(Conformance):
    """The tests of a tool module."""

    module_type: ClassVar[str | None] = "tool"


class ProviderConformance(Conformance):
    """The tests of a provider module."""

    module_type: ClassVar[str | None] = "provider"


class OrchestratorConformance(Conformance):
    """The tests of an orchestrator module."""

    module_type: ClassVar[str | None] = "orchestrator"


class ContextConformance(Conformance):
    """The tests of a context module."""

    module_type: ClassVar[str | None] = "context"


class HookConformance(Conformance):
    """The tests of a hook module."""

    module_type: ClassVar[str | None] = "hook"


class ResolverConformance(Conformance):
    """The tests of a module source resolver."""

    module_type: ClassVar[str | None] = "resolver"


def conformance_tests(module: str | Path, **options: Any) -> Suite:
    """The tests of a module in one line; the options are those of `Suite`."""
    return Suite(module=str(module), **{**options, "backends": tuple(options.get("backends", ("asyncio", "trio")))})


def suite_of(found: object) -> Suite | None:
    """The suite that something in a test file stands for; None if it stands for none."""
    if isinstance(found, Suite):
        return found
    if not (isinstance(found, type) and issubclass(found, Conformance) and found.module):
        return None
    return Suite(
        module=str(found.module),
        module_type=found.module_type,
        config=dict(found.config),
        plan=dict(found.plan),
        xfail=dict(found.xfail),
        backends=tuple(found.backends),
        thorough=found.thorough,
        seed=found.seed,
    )
