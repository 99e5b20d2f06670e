"""The module loader, and listings of the installed modules."""

from __future__ import annotations

import importlib
import inspect
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, final

import attrs

from amplifier._internal.reading import can_call, show
from amplifier._internal.spelling import did_you_mean
from amplifier.errors import (
    MissingExtraError,
    ModuleConflictError,
    ModuleLoadError,
    ModuleNotFoundError,
)
from amplifier.models import ModuleInfo
from amplifier.plan import LOCAL_MODEL_ADVICE
from amplifier.plan.dicts import places_of
from amplifier.plan.spec import MODULE_ID_RULE, is_module_id

from .discovery import (
    ENTRY_POINT_GROUP,
    SEARCH_PATH_VARIABLE,
    TYPE_TO_MOUNT_POINT,
    FoundModule,
    Stamps,
    are_settled,
    choose,
    directory_stamps,
    effective_search_paths,
    find_directory,
    find_package,
    installed_claims,
    is_pin,
    is_readable,
    modules_in,
    nearest_module,
    package_name,
    package_stamps,
    path_from_source,
    stamp_of,
)
from .importing import (
    MODULE_PREFIX,
    HeldRoots,
    find_installed,
    foreign_code,
    import_lock,
    installed_module,
    is_from_directory,
    is_published_mount,
    package_from,
)
from .inspection import LoadedModule, examine_imported, examine_registered, find_target, usable_here

logger: logging.Logger = logging.getLogger(__name__)

Listing = dict[str, tuple[FoundModule, ...]]

_RESOLVER_MOUNT_POINT: Final = "module-source-resolver"
_EXTENSION: Final = "amplifier.compat"
"""The module that sets the hooks of loaders. The first loader imports it.

It is imported by name because it belongs to a higher layer, and late because most processes that
import this package load no modules.
"""

_known: Final[dict[FoundModule, tuple[ModuleType, object, LoadedModule]]] = {}
"""Installed modules that were loaded in this process, each with its target and the result."""


@attrs.frozen
class _FromDirectory:
    """A module that was loaded from a directory in this process.

    Attributes:
        root: The directory, without symbolic links.
        holds_root: True if sessions that use it need the root on sys.path.
        stamps: The stamps of the files that determine the result.
        name: The name under which the package was imported.
        module: The imported package.
        loaded: The result of the load.
    """

    root: Path
    holds_root: bool
    stamps: Stamps
    name: str
    module: ModuleType
    loaded: LoadedModule

    def is_current(self) -> bool:
        """Return whether loading the module again would give the same result."""
        return (
            sys.modules.get(self.name) is self.module
            and getattr(self.module, "mount", None) is self.loaded.mount
            and all(stamp == stamp_of(place) for place, stamp in self.stamps)
        )


_known_in: Final[dict[tuple[Path, str], _FromDirectory]] = {}
"""Modules by the path of their source and their id."""


