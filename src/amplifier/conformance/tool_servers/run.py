"""The whole examination of tools, from a command line to a report."""

from __future__ import annotations

import json
import shlex
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio.to_thread
import attrs

from amplifier._internal.json import JSON, redact_text
from amplifier._internal.spelling import suggestion
from amplifier.conformance.engine.job import (
    InvalidSelection,
    expanded,
    read_replay_token,
    replay_token,
    shortened,
)
from amplifier.conformance.report import CUT_SHORT, ClauseOutcome, Finding, Report, Verdict
from amplifier.conformance.target.mounted import CANARY
from amplifier.errors import MissingExtraError

from .clauses import clauses_of
from .examination import Examination, ExaminedTool, ServerFault
from .permission import Permissions, decide
from .subject import HIDDEN, Subject, as_names

if TYPE_CHECKING:
    from .connection import Link

__all__ = ["Choice", "check_tools", "examination_of"]

Progress = Callable[[str, int, int], None]
_TYPES = {"command": "mcp server", "url": "mcp server", "python": "python tools"}
_CANARY_TEXT = "this file belongs to the user\n"


@attrs.frozen(kw_only=True)
class Choice:
    """The tools that may be called, and the limits of their calls.

    Attributes:
        call: Names of tools that may be called.
        call_all: True if all tools may be called.
        skip: Names of tools that must not be called.
        max_calls: The maximum number of calls of each tool.
        rate: The maximum number of calls of a URL in a second.
        call_seconds: The deadline of a call, in seconds.
        replay: The token of a finding, to reproduce only this one.
        arguments_file: The file with fixed arguments, for the command that reproduces a finding.
    """

    call: tuple[str, ...] = attrs.field(default=(), converter=as_names)
    call_all: bool = False
    skip: tuple[str, ...] = attrs.field(default=(), converter=as_names)
    max_calls: int = 200
    rate: float = 5.0
    call_seconds: float = 30.0
    replay: str | None = None
    arguments_file: str | None = None

    def decide(self, subject: Subject, tools: Sequence[dict[str, JSON]]) -> Permissions:
        """Sort the tools of a server by the decision about them."""
        named = [tool for tool in tools if isinstance(tool.get("name"), str) and tool["name"]]
        return decide(
            named,
            call=self.call,
            call_all=self.call_all,
            skip=self.skip,
            trusts_hints=subject.kind != "url",
        )

    def words(self) -> list[str]:
        """Return the options that permit the same calls again."""
        permitted = (
            ["--call-all"]
            if self.call_all
            else [word for name in self.call for word in ("--call", name)]
        )
        return permitted + [word for name in self.skip for word in ("--skip", name)]


def _require_packages(subject: Subject) -> None:
    noun = "examining Python tools" if subject.kind == "python" else "examining an MCP server"
    for package, extra in (("mcp", "mcp"), ("jsonschema_rs", "testing")):
        if find_spec(package) is None:
            raise MissingExtraError(noun, extra=extra, missing=package)


@asynccontextmanager
async def _opened(subject: Subject, choice: Choice) -> AsyncIterator[Link]:
    """Open a connection in a fresh folder with a home and a user's file in it."""
    _require_packages(subject)
    # The SDK takes a second to import. The progress is shown in the meantime.
    opening = await anyio.to_thread.run_sync(_import_connection)
    with tempfile.TemporaryDirectory(
        prefix="amplifier-validate-", ignore_cleanup_errors=True
    ) as root:
        folder = _furnished(root)
        rate = choice.rate if subject.kind == "url" else None
        async with opening.open_link(subject, folder, rate=rate) as link:
            yield link


def _furnished(root: str) -> Path:
    folder = Path(root).resolve()
    for name in ("work", "home"):
        (folder / name).mkdir()
    (folder / "work" / CANARY).write_text(_CANARY_TEXT, encoding="utf-8")
    return folder


def _import_connection() -> Any:
    # This import belongs to an extra, and takes a second.
    from . import connection  # noqa: PLC0415

    return connection


