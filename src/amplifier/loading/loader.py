"""`ModuleLoader`: from a module id to a `LoadedModule`, which the session mounts; which modules are installed, what they lack."""

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
"""Sets the hooks of loaders when it is imported; by name, because it is in a layer above, and with the first loader, because most
processes that import this package load no module."""

_known: Final[dict[FoundModule, tuple[ModuleType, object, LoadedModule]]] = {}
"""Installed modules that were loaded before in this process, and what they were then."""


@attrs.frozen
class _FromDirectory:
    """A module that was loaded from a directory before in this process.

    Attributes:
        root: The directory, without symbolic links.
        holds_root: True if sessions that use it need the root on sys.path.
        stamps: The files that decide how it is loaded, as they were then.
        name: The name by which it was imported.
        module: What was imported.
        loaded: What it was then.
    """

    root: Path
    holds_root: bool
    stamps: Stamps
    name: str
    module: ModuleType
    loaded: LoadedModule

    def is_current(self) -> bool:
        """Return whether loading it again would give the same."""
        return (
            sys.modules.get(self.name) is self.module
            and getattr(self.module, "mount", None) is self.loaded.mount
            and all(stamp == stamp_of(place) for place, stamp in self.stamps)
        )


_known_in: Final[dict[tuple[Path, str], _FromDirectory]] = {}
"""Modules by the path of their source and their id."""


