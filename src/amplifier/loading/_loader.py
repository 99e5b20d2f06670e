"""`ModuleLoader`: from a module id to a `LoadedModule`.

The session mounts what it returns. This file holds the order in which the others of this package are asked.
"""

from __future__ import annotations

import importlib
import logging
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Final, final

import attrs

from amplifier._loader_extensions import import_loader_extensions
from amplifier._spelling import did_you_mean, nearest
from amplifier.errors import (
    ModuleConflictError,
    ModuleNotFoundError,
)
from amplifier.models import ModuleInfo

from ._catalogue import CatalogueEntry, installed_modules, modules_in, ranked, registered_module
from ._discovery import (
    ENTRY_POINT_GROUP,
    SEARCH_PATH_VARIABLE,
    EntryPoint,
    Listing,
    effective_search_paths,
    entry_points,
    find_directory,
    module_directories,
)
from ._importing import (
    find_installed,
    foreign_code,
    import_lock,
    installed_module,
    is_from_directory,
    package_from,
    stdlib_neighbours,
)
from ._loaded_module import (
    TYPE_TO_MOUNT_POINT,
    LoadedModule,
    check_module_id,
    needs_island,
    package_name,
)
from ._module_definition import Blueprint, examine_imported, examine_registered, find_target
from ._precedence import choose, find_pinned, read_pin
from ._sources import (
    find_package,
    means_not_found,
    mounted_resolver,
    path_from_hint,
    resolve_with,
)
from ._sys_path import HeldRoots

logger = logging.getLogger(__name__)


@attrs.frozen
class _KnownEntryPoint:
    """An entry point that was loaded before in this process, and what it was then."""

    module: ModuleType
    target: object
    definition: Blueprint


_known_entry_points: Final[dict[EntryPoint, _KnownEntryPoint]] = {}


@final
@attrs.frozen(kw_only=True)
class LoaderStatistics:
    """A loader's state at one moment.

    Attributes:
        registered: Modules registered in process.
        loaded: Different module ids loaded so far.
        path_entries: sys.path entries this loader holds.
    """

    registered: int
    loaded: int
    path_entries: int


