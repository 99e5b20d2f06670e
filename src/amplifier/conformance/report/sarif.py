"""A report as SARIF 2.1.0, the format of code scanning services: the clauses are the rules."""

from __future__ import annotations

import hashlib
import json
import os
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import quote

from amplifier._json import visible_text
from amplifier.contracts import CONTRACTS, Clause, clauses_for

from .causes import Cause
from .model import Report
from .paths import repository_path
from .text import details

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {"required": "error", "recommended": "note"}
_LONGEST_INPUT = 2000


def write_sarif(report: Report) -> str:
    """The report as SARIF; files are named relative to the root of their repository."""
    # The type is unknown where the command failed before there was anything to examine.
    rules = clauses_for(report.type) if report.type in CONTRACTS else ()  # type: ignore[arg-type]
    run = {
        "tool": {"driver": {"name": "amplifier", "version": _version(), "rules": [_rule(clause) for clause in rules]}},
        "invocations": [_invocation(report)],
        "originalUriBaseIds": {"%SRCROOT%": {"description": {"text": "The root of the repository."}}},
        "results": _results(report, [clause.id for clause in rules]),
        "columnKind": "unicodeCodePoints",
        "properties": {"module": _text(report.module), "verdict": report.verdict, "counts": report.counts},
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _version() -> str:
    try:
        return version("amplifier")
    except PackageNotFoundError:
        return "unknown"


def _rule(clause: Clause) -> dict[str, Any]:
    return {
        "id": clause.id,
        "shortDescription": {"text": clause.text},
        "fullDescription": {"text": f"{clause.text} Source: {clause.source}."},
        "help": {"text": clause.hint},
        "defaultConfiguration": {"level": _LEVELS[clause.level]},
        "properties": {"tags": [clause.level, *([clause.law] if clause.law else [])]},
    }


def _invocation(report: Report) -> dict[str, Any]:
    notes = [{"level": "note", "message": {"text": _text(text)}} for text in report.limits]
    return {"executionSuccessful": report.verdict != "unchecked", "toolExecutionNotifications": notes}


def _results(report: Report, rules: list[str]) -> list[dict[str, Any]]:
    """One result for each cause and clause, because a result has one rule."""
    results = []
    seen: dict[str, int] = {}
    for cause in report.causes:
        for clause in cause.clauses:
            finding = next(found for found in cause.findings if found.clause == clause)
            path = None if finding.file is None else repository_path(finding.file)
            identity = f"{report.module}\n{clause}\n{path}\n{finding.check}"
            # Lines move and messages hold numbers, so neither is part of the identity.
            seen[identity] = seen.get(identity, 0) + 1
            result: dict[str, Any] = {
                "ruleId": clause,
                "ruleIndex": rules.index(clause),
                "level": _LEVELS[finding.level],
                "message": {"text": _message(cause)},
                "partialFingerprints": {"amplifierFinding/v1": _digest(f"{identity}\n{seen[identity]}")},
                "properties": {"checks": cause.checks, "backends": cause.backends},
            }
            if finding.file is not None:
                result["locations"] = [_location(finding.file, path, finding.line)]
            results.append(result)
    return results


def _message(cause: Cause) -> str:
    facts = [f"{label}: {text}" for label, text in details(cause, _LONGEST_INPUT).items() if label != "look at"]
    return _text("\n".join([cause.shown.what, *facts]))


def _location(file: str, path: str | None, line: int | None) -> dict[str, Any]:
    """A file of a repository is relative to its root; any other has an address of its own."""
    if path is None:
        artifact = {"uri": Path(file).as_uri()}
    else:
        artifact = {"uri": quote(os.fsencode(path)), "uriBaseId": "%SRCROOT%"}
    return {"physicalLocation": {"artifactLocation": artifact, "region": {"startLine": line or 1}}}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


def _text(text: str) -> str:
    return visible_text(text)
