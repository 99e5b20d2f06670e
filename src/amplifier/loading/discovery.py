"""Find modules among installed distributions and in directories, without importing any."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast, final
from urllib.parse import unquote, urlsplit

import attrs

from amplifier._internal.regular_files import read_file
from amplifier._internal.spelling import nearest, nearest_names
from amplifier.contracts import CONTRACTS
from amplifier.errors import ModuleConflictError, ModuleLoadError
from amplifier.models import ModuleInfo, ModuleType
from amplifier.plan import is_module_id, type_from_id

from .importing import MODULE_PREFIX, find_installed, held_roots

logger: logging.Logger = logging.getLogger(__name__)

ENTRY_POINT_GROUP: Final = "amplifier.modules"
BUILT_IN_SOURCE: Final = "builtin"
"""The source that pins a built-in module, even if another distribution provides the id."""
BUILT_IN_GROUP: Final = "amplifier.builtin_modules"
"""The entry point group of built-in modules. Published programs use the other group."""
SEARCH_PATH_VARIABLE: Final = "AMPLIFIER_MODULES"
TYPE_TO_MOUNT_POINT: Final[Mapping[str, str]] = MappingProxyType(
    {kind: contract.mount_point for kind, contract in CONTRACTS.items()}
)
"""The mount point of each kind of module."""

_DIRECTORY_PREFIX: Final = "amplifier-module-"
_OUR_DISTRIBUTION: Final = "amplifier"
_OUR_MODULES: Final = "amplifier.modules."

_Stamp = tuple[int, int, int] | None

# The published kernel returns this version for a module that declares none.
_UNKNOWN_VERSION: Final = "1.0.0"
_UNKNOWN_TYPE: Final = "tool"


# A module is listed before the user decides to trust it, so nothing here imports one or runs its
# code. Types are read from the syntax tree, versions from metadata.
#
# Published modules have the ids of built-in ones, such as ``tool-bash`` or ``provider-openai``. An
# installed module takes precedence, because someone chose to install it. A plan pins a module with
# the source ``"builtin"`` or ``{"distribution": "NAME"}``.


# The hash is cached because the loader looks it up at every load.
@final
@attrs.frozen(kw_only=True, cache_hash=True)
class FoundModule:
    """A module that was found but not imported. Another module with the same id may be in use.

    Attributes:
        module_id: The id of the module.
        import_name: The Python module to import. Empty for a module in a directory.
        attribute: The dotted name of the mount function in that module. Empty for the module
            itself.
        distribution: The installed distribution that provides the module. Empty without one.
        version: The version of the distribution.
        metadata: The metadata directory of the distribution.
        is_built_in: True for a module of this package.
        root: The directory of a module that was found by a path, or None.
        registered: The object that was registered in process under this id, or None.
        registered_type: The kind under which the object was registered. None if the object declares
            it.
        is_used: True if a plan that names the id without a source gets this module.
        is_contested: True if several distributions claim the id, so that none is used.
    """

    module_id: str
    import_name: str = ""
    attribute: str = ""
    distribution: str = ""
    version: str = ""
    metadata: str = ""
    is_built_in: bool = False
    root: Path | None = None
    registered: Any = attrs.field(default=None, eq=False, repr=False)
    registered_type: str | None = None
    is_used: bool = attrs.field(default=True, eq=False)
    is_contested: bool = attrs.field(default=False, eq=False)

    def __str__(self) -> str:
        if self.distribution:
            return f"entry point {self.module_id} of {self.distribution} {self.version}".rstrip()
        return self.origin

    @property
    def origin(self) -> str:
        """The origin of the module to show to users: a distribution, a path, or ``built in``."""
        if self.root is not None:
            return f"path {self.root}"
        if self.distribution:
            return (
                "built in" if self.is_built_in else f"{self.distribution} {self.version}".rstrip()
            )
        return f"package {self.import_name}" if self.import_name else "registered in process"

    @property
    def source(self) -> str | dict[str, str] | None:
        """The ``source`` with which a plan pins the module. None if it can't be pinned."""
        if self.root is not None:
            return str(self.root)
        if self.is_built_in:
            return BUILT_IN_SOURCE
        return {"distribution": self.distribution} if self.distribution else None

    @property
    def file(self) -> Path | None:
        """The file of its Python module, found without importing its parents. None if unknown."""
        if self.root is not None:
            return find_package(self.root, self.module_id)[1] / "__init__.py"
        top, *rest = self.import_name.split(".")
        try:
            spec = find_installed(top)
        # Import hooks are foreign code and may raise anything.
        except Exception:
            logger.warning("looking for %r failed", top, exc_info=True)
            return None
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        base = Path(spec.origin).parent.joinpath(*rest)
        places = (base / "__init__.py", base.with_suffix(".py")) if rest else (Path(spec.origin),)
        return next((place for place in places if place.is_file()), None)

    @cached_property
    def info(self) -> ModuleInfo:
        """The entry of the module in a listing.

        Raises:
            ModuleLoadError: The module declares a kind that doesn't exist, or its package is
                missing.
        """
        first_line, declared, _ = self._declarations()
        declared = declared if self.registered_type is None else self.registered_type
        kind = (
            type_from_id(self.module_id)
            if declared is None
            else check_declared_type(declared, self)
        )
        kind = kind or _UNKNOWN_TYPE
        project = {} if self.root is None else _read_table(self.root / "pyproject.toml", "project")
        version, summary = project.get("version", self.version), project.get("description", "")
        if self.metadata and not self.is_built_in:
            summary = _summary(self.metadata)
        if self.import_name and not summary:
            summary = first_line.removeprefix(f"{self.module_id}: ").removesuffix(".")
        return ModuleInfo(
            id=self.module_id,
            name=self.module_id.replace("-", " ").replace("_", " ").title(),
            version=version or _UNKNOWN_VERSION,
            type=cast("ModuleType", kind),
            mount_point=TYPE_TO_MOUNT_POINT[kind],
            description=summary or f"Module: {self.module_id}",
            config_schema=None,
        )

    @property
    def needs_asyncio(self) -> bool:
        """True if it declares asyncio without trio. On trio it runs on an asyncio island."""
        names = self._declarations()[2]
        return (
            isinstance(names, str | tuple | list | set | frozenset)
            and "asyncio" in names
            and "trio" not in names
        )

    def error(self, problem: str, reason: str) -> ModuleLoadError:
        """Return the error of a module that was found but can't be used."""
        text = f"module {self.module_id!r} ({self}){problem}"
        return ModuleLoadError(text, module_id=self.module_id, reason_code=reason)

    def _declarations(self) -> tuple[str, object, object]:
        """Return the first line of its docstring, and its declared kind and backends."""
        if self.root is None and not self.import_name:
            kind, backends = (getattr(self.registered, name, None) for name in _DECLARATIONS)
            return "", kind, backends
        file = self.file
        status = None if file is None else stamp_of(str(file))
        return ("", None, None) if file is None else _read_declarations(file, status)


