"""Which modules there are: entry points of installed distributions, directories on search paths, what several claims to one id mean.

Nothing here imports a module or runs foreign code, so that a module can be listed before the user decides to trust it: types are
read from the syntax tree, versions from metadata.

Entry points are read by hand instead of through `importlib.metadata`: importing that costs more (email, csv, zipfile)
than reading the one section we want, and its cache misses a distribution installed within one tick of the file
system's clock.

Published modules carry the ids of built-in ones (``tool-bash``, ``loop-basic``, ``provider-openai``). Whoever installs one means it,
so it takes precedence. A plan pins one of them by its ``source``: ``"builtin"``, or ``{"distribution": "NAME"}``.
"""

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
"""The source that pins a built-in module, where another distribution may provide the id as well."""
BUILT_IN_GROUP: Final = "amplifier.builtin_modules"
"""Where this package declares its own modules: published programs take whatever is in the other group for published modules."""
SEARCH_PATH_VARIABLE: Final = "AMPLIFIER_MODULES"
TYPE_TO_MOUNT_POINT: Final[Mapping[str, str]] = MappingProxyType(
    {kind: contract.mount_point for kind, contract in CONTRACTS.items()}
)
"""Every kind of module and the mount point it belongs to."""

_DIRECTORY_PREFIX: Final = "amplifier-module-"
_OUR_DISTRIBUTION: Final = "amplifier"
_OUR_MODULES: Final = "amplifier.modules."

_Stamp = tuple[int, int, int] | None

# What the published kernel answers when nothing is declared; listings need some value.
_UNKNOWN_VERSION: Final = "1.0.0"
_UNKNOWN_TYPE: Final = "tool"


@final
@attrs.frozen(kw_only=True, cache_hash=True)  # the loader looks it up at every load
class FoundModule:
    """One module that is there, whether or not it is the one that its id means; nothing of it is imported.

    Attributes:
        module_id: Its id.
        import_name: The Python module to import; empty for one in a directory.
        attribute: The dotted name of the mount function in it; empty when the Python module itself is meant.
        distribution: The installed distribution that provides it; empty where none does.
        version: The version of the distribution.
        metadata: The metadata directory of the distribution.
        is_built_in: It is one of this package's own.
        root: The directory it is in, if it was found by a path.
        registered: What was registered in process under this id.
        registered_type: The kind it was registered as; None where it declares its own.
        is_used: A plan that names the id without a source gets this one.
        is_contested: Other distributions claim the id as well and none is used.
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
        """Where it comes from, for people: a distribution, a path, or ``built in``."""
        if self.root is not None:
            return f"path {self.root}"
        if self.distribution:
            return (
                "built in" if self.is_built_in else f"{self.distribution} {self.version}".rstrip()
            )
        return f"package {self.import_name}" if self.import_name else "registered in process"

    @property
    def source(self) -> Any:
        """What a plan has as the module's ``source`` to pin it; None where nothing does."""
        if self.root is not None:
            return str(self.root)
        if self.is_built_in:
            return BUILT_IN_SOURCE
        return {"distribution": self.distribution} if self.distribution else None

    @property
    def file(self) -> Path | None:
        """The file of its Python module, found without importing its parents; None where that cannot be told."""
        if self.root is not None:
            return find_package(self.root, self.module_id)[1] / "__init__.py"
        top, *rest = self.import_name.split(".")
        try:
            spec = find_installed(top)
        except Exception:  # import hooks are foreign code and may raise anything
            logger.warning("looking for %r failed", top, exc_info=True)
            return None
        if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
            return None
        base = Path(spec.origin).parent.joinpath(*rest)
        places = (base / "__init__.py", base.with_suffix(".py")) if rest else (Path(spec.origin),)
        return next((place for place in places if place.is_file()), None)

    @cached_property
    def info(self) -> ModuleInfo:
        """Its line in a listing.

        Raises:
            ModuleLoadError: It declares a kind that does not exist, or there is no package where it should be.
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
        """It declares asyncio without trio, and runs on an asyncio island there."""
        names = self._declarations()[2]
        return (
            isinstance(names, str | tuple | list | set | frozenset)
            and "asyncio" in names
            and "trio" not in names
        )

    def error(self, problem: str, reason: str) -> ModuleLoadError:
        """The error of a module that was found but cannot be used."""
        text = f"module {self.module_id!r} ({self}){problem}"
        return ModuleLoadError(text, module_id=self.module_id, reason_code=reason)

    def _declarations(self) -> tuple[str, object, object]:
        """The first line of its docstring, and what it declares as its kind and its backends."""
        if self.root is None and not self.import_name:
            declared = (getattr(self.registered, name, None) for name in _DECLARATIONS)
            return "", *declared  # type: ignore[return-value]  # there are two
        file = self.file
        status = None if file is None else stamp_of(str(file))
        return ("", None, None) if file is None else _read_declarations(file, status)


_DECLARATIONS: Final = ("__amplifier_module_type__", "__amplifier_backends__")


@lru_cache(
    maxsize=512
)  # a listing asks several times, and a syntax tree takes long to make and much memory to keep
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
                    with suppress(ValueError):  # computed: only an import can tell
                        declared.setdefault(target.id, ast.literal_eval(node.value))
    kind, backends = (declared.get(name) for name in _DECLARATIONS)
    return (ast.get_docstring(tree) or "").partition("\n")[0], kind, backends


def check_declared_type(declared: object, module: FoundModule) -> str:
    """Return what a module declares as its kind.

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
    """Whether a module can be listed; what cannot be understood is logged."""
    if not is_module_id(module.module_id):
        logger.warning("%s: %r is not a module id, ignored", module.metadata, module.module_id)
        return False
    try:
        return module.info is not None
    except ModuleLoadError as exc:
        logger.error("%s", exc)
        return False