@final
class ModuleLoader:
    """Finds modules, imports them and classifies them. Never mounts one.

    Without a resolver, a module is searched for in this order: modules registered in process, entry
    points of installed distributions, the search paths, built-in modules, and the importable
    package ``amplifier_module_<id>``.

    One process holds one copy of a package. Sessions that load the same module share its Python
    module object, and a second source for the same package name is refused. Sessions may share a
    loader. An entry of sys.path stays until the last session that uses it has closed.

    Args:
        coordinator: The coordinator with the ``module-source-resolver``. The session sets it.
        search_paths: Directories that hold ``amplifier-module-<id>`` directories. Without any, the
            environment variable AMPLIFIER_MODULES names them.
        modules: Modules registered in process. See `register`.

    Attributes:
        coordinator: The coordinator with the ``module-source-resolver``, or None.
        import_hook: Called with the name of each package before its first import, so that a layer
            above can make other names importable first. To set it for all loaders, assign a
            ``staticmethod``.
        load_hook: Called with each loaded module that doesn't declare its backends. It returns the
            module to use, or raises `ModuleLoadError` to refuse it on the running backend.
    """

    TYPE_TO_MOUNT_POINT: ClassVar[Mapping[str, str]] = TYPE_TO_MOUNT_POINT
    import_hook: Callable[[str], None] | None = None
    load_hook: Callable[[LoadedModule], LoadedModule] | None = None
    _former: weakref.ref[object] | None = None

    def __init__(
        self,
        coordinator: Any = None,
        search_paths: Iterable[str | os.PathLike[str]] | None = None,
        *,
        modules: Mapping[str, object] | None = None,
    ) -> None:
        importlib.import_module(_EXTENSION)
        self.coordinator: Any = coordinator
        self._search_paths = list(search_paths or ())
        self._registered: dict[str, FoundModule] = {}
        # The results of examining modules registered in process.
        self._loaded: dict[str, LoadedModule | None] = {}
        self._roots = HeldRoots()
        for module_id, module in (modules or {}).items():
            self.register(module_id, module)

    def __repr__(self) -> str:
        return (
            f"<ModuleLoader {len(self._registered)} registered, {len(self._loaded)} loaded, "
            f"{len(self._roots)} sys.path entries held>"
        )

    def register(self, module_id: str, module: object, *, module_type: str | None = None) -> None:
        """Make a module of this process loadable by id with this loader.

        Args:
            module_id: The id of the module.
            module: A mount function, or any object with a ``mount`` attribute, such as a Python
                module. It may have ``on_session_ready`` and ``__amplifier_module_type__``.
            module_type: The kind, if neither the module nor the first word of the id declares it.

        Raises:
            ModuleConflictError: Another object is registered under this id.
            ModuleLoadError: The text isn't a module id.
        """
        _check_module_id(module_id)
        present = self._registered.get(module_id)
        if present is not None and present.registered is not module:
            raise ModuleConflictError(
                f"module {module_id!r} is already registered as {present.registered!r} and cannot "
                f"also be {module!r}; use another id or another loader",
                module_id=module_id,
            )
        self._loaded.pop(module_id, None)
        self._registered[module_id] = FoundModule(
            module_id=module_id, registered=module, registered_type=module_type
        )

    def for_child(self, coordinator: Any) -> ModuleLoader:
        """Return a loader for a child session, with the same search paths and in-process modules.

        The new loader holds entries of sys.path independently.
        """
        child = ModuleLoader(coordinator, self._search_paths)
        child._registered = dict(self._registered)
        child._loaded = dict(self._loaded)
        return child

    # ── finding ──────────────────────────────────────────────────────────────────────────────────

    def locate(
        self, module_id: str, source: object = None, *, listing: Listing | None = None
    ) -> FoundModule | None:
        """Return a module without importing anything, or None if it isn't found.

        Args:
            module_id: A valid id.
            source: The source, as ``source_hint`` of `load`. No resolver is asked.
            listing: A dict that is filled with the installed modules, to share between several
                searches. An id that isn't in it is looked up again.

        Raises:
            ModuleConflictError: Several distributions claim the id.
            ModuleLoadError: The source can't be read, or it pins a module that doesn't exist.
        """
        if source is not None:
            if is_pin(source):
                return choose(module_id, self._claims(module_id, listing), source)
            return FoundModule(module_id=module_id, root=path_from_source(source, module_id))
        if module_id in self._registered:
            return self._registered[module_id]
        claim = choose(module_id, self._claims(module_id, listing))
        if claim is not None and not claim.is_built_in:
            return claim
        root = find_directory(module_id, effective_search_paths(self._search_paths))
        if root is not None:
            return FoundModule(module_id=module_id, root=root)
        return claim or self._locate_package(module_id)

    def _claims(self, module_id: str, listing: Listing | None) -> tuple[FoundModule, ...]:
        if listing is None:
            return installed_claims().get(module_id, ())
        if module_id not in listing:
            listing.update(installed_claims())
        return listing.get(module_id, ())

    @staticmethod
    def _locate_package(module_id: str) -> FoundModule | None:
        name = package_name(module_id)
        with foreign_code(module_id, f"looking for {name!r}"):
            installed = find_installed(name)
            if installed is None:
                # A stale listing may hide a package that was installed a moment ago.
                importlib.invalidate_caches()
                installed = find_installed(name)
        if installed is None and (name not in sys.modules or is_from_directory(name)):
            return None
        return FoundModule(module_id=module_id, import_name=name)

    async def discover(self) -> list[ModuleInfo]:
        """List the modules that can be loaded without a resolver, in search order.

        If several modules share an id, only the one in use is listed, or all if the id is
        contested. No module is imported. A module that can't be read is logged and left out. A
        module whose kind is neither declared nor named in its id is listed as a tool.
        """
        return [module.info for module in self.catalogue() if module.is_used or module.is_contested]

    def catalogue(self) -> list[FoundModule]:
        """List all modules like `discover`, including shadowed ones."""
        listing = dict(installed_claims())
        claims = [claim for _, by_id in sorted(listing.items()) for claim in by_id]
        modules = [
            *self._registered.values(),
            *(claim for claim in claims if not claim.is_built_in),
            *modules_in(effective_search_paths(self._search_paths)),
            *(claim for claim in claims if claim.is_built_in),
        ]
        return [
            self._with_usage(module, listing)
            for module in dict.fromkeys(modules)
            if is_readable(module)
        ]

    def _with_usage(self, module: FoundModule, listing: Listing) -> FoundModule:
        try:
            return attrs.evolve(
                module, is_used=self.locate(module.module_id, listing=listing) == module
            )
        except ModuleConflictError as error:
            is_contested = bool(module.distribution) and not module.is_built_in
            if is_contested:
                logger.warning("%s", error)
            return attrs.evolve(module, is_used=False, is_contested=is_contested)

    # ── loading ──────────────────────────────────────────────────────────────────────────────────

    async def load(
        self,
        module_id: str,
        config: Mapping[str, object] | None = None,
        source_hint: object = None,
        profile_source: object = None,
        coordinator: Any = None,
        *,
        user: object = None,
    ) -> LoadedModule:
        """Find and import a module. The caller mounts it.

        Imports are synchronous in Python. A module that takes long to import blocks the event loop,
        and neither a deadline nor a cancellation reaches it. Only the resolver is awaited.

        Args:
            module_id: The id of the module.
            config: The module's config in the mount plan.
            source_hint: The module's source in the mount plan: ``"builtin"`` or ``{"distribution":
                NAME}`` for an installed one, without asking a resolver. If there is no resolver,
                any other source must be a filesystem path or a ``file:`` URI.
            profile_source: The older name of ``source_hint``.
            coordinator: The coordinator with the resolver, instead of the loader's.
            user: The session for which sys.path entries are held. Without one they are held until
                `cleanup`, or until the last session that uses this loader has closed.

        Raises:
            ModuleNotFoundError: There is no such module.
            ModuleLoadError: The module was found but can't be used.
        """
        _check_module_id(module_id)
        # Check the config before a resolver downloads anything.
        settings = _settings(module_id, config)
        resolver = _mounted_resolver(self.coordinator if coordinator is None else coordinator)
        source = profile_source if source_hint is None else source_hint
        if resolver is None or is_pin(source):
            return self.find(module_id, source, user=user).with_config(settings)
        profile = source_hint if profile_source is None else profile_source
        try:
            path = await _resolve_with(resolver, module_id, source, profile)
        # The application's resolver may raise anything.
        except Exception as exc:
            if not means_not_found(exc):
                raise
            # An ImportError that names a package is an error in the resolver, not an answer.
            level = logging.WARNING if isinstance(exc, ImportError) and exc.name else logging.INFO
            logger.log(
                level,
                "resolver %r did not find module %r: %s",
                type(resolver).__name__,
                module_id,
                exc,
            )
            entry = self.locate(module_id)
            if entry is None:
                asked = f"resolver {type(resolver).__name__}: {exc}"
                also = exc.searched if isinstance(exc, ModuleNotFoundError) else ()
                raise self._not_found(module_id, (asked, *also)) from exc
        else:
            entry = FoundModule(module_id=module_id, root=path)
        return self._load(entry, user).with_config(settings)

    def find(
        self,
        module_id: str,
        source_hint: object = None,
        *,
        listing: Listing | None = None,
        user: object = None,
    ) -> LoadedModule:
        """Find and import a module without a resolver, and thus without awaiting anything.

        Args:
            module_id: A valid id.
            source_hint: The source, as in `load`.
            listing: The installed modules, as in `locate`, shared by the loads of one opening.
            user: The session for which sys.path entries are held, as in `load`.

        Returns:
            The module without a config.
        """
        entry = self.locate(module_id, source_hint, listing=listing)
        if entry is None:
            raise self._not_found(module_id)
        if source_hint is None and module_id not in self._loaded and not entry.is_built_in:
            used, claims = module_id in self._registered, self._claims(module_id, listing)
            if claims and claims[-1].is_built_in and not used:
                note = 'module %r: %s is used, not %s; "source": "builtin" pins that one'
                logger.info(note, module_id, entry, claims[-1])
        return self._load(entry, user)

    def _load(self, entry: FoundModule, user: object) -> LoadedModule:
        if entry.root is not None:
            module = self._import_from(entry.root, entry, user)
        elif entry.import_name:
            module = self._import_installed(entry)
        else:
            module = self._loaded.get(entry.module_id) or examine_registered(entry)
        self._loaded[entry.module_id] = module if entry.registered is not None else None
        if module.complaint is not None:
            logger.warning("%s", module.complaint)
        # The same module may be loaded again on another backend.
        if module.backends is not None:
            module = usable_here(module)
        elif self.load_hook is not None:
            module = self.load_hook(module)
        return module

    def _import_installed(self, entry: FoundModule) -> LoadedModule:
        name = entry.import_name
        if (known := _known.get(entry)) is not None:
            module, target, loaded = known
            if sys.modules.get(name) is module and find_target(module, entry.attribute) is target:
                return loaded
        self._announce_import(name)
        with installed_module(name, entry.module_id, str(entry)) as module:
            loaded = examine_imported(entry, module)
        if entry.distribution:
            _known[entry] = (module, find_target(module, entry.attribute), loaded)
        return loaded

    def _import_from(self, path: Path, entry: FoundModule, user: object) -> LoadedModule:
        if (known := _known_in.get((path, entry.module_id))) is not None:
            if known.is_current():
                if known.holds_root:
                    self._roots.add(str(known.root), user)
                return known.loaded
            _known_in.pop((path, entry.module_id), None)
        root = Path(os.path.realpath(path))
        stamps = directory_stamps(path, root)
        entry = attrs.evolve(entry, root=root)
        name, directory = find_package(root, entry.module_id)
        stamps += package_stamps(directory, *root.glob(f"{MODULE_PREFIX}*"))
        self._announce_import(name)
        with import_lock:
            # Packages next to the module's own package have to be importable. A root that is itself
            # a package has no such neighbours.
            holds_root = directory != root
            newly_held = holds_root and self._roots.add(str(root), user)
            try:
                with package_from(directory, name, entry.module_id, root) as module:
                    loaded = examine_imported(entry, module, directory)
            except BaseException:
                if newly_held:
                    self._roots.discard(str(root), user)
                raise
        if path.is_absolute() and are_settled(stamps):
            _known_in[path, entry.module_id] = _FromDirectory(
                root, holds_root, stamps, name, module, loaded
            )
        return loaded

    def _announce_import(self, name: str) -> None:
        if self.import_hook is not None and name not in sys.modules:
            self.import_hook(name)

    # ── sys.path ─────────────────────────────────────────────────────────────────────────────────

    def acquire(self, user: object) -> None:
        """Record that a session starts to use this loader. `release` must follow."""
        self._roots.begin(user)
        if self._former is not None and self._former() is user:
            self.coordinator = user

    def release(self, user: object) -> None:
        """Give up the sys.path entries that only the closed session used.

        A second call does nothing.
        """
        self._roots.end(user)
        # The loader must not keep a closed session alive.
        if self.coordinator is user:
            self.coordinator, self._former = None, weakref.ref(user)

    def cleanup(self) -> None:
        """Give up all sys.path entries of this loader, even entries in use. Idempotent."""
        self._roots.clear()

    # ── nothing found ────────────────────────────────────────────────────────────────────────────

    def _not_found(self, module_id: str, resolvers: Sequence[str] = ()) -> ModuleNotFoundError:
        search_paths = effective_search_paths(self._search_paths)
        name = package_name(module_id)
        searched = list(resolvers)
        if self._registered:
            searched.append(f"{len(self._registered)} modules registered in process")
        searched.append(f"entry points of group {ENTRY_POINT_GROUP!r}")
        searched += [
            f"search path {path}" + ("" if path.is_dir() else " (no such directory)")
            for path in search_paths
        ]
        if not search_paths:
            searched.append(f"search paths (none given, and {SEARCH_PATH_VARIABLE} names none)")
        note = ""
        if name in sys.modules:
            note = " (not used, because it was imported from the source of another loader)"
        searched.append(f"package {name!r}{note}")
        known = {
            *self._registered,
            *installed_claims(),
            *(module.module_id for module in modules_in(search_paths)),
        }
        suggestion = nearest_module(module_id, known)
        hint = f"; {did_you_mean(suggestion)}" if suggestion else "."
        if module_id == _REMOVED_PROVIDER:
            suggestion, hint = None, f"; {LOCAL_MODEL_ADVICE}."
        places = "".join(f"\n  - {place}" for place in searched)
        return ModuleNotFoundError(
            f"no module {module_id!r} was found{hint} Looked in:{places}\n"
            "Install the distribution that provides it, add its directory to the search paths, or "
            "give its source in the mount plan.",
            module_id=module_id,
            searched=searched,
            suggestion=suggestion,
        )