_DECLARATIONS: Final = ("__amplifier_module_type__", "__amplifier_backends__")


# Cache the declarations, because a listing reads them several times, and a syntax tree is slow to
# build and large to keep.
@lru_cache(maxsize=512)
def _read_declarations(file: Path, _: _Stamp) -> tuple[str, object, object]:
    try:
        tree = ast.parse(read_file(file), str(file))
    except (OSError, SyntaxError, ValueError) as exc:
        logger.warning("%s cannot be read: %s", file, exc)
        return "", None, None
    declared: dict[str, object] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if isinstance(target, ast.Name) and target.id in _DECLARATIONS:
                    # A computed value is available only after an import.
                    with suppress(ValueError):
                        declared.setdefault(target.id, ast.literal_eval(node.value))
    kind, backends = (declared.get(name) for name in _DECLARATIONS)
    return (ast.get_docstring(tree) or "").partition("\n")[0], kind, backends


def check_declared_type(declared: object, module: FoundModule) -> str:
    """Return the kind that a module declares.

    Raises:
        ModuleLoadError: No such kind exists.
    """
    if isinstance(declared, str) and declared in TYPE_TO_MOUNT_POINT:
        return declared
    expected = f"expected one of {', '.join(map(repr, TYPE_TO_MOUNT_POINT))}"
    raise module.error(
        f" declares __amplifier_module_type__ = {declared!r}; {expected}", "invalid_module_metadata"
    )


