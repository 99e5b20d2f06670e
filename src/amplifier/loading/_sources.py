"""From what was given as a module's source to the package directory in it.

Resolvers are the application's policy; this file only knows how to ask one, and how
to read a filesystem path when there is none.
"""

from __future__ import annotations

import inspect
import os
import re
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from amplifier.errors import ModuleLoadError

from ._loaded_module import package_name

RESOLVER_MOUNT_POINT: Final = "module-source-resolver"

# Two characters at least, so that a Windows drive is not taken for a scheme.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def mounted_resolver(coordinator: Any) -> Any:
    """The resolver an application mounted, or None."""
    if coordinator is None:
        return None
    try:
        return coordinator.get(RESOLVER_MOUNT_POINT)
    except ValueError:  # the seeds' coordinators answer so when nothing is mounted there
        return None


async def resolve_with(resolver: Any, module_id: str, source_hint: object, profile_hint: object) -> Path:
    """Ask a resolver for a module's directory.

    What the resolver or its source raises leaves unchanged.

    Raises:
        ModuleLoadError: The answer is neither a source nor a path.
    """
    method = getattr(resolver, "async_resolve", None) or resolver.resolve
    positional, keywords = _hint_arguments(method, source_hint, profile_hint)
    source = method(module_id, *positional, **keywords)
    if inspect.isawaitable(source):
        source = await source
    answer = source
    if not isinstance(answer, str | os.PathLike) and callable(getattr(answer, "resolve", None)):
        answer = answer.resolve()
        if inspect.isawaitable(answer):
            answer = await answer
    if isinstance(answer, str | os.PathLike):
        path = os.fspath(answer)
        if isinstance(path, str):
            return Path(path)
    raise ModuleLoadError(
        f"the resolver {resolver!r} answered {source!r} for module {module_id!r}"
        + ("" if answer is source else f", which resolved to {answer!r}")
        + "; expected a path or a source whose resolve() gives one, or a ModuleNotFoundError",
        module_id=module_id,
        reason_code="missing_source",
    )


def _hint_arguments(
    method: Any, source_hint: object, profile_hint: object
) -> tuple[tuple[object, ...], dict[str, object]]:
    """How this resolver takes its hints: by either keyword, by both, by a second position, or not at all."""
    try:
        parameters = inspect.signature(method).parameters.values()
    except (TypeError, ValueError):  # no signature: the seeds' form
        return (profile_hint,), {}
    hints = {"source_hint": source_hint, "profile_hint": profile_hint}
    by_keyword = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
        return (), hints
    named = {p.name: hints[p.name] for p in parameters if p.name in hints and p.kind in by_keyword}
    if named:
        return (), named
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    has_second = sum(p.kind in by_position for p in parameters) >= 2
    if has_second or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return (profile_hint,), {}
    return (), {}


def means_not_found(exc: BaseException) -> bool:
    """Whether a resolver's error means that it does not know the module.

    By name, not by class: resolvers raise ours, the builtin, or a class of their own framework's.
    """
    return any(kind.__name__ == "ModuleNotFoundError" for kind in type(exc).__mro__)


def path_from_hint(hint: object, module_id: str) -> Path:
    """Read a source hint without a resolver's help: a path, or a ``file:`` URI.

    Raises:
        ModuleLoadError: It is something only a resolver understands.
    """
    if isinstance(hint, os.PathLike):
        hint = os.fspath(hint)
    if isinstance(hint, str) and hint and "\0" not in hint:
        if not _SCHEME.match(hint):
            return Path(hint).expanduser()
        parts = urlsplit(hint)
        plain = parts.netloc in ("", "localhost") and not parts.query and not parts.fragment
        if parts.scheme == "file" and plain and parts.path:
            path = unquote(parts.path)
            # By hand: urllib.request.url2pathname would pull in an HTTP client.
            return Path(path[1:] if os.name == "nt" and path.startswith("/") else path)
    raise ModuleLoadError(
        f"module {module_id!r} has the source {hint!r}, which is neither a filesystem path nor a plain file: URI; "
        f"mount a resolver at {RESOLVER_MOUNT_POINT!r} that understands it",
        module_id=module_id,
        reason_code="missing_source",
    )


def find_package(root: Path, module_id: str) -> tuple[str, Path]:
    """The package in a module's root: its import name and its directory.

    The root itself if it is a package, else ``amplifier_module_<id>`` in it, else the only ``amplifier_module_*``.

    Args:
        root: A directory, with symbolic links resolved.
        module_id: The module that should be there.

    Raises:
        ModuleLoadError: There is no such directory, or no such package in it.
    """
    conventional = package_name(module_id)
    if not root.is_dir():
        found = "is not a directory" if root.exists() else "does not exist"
        raise ModuleLoadError(
            f"module {module_id!r}: {root} {found}; expected a directory that holds the package {conventional!r}",
            module_id=module_id,
            reason_code="missing_source",
        )
    if (root / "__init__.py").is_file():
        # A checkout's directory may be called anything; a name that cannot be imported gets the conventional one.
        return (root.name if root.name.isidentifier() else conventional), root
    if (root / conventional / "__init__.py").is_file():
        return conventional, root / conventional
    others = sorted(init.parent for init in root.glob("amplifier_module_*/__init__.py"))
    if len(others) == 1:
        return others[0].name, others[0]
    found = f"it holds {', '.join(other.name for other in others)}" if others else "it holds no package of that kind"
    raise ModuleLoadError(
        f"module {module_id!r}: {root} has no package {conventional!r}, and {found}; expected that package, "
        "exactly one 'amplifier_module_*' package, or a directory that is a package itself",
        module_id=module_id,
        reason_code="invalid_package_layout",
    )