AmplifierModuleLoader = ModuleLoader
"""The older name of `ModuleLoader`."""


def _check_module_id(module_id: object) -> None:
    """Raise if this isn't a module id. Do this first, because ids become file and package names."""
    if not is_module_id(module_id):
        raise ModuleLoadError(
            f"{show(module_id)} is not a module id; {MODULE_ID_RULE}",
            module_id=module_id if isinstance(module_id, str) else None,
            reason_code="validation_failed",
        )


def _settings(module_id: str, config: Mapping[str, object] | None) -> dict[str, Any]:
    """Return a copy of a module's config, so that the module can't change the plan."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise TypeError(f"config of module {module_id!r} is {config!r}; expected a dict or None")
    return dict(config)


# ── resolvers of the application ─────────────────────────────────────────────────────────────────


def _mounted_resolver(coordinator: Any) -> Any:
    """Return the resolver that the application mounted, or None."""
    if coordinator is None:
        return None
    try:
        return coordinator.get(_RESOLVER_MOUNT_POINT)
    # The published kernel's coordinators raise this if nothing is mounted there.
    except ValueError:
        return None


async def _resolve_with(
    resolver: Any, module_id: str, source_hint: object, profile_hint: object
) -> Path:
    """Ask a resolver for a module's directory. Errors of the resolver or its source propagate.

    Raises:
        ModuleLoadError: The answer is neither a source nor a path.
    """
    method = getattr(resolver, "async_resolve", None) or resolver.resolve
    source = await ask_resolver(method, module_id, source_hint, profile_hint)
    answer = await resolve_source(source)
    if isinstance(answer, str | os.PathLike):
        path = os.fspath(answer)
        if isinstance(path, str):
            return Path(path)
    resolved = "" if answer is source else f", which resolved to {answer!r}"
    raise ModuleLoadError(
        f"the resolver {resolver!r} returned {source!r} for module {module_id!r}{resolved}; "
        "expected a path, a source with a resolve() that returns one, or a ModuleNotFoundError",
        module_id=module_id,
        reason_code="missing_source",
    )


async def ask_resolver(
    method: Callable[..., Any], module_id: str, source_hint: object, profile_hint: object
) -> object:
    """Call a method of a resolver, sync or async. Its errors propagate."""
    # Resolvers accept hints as both keywords, as one of them, as a second positional argument, or
    # not at all.
    by_source, by_profile = {"source_hint": source_hint}, {"profile_hint": profile_hint}
    forms: list[dict[str, Any]] = [{**by_source, **by_profile}, by_source, by_profile]
    keywords = next((form for form in forms if can_call(method, module_id, **form)), {})
    try:
        inspect.signature(method)
    # This is raised for C functions, which are called according to the contract.
    except ValueError:
        keywords = {}
    positional = (
        () if keywords or not can_call(method, module_id, profile_hint) else (profile_hint,)
    )
    source = method(module_id, *positional, **keywords)
    return await source if inspect.isawaitable(source) else source


async def resolve_source(source: Any) -> object:
    """Return the path of a resolver's answer, which is a path or a source."""
    if isinstance(source, str | os.PathLike) or not callable(getattr(source, "resolve", None)):
        return source
    answer = source.resolve()
    return await answer if inspect.isawaitable(answer) else answer