def is_readable(module: FoundModule) -> bool:
    """Return whether a module can be listed. The reason is logged if it can't."""
    if not is_module_id(module.module_id):
        logger.warning("%s: %r is not a module id, ignored", module.metadata, module.module_id)
        return False
    try:
        return module.info is not None
    except ModuleLoadError as exc:
        logger.error("%s", exc)
        return False


def nearest_module(unknown: str, known: Iterable[str]) -> str | None:
    """Return the id that an unknown one probably misspells, or None.

    Many ids start with the same type, so the part after it has to be similar as well.
    """
    for candidate in nearest_names(unknown, known, cutoff=0.75):
        name, other = (
            module_id.partition("-")[2] or module_id for module_id in (unknown, candidate)
        )
        if nearest(name, [other]) is not None:
            return candidate
    return None


# ── installed distributions ──────────────────────────────────────────────────────────────────────
# Entry points are read by hand instead of through `importlib.metadata`. Importing it (with email,
# csv and zipfile) costs more than reading the one section needed here, and its cache misses a
# distribution installed within one tick of the file system's clock.

Index = Mapping[str, tuple[FoundModule, ...]]

_REFERENCE: Final = re.compile(
    r"(?P<module>\w+(?:\.\w+)*)\s*(?::\s*(?P<attribute>\w+(?:\.\w+)*))?\s*(?:\[.*\])?"
)
_METADATA_DIRECTORY: Final = re.compile(
    r"(?P<name>.+?)(?:-(?P<version>\d[^-]*)(?:-.*)?)?\.(?:dist|egg)-info"
)

# A directory changed this recently may change again with the same modification time, because file
# systems have a resolution of up to two seconds. So its content isn't cached.
_SETTLED_AFTER_NS: Final = 2_000_000_000


# These are replaced but never changed, so that no lock is needed.
_last: tuple[list[tuple[str, _Stamp]], Index] = ([], MappingProxyType({}))
_read: Mapping[str, tuple[_Stamp, tuple[FoundModule, ...]]] = MappingProxyType({})
"""The claims of each entry of sys.path. An entry that changes often doesn't slow down others."""


def installed_claims() -> Index:
    """Return every claim of every distribution on sys.path, by module id, the built-in one last.

    One `os.stat` per entry of sys.path shows a distribution that was installed or removed since,
    but not a metadata file that was edited in place. Roots that loaders put on sys.path are left
    out, because otherwise the sources of one session would appear in another.
    """
    global _last, _read
    held = held_roots()
    # Python skips entries that aren't text, such as a Path.
    entries: list[object] = [*sys.path]
    stamps = [
        (entry, stamp_of(entry))
        for entry in entries
        if isinstance(entry, str) and entry not in held
    ]
    if _last[0] == stamps:
        return _last[1]
    index: dict[str, dict[str, FoundModule]] = {}
    settled = True
    known, read = _read, {}
    for entry, stamp in stamps:
        if stamp is None:
            continue
        # A change within the resolution of the clock keeps the stamp.
        is_settled = time.time_ns() - stamp[0] > _SETTLED_AFTER_NS
        settled = settled and is_settled
        claims = (
            known[entry][1]
            if entry in known and known[entry][0] == stamp
            else tuple(_read_directory(entry))
        )
        if is_settled:
            read[entry] = stamp, claims
        for module in claims:
            # The first copy of a distribution counts, as for imports.
            index.setdefault(module.module_id, {}).setdefault(
                _normalized(module.distribution), module
            )
    result = MappingProxyType(
        {
            key: tuple(sorted(claims.values(), key=lambda claim: claim.is_built_in))
            for key, claims in index.items()
        }
    )
    _last, _read = (stamps if settled else [], result), MappingProxyType(read)
    return result