def nearest_module(given: str, known: Iterable[str]) -> str | None:
    """The id that an unknown one probably misspells; None if none resembles it.

    Half of an id is its type, which ids have in common; the rest has to be similar by itself.
    """
    for other in nearest_names(given, known, cutoff=0.75):
        name, meant = (module_id.partition("-")[2] or module_id for module_id in (given, other))
        if nearest(name, [meant]) is not None:
            return other
    return None


# ── installed distributions ──────────────────────────────────────────────────────────────────────

Index = Mapping[str, tuple[FoundModule, ...]]

_REFERENCE: Final = re.compile(
    r"(?P<module>\w+(?:\.\w+)*)\s*(?::\s*(?P<attribute>\w+(?:\.\w+)*))?\s*(?:\[.*\])?"
)
_METADATA_DIRECTORY: Final = re.compile(
    r"(?P<name>.+?)(?:-(?P<version>\d[^-]*)(?:-.*)?)?\.(?:dist|egg)-info"
)

# A directory changed this recently may change again without its modification time showing it (file systems count in
# up to two seconds), so what was read from it is not kept.
_SETTLED_AFTER_NS: Final = 2_000_000_000


# Replaced, never changed, so that no lock is needed.
_last: tuple[list[tuple[str, _Stamp]], Index] = ([], MappingProxyType({}))
_read: Mapping[str, tuple[_Stamp, tuple[FoundModule, ...]]] = MappingProxyType({})
"""What was read in each entry of sys.path, because one that changes often, such as a program's own folder, is no reason to read the others."""


def installed_claims() -> Index:
    """Every claim of every distribution on sys.path, by module id, the built-in one last.

    As fresh as one `os.stat` per entry of sys.path can show: a distribution that is installed or removed changes
    the directory it is in. A metadata file that is edited in place does not. Roots that loaders put on sys.path
    are left out, or one session's sources would appear in another.
    """
    global _last, _read
    held = held_roots()
    entries: list[object] = [
        *sys.path
    ]  # nothing stops people from putting a Path there; Python skips it, too
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
        # What changes within the resolution of the clock has the same stamp.
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
            # Of one distribution found twice the first one counts, as for imports.
            index.setdefault(module.module_id, {}).setdefault(
                _normalized(module.distribution), module
            )
    found = MappingProxyType(
        {
            key: tuple(sorted(claims.values(), key=lambda each: each.is_built_in))
            for key, claims in index.items()
        }
    )
    _last, _read = (stamps if settled else [], found), MappingProxyType(read)
    return found