async def check_tools(
    subject: Subject,
    choice: Choice | None = None,
    *,
    announce: Callable[[Permissions], bool] | None = None,
    progress: Progress | None = None,
) -> Report:
    """Examine the tools of a server or of a Python object.

    Args:
        subject: The server or object.
        choice: The tools that may be called. By default those of a program that declare
            readOnlyHint.
        announce: Gets the permissions before anything is called, and returns whether to continue.
            If not, nothing is called.
        progress: Gets the name of a check, its number, and the number of checks.

    Raises:
        AmplifierError: The subject can't be used, or the choice doesn't fit it.
    """
    from . import checks  # noqa: PLC0415  # needs an extra

    choice = choice or Choice()
    progress = progress or (lambda step, done, total: None)
    progress("starting the server", 0, len(checks.CHECKS) + 1)
    started = time.monotonic()
    replayed = None if choice.replay is None else _read_replay(choice.replay, list(checks.CHECKS))
    async with _opened(subject, choice) as link:
        permissions = choice.decide(subject, link.tools)
        subject.reject_misfits(link.tools)
        if announce is not None and not announce(permissions):
            permissions = permissions.without_calls()
        by_name = {str(tool.get("name")): tool for tool in reversed(link.tools)}
        tools = [
            ExaminedTool.read(by_name[name], subject.fixed(name, by_name[name]))
            for name in permissions.called
            if isinstance(by_name[name].get("inputSchema"), dict)
        ]
        exam = Examination(
            link,
            tools,
            max_calls=choice.max_calls,
            call_seconds=choice.call_seconds,
            progress=progress,
        )
        if replayed is not None:
            _narrow(exam, replayed[1])
        await checks.run_checks(exam, None if replayed is None else replayed[0])
    if replayed is None or replayed[0] == "server.ends":
        checks.judge_ending(exam, link)
    report = _report(subject, choice, exam, permissions, checks.how)
    report.seconds = time.monotonic() - started
    return report


def examination_of(target: str, **options: Any) -> tuple[Subject, Choice]:
    """Return the subject and the choice for the options of a suite.

    Raises:
        InvalidSelection: An option is unknown.
        SubjectProblem: The target can't be used as it is.
    """
    known = [attribute.name for cls in (Choice, Subject) for attribute in attrs.fields(cls)]
    if unknown := sorted(set(options) - set(known)):
        raise InvalidSelection(f"there is no option {unknown[0]!r}{suggestion(unknown[0], known)}")
    own = {attribute.name for attribute in attrs.fields(Choice)}
    choice = Choice(**{name: value for name, value in options.items() if name in own})
    rest = {name: value for name, value in options.items() if name not in own}
    if "kind" not in rest:
        rest["kind"] = "url" if target.startswith(("http://", "https://")) else "command"
    return Subject(target=target, **rest), choice


# ── replaying ──


def _read_replay(token: str, names: list[str]) -> tuple[str, Any]:
    try:
        step, case = read_replay_token(expanded(token))
    except ValueError:
        step, case = "", None
    name = step.partition(":")[0]
    if name not in [*names, "server.ends"] or not isinstance(case, dict):
        raise InvalidSelection(
            f"replay {token!r} is not what a report printed behind --replay; copy it whole"
        )
    return name, case


def _narrow(exam: Examination, case: dict[str, JSON]) -> None:
    """Start with the input of a finding, and keep the readers that show the state."""
    for tool in exam.tools:
        if tool.name != case.get("tool"):
            continue
        arguments = case.get("input")
        if isinstance(arguments, dict):
            first = tool.fix(arguments)
            tool.inputs = [first, *(other for other in tool.inputs if other != first)]


# ── the report ──


def _report(
    subject: Subject,
    choice: Choice,
    exam: Examination,
    permissions: Permissions,
    how: Callable[[str], str],
) -> Report:
    clauses = clauses_of(subject.kind)
    outcomes = []
    for clause in clauses:
        findings = [
            _finding(subject, choice, fault, clause)
            for fault in exam.faults
            if fault.clause == clause.id
        ]
        checks = {fault.check for fault in exam.faults if fault.clause == clause.id}
        status = "broken" if findings else "kept" if clause.id in exam.examined else "not_checked"
        outcomes.append(
            ClauseOutcome(
                id=clause.id,
                level=clause.level,
                text=clause.text,
                law=None,
                status=status,  # type: ignore[arg-type]
                how=[how(name) for name in sorted(checks) if name != "server.ends"],
                backends=["asyncio"] if status != "not_checked" else [],
                findings=findings,
            )
        )
    report = Report(
        module=subject.shown
        if subject.kind == "python"
        else subject.without_secrets(exam.link.name),
        type=_TYPES[subject.kind],
        source=subject.shown,
        verdict="conforms",
        seed=0,
        backends=["asyncio"],
        clauses=outcomes,
        selected=[] if choice.replay is None else [choice.replay.rpartition(":")[0]],
    )
    report.notes = _notes(subject, choice, exam, permissions, report)
    report.verdict = _verdict(report, permissions, exam)
    return report


