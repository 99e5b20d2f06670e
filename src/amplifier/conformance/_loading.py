"""Importing the subject, in the worker process only.

Above stands `_scene`, which mounts what is loaded here; below stands `_subject`, which found it without running it.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import attrs

from amplifier.contracts import CONTRACTS
from amplifier.errors import ModuleLoadError
from amplifier.loading import ModuleLoader

from ._subject import Subject

BACKENDS = ("asyncio", "trio")


@attrs.frozen(kw_only=True)
class LoadedSubject:
    """A subject that was imported.

    Attributes:
        module: Its Python module.
        mount: Its mount function.
        on_session_ready: Its callback, if it has one that can be called.
        module_type: Its type.
        backends: What it declares to run on; both unless it says otherwise.
        config: What it is mounted with; ``{directory}`` in a text stands for a directory of the scene's own.
        plan: What the plan of its session holds besides.
        given: What it was to be mounted with before anything was guessed, as far as it can be mounted with that.
    """

    subject: Subject
    module: ModuleType
    mount: Callable[..., Any]
    on_session_ready: Callable[..., Any] | None
    module_type: str
    backends: tuple[str, ...]
    config: dict[str, Any]
    given: dict[str, Any] = attrs.field(factory=dict)
    plan: dict[str, Any] = attrs.field(factory=dict)


def load(subject: Subject, config: dict[str, Any] | None = None, plan: dict[str, Any] | None = None) -> LoadedSubject:
    """Import a subject.

    Raises:
        ModuleLoadError: It has no mount, or its type is not known.
        BaseException: Whatever importing it raised.
    """
    if ModuleLoader.import_hook is not None:
        ModuleLoader.import_hook(subject.import_name)
    module = _import(subject)
    target: Any = module
    for name in subject.attribute.split("."):
        target = getattr(target, name, None)
    mount = getattr(target, "mount", target)
    if not callable(mount):
        raise ModuleLoadError(
            f"{subject.import_name} has no {subject.attribute!r}; expected async def mount(coordinator, config)",
            module_id=subject.module_id,
        )
    module_type: Any = subject.module_type or getattr(module, "__amplifier_module_type__", None)
    if module_type not in CONTRACTS:
        raise ModuleLoadError(
            f"the type of {subject.module_id!r} is not known; name it with --type, or declare "
            f"__amplifier_module_type__ as one of {', '.join(CONTRACTS)}",
            module_id=subject.module_id,
        )
    ready = getattr(module, "on_session_ready", None)
    own = getattr(module, "__amplifier_conformance__", None)
    settings = {**(own if isinstance(own, dict) else {}), **(config or {})}
    return LoadedSubject(
        subject=subject,
        module=module,
        mount=mount,
        on_session_ready=ready if inspect.iscoroutinefunction(ready) else None,
        module_type=module_type,
        backends=_declared_backends(module),
        config=settings,
        given=settings,
        plan=plan or {},
    )


def load_anew(loaded: LoadedSubject) -> LoadedSubject:
    """Import the subject again, as a new process would: with fresh module globals."""
    top = loaded.subject.import_name.partition(".")[0]
    prefix = loaded.subject.import_name if top == "amplifier" else top
    for name in [name for name in sys.modules if name == prefix or name.startswith(f"{prefix}.")]:
        del sys.modules[name]
    return load(loaded.subject, loaded.config, loaded.plan)


def _import(subject: Subject) -> ModuleType:
    if subject.search_path is not None and str(subject.search_path) not in sys.path:
        sys.path.insert(0, str(subject.search_path))
    if subject.origin != "file":
        return importlib.import_module(subject.import_name)
    # By its path: the name of a single file may well be that of another module.
    known = sys.modules.get(subject.import_name)
    if known is not None and getattr(known, "__file__", None) == str(subject.file):
        return known
    spec = importlib.util.spec_from_file_location(subject.import_name, subject.file)
    assert spec is not None  # a .py file has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[subject.import_name] = module
    spec.loader.exec_module(module)
    return module


def _declared_backends(module: ModuleType) -> tuple[str, ...]:
    declared = getattr(module, "__amplifier_backends__", BACKENDS)
    if isinstance(declared, str):
        declared = (declared,)
    known = tuple(name for name in BACKENDS if name in tuple(declared))
    return known or BACKENDS
