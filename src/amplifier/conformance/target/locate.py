"""Find the module under examination, read its declarations, and import it in a worker process."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, Literal

import attrs

from amplifier._internal.regular_files import read_file
from amplifier.contracts import CONTRACTS
from amplifier.errors import ModuleLoadError, ModuleNotFoundError
from amplifier.functions import mount_functions
from amplifier.loading import FoundModule, LoadedModule, ModuleLoader
from amplifier.plan import is_module_id, type_from_id

BACKENDS = ("asyncio", "trio")
Origin = Literal["folder", "file", "installed"]

_ENTRY_POINT_GROUP = "amplifier.modules"
EXPECTED_MOUNT = "async def mount(coordinator, config), or functions marked with @tool or @on"
_PREFIXES = ("amplifier_module_", "amplifier-module-")


@attrs.frozen(kw_only=True)
class Definition:
    """A function or assignment in a syntax tree.

    Attributes:
        node: The node that defines it.
        file: The file that the tree was read from.
        folder: The folder that its location is relative to.
    """

    node: ast.AST
    file: Path
    folder: Path

    @property
    def location(self) -> str:
        """``file:line``."""
        return f"{_relative(self.file, self.folder)}:{getattr(self.node, 'lineno', 1)}"


@attrs.frozen(kw_only=True)
class Target:
    """A module that was located but not imported. Its declarations are read from files.

    Attributes:
        reference: The folder, file, module id or package name that the caller gave.
        module_id: The id of the module.
        module_type: Its type as the caller gave it, as declared, or by the first word of its id.
            None if none of these is a type.
        origin: The kind of reference that led to it.
        import_name: The Python module to import.
        attribute: The name of the mount function in it.
        file: The file of that Python module.
        search_path: The entry of sys.path that the import needs, or None if it needs none.
        project: The module's pyproject.toml, if it has one.
        declared: The entry points that its project or distribution declares, by module id.
    """

    reference: str
    module_id: str
    module_type: str | None = None
    origin: Origin
    import_name: str
    attribute: str = "mount"
    file: Path
    search_path: Path | None = None
    project: Path | None = None
    declared: dict[str, str] = attrs.field(factory=dict, hash=False)

    @property
    def folder(self) -> Path:
        """The package's directory, or the directory of the single file."""
        return self.file.parent

    def owns(self, filename: str) -> bool:
        """Return whether a source file belongs to the module."""
        path = Path(filename)
        if self.file.name != "__init__.py":
            return path == self.file
        return self.folder in path.parents

    def location_of(self, error: BaseException) -> str | None:
        """Return the innermost line of the module that an error passed through, ``file:line``."""
        return self.first_line(reversed([*traceback.walk_tb(error.__traceback__)]))

    def first_line(self, frames: Iterable[tuple[FrameType, int]]) -> str | None:
        """Return the place of the first frame that belongs to the module, ``file:line``."""
        named = ((frame.f_code.co_filename, line) for frame, line in frames)
        return next((self.location_at(file, line) for file, line in named if self.owns(file)), None)

    def location_at(self, filename: str | Path, line: int) -> str:
        """Return ``file:line`` with the file relative to the module's folder."""
        return f"{_relative(Path(filename), self.folder)}:{line}"

    def path_of(self, location: str) -> Path | None:
        """Return the file of a location in the module or its pyproject.toml.

        None if there is no such file.
        """
        name = re.sub(r":\d+$", "", location)
        if self.project is not None and name == self.project.name:
            return self.project
        file = self.folder / name
        if file.is_file():
            return file
        namesakes = [source for source in self.sources() if source.name == name]
        return namesakes[0] if len(namesakes) == 1 else None

    def sources(self) -> list[Path]:
        """Return the module's Python files."""
        return [self.file] if self.file.name != "__init__.py" else sorted(self.folder.rglob("*.py"))

    def definition(self, name: str) -> Definition | None:
        """Find the definition of a module-level name, even through imports inside the package.

        Return None if there is none, or its file cannot be read.
        """
        return _find_definition(name, self.file, self.folder, set())

    def functions(self) -> dict[str, list[Definition]]:
        """Return the functions that ``@tool`` and ``@on`` mark, by mark.

        A module with a mount function has none, because its marks have no effect.
        """
        tree = parsed(self.file)
        if tree is None or self.attribute != "mount" or self.definition("mount") is not None:
            return {}
        imports = [node for node in _module_level(tree.body) if isinstance(node, ast.ImportFrom)]
        ours = [
            alias
            for node in imports
            if (node.module or "").startswith("amplifier")
            for alias in node.names
        ]
        marks = {
            alias.asname or alias.name: alias.name for alias in ours if alias.name in ("tool", "on")
        }
        marks |= {"amplifier.tool": "tool", "amplifier.on": "on"}
        marked: dict[str, list[Definition]] = {}
        for node in reversed(list(_module_level(tree.body))):
            for decorator in getattr(node, "decorator_list", ()):
                name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
                if name in marks:
                    marked.setdefault(marks[name], []).append(
                        Definition(node=node, file=self.file, folder=self.folder)
                    )
        return marked

    def constant(self, name: str) -> Any:
        """Return the constant assigned to a module-level name, or None if there is none."""
        definition = self.definition(name)
        value = getattr(definition.node, "value", None) if definition is not None else None
        try:
            return None if value is None else ast.literal_eval(value)
        except (ValueError, TypeError):
            return None