def stamp_of(entry: str) -> _Stamp:
    """Return what changes when a file, or the list of files in a directory, does; None if it is not there."""
    try:
        # The empty entry is the working directory, which may become another one: device and inode identify it.
        status = os.stat(entry or ".")  # noqa: PTH116 — asked at every load; a Path doubles the cost
    except (OSError, ValueError):
        return None
    return status.st_mtime_ns, status.st_ino, status.st_dev


Stamps = list[tuple[str, _Stamp]]


def directory_stamps(*directories: Path) -> Stamps:
    """Return the stamps of the lists of files in directories, and of their manifests."""
    return _stamps(name for directory in directories for name in (directory, directory / _MANIFEST))


def package_stamps(*packages: Path) -> Stamps:
    """Return the stamps of the first files of packages, and of their manifests.

    The list of a package's files changes when it is imported, because its bytecode is written.
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
    """A distribution's name in the form in which names are compared."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _read_directory(entry: str) -> Iterator[FoundModule]:
    """The claims in one entry of sys.path."""
    try:
        names = os.listdir(entry or ".")  # noqa: PTH208 — thousands of names, of which a few become paths
    except OSError:  # not a directory, too: archives are not searched
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
    """The claims in one ``entry_points.txt``; the first line for an id counts."""
    named = _METADATA_DIRECTORY.fullmatch(directory)
    if named is None:
        return
    section = ""
    is_ours = _normalized(named["name"]) == _OUR_DISTRIBUTION
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
                distribution=named["name"],
                version=named["version"] or "",
                metadata=metadata,
                is_built_in=is_ours and match["module"].startswith(_OUR_MODULES),
            )


def _summary(metadata: str) -> str:
    """The summary of a distribution, from the header of its metadata."""
    for name in ("METADATA", "PKG-INFO"):
        try:
            header = (
                Path(metadata, name)
                .read_text(encoding="utf-8", errors="replace")
                .partition("\n\n")[0]
            )
        except OSError:
            continue
        return next(
            (line[8:].strip() for line in header.splitlines() if line.startswith("Summary:")), ""
        )
    return ""


# ── several claims to one id ─────────────────────────────────────────────────────────────────────


def is_pin(source: object) -> bool:
    """Whether a source pins an installed module; others are paths, or what a resolver reads."""
    if isinstance(source, Mapping) and set(source) == {"distribution"}:
        name = source["distribution"]
        return isinstance(name, str) and bool(name.strip())
    return isinstance(source, str) and source == BUILT_IN_SOURCE


def choose(module_id: str, claims: Sequence[FoundModule], pin: Any = None) -> FoundModule | None:
    """The claim to use; None when there is no claim.

    Args:
        module_id: The id.
        claims: All claims to it.
        pin: The source in the plan, if it pins one.

    Raises:
        ModuleConflictError: Several third-party distributions claim the id, and the plan pins none.
        ModuleLoadError: What the plan pins does not exist; the message lists what does.
    """
    if pin is not None:
        return _pinned(module_id, claims, pin)
    others = [claim for claim in claims if not claim.is_built_in]
    if len(others) > 1:
        named = " and by ".join(f"{claim} ({claim.metadata})" for claim in others)
        pins = " or ".join(f'"source": {json.dumps(claim.source)}' for claim in claims)
        raise ModuleConflictError(
            f"module {module_id!r} is claimed by {named}; uninstall all but one of them, or pin one in the mount plan: {pins}",
            module_id=module_id,
        )
    return claims[0] if claims else None


def _pinned(module_id: str, claims: Sequence[FoundModule], pin: Any) -> FoundModule:
    name = None if pin == BUILT_IN_SOURCE else pin["distribution"].strip()

    def fits(claim: FoundModule) -> bool:
        return (
            claim.is_built_in
            if name is None
            else _normalized(claim.distribution) == _normalized(name)
        )

    found = next(filter(fits, claims), None)
    if found is not None:
        return found
    shown = "the built-in one" if name is None else f"the distribution {name!r}"
    provided = sorted(
        each.module_id for all_ in installed_claims().values() for each in all_ if fits(each)
    )
    instead = " or ".join(f"{json.dumps(claim.source)} ({claim})" for claim in claims)
    raise ModuleLoadError(
        f"module {module_id!r} is pinned to {shown}, which does not provide it; "
        + (
            f"it provides {', '.join(provided)}; "
            if provided
            else "it is not installed or provides no modules; "
        )
        + (
            f"{module_id!r} is provided by {instead}"
            if claims
            else f"no installed distribution provides {module_id!r}"
        ),
        module_id=module_id,
        reason_code="missing_source",
    )