def _verdict(report: Report, permissions: Permissions, exam: Examination) -> Verdict:
    if report.violations:
        return "violations"
    if exam.link.gave_up:
        return "unchecked"
    return "unchecked" if permissions.undecided or not permissions.called else "conforms"


def _finding(subject: Subject, choice: Choice, fault: ServerFault, clause: Any) -> Finding:
    shown = subject.shown_input(fault.tool or "", fault.arguments)
    case: dict[str, JSON] = {}
    if fault.tool is not None:
        fixed = subject.fixed(fault.tool)
        case = {"tool": fault.tool}
        if fault.arguments is not None:
            case["input"] = {
                key: value for key, value in fault.arguments.items() if key not in fixed
            }
    token = shortened(replay_token(f"{fault.check}:asyncio", case))
    words = [*subject.command(choice.arguments_file), *choice.words(), "--replay", token]
    return Finding(
        clause=clause.id,
        level=clause.level,
        what=(f"{fault.tool}: " if fault.tool else "") + subject.without_secrets(fault.what),
        check=fault.check,
        backend="asyncio",
        input=None if fault.arguments is None else {"tool": fault.tool, "input": _inert(shown)},
        location=fault.location,
        hint=clause.hint,
        reproduce=shlex.join(words),
    )


def _inert(value: Any) -> Any:
    """Return an input without the shapes of secrets."""
    text = json.dumps(value, ensure_ascii=True)
    shown = redact_text(text)
    if shown == text:
        return value
    try:
        return json.loads(shown)
    except ValueError:
        return HIDDEN


def _notes(
    subject: Subject, choice: Choice, exam: Examination, permissions: Permissions, report: Report
) -> list[str]:
    notes = []
    if permissions.undecided:
        command = [*subject.command(choice.arguments_file), *choice.words()]
        names = ", ".join(permissions.undecided)
        notes.append(
            f"neither called nor skipped: {names}; decide with {permissions.to_type(command)}"
        )
    elif not permissions.called:
        notes.append("no tool was called, so only the list was examined")
    if exam.link.gave_up:
        notes.append(exam.link.gave_up)
    notes += _cut_short(exam, permissions)
    if choice.replay is None:
        reasons: dict[str, list[str]] = {}
        for clause in report.unexamined:
            lost = (
                "the connection was lost before"
                if exam.link.is_lost
                else "no permitted call shows it"
            )
            reasons.setdefault(exam.reasons.get(clause, lost), []).append(clause)
        notes += [f"{reason}; not examined: {', '.join(ids)}" for reason, ids in reasons.items()]
    return notes


def _cut_short(exam: Examination, permissions: Permissions) -> list[str]:
    """Return notes about the checks that ended early."""
    by_tools: dict[tuple[str, ...], list[str]] = {}
    for check, tools in exam.cut_short.items():
        by_tools.setdefault(tuple(tools), []).append(check.partition(".")[2].replace("_", " "))
    return [
        f"{CUT_SHORT}, because of slow calls or --max-calls: "
        f"{'all tools' if set(tools) == set(permissions.called) else ', '.join(tools)} "
        f"({', '.join(checks)})"
        for tools, checks in by_tools.items()
    ]


def read_arguments(text: str) -> Mapping[str, Mapping[str, JSON]]:
    """Read the file of fixed arguments: an object by the names of tools, ``*`` for every tool.

    Raises:
        InvalidSelection: It isn't such an object.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise InvalidSelection(f"--arguments: the file is not JSON: {error}") from error
    if not isinstance(value, dict) or not all(
        isinstance(member, dict) for member in value.values()
    ):
        raise InvalidSelection(
            "--arguments: expected an object by the names of tools, such as "
            '{"search": {"index": "books"}, "*": {}}'
        )
    return value