@final
class ModuleLoader:
    """Finds modules, imports them, classifies them; never mounts one.

    Without a resolver a module is looked for among those registered in process, then among the entry points of
    installed distributions, then on the search paths, then among the built-in ones, then as the importable package
    ``amplifier_module_<id>``.

    One process holds one copy of a package: sessions that load the same module share its Python module object, and a
    second source for the same package name is refused. Sessions may share a loader: a sys.path entry stays until the last
    session that uses it has closed.

    Args:
        coordinator: Whose ``module-source-resolver`` to ask; the session sets it.
        search_paths: Directories with ``amplifier-module-<id>`` directories in them; those named by the environment
            variable AMPLIFIER_MODULES if there are none.
        modules: Modules registered in process; see `register`.

    Attributes:
        import_hook: Called with the name of each package about to be imported for the first time, so that a layer
            above can make other names importable first. To set it for all loaders, assign a ``staticmethod``.
        load_hook: Called with each loaded module that does not declare its backends, so that a layer above can refuse it on
            the running one by raising `ModuleLoadError`; returns the module to use.
    """

    TYPE_TO_MOUNT_POINT: ClassVar[Mapping[str, str]] = TYPE_TO_MOUNT_POINT
    import_hook: Callable[[str], None] | None = None
    load_hook: Callable[[LoadedModule], LoadedModule] | None = None
    _former: weakref.ref[Any] | None = None

    def __init__(
        self,
        coordinator: Any = None,
        search_paths: Iterable[str | os.PathLike[str]] | None = None,
        *,
        modules: Mapping[str, Any] | None = None,
    ) -> None:
        importlib.import_module(_EXTENSION)
        self.coordinator: Any = coordinator
        self._search_paths = list(search_paths or ())
        self._registered: dict[str, FoundModule] = {}
        # Modules registered in process, as they were examined.
        self._loaded: dict[str, LoadedModule | None] = {}
        self._roots = HeldRoots()
        for module_id, module in (modules or {}).items():
            self.register(module_id, module)

    def __repr__(self) -> str:
        return (
            f"<ModuleLoader {len(self._registered)} registered, {len(self._loaded)} loaded, "
            f"{len(self._roots)} sys.path entries held>"
        )

    def register(self, module_id: str, module: Any, *, module_type: str | None = None) -> None:
        """Make a module of this process loadable by id, from this loader.

        Args:
            module_id: The id to load it by.
            module: A mount function; or a Python module, or any object, with a ``mount`` attribute and perhaps
                ``on_session_ready`` and ``__amplifier_module_type__``.
            module_type: Its kind, where neither the module nor the id's first word declares it.

        Raises:
            ModuleConflictError: Something else is registered under this id.
            ModuleLoadError: It is not a module id.
        """
        _check_module_id(module_id)
        present = self._registered.get(module_id)
        if present is not None and present.registered is not module:
            raise ModuleConflictError(
                f"module {module_id!r} is already registered as {present.registered!r} and cannot also be {module!r}; "
                "use another id or another loader",
                module_id=module_id,
            )
        self._loaded.pop(module_id, None)
        self._registered[module_id] = FoundModule(
            module_id=module_id, registered=module, registered_type=module_type
        )

    def for_child(self, coordinator: Any) -> ModuleLoader:
        """A loader for a child session: the same search paths and in-process modules, paths held for itself."""
        child = ModuleLoader(coordinator, self._search_paths)
        child._registered = dict(self._registered)
        child._loaded = dict(self._loaded)
        return child

    # ── finding ──────────────────────────────────────────────────────────────────────────────────

    def locate(
        self, module_id: str, source: object = None, *, listing: Listing | None = None
    ) -> FoundModule | None:
        """Find a module without importing anything; None if there is none.

        Args:
            module_id: What to look for; known to be an id.
            source: As ``source_hint`` of `load`; no resolver is asked.
            listing: Filled with what is installed, for those who look for several modules in one moment. What is not in it is
                looked for afresh.

        Raises:
            ModuleConflictError: Several distributions claim the id.
            ModuleLoadError: The source pins what does not exist, or cannot be read.
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
                importlib.invalidate_caches()  # a package installed a moment ago may be hidden by a stale listing
                installed = find_installed(name)
        if installed is None and (name not in sys.modules or is_from_directory(name)):
            return None
        return FoundModule(module_id=module_id, import_name=name)

    async def discover(self) -> list[ModuleInfo]:
        """List the modules that can be loaded without a resolver, in the order in which they are looked for.

        Of several with one id the one in use is listed; all of them if none is, because they contest the id. Reads files
        only: no module is imported. What cannot be understood is logged and left out. A kind that is neither declared nor
        named by the id's first word is listed as a tool.
        """
        return [module.info for module in self.catalogue() if module.is_used or module.is_contested]

    def catalogue(self) -> list[FoundModule]:
        """List all modules that are there, those that others take precedence over included; see `discover`."""
        listing = dict(installed_claims())
        claims = [claim for _, each in sorted(listing.items()) for claim in each]
        found = [
            *self._registered.values(),
            *(claim for claim in claims if not claim.is_built_in),
            *modules_in(effective_search_paths(self._search_paths)),
            *(claim for claim in claims if claim.is_built_in),
        ]
        return [
            self._judged(module, listing) for module in dict.fromkeys(found) if is_readable(module)
        ]

    def _judged(self, module: FoundModule, listing: Listing) -> FoundModule:
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
        config: Mapping[str, Any] | None = None,
        source_hint: object = None,
        profile_source: object = None,
        coordinator: Any = None,
        *,
        user: object = None,
    ) -> LoadedModule:
        """Find and import a module; mounting it is up to the caller.

        Importing is synchronous in Python: a module that takes long to import blocks the event loop meanwhile, and
        neither a deadline nor cancellation reaches it before it is done. Only the resolver is awaited.

        Args:
            module_id: What to load.
            config: The module's config in the mount plan.
            source_hint: The module's source in the mount plan: ``"builtin"`` or ``{"distribution": NAME}`` for an
                installed one, which no resolver is asked about. Without a resolver anything else must be a filesystem
                path or a ``file:`` URI, and only there is looked.
            profile_source: The same, by its older name.
            coordinator: Whose resolver to ask instead of this loader's own coordinator's.
            user: The session for which sys.path entries are held. Without one they are held until `cleanup`, or until
                the last session that uses this loader has closed.

        Raises:
            ModuleNotFoundError: There is no such module anywhere we looked.
            ModuleLoadError: It was found but cannot be used.
        """
        _check_module_id(module_id)
        settings = _settings(module_id, config)  # before a resolver downloads something
        resolver = _mounted_resolver(self.coordinator if coordinator is None else coordinator)
        source = profile_source if source_hint is None else source_hint
        if resolver is None or is_pin(source):
            return self.find(module_id, source, user=user).with_config(settings)
        profile = source_hint if profile_source is None else profile_source
        try:
            path = await _resolve_with(resolver, module_id, source, profile)
        except (
            Exception
        ) as exc:  # the application's resolver may raise anything; all but one meaning is passed on
            if not means_not_found(exc):
                raise
            # An ImportError that names a package is not an answer: the resolver itself lacks something.
            level = logging.WARNING if isinstance(exc, ImportError) and exc.name else logging.INFO
            logger.log(
                level,
                "resolver %r did not find module %r: %s",
                type(resolver).__name__,
                module_id,
                exc,
            )
            found = self.locate(module_id)
            if found is None:
                asked = f"resolver {type(resolver).__name__}: {exc}"
                also = exc.searched if isinstance(exc, ModuleNotFoundError) else ()
                raise self._not_found(module_id, (asked, *also)) from exc
        else:
            found = FoundModule(module_id=module_id, root=path)
        return self._load(found, user).with_config(settings)

    def find(
        self,
        module_id: str,
        source_hint: object = None,
        *,
        listing: Listing | None = None,
        user: object = None,
    ) -> LoadedModule:
        """As `load`, for those who know that no resolver is to be asked: then there is nothing to await. It has no config.

        Args:
            module_id: What to look for; known to be an id.
            source_hint: As in `load`.
            listing: As in `locate`; shared by the loads of one opening.
            user: As in `load`.
        """
        found = self.locate(module_id, source_hint, listing=listing)
        if found is None:
            raise self._not_found(module_id)
        if source_hint is None and module_id not in self._loaded and not found.is_built_in:
            used, claims = module_id in self._registered, self._claims(module_id, listing)
            if claims and claims[-1].is_built_in and not used:
                note = 'module %r: %s is used, not %s; "source": "builtin" pins that one'
                logger.info(note, module_id, found, claims[-1])
        return self._load(found, user)

    def _load(self, found: FoundModule, user: object) -> LoadedModule:
        if found.root is not None:
            module = self._import_from(found.root, found, user)
        elif found.import_name:
            module = self._import_installed(found)
        else:
            module = self._loaded.get(found.module_id) or examine_registered(found)
        self._loaded[found.module_id] = module if found.registered is not None else None
        if module.complaint is not None:
            logger.warning("%s", module.complaint)
        # What is found once may be loaded often, and each time on another backend.
        if module.backends is not None:
            module = usable_here(module)
        elif self.load_hook is not None:
            module = self.load_hook(module)
        return module

    def _import_installed(self, found: FoundModule) -> LoadedModule:
        name = found.import_name
        if (known := _known.get(found)) is not None:
            module, target, loaded = known
            if sys.modules.get(name) is module and find_target(module, found.attribute) is target:
                return loaded
        self._announce_import(name)
        with installed_module(name, found.module_id, str(found)) as module:
            loaded = examine_imported(found, module)
        if found.distribution:
            _known[found] = (module, find_target(module, found.attribute), loaded)
        return loaded

    def _import_from(self, path: Path, found: FoundModule, user: object) -> LoadedModule:
        if (known := _known_in.get((path, found.module_id))) is not None:
            if known.is_current():
                if known.holds_root:
                    self._roots.add(str(known.root), user)
                return known.loaded
            _known_in.pop((path, found.module_id), None)
        root = Path(os.path.realpath(path))
        stamps = directory_stamps(path, root)
        found = attrs.evolve(found, root=root)
        name, directory = find_package(root, found.module_id)
        stamps += package_stamps(directory, *root.glob(f"{MODULE_PREFIX}*"))
        self._announce_import(name)
        with import_lock:
            # Packages beside the module's own are importable; a root that is a package has none, and its parent is none of our business.
            holds_root = directory != root
            newly_held = holds_root and self._roots.add(str(root), user)
            try:
                with package_from(directory, name, found.module_id, root) as module:
                    loaded = examine_imported(found, module, directory)
            except BaseException:
                if newly_held:
                    self._roots.discard(str(root), user)
                raise
        if path.is_absolute() and are_settled(stamps):
            _known_in[path, found.module_id] = _FromDirectory(
                root, holds_root, stamps, name, module, loaded
            )
        return loaded

    def _announce_import(self, name: str) -> None:
        if self.import_hook is not None and name not in sys.modules:
            self.import_hook(name)

    # ── sys.path ─────────────────────────────────────────────────────────────────────────────────

    def acquire(self, user: object) -> None:
        """A session starts to use this loader; `release` must follow."""
        self._roots.begin(user)
        if self._former is not None and self._former() is user:
            self.coordinator = user

    def release(self, user: object) -> None:
        """A session has closed: give up the sys.path entries that only it used; may be called any number of times."""
        self._roots.end(user)
        if (
            self.coordinator is user
        ):  # the session's own loader does not keep it alive once it is closed
            self.coordinator, self._former = None, weakref.ref(user)

    def cleanup(self) -> None:
        """Give up all sys.path entries this loader holds, whoever uses them; may be called any number of times."""
        self._roots.clear()

    # ── nothing found ────────────────────────────────────────────────────────────────────────────

    def _not_found(self, module_id: str, asked_before: Sequence[str] = ()) -> ModuleNotFoundError:
        search_paths = effective_search_paths(self._search_paths)
        name = package_name(module_id)
        searched = list(asked_before)
        if self._registered:
            searched.append(f"{len(self._registered)} modules registered in process")
        searched.append(f"entry points of group {ENTRY_POINT_GROUP!r}")
        searched += [
            f"search path {path}" + ("" if path.is_dir() else " (no such directory)")
            for path in search_paths
        ]
        if not search_paths:
            searched.append(f"search paths (none given, and {SEARCH_PATH_VARIABLE} names none)")
        unused = (
            " (imported from a source that another loader was given, so not used)"
            if name in sys.modules
            else ""
        )
        searched.append(f"package {name!r}{unused}")
        known = {
            *self._registered,
            *installed_claims(),
            *(each.module_id for each in modules_in(search_paths)),
        }
        suggestion = nearest_module(module_id, known)
        hint = f"; {did_you_mean(suggestion)}" if suggestion else "."
        if module_id == _REMOVED_PROVIDER:
            suggestion, hint = None, f"; {LOCAL_MODEL_ADVICE}."
        places = "".join(f"\n  - {place}" for place in searched)
        return ModuleNotFoundError(
            f"no module {module_id!r} was found{hint} Looked in:{places}\n"
            "Install the distribution that provides it, add its directory to the search paths, or give its source "
            "in the mount plan.",
            module_id=module_id,
            searched=searched,
            suggestion=suggestion,
        )


AmplifierModuleLoader = ModuleLoader
"""The same, by its older name."""


def _check_module_id(module_id: object) -> None:
    """Refuse what is no id; ids become file and package names, so this runs before anything else."""
    if not is_module_id(module_id):
        raise ModuleLoadError(
            f"{show(module_id)} is not a module id; {MODULE_ID_RULE}",
            module_id=module_id if isinstance(module_id, str) else None,
            reason_code="validation_failed",
        )


def _settings(module_id: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of a module's configuration, so that a module that changes it does not change the plan."""
    if config is None:
        return {}
    if not isinstance(config, Mapping):
        raise TypeError(f"config of module {module_id!r} is {config!r}; expected a dict or None")
    return dict(config)