def stamp_of(entry: str) -> _Stamp:
    """Return a stamp that changes with a file or a list of files.

    None if the entry doesn't exist.
    """
    try:
        # The empty entry is the working directory, which may change. Device and inode identify it.
        # This runs at every load, and a Path would double its cost.
        status = os.stat(entry or ".")  # noqa: PTH116
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ino, status.st_dev


Stamps = list[tuple[str, _Stamp]]


def directory_stamps(*directories: Path) -> Stamps:
    """Return the stamps of the lists of files in directories, and of their manifests."""
    return _stamps(name for directory in directories for name in (directory, directory / _MANIFEST))


def package_stamps(*packages: Path) -> Stamps:
    """Return the stamps of the first files of packages, and of their manifests.

    The list of files in a package changes when it is imported, because its bytecode is written.
    """
    return _stamps(
        name for package in packages for name in (package / "__init__.py", package / _MANIFEST)
    )


def _stamps(places: Iterable[Path]) -> Stamps:
    return [(str(place), stamp_of(str(place))) for place in places]


def are_settled(stamps: Stamps) -> bool:
    """Return whether a change from now on would show in the stamps."""
    latest = max((stamp[0] for _, stamp in stamps if stamp is not None), default=0)
    return time.time_ns() - latest > _SETTLED_AFTER_NS