def means_not_found(exc: BaseException | None) -> bool:
    """Return whether a resolver's error means that the module is unknown.

    The error is recognized by its name, because resolvers raise the class of this package, the
    builtin, or a class of their framework.
    """
    return any(kind.__name__ == "ModuleNotFoundError" for kind in type(exc).__mro__)


# ── installed modules, for listings and checks of plans ──────────────────────────────────────────
# Only files are read. No module is imported.

ON_ISLAND: Final = (
    "needs asyncio; on trio it runs on an asyncio island, a thread with its own event loop"
)
"""The note in listings about an asyncio-only module."""

REQUIRED_PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "hooks-otel": ("opentelemetry", "otel"),
    "provider-anthropic": ("httpx2", "anthropic"),
    "provider-openai": ("httpx2", "openai"),
    "provider-openai-compatible": ("httpx2", "openai"),
    "tool-mcp": ("mcp", "mcp"),
    "tool-web": ("truststore", "providers"),
}
"""For each built-in module that needs an extra: the import name of its package, and the extra."""

_REMOVED_PROVIDER: Final = "provider-local"

_ORDER = ["orchestrator", "context", "provider", "tool", "hook", "resolver"]


def all_modules() -> list[FoundModule]:
    """Return every module, ordered by type and id.

    Of several with the same id, the one in use comes first.
    """
    return sorted(
        ModuleLoader().catalogue(),
        key=lambda entry: (_ORDER.index(entry.info.type), entry.info.id, not entry.is_used),
    )


