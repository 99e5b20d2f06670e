"""What `ModuleLoader.discover` says about modules, read from files without running any of them.

Above: `_loader`. Below: `_discovery` and `_importing`, which find things, and the `ModuleInfo` model. Looking at a
module must be safe before anybody decided to trust it, so types are read from the syntax tree and versions from
metadata.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal, cast

from amplifier.errors import ModuleLoadError
from amplifier.models import ModuleInfo

from ._discovery import EntryPoint, entry_points, module_directories
from ._importing import find_installed
from ._record import TYPE_TO_MOUNT_POINT, check_declared_type, is_module_id, type_from_id
from ._sources import find_package

logger = logging.getLogger(__name__)

_Type = Literal["orchestrator", "provider", "tool", "context", "hook", "resolver"]

# What the published kernel answers when nothing says otherwise; listings need some value.
_UNKNOWN_VERSION: Final = "1.0.0"
_UNKNOWN_TYPE: Final = "tool"


def describe(
    module_id: str, *, declared: object = None, origin: str, version: str = "", summary: str = ""
) -> ModuleInfo:
    """One line of the catalogue.

    Raises:
        ModuleLoadError: The module declares a kind that does not exist.
    """
    kind = type_from_id(module_id) if declared is None else check_declared_type(declared, module_id, origin)
    kind = kind or _UNKNOWN_TYPE
    return ModuleInfo(
        id=module_id,
        name=module_id.replace("-", " ").replace("_", " ").title(),
        version=version or _UNKNOWN_VERSION,
        type=cast("_Type", kind),
        mount_point=TYPE_TO_MOUNT_POINT[kind],
        description=summary or f"Module: {module_id}",
        config_schema=None,
    )


def installed_modules() -> Iterator[ModuleInfo]:
    """Modules of installed distributions; an id that two of them claim appears twice, since neither can be loaded."""
    for module_id, claims in sorted(entry_points().items()):
        if not is_module_id(module_id):
            logger.warning("%s: %r is not a module id, ignored", claims[0].metadata, module_id)
            continue
        if len(claims) > 1:
            logger.warning("module %r is claimed by %s", module_id, " and by ".join(map(str, claims)))
        for claim in claims:
            try:
                yield describe(
                    module_id,
                    declared=_declared_type(_source_file(claim.module)),
                    origin=str(claim),
                    version=claim.version,
                    summary=_summary(claim),
                )
            except ModuleLoadError as exc:
                logger.error("%s", exc)


def modules_in(search_paths: Sequence[Path]) -> Iterator[ModuleInfo]:
    """Modules in ``amplifier-module-<id>`` directories."""
    for search_path in search_paths:
        for module_id, root in module_directories(search_path):
            try:
                _, directory = find_package(root, module_id)
                version, summary = _project_facts(root)
                declared = _declared_type(directory / "__init__.py")
                yield describe(module_id, declared=declared, origin=f"path {root}", version=version, summary=summary)
            except ModuleLoadError as exc:
                logger.error("%s", exc)


def _declared_type(file: Path | None) -> object:
    """The value assigned to ``__amplifier_module_type__``, if a constant is; None when nothing can be read."""
    if file is None:
        return None
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as exc:
        logger.warning("%s cannot be read: %s", file, exc)
        return None
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        value = getattr(node, "value", None)
        if "__amplifier_module_type__" in names and isinstance(value, ast.Constant):
            return value.value
    return None


def _source_file(module: str) -> Path | None:
    """The file of an installed module, found without importing its parents."""
    top, *rest = module.split(".")
    try:
        spec = find_installed(top)
    except Exception:  # import hooks are foreign code and may raise anything
        logger.warning("looking for %r failed", top, exc_info=True)
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    if not rest:
        return Path(spec.origin)
    base = Path(spec.origin).parent.joinpath(*rest)
    for candidate in (base / "__init__.py", base.with_suffix(".py")):
        if candidate.is_file():
            return candidate
    return None


def _summary(entry_point: EntryPoint) -> str:
    for name in ("METADATA", "PKG-INFO"):
        try:
            with Path(entry_point.metadata, name).open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if line.startswith("Summary:"):
                        return line.partition(":")[2].strip()
                    if not line.strip():  # the long description begins
                        return ""
        except OSError:
            continue
    return ""


def _project_facts(root: Path) -> tuple[str, str]:
    """Version and description from a root's ``pyproject.toml``."""
    import tomllib  # noqa: PLC0415 — four milliseconds of every start, for a listing few ask for

    try:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8")).get("project")
    except (OSError, ValueError):  # bad TOML and bad UTF-8 are ValueErrors
        return "", ""
    if not isinstance(project, dict):
        return "", ""
    version, summary = project.get("version"), project.get("description")
    return (version if isinstance(version, str) else ""), (summary if isinstance(summary, str) else "")
