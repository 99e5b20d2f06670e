"""A report as GitHub Actions workflow commands: annotations on the lines of a pull request."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from amplifier._json import visible_text
from amplifier.conformance.report.model import Report
from amplifier.conformance.report.outcome import Cause
from amplifier.conformance.report.text import details, repository_path

_LONGEST_INPUT = 300


def github_annotations(report: Report) -> list[str]:
    """An ``::error`` for each violation, a ``::notice`` for each recommendation, and an ``::error`` for a module that was not examined."""
    lines = [_annotation(cause) for cause in report.causes]
    if report.verdict == "unchecked":
        text = "\n".join([report.summary, *report.limits])
        lines.append(_command("error", {"title": f"{report.module}: unchecked"}, text))
    return lines


def without_commands(lines: Sequence[str]) -> list[str]:
    """Lines between two commands that let the runner ignore commands, so that no text of the module is taken for one."""
    token = secrets.token_hex(16)
    return [f"::stop-commands::{token}", *lines, f"::{token}::"]


def _annotation(cause: Cause) -> str:
    found = cause.shown
    path = None if found.file is None else repository_path(found.file)
    properties = {} if path is None else {"file": path}
    if path is not None and found.line is not None:
        properties["line"] = str(found.line)
    rank = "" if cause.is_required else " (recommended)"
    properties["title"] = f"{', '.join(cause.clauses)}{rank}"
    facts = {
        label: text for label, text in details(cause, _LONGEST_INPUT).items() if path is None or label != "look at"
    }
    message = "\n".join([found.what, *(f"{label}: {text}" for label, text in facts.items())])
    return _command("error" if cause.is_required else "notice", properties, message)


def _command(name: str, properties: dict[str, str], message: str) -> str:
    given = ",".join(f"{key}={_escaped_property(value)}" for key, value in properties.items())
    return f"::{name}{' ' if given else ''}{given}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return visible_text(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escaped_property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