def _normalized(distribution: str) -> str:
    """Return a distribution's name in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _read_directory(entry: str) -> Iterator[FoundModule]:
    """Yield the claims in one entry of sys.path."""
    try:
        # Few of thousands of names become paths.
        names = os.listdir(entry or ".")  # noqa: PTH208
    # Archives raise this as well. They aren't searched.
    except OSError:
        return
    for name in sorted(name for name in names if name.endswith("-info")):
        directory = Path(entry, name)
        try:
            text = (directory / "entry_points.txt").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if ENTRY_POINT_GROUP in text or BUILT_IN_GROUP in text:
            yield from _claims(text, name, str(directory))


def _claims(text: str, directory: str, metadata: str) -> Iterator[FoundModule]:
    """Yield the claims in one ``entry_points.txt``."""
    name_match = _METADATA_DIRECTORY.fullmatch(directory)
    if name_match is None:
        return
    section = ""
    is_ours = _normalized(name_match["name"]) == _OUR_DISTRIBUTION
    groups = (ENTRY_POINT_GROUP, BUILT_IN_GROUP) if is_ours else (ENTRY_POINT_GROUP,)
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            section = line.strip("[] ")
        elif section in groups and "=" in line and not line.startswith(("#", ";")):
            module_id, _, value = line.partition("=")
            match = _REFERENCE.fullmatch(value.strip())
            if match is None:
                logger.warning(
                    "%s: entry point %r is not a reference to an object, ignored", metadata, line
                )
                continue
            yield FoundModule(
                module_id=module_id.strip(),
                import_name=match["module"],
                attribute=match["attribute"] or "",
                distribution=name_match["name"],
                version=name_match["version"] or "",
                metadata=metadata,
                is_built_in=is_ours and match["module"].startswith(_OUR_MODULES),
            )


def _summary(metadata: str) -> str:
    """Return the summary of a distribution, from the header of its metadata."""
    for name in ("METADATA", "PKG-INFO"):
        try:
            text = Path(metadata, name).read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        lines = text.partition("\n\n")[0].splitlines()
        return next((line[8:].strip() for line in lines if line.startswith("Summary:")), "")
    return ""


# ── several claims to one id ─────────────────────────────────────────────────────────────────────


def is_pin(source: object) -> bool:
    """Return whether a source pins an installed module.

    Other sources are paths or for a resolver.
    """
    if isinstance(source, Mapping) and set(source) == {"distribution"}:
        name = source["distribution"]
        return isinstance(name, str) and bool(name.strip())
    return isinstance(source, str) and source == BUILT_IN_SOURCE


def choose(module_id: str, claims: Sequence[FoundModule], pin: Any = None) -> FoundModule | None:
    """Return the claim to use, or None if there is no claim.

    Args:
        module_id: The id.
        claims: All claims to it.
        pin: The source in the plan, if it pins one.

    Raises:
        ModuleConflictError: Several third-party distributions claim the id, and the plan doesn't
            pin one.
        ModuleLoadError: The plan pins a module that doesn't exist.
    """
    if pin is not None:
        return _pinned(module_id, claims, pin)
    others = [claim for claim in claims if not claim.is_built_in]
    if len(others) > 1:
        claimants = " and by ".join(f"{claim} ({claim.metadata})" for claim in others)
        pins = " or ".join(f'"source": {json.dumps(claim.source)}' for claim in claims)
        raise ModuleConflictError(
            f"module {module_id!r} is claimed by {claimants}; uninstall all but one of them, "
            f"or pin one in the mount plan: {pins}",
            module_id=module_id,
        )
    return claims[0] if claims else None


def _pinned(module_id: str, claims: Sequence[FoundModule], pin: Any) -> FoundModule:
    name = None if pin == BUILT_IN_SOURCE else pin["distribution"].strip()

    def is_pinned(claim: FoundModule) -> bool:
        if name is None:
            return claim.is_built_in
        return _normalized(claim.distribution) == _normalized(name)

    match = next(filter(is_pinned, claims), None)
    if match is not None:
        return match
    shown = "the built-in one" if name is None else f"the distribution {name!r}"
    provided = sorted(
        claim.module_id
        for every_claim in installed_claims().values()
        for claim in every_claim
        if is_pinned(claim)
    )
    content = "it is not installed or provides no modules"
    if provided:
        content = f"it provides {', '.join(provided)}"
    alternative = f"no installed distribution provides {module_id!r}"
    if claims:
        sources = " or ".join(f"{json.dumps(claim.source)} ({claim})" for claim in claims)
        alternative = f"{module_id!r} is provided by {sources}"
    raise ModuleLoadError(
        f"module {module_id!r} is pinned to {shown}, which does not provide it; {content}; "
        f"{alternative}",
        module_id=module_id,
        reason_code="missing_source",
    )


# ── directories ──────────────────────────────────────────────────────────────────────────────────

# Require two characters, because one letter is a Windows drive.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def package_name(module_id: str) -> str:
    """Return the conventional name of a module's import package."""
    return f"{MODULE_PREFIX}{module_id.replace('-', '_')}"