def unknown_type(module_id: str) -> ModuleLoadError:
    """Return the error for a module that does not declare its type."""
    return ModuleLoadError(
        f"the type of {module_id!r} is not known; name it with --type, mark its functions with "
        f"@tool or @on, or declare __amplifier_module_type__ as one of {', '.join(CONTRACTS)}",
        module_id=module_id,
    )


def is_path(reference: str | Path) -> bool:
    """Return whether a reference can only be the path of a file or folder."""
    text = str(reference)
    return (
        isinstance(reference, Path)
        or text.endswith(".py")
        or "/" in text
        or os.sep in text
        or text in (".", "..")
    )


def find_target(reference: str | Path, module_type: str | None = None) -> Target:
    """Find a module by folder, file, id or package name.

    Raises:
        ModuleNotFoundError: There is no such module.
        ModuleLoadError: The reference leads to something that cannot be a module, or the type
            that the caller gave is unknown.
    """
    if module_type is not None and module_type not in CONTRACTS:
        raise ModuleLoadError(
            f"type {module_type!r}; expected one of {', '.join(CONTRACTS)}",
            module_id=str(reference),
        )
    path = Path(reference).expanduser()
    if path.is_file():
        target = _from_file(str(reference), path.resolve())
    elif path.is_dir():
        target = _from_folder(str(reference), path.resolve())
    elif is_path(reference):
        raise ModuleNotFoundError(
            f"there is no file or folder {str(path.absolute())!r}; expected a folder or .py file, "
            "the id of an installed module, or the name of an importable package"
        )
    else:
        target = _from_installed(str(reference))
    functions = target.functions()
    declared = (
        module_type
        or target.constant("__amplifier_module_type__")
        or (
            "tool"
            if "tool" in functions
            else "hook"
            if functions
            else type_from_id(target.module_id)
        )
    )
    return attrs.evolve(target, module_type=declared if declared in CONTRACTS else None)


# ── the three ways ───────────────────────────────────────────────────────────────────────────────


def _from_file(reference: str, path: Path) -> Target:
    if path.suffix != ".py":
        raise ModuleLoadError(
            f"{reference} is not a Python file; expected a folder, a .py file or a module id"
        )
    if path.name == "__init__.py":
        return _from_folder(reference, path.parent)
    return Target(
        reference=reference,
        module_id=_id_from(path.stem),
        origin="file",
        import_name=path.stem,
        file=path,
        search_path=path.parent,
    )


def _from_folder(reference: str, folder: Path) -> Target:
    project, declared = _project_of(folder)
    target = partial(
        Target, reference=reference, origin="folder", project=project, declared=declared
    )
    for module_id, entry_point in declared.items():
        name, _, attribute = (part.strip() for part in entry_point.partition(":"))
        for base in (folder, folder / "src", folder.parent):
            if (file := _file_of(base, name)) is not None:
                attribute = attribute or "mount"
                return target(
                    module_id=module_id,
                    import_name=name,
                    attribute=attribute,
                    file=file,
                    search_path=base,
                )
    file = _package_in(folder)
    if file is None:
        raise ModuleNotFoundError(
            f"{reference}: no Python package in this folder or its src/; "
            "expected a package with mount(coordinator, config)"
        )
    package = file.parent if file.name == "__init__.py" else file
    module_id = _id_from(folder.name if folder.name.startswith(_PREFIXES) else package.stem)
    return target(
        module_id=module_id, import_name=package.stem, file=file, search_path=package.parent
    )


