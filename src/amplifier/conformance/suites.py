"""The conformance of a module as tests in its author's suite, one for each clause and backend.

    test_my_tool = conformance_tests("amplifier_module_tool_mine")
    test_my_server = mcp_conformance_tests("npx -y my-server")
    test_my_functions = python_conformance_tests("my_package:search", call_all=True)

`amplifier.pytest_plugin` turns them into tests. Pytest loads it without configuration. A relative
path is looked up next to the file that names it, and then in the working directory.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import anyio
import attrs

from amplifier.conformance.engine.controller import check_module
from amplifier.conformance.engine.job import reject_unknown, require_packages
from amplifier.conformance.report import Report, cause_lines, causes_of
from amplifier.conformance.target.locate import find_target, is_path
from amplifier.conformance.tool_servers.clauses import clauses_of
from amplifier.conformance.tool_servers.run import check_tools, examination_of
from amplifier.contracts import clauses_for
from amplifier.errors import AmplifierError

__all__ = [
    "Suite",
    "ToolSuite",
    "conformance_tests",
    "mcp_conformance_tests",
    "python_conformance_tests",
]


def _as_tuple(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


# Nothing here imports pytest.


@attrs.frozen(kw_only=True)
class Suite:
    """The tests of one module, and its known failures.

    Attributes:
        module: A folder, a .py file, the id of an installed module, or the name of an importable
            package.
        module_type: Its type, if neither the module nor its id declares it.
        config: The configuration to mount it with. ``{directory}`` in a text becomes the path of a
            directory for each session.
        plan: The other parts of its session's plan.
        xfail: Clauses that are known to be broken, with the reason.
        backends: The backends to run it on.
        thorough: True to draw more cases and try every suspension point.
        seed: Equal seeds draw equal cases.
    """

    module: str
    module_type: str | None = None
    config: dict[str, Any] = attrs.field(factory=dict, converter=dict)
    plan: dict[str, Any] = attrs.field(factory=dict, converter=dict)
    xfail: dict[str, str] = attrs.field(factory=dict, converter=dict)
    backends: tuple[str, ...] = attrs.field(default=("asyncio", "trio"), converter=_as_tuple)
    thorough: bool = False
    seed: int = 0

    def clauses(self) -> list[str]:
        """Return the clauses that bind the module, without running it.

        Raises:
            AmplifierError: The module, its type, or a package that running it needs is missing, or
                ``xfail`` names something other than a clause of its type.
        """
        reject_unknown(self.backends)
        require_packages(self.backends)
        target = find_target(self.module, self.module_type)
        if target.module_type is None:
            raise AmplifierError(f"the type of {self.module!r} is not known; set module_type")
        clauses = [
            clause.id
            for clause in clauses_for(target.module_type)  # type: ignore[arg-type]
        ]
        if unknown := sorted(set(self.xfail) - set(clauses)):
            raise AmplifierError(
                f"xfail names {', '.join(unknown)}, which are no clauses of this type of module"
            )
        return clauses

    def run(self) -> Report:
        """Examine the module. An equal suite is examined once in a process."""
        options = attrs.asdict(self, filter=attrs.filters.exclude("xfail", "module"))
        key = json.dumps([self.module, options], sort_keys=True, default=str)
        if key not in _reports:
            _reports[key] = anyio.run(partial(check_module, self.module, **options))
        return _reports[key]

    def judge(
        self, clause: str, backend: str
    ) -> tuple[Literal["passed", "failed", "xfailed", "skipped"], str]:
        """Return the result of the test of a clause on a backend, and the reason."""
        report = self.run()
        outcome = next(outcome for outcome in report.clauses if outcome.id == clause)
        findings = [
            finding
            for finding in outcome.findings
            if finding.backend is None or backend in finding.backend
        ]
        text = "\n".join(line for cause in causes_of(findings) for line in cause_lines(cause))
        reason = self.xfail.get(clause)
        if reason is not None and outcome.status == "kept":
            return (
                "failed",
                f"{clause} is kept, though xfail gives {reason!r}; take it out of xfail",
            )
        if findings and outcome.level == "recommended":
            reason = reason or "recommended, not required:"
        if findings:
            return ("failed", text) if reason is None else ("xfailed", f"{reason}\n{text}")
        # A clause that is kept without a backend was decided from the source.
        if backend in outcome.backends or (outcome.status == "kept" and not outcome.backends):
            return "passed", ""
        why = (
            "; ".join([*report.notes, *report.limitations])
            or "see the report of amplifier module validate"
        )
        must_be_examined = (
            outcome.level == "required"
            and backend in report.backends
            and outcome.status != "broken"
        )
        is_for_trio = clause == "A18" and report.backends == ["asyncio"]
        verdict: Literal["failed", "skipped"] = (
            "failed" if must_be_examined and not is_for_trio else "skipped"
        )
        return verdict, f"{clause} was not examined on {backend}: {why}"


_PERMISSIONS = "permissions"


@attrs.frozen(kw_only=True)
class ToolSuite:
    """The tools of an MCP server, or of a Python object, as tests.

    Attributes:
        module: The command line, the URL, or ``package:object``.
        options: The options of the command, such as ``call_all=True`` and ``skip=["delete"]``.
        xfail: Clauses that are known to be broken, with the reason.
        backends: Always asyncio alone, since the tools don't depend on this library.
    """

    module: str
    options: dict[str, Any] = attrs.field(factory=dict)
    xfail: dict[str, str] = attrs.field(factory=dict)
    backends: tuple[str, ...] = attrs.field(default=("asyncio",), init=False)

    def clauses(self) -> list[str]:
        """Return the clauses, and ``permissions``: every tool is permitted or skipped.

        Raises:
            AmplifierError: ``xfail`` names something else, or an option is invalid.
        """
        subject, _ = examination_of(self.module, **self.options)
        clauses = [clause.id for clause in clauses_of(subject.kind)]
        if unknown := sorted(set(self.xfail) - set(clauses)):
            raise AmplifierError(f"xfail names {', '.join(unknown)}, which are no clauses of tools")
        return [*clauses, _PERMISSIONS]

    def run(self) -> Report:
        """Examine the tools. An equal suite is examined once in a process."""
        key = json.dumps([self.module, self.options], sort_keys=True, default=str)
        if key not in _reports:
            subject, choice = examination_of(self.module, **self.options)
            _reports[key] = anyio.run(partial(check_tools, subject, choice))
        return _reports[key]

    def judge(
        self, clause: str, backend: str
    ) -> tuple[Literal["passed", "failed", "xfailed", "skipped"], str]:
        """Return the result of the test of a clause, and the reason.

        A clause that wasn't examined is skipped.
        """
        report = self.run()
        if clause == _PERMISSIONS:
            return (
                ("failed", "\n".join(report.notes))
                if report.verdict == "unchecked"
                else ("passed", "")
            )
        outcome = next(outcome for outcome in report.clauses if outcome.id == clause)
        text = "\n".join(
            line for cause in causes_of(outcome.findings) for line in cause_lines(cause)
        )
        reason = self.xfail.get(clause)
        if reason is not None and outcome.status == "kept":
            return (
                "failed",
                f"{clause} is kept, though xfail gives {reason!r}; take it out of xfail",
            )
        if outcome.findings:
            if outcome.level == "recommended":
                reason = reason or "recommended, not required:"
            return ("failed", text) if reason is None else ("xfailed", f"{reason}\n{text}")
        if outcome.status == "kept":
            return "passed", ""
        return "skipped", f"{clause} was not examined: {'; '.join(report.notes)}"


_reports: dict[str, Report] = {}


def conformance_tests(module: str | Path, **options: Any) -> Suite:
    """Return the tests of a module. The options are those of `Suite`."""
    caller = sys._getframe(1).f_globals.get("__file__")
    return Suite(module=_resolve_path(module, caller), **options)


def mcp_conformance_tests(
    server: str, *, xfail: dict[str, str] | None = None, **options: Any
) -> ToolSuite:
    """Return the tests of the tools of an MCP server: a command line or a URL.

    Args:
        server: The command line or the URL.
        xfail: Clauses that are known to be broken, with the reason.
        options: ``call``, ``call_all``, ``skip``, ``env``, ``headers``, ``arguments``,
            ``max_calls``, ``rate`` and ``call_seconds``. Nothing is called without their
            permission.
    """
    return ToolSuite(module=server, options=options, xfail=xfail or {})


def python_conformance_tests(
    target: str, *, xfail: dict[str, str] | None = None, **options: Any
) -> ToolSuite:
    """Return the tests of Python functions or tools.

    Args:
        target: The object, as ``package:object`` or ``file.py:object``.
        xfail: Clauses that are known to be broken, with the reason.
        options: See `mcp_conformance_tests`. Functions are called only if ``call_all`` or ``call``
            permits it.
    """
    return ToolSuite(module=target, options={**options, "kind": "python"}, xfail=xfail or {})


def _resolve_path(module: str | Path, file: str | None) -> str:
    """Return a module. A relative path is resolved next to the file that names it, if it exists."""
    path = Path(module).expanduser()
    if file is None or path.is_absolute() or not is_path(module):
        return str(module)
    beside = Path(file).resolve().parent / path
    return str(beside) if beside.exists() or not path.exists() else str(module)
