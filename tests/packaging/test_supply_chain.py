"""What the project depends on and what it releases: versions for CI, and archives that anyone can build again."""

from __future__ import annotations

import os
import tarfile
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests._support.tree import ROOT

from .environments import built

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
LOCK = ROOT / ".ci" / "lock.txt"
TOGETHER = ("dev", "bench")  # the groups that `make lock` resolves; the others have environments of their own
LONG_AGO = 1_000_000_000


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def group_requirements(groups: dict[str, list[Any]], name: str) -> Iterator[str]:
    for item in groups[name]:
        if isinstance(item, str):
            yield item
        else:
            yield from group_requirements(groups, item["include-group"])


def required() -> list[Requirement]:
    data = project()
    texts = [*data["project"]["dependencies"]]
    for extra in data["project"]["optional-dependencies"].values():
        texts += extra
    for group in TOGETHER:
        texts += group_requirements(data["dependency-groups"], group)
    return [needed for needed in map(Requirement, texts) if needed.name != data["project"]["name"]]


def locked_on(python: str) -> dict[str, str]:
    """The version of each package that CI installs on a Python."""
    environment = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}
    versions: dict[str, str] = {}
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        pinned = Requirement(line)
        if pinned.marker is None or pinned.marker.evaluate(environment):
            (version,) = pinned.specifier
            assert version.operator == "==", line
            assert canonicalize_name(pinned.name) not in versions, f"two versions of {pinned.name} on {python}"
            versions[canonicalize_name(pinned.name)] = version.version
    return versions


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_has_a_version_for_every_requirement(python: str) -> None:
    versions = locked_on(python)
    wrong = [
        f"{needed} (locked: {versions.get(canonicalize_name(needed.name))})"
        for needed in required()
        if not needed.specifier.contains(versions.get(canonicalize_name(needed.name), "0"), prereleases=True)
    ]
    assert wrong == [], "run `make lock`"


def test_the_lock_names_versions_and_no_places() -> None:
    assert "://" not in LOCK.read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_release_built_twice_is_the_same_in_every_byte(archives: tuple[Path, Path], tmp_path: Path) -> None:
    wheel, sdist = archives
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    (source,) = (tmp_path / "elsewhere").iterdir()
    (source / "PKG-INFO").unlink()  # which the sdist adds to the tree
    for path in source.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    again = built(source, tmp_path / "dist")
    assert [path.name for path in again] == [wheel.name, sdist.name]
    assert [path.read_bytes() for path in again] == [wheel.read_bytes(), sdist.read_bytes()]
