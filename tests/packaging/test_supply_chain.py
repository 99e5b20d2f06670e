"""What the project depends on and what it releases: versions for CI, and archives that anyone can build again."""

from __future__ import annotations

import os
import re
import subprocess
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
LOCKS = {
    "dev": ROOT / ".ci" / "lock.txt",
    "bench": ROOT / ".ci" / "lock-bench.txt",
}  # by the group that `make lock` resolves
LONG_AGO = 1_000_000_000


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def group_requirements(groups: dict[str, list[Any]], name: str) -> Iterator[str]:
    for item in groups[name]:
        if isinstance(item, str):
            yield item
        else:
            yield from group_requirements(groups, item["include-group"])


def required(group: str) -> list[Requirement]:
    data = project()
    texts = [*data["project"]["dependencies"]]
    for extra in data["project"]["optional-dependencies"].values():
        texts += extra
    texts += group_requirements(data["dependency-groups"], group)
    return [needed for needed in map(Requirement, texts) if needed.name != data["project"]["name"]]


def locked(group: str) -> dict[str, list[str]]:
    """The requirements that CI installs, and the hashes of the files it accepts for each."""
    lines = LOCKS[group].read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return {
        line.partition(" --hash")[0]: re.findall(r"--hash=sha256:([0-9a-f]{64})(?!\S)", line)
        for line in lines
    }


def locked_on(group: str, python: str) -> dict[str, str]:
    """The version of each package that CI installs on a Python."""
    environment = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": "linux",
    }
    versions: dict[str, str] = {}
    for line in locked(group):
        pinned = Requirement(line)
        if pinned.marker is None or pinned.marker.evaluate(environment):
            (version,) = pinned.specifier
            assert version.operator == "==", line
            assert canonicalize_name(pinned.name) not in versions, (
                f"two versions of {pinned.name} on {python}"
            )
            versions[canonicalize_name(pinned.name)] = version.version
    return versions


@pytest.mark.parametrize("group", LOCKS)
@pytest.mark.parametrize("python", PYTHONS)
def test_lock_covers_every_requirement(python: str, group: str) -> None:
    versions = locked_on(group, python)
    wrong = [
        f"{needed} (locked: {versions.get(canonicalize_name(needed.name))})"
        for needed in required(group)
        if not needed.specifier.contains(
            versions.get(canonicalize_name(needed.name), "0"), prereleases=True
        )
    ]
    assert wrong == [], "run `make lock`"


@pytest.mark.parametrize("group", LOCKS)
def test_lock_has_hashes_and_no_places(group: str) -> None:
    assert [requirement for requirement, hashes in locked(group).items() if not hashes] == [], (
        "run `make lock`"
    )
    text = LOCKS[group].read_text(encoding="utf-8")
    assert "://" not in text
    assert "file:" not in text


def test_ci_installs_known_hashes_only() -> None:
    """What `make setup` would do, without doing it."""

    def commands(**surroundings: str) -> str:
        environment = {
            name: value for name, value in os.environ.items() if name not in ("CI", "MAKEFLAGS")
        }
        command = ["make", "--dry-run", "--always-make", "setup"]
        return subprocess.run(
            command,
            cwd=ROOT,
            env=environment | surroundings,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    in_ci = [
        line
        for line in commands(CI="true").replace("\\\n", " ").splitlines()
        if "pip install" in line
    ]
    assert len(in_ci) == 1
    first, second = in_ci[0].split("&&")
    assert "--require-hashes --requirement .ci/lock.txt" in first
    assert "--no-deps --no-build-isolation --editable ." in second
    assert ".ci/lock" not in commands()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_repeated_release_is_byte_identical(archives: tuple[Path, Path], tmp_path: Path) -> None:
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
