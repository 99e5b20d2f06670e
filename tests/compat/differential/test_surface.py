"""Everything public that the published package offers is offered by the alias, or is on the list below with its reason.

Compared are modules, names, constants, enums, bases of exceptions, fields with their defaults, members of classes, and
parameters. What takes more than the published one is fine; what takes less, or has another default, is a difference.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).with_name("_surface_server.py")

DECIDED = {
    "*Error: retryable=None instead of *": "None means the default of the class",
    "*.ModuleSourceResolver.resolve: *": "a protocol; resolvers may call the hint by either name",
    "*.ModuleLoader.*_on_session_ready*: missing": "a step of the published opening",
    "amplifier_core.session.*: missing": "what the published file imports",
    "amplifier_core.loader.ModuleCoordinator: missing": "the same",
    "*.MountPlanValidator.*_FIELDS: missing": "steps of the published validator",
    "*.MountPlanValidator.*_SECTIONS: missing": "the same",
    "amplifier_core.validation.*: missing": "files of the published package; the names are in the package itself",
}
"""Differences on purpose, and why."""

ABSENT = ("*._*", "*.cli", "*.loader_grpc", "*.validation.*")
"""Modules that the alias does not have: private ones, programs of the published kernel, and files whose names are in their package."""


def _run(python: str, **environment: str) -> dict[str, Any]:
    answer = subprocess.run(
        [python, str(SERVER)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **environment},
    )
    seen: dict[str, Any] = json.loads(answer.stdout)
    return seen


@pytest.fixture(scope="module")
def surfaces(reference_python: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The published surface and ours."""
    return _run(reference_python), _run(sys.executable, AMPLIFIER_COMPAT="1")


def lacks_parameters(published: Any, ours: Any) -> str | None:
    """Why a call that fits the published parameters may not fit ours."""
    if published is None or ours is None:
        return None
    takes = {name: (kind, has_default) for name, kind, has_default in ours}
    takes_any = {kind for _, kind, _ in ours}
    for name, kind, has_default in published:
        if kind.startswith("VAR_"):
            if kind not in takes_any:
                return f"no {kind} parameters"
        elif name in takes:
            if has_default and not takes[name][1] and not takes[name][0].startswith("VAR_"):
                return f"{name} has no default"
        elif "VAR_KEYWORD" not in takes_any:
            return f"no parameter {name}"
    known = {name for name, _, _ in published}
    more = [
        name
        for name, kind, has_default in ours
        if name not in known and not has_default and not kind.startswith("VAR_")
    ]
    return f"needs {more}" if more else None


def differences(path: str, published: Any, ours: Any) -> list[str]:
    """What ours lacks or has otherwise, each with its address."""
    if published["kind"] != ours["kind"]:
        return [f"{path}: {ours['kind']} instead of {published['kind']}"]
    found = []
    for what in ("value", "values", "fields", "extra"):
        if published.get(what) != ours.get(what):
            found.append(f"{path}: {what} {ours.get(what)!r} instead of {published.get(what)!r}")
    missing_bases = [
        base for base in published.get("bases", ()) if base not in ours.get("bases", ())
    ]
    if missing_bases:
        found.append(f"{path}: not a {missing_bases}")
    if "fields" not in published and (
        problem := lacks_parameters(published.get("parameters"), ours.get("parameters"))
    ):
        found.append(f"{path}: {problem}")
    for name, default in ({} if "fields" in published else published.get("defaults", {})).items():
        if ours.get("defaults", {}).get(name, default) != default:
            found.append(f"{path}: {name}={ours['defaults'][name]} instead of {default}")
    if published.get("async") and ours.get("async") is False:
        found.append(f"{path}: not async")
    for name, member in published.get("members", {}).items():
        address = f"{path}.{name}"
        if name in ours["members"]:
            if "attribute" not in (member["kind"], ours["members"][name]["kind"]):
                found += differences(address, member, ours["members"][name])
        elif not name.startswith("_"):
            found.append(f"{address}: missing")
    return found


def all_differences(published: dict[str, Any], ours: dict[str, Any]) -> list[str]:
    """Everything that is missing or otherwise, in all modules that both kernels can import here."""
    found = []
    for module, seen in published.items():
        others = ours.get(module, {}).get("names")
        for name, value in (
            seen.get("names", {}).items() if others is not None and "._" not in module else ()
        ):
            if name.startswith("_"):
                continue
            if name in others:
                found += differences(f"{module}.{name}", value, others[name])
            elif name != "TYPE_CHECKING":
                found.append(f"{module}.{name}: missing")
    return found


def test_every_public_module_is_there(surfaces: tuple[dict[str, Any], dict[str, Any]]):
    published, ours = surfaces
    missing = set(published) - set(ours)
    assert {
        module for module in missing if not any(fnmatchcase(module, pattern) for pattern in ABSENT)
    } == set()


def test_public_surface_is_same(
    surfaces: tuple[dict[str, Any], dict[str, Any]],
):
    found = all_differences(*surfaces)
    assert [
        entry for entry in found if not any(fnmatchcase(entry, pattern) for pattern in DECIDED)
    ] == []


def test_every_decided_difference_exists(surfaces: tuple[dict[str, Any], dict[str, Any]]):
    found = all_differences(*surfaces)
    assert [
        pattern for pattern in DECIDED if not any(fnmatchcase(entry, pattern) for entry in found)
    ] == []


def test_comparison_notices_missing_parts():
    takes = [["a", "POSITIONAL_OR_KEYWORD", False], ["b", "POSITIONAL_OR_KEYWORD", True]]
    assert lacks_parameters(takes, takes) is None
    assert lacks_parameters(takes, takes[:1]) == "no parameter b"
    assert (
        lacks_parameters(takes, [takes[0], ["b", "POSITIONAL_OR_KEYWORD", False]])
        == "b has no default"
    )
    assert lacks_parameters(takes[:1], [*takes, ["c", "KEYWORD_ONLY", False]]) == "needs ['c']"
    constant = {"kind": "constant", "value": 1}
    assert differences("x", constant, {"kind": "constant", "value": 2}) == [
        "x: value 2 instead of 1"
    ]
    assert differences("x", constant, {"kind": "function"}) == ["x: function instead of constant"]