# ── resolvers: the application's policy; here is only how to ask one ─────────────────────────────


def _mounted_resolver(coordinator: Any) -> Any:
    """The resolver an application mounted, or None."""
    if coordinator is None:
        return None
    try:
        return coordinator.get(_RESOLVER_MOUNT_POINT)
    except ValueError:  # the seeds' coordinators answer so when nothing is mounted there
        return None


async def _resolve_with(
    resolver: Any, module_id: str, source_hint: object, profile_hint: object
) -> Path:
    """Ask a resolver for a module's directory.

    What the resolver or its source raises leaves unchanged.

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
    raise ModuleLoadError(
        f"the resolver {resolver!r} answered {source!r} for module {module_id!r}"
        + ("" if answer is source else f", which resolved to {answer!r}")
        + "; expected a path or a source whose resolve() gives one, or a ModuleNotFoundError",
        module_id=module_id,
        reason_code="missing_source",
    )


async def ask_resolver(
    method: Callable[..., Any], module_id: str, source_hint: object, profile_hint: object
) -> Any:
    """Call one of the methods of a resolver, sync or async; what it raises leaves unchanged."""
    # How this resolver takes its hints: by both keywords, by either, by a second position, or not at all.
    by_source, by_profile = {"source_hint": source_hint}, {"profile_hint": profile_hint}
    forms: list[dict[str, Any]] = [{**by_source, **by_profile}, by_source, by_profile]
    keywords = next((form for form in forms if can_call(method, module_id, **form)), {})
    try:
        inspect.signature(method)
    except ValueError:  # of code in C: as the contract has it
        keywords = {}
    positional = (
        () if keywords or not can_call(method, module_id, profile_hint) else (profile_hint,)
    )
    source = method(module_id, *positional, **keywords)
    return await source if inspect.isawaitable(source) else source


async def resolve_source(source: Any) -> Any:
    """Where a resolver's answer leads: what a source resolves to, or the answer itself if it is a path."""
    if isinstance(source, str | os.PathLike) or not callable(getattr(source, "resolve", None)):
        return source
    answer = source.resolve()
    return await answer if inspect.isawaitable(answer) else answer


