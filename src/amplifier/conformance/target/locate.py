"""The module under examination: where it is, what its files declare, and, in the worker process only, its import.

A target is found by folder, by file, by the id of an installed module or by the name of an importable package.
What it declares is read from files and syntax trees.
"""

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
    """A function or assignment found in a syntax tree.

    Attributes:
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
    """A module that was located and not yet run.

    Attributes:
        reference: How the caller named it.
        module_id: Its id.
        module_type: Its type, as the caller named it, as declared, or by the first word of its id.
        origin: How it was found.
        import_name: The Python module to import.
        attribute: The name of the mount function in it.
        file: The file of that Python module.
        search_path: What has to be on sys.path to import it; None when it is importable already.
        project: Its pyproject.toml, if it has one.
        declared: The entry points of the group that the project or distribution declares, id to reference.
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
        """Whether a source file belongs to the module."""
        path = Path(filename)
        if self.file.name != "__init__.py":
            return path == self.file
        return self.folder in path.parents

    def location_of(self, error: BaseException) -> str | None:
        """The innermost line of the module that an error came through, ``file:line``."""
        return self.first_line(reversed([*traceback.walk_tb(error.__traceback__)]))

    def first_line(self, frames: Iterable[tuple[FrameType, int]]) -> str | None:
        """The first of some frames that belongs to the module, ``file:line``."""
        named = ((frame.f_code.co_filename, line) for frame, line in frames)
        return next((self.location_at(file, line) for file, line in named if self.owns(file)), None)

    def location_at(self, filename: str | Path, line: int) -> str:
        """A line of one of the module's files, ``file:line``; the file is relative to the module's folder."""
        return f"{_relative(Path(filename), self.folder)}:{line}"

    def path_of(self, location: str) -> Path | None:
        """The file of a location, of the module itself or its pyproject.toml; None if there is no such file."""
        name = re.sub(r":\d+$", "", location)
        if self.project is not None and name == self.project.name:
            return self.project
        file = self.folder / name
        if file.is_file():
            return file
        same = [each for each in self.sources() if each.name == name]
        return same[0] if len(same) == 1 else None

    def sources(self) -> list[Path]:
        """The module's Python files."""
        return [self.file] if self.file.name != "__init__.py" else sorted(self.folder.rglob("*.py"))

    def definition(self, name: str) -> Definition | None:
        """Where a module-level name is defined, followed through relative imports; None if that cannot be read."""
        return _find_definition(name, self.file, self.folder, set())

    def functions(self) -> dict[str, list[Definition]]:
        """The functions that ``@tool`` and ``@on`` mark, by mark; none in a module that has a mount function."""
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
        found: dict[str, list[Definition]] = {}
        for node in reversed(list(_module_level(tree.body))):
            for decorator in getattr(node, "decorator_list", ()):
                name = ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)
                if name in marks:
                    found.setdefault(marks[name], []).append(
                        Definition(node=node, file=self.file, folder=self.folder)
                    )
        return found

    def constant(self, name: str) -> Any:
        """The constant assigned to a module-level name; None if there is none."""
        found = self.definition(name)
        value = getattr(found.node, "value", None) if found is not None else None
        try:
            return None if value is None else ast.literal_eval(value)
        except (ValueError, TypeError):
            return None


def unknown_type(module_id: str) -> ModuleLoadError:
    """The error of a module that does not declare its type."""
    return ModuleLoadError(
        f"the type of {module_id!r} is not known; name it with --type, mark its functions with @tool or @on, or declare "
        f"__amplifier_module_type__ as one of {', '.join(CONTRACTS)}",
        module_id=module_id,
    )


