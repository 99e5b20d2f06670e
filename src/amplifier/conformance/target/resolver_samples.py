"""Sample modules for a resolver to find, and the calls that look for them."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from amplifier.conformance.target.locate import Target
from amplifier.conformance.target.source import texts_in
from amplifier.contracts import CONTRACTS
from amplifier.loading.loader import ask_resolver, means_not_found, resolve_source
from amplifier.plan import is_module_id

SAMPLES = ("tool-sample", "hooks-other")
MOUNT_POINTS = frozenset(contract.mount_point for contract in CONTRACTS.values())
UNKNOWN = ("tool-unheard-of", "provider-zzz")
INDEX = "index.json"
EXECUTED = "was_executed"
"""File that a sample module creates next to its code when it is run."""

_CODE = f"""from pathlib import Path

Path(__file__).with_name({EXECUTED!r}).touch()
__amplifier_module_type__ = "tool"


async def mount(coordinator, config):
    pass
"""
_FOLDER = re.compile(r"(?!.*\.\.)(?:~/|\./)?\.?[A-Za-z][A-Za-z0-9_./-]{0,40}")
_MAX_FOLDERS = 10

# A resolver is policy, so the kit cannot determine where it looks. Sample modules are therefore put
# everywhere that its defaults, its settings and the words of its source may point to, in every
# layout that the loader understands.


def install_samples(directory: Path, target: Target) -> None:
    """Create the sample modules wherever the resolver may look."""
    bases = [
        directory / "modules",
        directory,
        Path.home() / ".amplifier" / "modules",
        directory / ".amplifier" / "modules",
    ]
    words = [text for text in texts_in(target) if _FOLDER.fullmatch(text) and not _is_id(text)]
    folders = [text for text in words if not Path(text).suffix and "amplifier_module" not in text]
    for text in folders[:_MAX_FOLDERS]:
        bases += (
            [Path(text).expanduser()]
            if text.startswith("~")
            else [directory / text, Path.home() / text]
        )
    for base in dict.fromkeys(bases):
        for module_id in SAMPLES:
            package = f"amplifier_module_{module_id.replace('-', '_')}"
            for parent in (base / module_id, base / f"amplifier-module-{module_id}", base):
                if not (parent / package).exists():
                    (parent / package).mkdir(parents=True)
                    (parent / package / "__init__.py").write_text(_CODE, encoding="utf-8")
    places = {module_id: str(directory / "modules" / module_id) for module_id in SAMPLES}
    (directory / INDEX).write_text(json.dumps(places), encoding="utf-8")


def settings_for(keys: list[str]) -> list[dict[str, Any]]:
    """Return settings that point to the samples, guessed from the names of the keys."""
    place = "{directory}/modules"
    one: dict[str, Any] = {}
    for key in keys:
        words = set(re.split(r"[^a-z]+", key.lower()))
        if words & {
            "overrides",
            "modules",
            "sources",
            "map",
            "mapping",
            "table",
            "registry",
            "known",
            "locations",
        }:
            one[key] = {module_id: f"{place}/{module_id}" for module_id in SAMPLES}
        elif words & {"index", "manifest", "catalog", "catalogue", "lockfile"}:
            one[key] = "{directory}/" + INDEX
        elif words & {"paths", "dirs", "directories", "folders", "roots", "places"}:
            one[key] = [place]
        elif words & {
            "path",
            "dir",
            "directory",
            "folder",
            "root",
            "workspace",
            "base",
            "home",
            "store",
            "cache",
        }:
            one[key] = place
    listed = {key: [value] if value == place else value for key, value in one.items()}
    return [settings for settings in (one, listed) if settings]


# ── asking ──


@attrs.frozen
class Question:
    """One call of a resolver.

    Attributes:
        module_id: The id of the module to find.
        hint: The source in the plan as a key of `hints`, or None for no source.
    """

    module_id: str
    hint: str | None = None

    @property
    def given(self) -> dict[str, Any]:
        """The question as the input of a fault."""
        return {"module_id": self.module_id, "hint": self.hint}

    def __str__(self) -> str:
        return (
            f"{self.module_id!r}"
            if self.hint is None
            else f"{self.module_id!r} with {self.hint} as its hint"
        )


def hints(directory: Path, module_id: str) -> dict[str, Any]:
    """Return hints by name. A resolver may not understand all of them."""
    there = directory / "modules" / module_id
    return {
        "a path": str(there),
        "a file URI": there.as_uri(),
        "another place": str(directory / "modules" / f"amplifier-module-{module_id}"),
        "a missing path": str(directory / "no-such-place"),
        "a missing URI": (directory / "no-such-place").as_uri(),
        "an empty text": "",
    }


def questions_about(target: Target) -> list[Question]:
    """Return questions about samples, ids in the source and unknown ids, some with hints."""
    ids = [*SAMPLES, *ids_in(texts_in(target)), *UNKNOWN]
    hinted = [
        Question(SAMPLES[0], hint)
        for hint in ("a path", "a file URI", "a missing path", "a missing URI")
    ]
    return [*(Question(module_id) for module_id in ids), *hinted]


def ids_in(texts: list[str]) -> list[str]:
    """Select the texts that may be ids of modules known to the resolver."""
    return [text for text in texts if _is_id(text) and text not in MOUNT_POINTS][:4]


def _is_id(text: str) -> bool:
    return is_module_id(text) and "-" in text and not text.startswith("amplifier-")


def resolver_of(mounted: Any) -> Any:
    """Return the resolver that a module mounted or its mount returned, or None."""
    if mounted.instance is not None:
        return mounted.instance
    return mounted.returned if is_resolver(mounted.returned) else None


def is_resolver(value: Any) -> bool:
    """Return whether a value has one of the methods of a resolver."""
    return not isinstance(value, type) and bool(methods_of(value))


def methods_of(resolver: Any) -> list[Callable[..., Any]]:
    """Return the methods of a resolver, the one that the loader prefers first."""
    return [
        method
        for name in ("async_resolve", "resolve")
        if callable(method := getattr(resolver, name, None))
    ]


async def ask(method: Callable[..., Any], question: Question, directory: Path) -> Any:
    """Return the source that a resolver finds. The resolver's errors propagate."""
    if question.hint is None:
        answer = method(question.module_id)
        return await answer if inspect.isawaitable(answer) else answer
    hint = hints(directory, question.module_id)[question.hint]
    return await ask_resolver(method, question.module_id, hint, hint)


async def locate(method: Callable[..., Any], question: Question, directory: Path) -> Any:
    """Return the directory that a module's source resolves to. Errors propagate."""
    return await resolve_source(await ask(method, question, directory))


is_not_found = means_not_found
"""Return whether an error is a ModuleNotFoundError to the loader."""


def holds_a_package(folder: Path) -> bool:
    """Return whether a directory is a package, or contains a package or module."""
    if (folder / "__init__.py").is_file():
        return True
    return (
        any(folder.glob("*.py"))
        or any(folder.glob("*/__init__.py"))
        or any(folder.glob("src/*/__init__.py"))
    )