def means_not_found(exc: BaseException | None) -> bool:
    """Whether a resolver's error means that it does not know the module.

    By name, not by class: resolvers raise ours, the builtin, or a class of their own framework's.
    """
    return any(kind.__name__ == "ModuleNotFoundError" for kind in type(exc).__mro__)


# ── what is installed, for listings and checks of plans ───────────────────────────────────────────
# Only files are read; no module is imported.

ON_ISLAND: Final = (
    "needs asyncio; on trio it runs on an asyncio island, a thread with an event loop of its own"
)
"""What is shown of a module that is for asyncio only."""

REQUIRED_PACKAGES: Final[Mapping[str, tuple[str, str]]] = {
    "hooks-otel": ("opentelemetry", "otel"),
    "provider-anthropic": ("httpx2", "anthropic"),
    "provider-openai": ("httpx2", "openai"),
    "provider-openai-compatible": ("httpx2", "openai"),
    "tool-mcp": ("mcp", "mcp"),
    "tool-web": ("truststore", "providers"),
}
"""Built-in modules that need a package of an extra: the package's import name, and the extra."""

_REMOVED_PROVIDER: Final = "provider-local"

_ORDER = ["orchestrator", "context", "provider", "tool", "hook", "resolver"]


def all_modules() -> list[FoundModule]:
    """Every module found, in order of type and id; of those with the same id the one in use comes first."""
    found = ModuleLoader().catalogue()
    return sorted(
        found, key=lambda entry: (_ORDER.index(entry.info.type), entry.info.id, not entry.is_used)
    )


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
            spec = {
                "module": spec,
                "source": holder.get(f"{key}_source") if section == "session" else None,
            }
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
    if module_id == _REMOVED_PROVIDER:
        return f"no module {module_id!r} is installed; {LOCAL_MODEL_ADVICE}"
    near = nearest_module(module_id, known)
    advice = "install it, name its folder in AMPLIFIER_MODULES or give its 'source'"
    return f"no module {module_id!r} is installed; {advice if near is None else did_you_mean(near)}"
