"""Which package to install when a module cannot import something: read from the error and from what the module declares.

No name of a distribution is guessed from an import name, because anyone may own that name on a package index.
"""

from __future__ import annotations

import re
import shlex
import sys
import tomllib
from importlib.metadata import Distribution, PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import attrs

from .locate import Target

_MISSING = re.compile(r"No module named '([^']+)'")
_REQUIREMENT = re.compile(r"\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<rest>[^;]*)(?:;(?P<marker>.*))?", re.DOTALL)
_EXTRA = re.compile(r"extra\s*==\s*['\"]([^'\"]+)['\"]")


@attrs.frozen
class _Requirement:
    """A distribution that the module declares.

    Attributes:
        text: Name and version, as ``pip install`` takes it.
        extra: The extra it belongs to; None if it is always needed.
    """

    name: str
    text: str
    extra: str | None = None


@attrs.frozen
class _Declared:
    """What a project or an installed distribution declares to need.

    Attributes:
        where: Names the place of the declaration.
        name: The name of the distribution, for ``pip install 'name[extra]'``.
    """

    where: str
    name: str
    requirements: tuple[_Requirement, ...]


def missing_package_hint(target: Target, text: str) -> str | None:
    """What to install, if a text reports that something could not be imported for want of it; None if it does not.

    Args:
        target: The module that needs it.
        text: An error's text.
    """
    found = _MISSING.search(text)
    if found is None:
        return None
    name, top = found[1], found[1].partition(".")[0]
    if top == "amplifier_core":
        return None  # this name is an alias, and the error has its own advice
    if top == target.import_name.partition(".")[0]:
        return (
            f"The module's own package has no {name!r}; check the spelling, and that the file is part of the package."
        )
    if top in sys.stdlib_module_names:
        return f"{top!r} belongs to the standard library of other versions of Python; this is {sys.version_info[0]}.{sys.version_info[1]}."
    declared = _declared_by(target)
    if top != name and _is_importable(top):
        return f"The installed package {top!r} has no {name!r}; install the version, or the distribution, that has it."
    if declared is None:
        return (
            f"Install the distribution that provides {top!r}, which may be called differently. There is no pyproject.toml "
            "that declares it."
        )
    return _from_declaration(top, declared)


def _from_declaration(top: str, declared: _Declared) -> str:
    absent = [each for each in declared.requirements if not _is_installed(each.name)]
    same = [each for each in absent if _normal(each.name) == _normal(top)]
    near = [each for each in absent if _normal(top) in _normal(each.name).split("-")]
    always = [each for each in absent if each.extra is None]
    wanted = next(iter([*same, *near, *(always if len(always) == 1 else [])]), None)
    if wanted is None:
        others = f" Declared and not installed: {', '.join(each.name for each in absent)}." if absent else ""
        return (
            f"Install the distribution that provides {top!r}, which may be called differently, and add it to the dependencies: "
            f"{declared.where} does not declare it.{others}"
        )
    what = wanted.text if wanted.extra is None else f"{declared.name}[{wanted.extra}]"
    extra = "" if wanted.extra is None else f" in its extra {wanted.extra!r}"
    return (
        f"Install {wanted.name!r} for {top!r}, which {declared.where} declares{extra}: pip install {shlex.quote(what)}"
    )


def _declared_by(target: Target) -> _Declared | None:
    if target.origin == "installed":
        return _of_distribution(target.import_name.partition(".")[0])
    nearest = next(
        (folder / "pyproject.toml" for folder in target.file.parents if (folder / "pyproject.toml").is_file()), None
    )
    project = target.project or nearest
    return None if project is None else _of_project(project)


def _of_project(file: Path) -> _Declared | None:
    try:
        project = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {})
    except (OSError, ValueError):
        return None
    if not isinstance(project, dict):
        return None
    optional = project.get("optional-dependencies")
    groups = {None: project.get("dependencies"), **(optional if isinstance(optional, dict) else {})}
    found = [_read(text, extra) for extra, texts in groups.items() if isinstance(texts, list) for text in texts]
    kept = tuple(each for each in found if each is not None)
    return _Declared("pyproject.toml", str(project.get("name", file.parent.name)), kept)


def _of_distribution(package: str) -> _Declared | None:
    for name in packages_distributions().get(package, ()):
        found: Distribution = distribution(name)
        kept = tuple(each for each in map(_read, found.requires or ()) if each is not None)
        return _Declared(f"the distribution {name!r}", name, kept)
    return None


def _read(text: Any, extra: str | None = None) -> _Requirement | None:
    found = _REQUIREMENT.match(text) if isinstance(text, str) else None
    if found is None:
        return None
    marked = _EXTRA.search(found["marker"] or "")
    return _Requirement(found["name"], f"{found['name']}{found['rest'].rstrip()}", marked[1] if marked else extra)


def _is_installed(name: str) -> bool:
    try:
        distribution(name)
    except (PackageNotFoundError, ValueError):
        return False
    return True


def _is_importable(top: str) -> bool:
    try:
        return find_spec(top) is not None
    except (ImportError, ValueError):
        return False


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
