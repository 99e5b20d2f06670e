"""Which modules are installed, what they lack, and which id an unknown one probably misspells.

Only files are read; no module is imported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from amplifier._spelling import did_you_mean
from amplifier.errors import MissingExtraError, ModuleLoadError
from amplifier.plan import is_module_id
from amplifier.plan._things import places_of

from ._found import BUILT_IN_SOURCE, FoundModule, is_pin, nearest_module
from ._importing import is_published_mount
from ._loaded import LoadedModule
from ._loader import ModuleLoader

__all__ = [
    "BUILT_IN_SOURCE",
    "ON_ISLAND",
    "REQUIRED_PACKAGES",
    "all_modules",
    "installed_ids",
    "installed_modules",
    "missing_modules",
    "missing_package",
    "nearest_module",
    "require_backend",
    "runs_on_island",
]

ON_ISLAND: Final = "needs asyncio; on trio it runs on an asyncio island, a thread with an event loop of its own"
"""What is shown of a module that is for asyncio only."""

REQUIRED_PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "hooks-otel": ("opentelemetry", "otel"),
    "provider-anthropic": ("httpx2", "anthropic"),
    "provider-openai": ("httpx2", "openai"),
    "provider-openai-compatible": ("httpx2", "openai"),
    "provider-local": ("xllamacpp", "local"),
    "tool-mcp": ("mcp", "mcp"),
    "tool-web": ("truststore", "web"),
}
"""Built-in modules that need a package of an extra: the package's import name, and the extra."""

_ORDER = ["orchestrator", "context", "provider", "tool", "hook", "resolver"]


def all_modules() -> list[FoundModule]:
    """Every module found, in order of type and id; of those with the same id the one in use comes first."""
    found = ModuleLoader().catalogue()
    return sorted(found, key=lambda entry: (_ORDER.index(entry.info.type), entry.info.id, not entry.is_used))


def installed_modules() -> list[FoundModule]:
    """Every module that a plan can name by its id alone, or whose id is contested."""
    return [entry for entry in all_modules() if entry.is_used or entry.is_contested]


def installed_ids() -> list[str]:
    """The ids of `installed_modules`; logs nothing, because shell completion must not write to the terminal."""
    logging.disable(logging.CRITICAL)
    try:
        return list(dict.fromkeys(entry.info.id for entry in installed_modules()))
    finally:
        logging.disable(logging.NOTSET)


def missing_package(module_id: str) -> tuple[str, str] | None:
    """The package that a built-in module lacks and the extra that installs it; None for any other module."""
    try:
        used = ModuleLoader().locate(module_id)
    except ModuleLoadError:  # others contest the id
        return None
    return _lacking(module_id) if used is not None and used.is_built_in else None


def _lacking(module_id: str) -> tuple[str, str] | None:
    package, extra = REQUIRED_PACKAGES.get(module_id, ("", ""))
    return (package, extra) if package and find_spec(package) is None else None


def require_backend(name: str) -> None:
    """Check that the backend is installed.

    Raises:
        MissingExtraError: It is trio, which belongs to an extra and is not there.
    """
    if name == "trio" and find_spec("trio") is None:
        raise MissingExtraError("--backend trio", extra="trio", missing="trio")


def runs_on_island(loaded: LoadedModule) -> bool:
    """Whether a module runs on an asyncio island in a session on trio: it declares so, or was written for the published kernel."""
    if loaded.backends is not None:
        return "asyncio" in loaded.backends and "trio" not in loaded.backends
    return is_published_mount(loaded.mount)


# ── the modules that a plan names ────────────────────────────────────────────────────────────────


def missing_modules(plan: Any) -> list[tuple[str, str]]:
    """The modules of a plan that are not installed or lack a package, each as a path in the plan and the problem.

    A module with a ``source`` is only checked if the source pins an installed distribution or the built-in module. A plan with
    other problems is checked as far as it has the form of a plan.
    """
    known = installed_ids()
    found: list[tuple[str, str]] = []
    for holder, key, section, path in places_of(plan) if isinstance(plan, Mapping) else ():
        spec = holder[key]
        if isinstance(spec, str):
            spec = {"module": spec, "source": holder.get(f"{key}_source") if section == "session" else None}
        if isinstance(spec, Mapping) and is_module_id(spec.get("module")):
            problem = _problem(spec["module"], spec.get("source"), known)
            found += [] if problem is None else [(path, problem)]
    return found


def _problem(module_id: str, source: Any, known: list[str]) -> str | None:
    if source is not None and not is_pin(source):
        return None
    try:
        used = ModuleLoader().locate(module_id, source)
    except ModuleLoadError as error:
        return str(error)
    if used is not None and used.is_built_in and (lacking := _lacking(module_id)) is not None:
        package, extra = lacking
        install = f"pip install 'amplifier[{extra}]'"
        return f"module {module_id!r} needs {package}, which is not installed; install it with: {install}"
    if used is not None:
        return None
    near = nearest_module(module_id, known)
    advice = "install it, name its folder in AMPLIFIER_MODULES or give its 'source'"
    return f"no module {module_id!r} is installed; {advice if near is None else did_you_mean(near)}"