def is_path(reference: str | Path) -> bool:
    """Whether a reference can only be meant as the path of a file or folder."""
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
        ModuleLoadError: What was found cannot be a module, or its type is unknown.
    """
    if module_type is not None and module_type not in CONTRACTS:
        raise ModuleLoadError(
            f"type {module_type!r}; expected one of {', '.join(CONTRACTS)}",
            module_id=str(reference),
        )
    path = Path(reference).expanduser()
    if path.is_file():
        found = _from_file(str(reference), path.resolve())
    elif path.is_dir():
        found = _from_folder(str(reference), path.resolve())
    elif is_path(reference):
        raise ModuleNotFoundError(
            f"there is no file or folder {str(path.absolute())!r}; expected a folder or .py file, the id of an installed "
            "module, or the name of an importable package"
        )
    else:
        found = _from_installed(str(reference))
    functions = found.functions()
    declared = (
        module_type
        or found.constant("__amplifier_module_type__")
        or (
            "tool"
            if "tool" in functions
            else "hook"
            if functions
            else type_from_id(found.module_id)
        )
    )
    return attrs.evolve(found, module_type=declared if declared in CONTRACTS else None)


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
            f"{reference}: no Python package in this folder or its src/; expected a package with mount(coordinator, config)"
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
        known = ", ".join(sorted({each.module_id for each in ModuleLoader().catalogue()})[:20])
        raise ModuleNotFoundError(
            f"{reference!r} is neither a folder, a .py file, an installed module nor an importable package; "
            f"installed modules: {known or 'none'}"
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
    """The pyproject.toml beside or right above the package, and what it declares."""
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
            each
            for each in packages
            if each.parent.name not in ("tests", "test", "docs", "examples")
        ]
        preferred = [each for each in packages if each.parent.name.startswith(_PREFIXES)]
        if preferred or packages:
            return (preferred or packages)[0]
    singles = [
        each
        for each in sorted(folder.glob("*.py"))
        if _find_definition("mount", each, folder, set()) is not None
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
    """The syntax tree of a file; None when it cannot be read."""
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
    """Statements that run on import, the later definition first, as it is the one that counts."""
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
    # An absolute import of the package itself.
    package = file.parent
    if node.module and node.module.partition(".")[0] == package.name:
        return _file_of(package.parent, node.module)
    return None


@attrs.frozen(kw_only=True)
class LoadedTarget:
    """A module that was imported.

    Attributes:
        target: Where it was found.
        module: Its Python module.
        mount: Its mount function.
        on_session_ready: Its callback, if it has one that can be called.
        module_type: Its type.
        backends: Where it is examined: what it declares to run on, and trio if it declares asyncio.
        needs_island: It declares asyncio without trio, so that it runs on an asyncio island there.
        config: What it is mounted with; ``{directory}`` in a text is replaced by a directory of the session's own.
        given: What it was to be mounted with before anything was guessed, as far as it can be mounted with that.
        plan: What else the mount plan of its session holds.
        triggers: Texts that its handlers may be looking for inside others: what the patterns of its source match.
        starts_processes: Whether its typical calls start processes, which take long, so that fewer calls are made.
        chosen_inputs: Inputs of its tools, by name, that were chosen by their answers.
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
        """The module as it is mounted on a backend; call this there."""
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
        # Published modules need not declare anything: their source shows that they call asyncio.
        adapt = ModuleLoader.load_hook
        adapted = plain if adapt is None else adapt(plain)
        return adapted if adapted.is_on_island else plain


def load(target: Target, config: dict[str, Any], plan: dict[str, Any]) -> LoadedTarget:
    """Import a module.

    Raises:
        ModuleLoadError: It has no mount, or its type is not known.
        BaseException: Whatever importing it raised.
    """
    ModuleLoader()  # the first one sets the hooks
    if (
        ModuleLoader.import_hook is not None
    ):  # makes `amplifier_core` importable for published modules
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
    """Import the module again, as a new process would: with fresh module globals."""
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
    # By its path: the name of a single file may be that of another module.
    known = sys.modules.get(target.import_name)
    if known is not None and getattr(known, "__file__", None) == str(target.file):
        return known
    spec = importlib.util.spec_from_file_location(target.import_name, target.file)
    assert spec is not None  # a .py file has a loader
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[target.import_name] = module
    spec.loader.exec_module(module)
    return module