# ── directories ──────────────────────────────────────────────────────────────────────────────────

# Two characters at least, so that a Windows drive is not taken for a scheme.
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


def package_name(module_id: str) -> str:
    """The import package that carries a module by convention."""
    return f"{MODULE_PREFIX}{module_id.replace('-', '_')}"


def effective_search_paths(given: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """The search paths given, or else those in the environment."""
    return [
        Path(path)
        for path in given or os.environ.get(SEARCH_PATH_VARIABLE, "").split(os.pathsep)
        if path
    ]


def find_directory(module_id: str, search_paths: Iterable[Path]) -> Path | None:
    """The first root of a module on the search paths: ``amplifier-module-<id>``, or the bare package."""
    for search_path in search_paths:
        root = search_path / f"{_DIRECTORY_PREFIX}{module_id}"
        if root.is_dir():
            return root
        package = search_path / package_name(module_id)
        if (package / "__init__.py").is_file():
            return package
    return None


def modules_in(search_paths: Iterable[Path]) -> Iterator[FoundModule]:
    """The modules in ``amplifier-module-<id>`` directories, by name; none of a search path that cannot be read."""
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
    """Read a source without a resolver's help: a path, or a ``file:`` URI.

    Raises:
        ModuleLoadError: It is something only a resolver understands.
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
        f"module {module_id!r} has the source {source!r}, which is neither a filesystem path nor a plain file: URI; "
        "mount a resolver at 'module-source-resolver' that understands it",
        module_id=module_id,
        reason_code="missing_source",
    )


def find_package(root: Path, module_id: str) -> tuple[str, Path]:
    """The package in a module's root: its import name and its directory.

    The root itself if it is a package, else ``amplifier_module_<id>`` in it, else the only ``amplifier_module_*``.

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
    if (kind := _foreign_kind(root)) is not None:
        raise ModuleLoadError(
            f"module {module_id!r}: {root} holds {kind}, and only Python modules are loaded here; run it on the published kernel, "
            "or offer what it does as an MCP server and mount tool-mcp",
            module_id=module_id,
            reason_code="invalid_package_layout",
        )
    if (root / "__init__.py").is_file():
        # A checkout's directory may be called anything; a name that cannot be imported gets the conventional one.
        return (root.name if root.name.isidentifier() else conventional), root
    if (root / conventional / "__init__.py").is_file():
        return conventional, root / conventional
    others = sorted(init.parent for init in root.glob(f"{MODULE_PREFIX}*/__init__.py"))
    if len(others) == 1:
        return others[0].name, others[0]
    found = (
        f"it holds {', '.join(other.name for other in others)}"
        if others
        else "it holds no package of that kind"
    )
    raise ModuleLoadError(
        f"module {module_id!r}: {root} has no package {conventional!r}, and {found}; expected that package, "
        "exactly one 'amplifier_module_*' package, or a directory that is a package itself",
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
    """What a root holds instead of a Python module, for the published kernel: by its manifest, or by its only file of that kind."""
    has_package = any(root.glob("*.py")) or any(root.glob("*/__init__.py"))
    if not has_package and any(root.glob("*.wasm")):
        return _OTHER_KINDS["wasm"]
    return _OTHER_KINDS.get(_read_table(root / _MANIFEST, "module").get("transport", ""))


def _read_table(file: Path, name: str) -> dict[str, str]:
    """The texts at the top of a TOML file and in one of its tables; none of a file that cannot be read."""
    import tomllib  # noqa: PLC0415 — four milliseconds of every start, for modules in directories

    try:
        content = tomllib.loads(read_file(file).decode("utf-8"))
    except (OSError, ValueError):  # bad TOML and bad UTF-8 are ValueErrors
        return {}
    table = content.get(name)
    found = {**content, **(table if isinstance(table, dict) else {})}
    return {key: value for key, value in found.items() if isinstance(value, str)}