def installed_modules() -> list[FoundModule]:
    """Return the modules that a plan can name with just the id, and those with a contested id."""
    return [entry for entry in all_modules() if entry.is_used or entry.is_contested]


def installed_ids() -> list[str]:
    """Return the ids of `installed_modules` without logging, for shell completion."""
    logging.disable(logging.CRITICAL)
    try:
        return list(dict.fromkeys(entry.info.id for entry in installed_modules()))
    finally:
        logging.disable(logging.NOTSET)


def missing_package(module_id: str) -> tuple[str, str] | None:
    """Return the package that a built-in module lacks, and the extra that installs it.

    Return None for any other module.
    """
    try:
        used = ModuleLoader().locate(module_id)
    # The id is contested.
    except ModuleLoadError:
        return None
    return _lacking(module_id) if used is not None and used.is_built_in else None


def _lacking(module_id: str) -> tuple[str, str] | None:
    package, extra = REQUIRED_PACKAGES.get(module_id, ("", ""))
    return (package, extra) if package and find_spec(package) is None else None


def require_backend(name: str) -> None:
    """Raise if the backend isn't installed.

    Raises:
        MissingExtraError: Trio is requested but not installed. It belongs to an extra.
    """
    if name == "trio" and find_spec("trio") is None:
        raise MissingExtraError("--backend trio", extra="trio", missing="trio")