@attrs.frozen
class _Registration:
    source: object
    module_type: str | None


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
        load_hook: Called with the id and the blueprint of each loaded module that does not declare its backends, so
            that a layer above can refuse it on the running one by raising `ModuleLoadError`; returns the blueprint
            to use.
    """

    TYPE_TO_MOUNT_POINT: ClassVar[Mapping[str, str]] = TYPE_TO_MOUNT_POINT
    import_hook: Callable[[str], None] | None = None
    load_hook: Callable[[str, Blueprint], Blueprint] | None = None
    _former: weakref.ref[Any] | None = None

    def __init__(
        self,
        coordinator: Any = None,
        search_paths: Iterable[str | os.PathLike[str]] | None = None,
        *,
        modules: Mapping[str, Any] | None = None,
    ) -> None:
        import_loader_extensions()
        self.coordinator: Any = coordinator
        self._search_paths = list(search_paths or ())
        self._registered: dict[str, _Registration] = {}
        self._registered_definitions: dict[str, Blueprint] = {}
        self._loaded: dict[str, None] = {}  # of five ids, a set takes four times the memory
        self._roots = HeldRoots()
        for module_id, module in (modules or {}).items():
            self.register(module_id, module)

    def __repr__(self) -> str:
        now = self.statistics()
        return (
            f"<ModuleLoader {now.registered} registered, {now.loaded} loaded, {now.path_entries} sys.path entries held>"
        )

    def statistics(self) -> LoaderStatistics:
        """Return the loader's present state."""
        return LoaderStatistics(
            registered=len(self._registered), loaded=len(self._loaded), path_entries=len(self._roots)
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
        check_module_id(module_id)
        present = self._registered.get(module_id)
        if present is not None and present.source is not module:
            raise ModuleConflictError(
                f"module {module_id!r} is already registered as {present.source!r} and cannot also be {module!r}; "
                "use another id or another loader",
                module_id=module_id,
            )
        self._registered[module_id] = _Registration(module, module_type)
        self._registered_definitions.pop(module_id, None)

    def for_child(self, coordinator: Any) -> ModuleLoader:
        """A loader for a child session: the same search paths and in-process modules, paths held for itself."""
        child = ModuleLoader(coordinator, self._search_paths)
        child._registered = dict(self._registered)
        child._registered_definitions = dict(self._registered_definitions)
        return child

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
        check_module_id(module_id)
        resolver = mounted_resolver(self.coordinator if coordinator is None else coordinator)
        source = profile_source if source_hint is None else source_hint
        settings = _settings(module_id, config)
        if resolver is None or read_pin(source) is not None:
            return self.find(module_id, source, user=user).loaded(module_id, settings)
        profile = source_hint if profile_source is None else profile_source
        return self._finish(module_id, await self._resolve(resolver, module_id, source, profile, user), settings)

    def find(
        self, module_id: str, source_hint: object = None, listing: Listing | None = None, *, user: object = None
    ) -> Blueprint:
        """As `load`, for those who know that no resolver is to be asked: then there is nothing to await.

        Args:
            module_id: What to look for; known to be an id.
            source_hint: As in `load`.
            listing: Shared by the loads of one opening, so that installed modules are looked for once.
            user: As in `load`.
        """
        if source_hint is not None:
            found: Blueprint | None = self._find_at_source(module_id, source_hint, listing, user)
        else:
            found = self._find_directly(module_id, listing, user)
        if found is None:
            raise self._not_found(module_id)
        return self._usable(module_id, found)

    def _find_at_source(self, module_id: str, source: object, listing: Listing | None, user: object) -> Blueprint:
        pin = read_pin(source)
        if pin is None:
            return self._definition_from(path_from_hint(source, module_id), module_id, user)
        return self._definition_from_claim(find_pinned(module_id, (listing or Listing()).claims(module_id) or (), pin))

    async def discover(self) -> list[ModuleInfo]:
        """List the modules that can be loaded without a resolver, in the order in which they are looked for.

        Of several with one id the one in use is listed; all of them if none is, because they contest the id. Reads files
        only: no module is imported. What cannot be understood is logged and left out. A kind that is neither declared nor
        named by the id's first word is listed as a tool.
        """
        return [entry.info for entry in self.catalogue() if entry.is_used or entry.is_contested]

    def catalogue(self) -> list[CatalogueEntry]:
        """List all modules that are there, those that others take precedence over included; see `discover`."""
        registered = [registered_module(id_, each.source, each.module_type) for id_, each in self._registered.items()]
        return ranked(
            [entry for entry in registered if entry is not None],
            [*installed_modules(built_in=False)],
            [*modules_in(effective_search_paths(self._search_paths))],
            [*installed_modules(built_in=True)],
        )

    def acquire(self, user: object) -> None:
        """A session starts to use this loader; `release` must follow."""
        self._roots.begin(user)
        if self._former is not None and self._former() is user:
            self.coordinator = user

    def release(self, user: object) -> None:
        """A session has closed: give up the sys.path entries that only it used; may be called any number of times."""
        self._roots.end(user)
        if self.coordinator is user:  # the session's own loader does not keep it alive once it is closed
            self.coordinator, self._former = None, weakref.ref(user)

    def cleanup(self) -> None:
        """Give up all sys.path entries this loader holds, whoever uses them; may be called any number of times."""
        self._roots.clear()

    # ── without a resolver ───────────────────────────────────────────────────────────────────────

    async def _load_direct(self, module_id: str, config: Mapping[str, Any] | None = None) -> LoadedModule:
        definition = self._find_directly(module_id)
        if definition is None:
            raise self._not_found(module_id)
        return self._finish(module_id, definition, _settings(module_id, config))

    def _load_entry_point(self, module_id: str, config: Mapping[str, Any] | None = None) -> LoadedModule | None:
        definition = self._definition_from_entry_point(module_id)
        return None if definition is None else self._finish(module_id, definition, _settings(module_id, config))

    def _load_filesystem(self, module_id: str, config: Mapping[str, Any] | None = None) -> LoadedModule | None:
        definition = self._definition_from_filesystem(module_id)
        return None if definition is None else self._finish(module_id, definition, _settings(module_id, config))

    def _find_directly(self, module_id: str, listing: Listing | None = None, user: object = None) -> Blueprint | None:
        return (
            self._definition_from_registry(module_id)
            or self._definition_from_entry_point(module_id, listing, user)
            or self._definition_from_filesystem(module_id, user)
        )

    def _note_precedence(self, module_id: str, used: str, built_in: EntryPoint) -> None:
        if module_id not in self._loaded:
            logger.info('module %r: %s is used, not %s; "source": "builtin" pins that one', module_id, used, built_in)

    def _finish(self, module_id: str, definition: Blueprint, config: dict[str, Any]) -> LoadedModule:
        return self._usable(module_id, definition).loaded(module_id, config)

    def _usable(self, module_id: str, definition: Blueprint) -> Blueprint:
        """What is found once may be loaded often, and each time on another backend."""
        if definition.complaint is not None:
            logger.warning("%s", definition.complaint)
        if definition.backends is not None:
            if needs_island(definition.backends, module_id, definition.origin):
                definition = definition.on_island(module_id)
        elif self.load_hook is not None:
            definition = self.load_hook(module_id, definition)
        self._loaded[module_id] = None
        return definition

    def _definition_from_registry(self, module_id: str) -> Blueprint | None:
        definition = self._registered_definitions.get(module_id)
        registration = self._registered.get(module_id)
        if definition is not None or registration is None:
            return definition
        definition = examine_registered(module_id, registration.source, registration.module_type)
        self._registered_definitions[module_id] = definition
        return definition

    def _definition_from_entry_point(
        self, module_id: str, listing: Listing | None = None, user: object = None
    ) -> Blueprint | None:
        claims = (listing or Listing()).claims(module_id)
        if claims is None:
            return None
        claim = choose(module_id, claims)
        if claim is None:
            return None
        if claims[-1].is_built_in:
            root = find_directory(module_id, effective_search_paths(self._search_paths)) if claim.is_built_in else None
            if root is not None or not claim.is_built_in:
                self._note_precedence(module_id, str(claim) if root is None else f"path {root}", claims[-1])
            if root is not None:
                return self._definition_from(root, module_id, user)
        return self._definition_from_claim(claim)

    def _definition_from_claim(self, claim: EntryPoint) -> Blueprint:
        module_id = claim.module_id
        known = _known_entry_points.get(claim)
        if (
            known is not None
            and sys.modules.get(claim.module) is known.module
            and find_target(known.module, claim.attribute) is known.target
        ):
            return known.definition
        origin = str(claim)
        self._announce_import(claim.module)
        with installed_module(claim.module, module_id, origin) as module:
            definition = examine_imported(module_id, module, claim.attribute, origin=origin)
        _known_entry_points[claim] = _KnownEntryPoint(module, find_target(module, claim.attribute), definition)
        return definition

    def _definition_from_filesystem(self, module_id: str, user: object = None) -> Blueprint | None:
        root = find_directory(module_id, effective_search_paths(self._search_paths))
        if root is not None:
            return self._definition_from(root, module_id, user)
        name = package_name(module_id)
        with foreign_code(module_id, f"looking for {name!r}"):
            installed = find_installed(name)
            if installed is None:
                importlib.invalidate_caches()  # a package installed a moment ago may be hidden by a stale listing
                installed = find_installed(name)
        if installed is None and (name not in sys.modules or is_from_directory(name)):
            return None
        self._announce_import(name)
        with installed_module(name, module_id, f"package {name}") as module:
            return examine_imported(module_id, module, origin=f"package {name}")

    # ── from a directory ─────────────────────────────────────────────────────────────────────────

    async def _resolve(
        self, resolver: Any, module_id: str, source_hint: object, profile_hint: object, user: object
    ) -> Blueprint:
        try:
            path = await resolve_with(resolver, module_id, source_hint, profile_hint)
        except Exception as exc:  # the application's resolver may raise anything; all but one meaning is passed on
            if not means_not_found(exc):
                raise
            # An ImportError that names a package is not an answer: the resolver itself lacks something.
            level = logging.WARNING if isinstance(exc, ImportError) and exc.name else logging.INFO
            logger.log(level, "resolver %r did not find module %r: %s", type(resolver).__name__, module_id, exc)
            definition = self._find_directly(module_id, user=user)
            if definition is None:
                asked = f"resolver {type(resolver).__name__}: {exc}"
                also = exc.searched if isinstance(exc, ModuleNotFoundError) else ()
                raise self._not_found(module_id, (asked, *also)) from exc
            return definition
        return self._definition_from(path, module_id, user)

    def _definition_from(self, path: Path, module_id: str, user: object) -> Blueprint:
        root = Path(os.path.realpath(path))
        name, directory = find_package(root, module_id)
        self._announce_import(name)
        with import_lock:
            # A root that is a package needs no entry: its parent is none of our business.
            newly_held, warning = (False, None) if directory == root else self._hold(root, module_id, user)
            try:
                with package_from(directory, name, module_id, root) as module:
                    return examine_imported(module_id, module, origin=f"path {root}", path=directory)
            except BaseException as exc:
                if newly_held:
                    self._roots.discard(str(root), user)
                if warning is not None:
                    exc.add_note(warning)
                raise

    def _hold(self, root: Path, module_id: str, user: object) -> tuple[bool, str | None]:
        """Put a root on sys.path, for packages beside the module's own.

        Returns:
            Whether it is held for ``user`` now and was not before; and why it was kept off sys.path, if it was.
        """
        shadowing = () if str(root) in self._roots else stdlib_neighbours(root)
        if shadowing:
            pairs = ", ".join(f"{file} has the name of {original}" for file, original in shadowing)
            warning = (
                f"module {module_id!r}: {root} is kept off sys.path because {pairs}; "
                "the module cannot import what lies beside its package until that is renamed"
            )
            logger.warning("%s", warning)
            return False, warning
        return self._roots.add(str(root), user), None

    def _announce_import(self, name: str) -> None:
        if self.import_hook is not None and name not in sys.modules:
            self.import_hook(name)

    # ── nothing found ────────────────────────────────────────────────────────────────────────────

    def _not_found(self, module_id: str, asked_before: Sequence[str] = ()) -> ModuleNotFoundError:
        search_paths = effective_search_paths(self._search_paths)
        name = package_name(module_id)
        searched = list(asked_before)
        if self._registered:
            searched.append(f"{len(self._registered)} modules registered in process")
        searched.append(f"entry points of group {ENTRY_POINT_GROUP!r}")
        searched += [f"search path {path}" + ("" if path.is_dir() else " (no such directory)") for path in search_paths]
        if not search_paths:
            searched.append(f"search paths (none given, and {SEARCH_PATH_VARIABLE} names none)")
        unused = " (imported from a source that another loader was given, so not used)" if name in sys.modules else ""
        searched.append(f"package {name!r}{unused}")
        known = {*self._registered, *entry_points()}
        for path in search_paths:
            known.update(found for found, _ in module_directories(path))
        # All ids of a kind begin alike, so more than that has to be alike.
        suggestion = nearest(module_id, known, cutoff=0.75)
        hint = f"; {did_you_mean(suggestion)}" if suggestion else "."
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


def _settings(module_id: str, config: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of a module's configuration, so that a module that changes it does not change the plan."""
    if config is None:
        return {}
    if type(config) is not dict and not isinstance(config, Mapping):
        raise TypeError(f"config of module {module_id!r} is {config!r}; expected a dict or None")
    return dict(config)