def _from_installed(reference: str) -> Target:
    found = ModuleLoader().locate(reference) if is_module_id(reference) else None
    if found is not None and found.root is not None:
        return _from_folder(reference, found.root.resolve())
    module = found or FoundModule(
        module_id=_id_from(reference.rpartition(".")[2]), import_name=reference
    )
    file = module.file
    if file is None:
        known = ", ".join(sorted({entry.module_id for entry in ModuleLoader().catalogue()})[:20])
        raise ModuleNotFoundError(
            f"{reference!r} is neither a folder, a .py file, an installed module nor an importable "
            f"package; installed modules: {known or 'none'}"
        )
    return Target(
        reference=reference,
        module_id=module.module_id,
        origin="installed",
        import_name=module.import_name,
        attribute=module.attribute or "mount",
        file=file.resolve(),
        declared={module.module_id: f"{module.import_name}:{module.attribute}"}
        if module.distribution
        else {},
    )


def _project_of(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Return the pyproject.toml next to or right above the package, with its entry points."""
    places = [
        folder,
        *([folder.parent, folder.parent.parent] if (folder / "__init__.py").is_file() else []),
    ]
    for place in places:
        file = place / "pyproject.toml"
        try:
            text = read_file(file).decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        try:
            project = tomllib.loads(text).get("project", {})
        except tomllib.TOMLDecodeError:
            return file, {}
        points = (
            project.get("entry-points", {}).get(_ENTRY_POINT_GROUP, {})
            if isinstance(project, dict)
            else {}
        )
        return file, {str(key): str(value) for key, value in points.items()} if isinstance(
            points, dict
        ) else {}
    return None, {}


def _package_in(folder: Path) -> Path | None:
    if (folder / "__init__.py").is_file():
        return folder / "__init__.py"
    for base in (folder, folder / "src"):
        packages = sorted(base.glob("*/__init__.py"))
        packages = [
            package
            for package in packages
            if package.parent.name not in ("tests", "test", "docs", "examples")
        ]
        preferred = [package for package in packages if package.parent.name.startswith(_PREFIXES)]
        if preferred or packages:
            return (preferred or packages)[0]
    singles = [
        file
        for file in sorted(folder.glob("*.py"))
        if _find_definition("mount", file, folder, set()) is not None
    ]
    return singles[0] if len(singles) == 1 else None


def _file_of(base: Path, import_name: str) -> Path | None:
    path = base.joinpath(*import_name.split("."))
    for candidate in (path / "__init__.py", path.with_suffix(".py")):
        if candidate.is_file():
            return candidate.resolve()
    return None


def _relative(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix() if folder in file.parents else file.name


def _id_from(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace("_", "-")


# ── syntax trees ─────────────────────────────────────────────────────────────────────────────────


def parsed(file: Path) -> ast.Module | None:
    """Return the syntax tree of a file, or None if it cannot be read."""
    try:
        return ast.parse(read_file(file), str(file))
    except (OSError, SyntaxError, ValueError):
        return None


def _find_definition(
    name: str, file: Path, folder: Path, seen: set[tuple[Path, str]]
) -> Definition | None:
    tree = parsed(file)
    if tree is None or (file, name) in seen:
        return None
    seen.add((file, name))
    for node in _module_level(tree.body):
        if (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
            and node.name == name
        ):
            return Definition(node=node, file=file, folder=folder)
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return Definition(node=node, file=file, folder=folder)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    source = _imported_file(node, file)
                    return (
                        None
                        if source is None
                        else _find_definition(alias.name, source, folder, seen)
                    )
    return None


def _module_level(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run on import, last first because the last definition counts."""
    for node in reversed(body):
        if isinstance(node, (ast.If, ast.Try)):
            yield from _module_level([*node.body, *node.orelse])
        else:
            yield node


def _imported_file(node: ast.ImportFrom, file: Path) -> Path | None:
    if node.level:
        base = file.parent
        for _ in range(node.level - 1):
            base = base.parent
        return _file_of(base, node.module) if node.module else None
    # This is an absolute import of the package itself.
    package = file.parent
    if node.module and node.module.partition(".")[0] == package.name:
        return _file_of(package.parent, node.module)
    return None


@attrs.frozen(kw_only=True)
class LoadedTarget:
    """A module that was imported.

    Attributes:
        target: The place of the module and its declarations.
        module: The imported Python module.
        mount: The mount function.
        on_session_ready: The callback of that name, or None if the module has no async one.
        module_type: The type of the module.
        backends: The backends to examine it on: those it declares, and trio if it declares asyncio.
        needs_island: True if it declares asyncio only, and runs on an asyncio island on trio.
        config: The settings to mount it with, guessed ones included. ``{directory}`` in a text is
            replaced by a private directory of the session.
        given: The settings without the guessed ones, if it can be mounted with these.
        plan: The rest of the session's mount plan.
        triggers: Texts that match the patterns in its source, which its handlers may search for.
        starts_processes: True if its typical calls start processes. They are slow, so that fewer
            calls are made.
        chosen_inputs: Inputs of its tools that were chosen by their answers, by tool name.
    """

    target: Target
    module: ModuleType
    mount: Callable[..., Any]
    on_session_ready: Callable[..., Any] | None
    module_type: str
    backends: tuple[str, ...]
    needs_island: bool = False
    config: dict[str, Any]
    given: dict[str, Any] = attrs.field(factory=dict)
    plan: dict[str, Any] = attrs.field(factory=dict)
    triggers: tuple[str, ...] = ()
    starts_processes: bool = False
    chosen_inputs: Mapping[str, tuple[dict[str, Any], ...]] = attrs.field(factory=dict)

    def on(self, backend: str) -> LoadedModule:
        """Return the module in the form for a backend. This must be called on that backend."""
        plain = LoadedModule(
            module_id=self.target.module_id,
            mount=self.mount,
            module_type=self.module_type,
            on_session_ready=self.on_session_ready,
            origin=self.target.reference,
            path=self.target.file,
        )
        if backend != "trio":
            return plain
        if self.needs_island:
            return plain.on_island()
        # Published modules don't declare their backends. Their source shows that they call asyncio.
        adapt = ModuleLoader.load_hook
        adapted = plain if adapt is None else adapt(plain)
        return adapted if adapted.is_on_island else plain


def load(target: Target, config: dict[str, Any], plan: dict[str, Any]) -> LoadedTarget:
    """Import a module.

    Raises:
        ModuleLoadError: The module has no mount, or its type is not known.
        BaseException: The error of the import, which may be of any type.
    """
    # The first loader of a process sets the hooks. The import hook makes `amplifier_core`
    # importable for published modules.
    ModuleLoader()
    if ModuleLoader.import_hook is not None:
        ModuleLoader.import_hook(target.import_name)
    module = _import(target)
    entry: Any = module
    for name in target.attribute.split("."):
        entry = getattr(entry, name, None)
    mount = getattr(entry, "mount", entry)
    if mount is None and target.attribute == "mount":
        mount = mount_functions(module)
    if not callable(mount):
        raise ModuleLoadError(
            f"{target.import_name} has no {target.attribute!r}; expected {EXPECTED_MOUNT}",
            module_id=target.module_id,
        )
    module_type: Any = target.module_type or getattr(module, "__amplifier_module_type__", None)
    if module_type not in CONTRACTS:
        raise unknown_type(target.module_id)
    ready = getattr(module, "on_session_ready", None)
    own = getattr(module, "__amplifier_conformance__", None)
    settings = {**(own if isinstance(own, dict) else {}), **config}
    declared = getattr(module, "__amplifier_backends__", BACKENDS)
    declared = (declared,) if isinstance(declared, str) else tuple(declared)
    return LoadedTarget(
        target=target,
        module=module,
        mount=mount,
        on_session_ready=ready if inspect.iscoroutinefunction(ready) else None,
        module_type=module_type,
        backends=BACKENDS
        if "asyncio" in declared
        else tuple(name for name in BACKENDS if name in declared) or BACKENDS,
        needs_island="asyncio" in declared and "trio" not in declared,
        config=settings,
        given=settings,
        plan=plan,
    )


def load_anew(loaded: LoadedTarget) -> LoadedTarget:
    """Import the module again with fresh globals, as a new process would."""
    top = loaded.target.import_name.partition(".")[0]
    prefix = loaded.target.import_name if top == "amplifier" else top
    for name in [name for name in sys.modules if name == prefix or name.startswith(f"{prefix}.")]:
        del sys.modules[name]
    fresh = load(loaded.target, loaded.config, loaded.plan)
    return attrs.evolve(
        fresh,
        triggers=loaded.triggers,
        starts_processes=loaded.starts_processes,
        chosen_inputs=loaded.chosen_inputs,
    )


def _import(target: Target) -> ModuleType:
    if target.search_path is not None and str(target.search_path) not in sys.path:
        sys.path.insert(0, str(target.search_path))
    if target.origin != "file":
        return importlib.import_module(target.import_name)
    # Import it by its path, because a single file may have the name of another module.
    known = sys.modules.get(target.import_name)
    if known is not None and getattr(known, "__file__", None) == str(target.file):
        return known
    spec = importlib.util.spec_from_file_location(target.import_name, target.file)
    # The loader of a .py file always exists.
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.import_name] = module
    spec.loader.exec_module(module)
    return module