def effective_search_paths(search_paths: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the search paths, or those of the environment if there are none."""
    paths = search_paths or os.environ.get(SEARCH_PATH_VARIABLE, "").split(os.pathsep)
    return [Path(path) for path in paths if path]


def find_directory(module_id: str, search_paths: Iterable[Path]) -> Path | None:
    """Return the first root of a module on the search paths, or None.

    The root is a directory ``amplifier-module-<id>``, or the bare package.
    """
    for search_path in search_paths:
        root = search_path / f"{_DIRECTORY_PREFIX}{module_id}"
        if root.is_dir():
            return root
        package = search_path / package_name(module_id)
        if (package / "__init__.py").is_file():
            return package
    return None


def modules_in(search_paths: Iterable[Path]) -> Iterator[FoundModule]:
    """Yield the modules in ``amplifier-module-<id>`` directories, by name.

    A search path that can't be read is logged.
    """
    for search_path in search_paths:
        try:
            directories = sorted(search_path.iterdir())
        except OSError as exc:
            logger.warning("search path %s cannot be read: %s", search_path, exc)
            continue
        for directory in directories:
            module_id = directory.name.removeprefix(_DIRECTORY_PREFIX)
            if module_id == directory.name or not directory.is_dir():
                continue
            if is_module_id(module_id):
                yield FoundModule(module_id=module_id, root=directory)
            else:
                logger.warning("%s: %r is not a module id, ignored", directory, module_id)


def path_from_source(source: object, module_id: str) -> Path:
    """Return the path of a source that needs no resolver: a path, or a ``file:`` URI.

    Raises:
        ModuleLoadError: Only a resolver could read the source.
    """
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str) and source and "\0" not in source:
        if not _SCHEME.match(source):
            return Path(source).expanduser()
        parts = urlsplit(source)
        plain = parts.netloc in ("", "localhost") and not parts.query and not parts.fragment
        if parts.scheme == "file" and plain and parts.path:
            return Path(unquote(parts.path))
    raise ModuleLoadError(
        f"module {module_id!r} has the source {source!r}, which is neither a filesystem path nor "
        "a plain file: URI; mount a resolver at 'module-source-resolver' that understands it",
        module_id=module_id,
        reason_code="missing_source",
    )


def find_package(root: Path, module_id: str) -> tuple[str, Path]:
    """Return the import name and the directory of the package in a module's root.

    This is the root itself if that is a package, otherwise ``amplifier_module_<id>`` in the root,
    otherwise the only ``amplifier_module_*``.

    Raises:
        ModuleLoadError: There is no such directory, or no such package in it.
    """
    conventional = package_name(module_id)
    if not root.is_dir():
        problem = "is not a directory" if root.exists() else "does not exist"
        raise ModuleLoadError(
            f"module {module_id!r}: {root} {problem}; expected a directory that holds the package "
            f"{conventional!r}",
            module_id=module_id,
            reason_code="missing_source",
        )
    if (kind := _foreign_kind(root)) is not None:
        raise ModuleLoadError(
            f"module {module_id!r}: {root} holds {kind}, but only Python modules are loaded here; "
            "run it on the published kernel, or turn it into an MCP server and mount tool-mcp",
            module_id=module_id,
            reason_code="invalid_package_layout",
        )
    if (root / "__init__.py").is_file():
        # A checkout may have a name that can't be imported.
        return (root.name if root.name.isidentifier() else conventional), root
    if (root / conventional / "__init__.py").is_file():
        return conventional, root / conventional
    others = sorted(init.parent for init in root.glob(f"{MODULE_PREFIX}*/__init__.py"))
    if len(others) == 1:
        return others[0].name, others[0]
    content = ", ".join(other.name for other in others) or "no package of that kind"
    raise ModuleLoadError(
        f"module {module_id!r}: {root} has no package {conventional!r}, and it holds {content}; "
        "expected that package, exactly one 'amplifier_module_*' package, or a directory that is "
        "a package itself",
        module_id=module_id,
        reason_code="invalid_package_layout",
    )


_MANIFEST: Final = "amplifier.toml"
_OTHER_KINDS: Final = {
    "wasm": "a WebAssembly module",
    "grpc": "a module that is a gRPC service",
    "rust": "a module in a sidecar program",
}


def _foreign_kind(root: Path) -> str | None:
    """Return the kind of a module for the published kernel that isn't Python, or None.

    The manifest declares it, or the directory holds a file of the kind and no Python package.
    """
    has_package = any(root.glob("*.py")) or any(root.glob("*/__init__.py"))
    if not has_package and any(root.glob("*.wasm")):
        return _OTHER_KINDS["wasm"]
    return _OTHER_KINDS.get(_read_table(root / _MANIFEST, "module").get("transport", ""))


def _read_table(file: Path, name: str) -> dict[str, str]:
    """Return the texts at the top of a TOML file and in one of its tables.

    The result is empty if the file can't be read.
    """
    # Importing tomllib takes four milliseconds, and only modules in directories need it.
    import tomllib  # noqa: PLC0415

    try:
        content = tomllib.loads(read_file(file).decode("utf-8"))
    # Invalid TOML or UTF-8 raises ValueError.
    except (OSError, ValueError):
        return {}
    table = content.get(name)
    merged = {**content, **(table if isinstance(table, dict) else {})}
    return {key: value for key, value in merged.items() if isinstance(value, str)}