def runs_on_island(loaded: LoadedModule) -> bool:
    """Return whether a module runs on an asyncio island in a session on trio.

    Such a module declares asyncio without trio, or was written for the published kernel.
    """
    if loaded.backends is not None:
        return "asyncio" in loaded.backends and "trio" not in loaded.backends
    return is_published_mount(loaded.mount)


# ── the modules that a plan names ────────────────────────────────────────────────────────────────


def missing_modules(plan: object) -> list[tuple[str, str]]:
    """Return the modules of a plan that aren't installed or lack a package.

    A module with a ``source`` is checked only if the source pins an installed distribution or the
    built-in module. An invalid plan is checked as far as it is well-formed.

    Returns:
        Paths in the plan, each with its problem.
    """
    known = installed_ids()
    problems: list[tuple[str, str]] = []
    for holder, key, section, path in places_of(plan) if isinstance(plan, Mapping) else ():
        spec = holder[key]
        if isinstance(spec, str):
            spec = {
                "module": spec,
                "source": holder.get(f"{key}_source") if section == "session" else None,
            }
        if isinstance(spec, Mapping) and is_module_id(spec.get("module")):
            problem = _problem(spec["module"], spec.get("source"), known)
            problems += [] if problem is None else [(path, problem)]
    return problems


def _problem(module_id: str, source: object, known: list[str]) -> str | None:
    if source is not None and not is_pin(source):
        return None
    try:
        used = ModuleLoader().locate(module_id, source)
    except ModuleLoadError as error:
        return str(error)
    if used is not None and used.is_built_in and (lacking := _lacking(module_id)) is not None:
        package, extra = lacking
        install = f"pip install 'amplifier[{extra}]'"
        return (
            f"module {module_id!r} needs {package}, which is not installed; "
            f"install it with: {install}"
        )
    if used is not None:
        return None
    if module_id == _REMOVED_PROVIDER:
        return f"no module {module_id!r} is installed; {LOCAL_MODEL_ADVICE}"
    near = nearest_module(module_id, known)
    advice = "install it, name its folder in AMPLIFIER_MODULES or give its 'source'"
    return f"no module {module_id!r} is installed; {advice if near is None else did_you_mean(near)}"
