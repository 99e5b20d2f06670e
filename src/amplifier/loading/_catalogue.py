"""What `ModuleLoader.discover` and `ModuleLoader.catalogue` list, read from files without running any module.

Listing a module must be safe before the user decided to trust it, so types are read from the syntax tree and versions
from metadata.
"""

from __future__ import annotations

import ast
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, cast, final

import attrs

from amplifier.errors import ModuleLoadError
from amplifier.models import ModuleInfo

from ._discovery import EntryPoint, entry_points, module_directories
from ._importing import find_installed
from ._loaded_module import TYPE_TO_MOUNT_POINT, check_declared_type, is_module_id, type_from_id
from ._precedence import pin_for
from ._sources import find_package

logger = logging.getLogger(__name__)

_Type = Literal["orchestrator", "provider", "tool", "context", "hook", "resolver"]

# What the published kernel answers when nothing is declared; listings need some value.
_UNKNOWN_VERSION: Final = "1.0.0"
_UNKNOWN_TYPE: Final = "tool"


@final
@attrs.frozen(kw_only=True)
class CatalogueEntry:
    """One module that is there, whether or not it is the one that its id means.

    Attributes:
        origin: Where it comes from, for people: a distribution, a path, or ``built in``.
        source: What a plan has as the module's ``source`` to pin it; None where nothing does.
        is_used: A plan that names the id without a source gets this one.
        is_contested: Other distributions claim the id as well and none is used.
        needs_asyncio: It declares asyncio without trio, and runs on an asyncio island there.
    """

    info: ModuleInfo
    origin: str
    source: Any = None
    is_used: bool = True
    is_contested: bool = False
    needs_asyncio: bool = False


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


def registered_module(module_id: str, source: object, module_type: str | None) -> CatalogueEntry | None:
    """A module registered in process."""
    declared = getattr(source, "__amplifier_module_type__", None) if module_type is None else module_type
    try:
        info = describe(module_id, declared=declared, origin="registered in process")
    except ModuleLoadError as exc:
        logger.error("%s", exc)
        return None
    backends = getattr(source, "__amplifier_backends__", None)
    return CatalogueEntry(info=info, origin="registered in process", needs_asyncio=_needs_asyncio(backends))


def installed_modules(*, built_in: bool) -> Iterator[CatalogueEntry]:
    """Modules of installed distributions: the built-in ones, or those of others."""
    for module_id, claims in sorted(entry_points().items()):
        chosen = [claim for claim in claims if claim.is_built_in is built_in]
        if not chosen:
            continue
        if not is_module_id(module_id):
            logger.warning("%s: %r is not a module id, ignored", chosen[0].metadata, module_id)
            continue
        if len(chosen) > 1:
            logger.warning("module %r is claimed by %s", module_id, " and by ".join(map(str, chosen)))
        for claim in chosen:
            source = _parsed(_source_file(claim.module))
            try:
                info = describe(
                    module_id,
                    declared=_declared(source, "__amplifier_module_type__"),
                    origin=str(claim),
                    version=claim.version,
                    summary=("" if built_in else _summary(claim)) or _first_line(source, module_id),
                )
            except ModuleLoadError as exc:
                logger.error("%s", exc)
                continue
            origin = "built in" if built_in else f"{claim.distribution} {claim.version}".rstrip()
            backends = _declared(source, "__amplifier_backends__")
            yield CatalogueEntry(
                info=info, origin=origin, source=pin_for(claim), needs_asyncio=_needs_asyncio(backends)
            )


def modules_in(search_paths: Sequence[Path]) -> Iterator[CatalogueEntry]:
    """Modules in ``amplifier-module-<id>`` directories."""
    for search_path in search_paths:
        for module_id, root in module_directories(search_path):
            try:
                _, directory = find_package(root, module_id)
                version, summary = _project_facts(root)
                source = _parsed(directory / "__init__.py")
                declared = _declared(source, "__amplifier_module_type__")
                origin = f"path {root}"
                info = describe(module_id, declared=declared, origin=origin, version=version, summary=summary)
            except ModuleLoadError as exc:
                logger.error("%s", exc)
            else:
                backends = _declared(source, "__amplifier_backends__")
                yield CatalogueEntry(info=info, origin=origin, source=str(root), needs_asyncio=_needs_asyncio(backends))


def ranked(*levels: Sequence[CatalogueEntry]) -> list[CatalogueEntry]:
    """All entries with what became of them, those of an earlier level before those of a later one.

    The first entry of an id is used, unless several distributions contest the id: their order would be chance.
    """
    taken: set[str] = set()
    judged: list[CatalogueEntry] = []
    for level in levels:
        claimed = Counter(entry.info.id for entry in level if isinstance(entry.source, Mapping))
        contested = {module_id for module_id, count in claimed.items() if count > 1} - taken
        for entry in level:
            is_contested = entry.info.id in contested
            is_used = not is_contested and entry.info.id not in taken
            judged.append(attrs.evolve(entry, is_used=is_used, is_contested=is_contested))
            if is_used:
                taken.add(entry.info.id)
        taken |= contested
    return judged


def _parsed(file: Path | None) -> ast.Module:
    """The syntax tree of a module's file; an empty one when it cannot be read."""
    try:
        if file is not None:
            return ast.parse(file.read_bytes(), str(file))
    except (OSError, SyntaxError, ValueError) as exc:
        logger.warning("%s cannot be read: %s", file, exc)
    return ast.Module(body=[], type_ignores=[])


def _needs_asyncio(backends: object) -> bool:
    return (
        isinstance(backends, str | tuple | list | set | frozenset) and "asyncio" in backends and "trio" not in backends
    )


def _declared(source: ast.Module, name: str) -> object:
    """The value assigned to a name such as ``__amplifier_module_type__``, if it is a constant."""
    for node in source.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        names = [target.id for target in targets if isinstance(target, ast.Name)]
        value = getattr(node, "value", None)
        if name in names and value is not None:
            try:
                return ast.literal_eval(value)
            except ValueError:  # computed: only an import can tell
                return None
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


def _first_line(source: ast.Module, module_id: str) -> str:
    """The first line of a module's docstring, without the id in front of it."""
    return (ast.get_docstring(source) or "").partition("\n")[0].removeprefix(f"{module_id}: ").removesuffix(".")


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
