"""The loader and its private parts, which suites call and patch."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import inspect
import logging
import sys
import threading
import types
from pathlib import Path
from unittest.mock import AsyncMock, MagicMock, patch

import pytest
from amplifier_core.loader import ModuleLoader, ModuleValidationError, module_failure_reason
from amplifier_core.module_sources import FileSystemModuleSource, ModuleLoadError, ModuleSource
from amplifier_core.module_sources import ModuleNotFoundError as SourceNotFoundError
from amplifier_core.validation import ToolValidator
from amplifier_core.validation.base import import_module_from_path

TOOL = """
from .marker import TOKEN

COUNT = globals().get("COUNT", 0) + 1
__amplifier_module_type__ = "tool"


class Own:
    name = "own"
    description = TOKEN

    async def execute(self, input):
        return {}


async def mount(coordinator, config):
    await coordinator.mount("tools", Own(), name="own")
"""


def run(main):
    return asyncio.run(main())


@pytest.fixture
def write(request):
    names = []

    def make(root: Path, name: str, token: str = "t", source: str = TOOL) -> Path:
        package = root / name
        package.mkdir(parents=True)
        (package / "marker.py").write_text(f"TOKEN = {token!r}\n")
        (package / "__init__.py").write_text(source)
        names.append(name)
        return package

    before = list(sys.path)
    yield make
    sys.path[:] = before
    for name in list(sys.modules):
        if name.partition(".")[0] in names:
            del sys.modules[name]


class Source:
    def __init__(self, root):
        self.root = root

    def resolve(self):
        return self.root


class Resolver:
    def __init__(self, root):
        self.source = Source(root)
        self.asked = []

    def resolve(self, module_id, source_hint=None, profile_hint=None):
        self.asked.append((module_id, source_hint, profile_hint))
        return self.source


class AsyncResolver(Resolver):
    async def async_resolve(self, module_id, source_hint=None, profile_hint=None):
        return Resolver.resolve(self, module_id, source_hint, profile_hint)

    def resolve(self, module_id, source_hint=None, profile_hint=None):
        raise AssertionError("the async form comes first")


class Resolving:
    def __init__(self, resolver):
        self.resolver = resolver

    def get(self, point):
        assert point == "module-source-resolver"
        return self.resolver


class Recording:
    def __init__(self):
        self.mounted = {}

    async def mount(self, point, module, name=None):
        self.mounted[name] = module


# ── entry points and caches ──────────────────────────────────────────────────────────────────────


class Entry:
    def __init__(self, name):
        self.name = name
        self.loads = 0

    def load(self):
        self.loads += 1

        async def mount(coordinator, config):
            return config

        return mount


def test_each_load_has_its_own_config(monkeypatch):
    async def main():
        entry, loader = Entry("tool-e"), ModuleLoader()
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [entry])
        first, second = await loader.load("tool-e", config={"x": 1}), await loader.load("tool-e", {"x": 2})
        third = await loader.load("tool-e")
        assert first is not second
        return [await m(MagicMock()) for m in (first, second, third)], entry.loads

    assert run(main) == ([{"x": 1}, {"x": 2}, {}], 1)


def test_what_cannot_be_found():
    async def main():
        await ModuleLoader().load("tool-that-nobody-wrote")

    with pytest.raises(ValueError, match="not found via entry points or filesystem") as caught:
        run(main)
    assert module_failure_reason(caught.value) == "missing_source"


def test_initialize_mounts():
    async def main():
        mount = AsyncMock(return_value="cleanup")
        answer = await ModuleLoader().initialize(mount, "coordinator")
        mount.assert_awaited_once_with("coordinator")
        with pytest.raises(ValueError, match=r"^x$"):
            await ModuleLoader().initialize(AsyncMock(side_effect=ValueError("x")), "c")
        return answer

    assert run(main) == "cleanup"


# ── on_session_ready ─────────────────────────────────────────────────────────────────────────────


def fake(ready=None):
    module = types.ModuleType("amplifier_module_fake")

    async def mount(coordinator, config):
        return None

    module.mount = mount
    if ready is not None:
        module.on_session_ready = ready
    return module


async def ready(coordinator):
    pass


def test_ready_functions_hang_on_the_mount():
    loader = ModuleLoader()
    with patch("importlib.import_module", return_value=fake(ready)):
        mount = loader._load_filesystem("fake")
    assert mount.__on_session_ready__ == ("fake", ready)
    assert inspect.iscoroutinefunction(mount.__on_session_ready__[1])
    assert loader.get_on_session_ready_queue() == []
    with patch("importlib.import_module", return_value=fake()):
        assert getattr(loader._load_filesystem("plain"), "__on_session_ready__", None) is None


def test_ready_functions_must_be_async(caplog):
    with (
        patch("importlib.import_module", return_value=fake(lambda c: None)),
        caplog.at_level(logging.WARNING, logger="amplifier_core.loader"),
    ):
        mount = ModuleLoader()._load_filesystem("sync-mod")
    assert getattr(mount, "__on_session_ready__", None) is None
    assert "async" in caplog.text.lower()


def test_the_queue():
    loader = ModuleLoader()
    loader.enqueue_on_session_ready("a", ready)
    loader._on_session_ready_queue.append(("b", ready))
    loader.get_on_session_ready_queue().clear()
    assert [module for module, _ in loader.get_on_session_ready_queue()] == ["a", "b"]
    loader.clear_on_session_ready_queue()
    assert loader._on_session_ready_queue == []


# ── what a module is ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "kind", "point"),
    [
        ("loop-basic", "orchestrator", "orchestrator"),
        ("my-orchestrator", "orchestrator", "orchestrator"),
        ("provider-x", "provider", "providers"),
        ("tool-x", "tool", "tools"),
        ("hooks-x", "hook", "hooks"),
        ("context-x", "context", "context"),
        ("hooks-tool-x", "tool", "tools"),
        ("something", "tool", "tools"),
    ],
)
def test_kinds_by_name(name, kind, point):
    assert ModuleLoader()._guess_from_naming(name) == (kind, point)


def test_packages_in_directories(tmp_path):
    loader = ModuleLoader()
    assert loader._find_package_dir("x", tmp_path / "missing") is None
    assert loader._find_package_dir("x", tmp_path) is None
    package = tmp_path / "amplifier_module_x"
    package.mkdir()
    assert loader._find_package_dir("x", tmp_path) is None
    (package / "__init__.py").write_text("")
    assert loader._find_package_dir("x", tmp_path) == package
    assert loader._find_package_dir("other", tmp_path) == package
    assert loader._find_package_dir("x", package) == package


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "invalid_package_layout"),
        ('__amplifier_module_type__ = "tool"\n', "invalid_entry_point"),
        ('__amplifier_module_type__ = "gadget"\n', "invalid_module_metadata"),
        ('__amplifier_module_type__ = {"a": 1}\n', "invalid_module_metadata"),
        ("def mount(coordinator, config): pass\n", "invalid_entry_point"),
        ("async def mount(coordinator, config): raise ValueError('x')\n", "validation_failed"),
    ],
)
def test_reasons_of_failures(tmp_path, write, content, reason):
    if content is not None:
        write(tmp_path, "amplifier_module_tool_reason", source=content)
    sys.path.insert(0, str(tmp_path))

    async def main():
        await ModuleLoader()._validate_module("tool-reason", tmp_path)

    with pytest.raises(ModuleValidationError) as caught:
        run(main)
    assert module_failure_reason(caught.value) == reason


def test_reasons_cannot_be_forged(tmp_path):
    async def main():
        await ModuleLoader()._validate_module("tool-x", tmp_path / "absent")

    with pytest.raises(ModuleValidationError, match="no valid Python package") as caught:
        run(main)
    assert str(tmp_path / "absent") in str(caught.value)
    assert module_failure_reason(caught.value) == "missing_source"
    assert module_failure_reason(SourceNotFoundError("x")) == "missing_source"
    forged = RuntimeError("x")
    forged.reason_code = "invalid_package_layout"
    assert module_failure_reason(forged) == "unknown"
    assert module_failure_reason(ModuleValidationError("x", reason_code="https://secret")) == "unknown"
    assert ModuleValidationError("x").reason_code == "validation_failed"


def test_discovery(tmp_path, write, caplog):
    for name in ("tool-a", "hooks-b"):
        write(tmp_path / f"amplifier-module-{name}", f"amplifier_module_{name.replace('-', '_')}", source="")
    write(tmp_path / "amplifier-module-odd", "amplifier_module_odd", source='__amplifier_module_type__ = "provider"\n')
    write(tmp_path / "amplifier-module-bad", "amplifier_module_bad", source='__amplifier_module_type__ = "gadget"\n')
    (tmp_path / "unrelated").mkdir()

    async def main():
        with patch("importlib.metadata.entry_points", lambda **_: []):
            return await ModuleLoader(search_paths=[tmp_path, tmp_path / "missing"]).discover()

    found = {info.id: (info.type, info.mount_point, info.name) for info in run(main)}
    assert found == {
        "tool-a": ("tool", "tools", "Tool A"),
        "hooks-b": ("hook", "hooks", "Hooks B"),
        "odd": ("provider", "providers", "Odd"),
    }
    assert "missing" in caplog.text


# ── from a source ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", [Resolver, AsyncResolver])
def test_a_source_wins_and_is_one_module(tmp_path, write, kind, monkeypatch):
    name = f"amplifier_module_tool_one_{kind.__name__.lower()}"
    write(tmp_path / "source", name, "theirs")
    module_id = name.removeprefix("amplifier_module_").replace("_", "-")
    entry = Entry(module_id)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [entry])
    before = list(sys.path)

    async def main():
        resolver = kind(tmp_path / "source")
        parent, child = ModuleLoader(Resolving(resolver)), ModuleLoader(Resolving(kind(tmp_path / "source")))
        mount = await parent.load(module_id, source_hint="hint")
        await child.load(module_id)
        canonical = sys.modules[name]
        recording = Recording()
        await mount(recording)
        assert type(recording.mounted["own"]) is canonical.Own
        assert canonical.COUNT == 1
        assert parent._loaded_modules[module_id] is child._loaded_modules[module_id] is canonical.mount
        assert resolver.asked == [(module_id, "hint", "hint")]
        assert str(tmp_path / "source") in sys.path
        child.cleanup()
        parent.cleanup()

    run(main)
    assert sys.path == before
    assert entry.loads == 0


def test_another_source_is_refused(tmp_path, write):
    name = "amplifier_module_tool_two"
    write(tmp_path / "a", name, "a")
    write(tmp_path / "b", name, "b")

    async def main():
        resolver = Resolver(tmp_path / "a")
        loader, other = ModuleLoader(Resolving(resolver)), ModuleLoader(Resolving(Resolver(tmp_path / "b")))
        await loader.load("tool-two")
        with pytest.raises(ModuleValidationError, match="Refusing to import"):
            await other.load("tool-two")
        assert other._loaded_modules == {}
        resolver.source.root = tmp_path / "b"
        with pytest.raises(ImportError, match="already loaded from"):
            await loader.load("tool-two")
        return sys.modules[name].Own.description

    assert run(main) == "a"


def test_cached_children_from_elsewhere_are_refused(tmp_path, write):
    name = "amplifier_module_tool_three"
    write(tmp_path / "a", name, "a")
    second = write(tmp_path / "b", name, "b")
    sys.path.insert(0, str(tmp_path / "a"))
    importlib.import_module(name)
    marker = sys.modules[f"{name}.marker"]
    del sys.modules[name]

    async def main():
        return await ToolValidator().validate(second)

    result = run(main)
    assert any("cached submodule" in check.message for check in result.checks if check.name == "module_importable")
    assert name not in sys.modules
    assert sys.modules[f"{name}.marker"] is marker


def test_a_package_of_another_name_is_mounted_from_its_source(tmp_path, write):
    write(tmp_path, "amplifier_module_alpha", "source")

    async def main():
        mount = await ModuleLoader(Resolving(Resolver(tmp_path))).load("tool-beta")
        recording = Recording()
        await mount(recording)
        return recording.mounted["own"].description

    assert run(main) == "source"
    assert "amplifier_module_tool_beta" not in sys.modules


def test_a_resolver_that_finds_nothing_leaves_the_direct_way(monkeypatch):
    async def main():
        resolver = MagicMock(spec=["resolve"])
        resolver.resolve.side_effect = SourceNotFoundError("nowhere")
        entry = Entry("tool-f")
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [entry])
        mount = await ModuleLoader(Resolving(resolver)).load("tool-f", {"a": 1})
        assert await mount(MagicMock()) == {"a": 1}
        monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
        with pytest.raises(SourceNotFoundError):
            await ModuleLoader(Resolving(resolver)).load("tool-g")
        resolver.resolve.side_effect = LookupError("broken")
        with pytest.raises(LookupError):
            await ModuleLoader(Resolving(resolver)).load("tool-g")

    run(main)


def test_importing_from_a_path_leaves_sys_path(tmp_path, write):
    package = write(tmp_path / "wanted", "amplifier_module_tool_four", "wanted")
    write(tmp_path / "installed", "amplifier_module_tool_four", "installed")
    sys.path.insert(0, str(tmp_path / "installed"))
    sys.path.append(str(tmp_path / "wanted"))
    before = list(sys.path)
    assert import_module_from_path(package).Own.description == "wanted"
    assert sys.path == before


def test_other_threads_wait_for_such_an_import(tmp_path, write):
    entered, release, unrelated, done = threading.Event(), threading.Event(), [], threading.Event()
    helper = types.ModuleType("_suite_synchronizer")
    helper.entered, helper.release = entered, release
    sys.modules[helper.__name__] = helper
    source = "from _suite_synchronizer import entered, release\nentered.set()\nassert release.wait(timeout=60)\n"
    package = write(tmp_path, "amplifier_module_tool_five", source=source)
    (tmp_path / "suite_unrelated.py").write_text("VALUE = 1\n")

    def other():
        try:
            unrelated.append(importlib.import_module("suite_unrelated"))
        except ImportError as error:
            unrelated.append(error)
        done.set()

    first = threading.Thread(target=import_module_from_path, args=(package,))
    first.start()
    assert entered.wait(timeout=60)
    second = threading.Thread(target=other)
    second.start()
    assert not done.wait(timeout=0.1)
    release.set()
    first.join(5)
    second.join(5)
    del sys.modules[helper.__name__]
    assert isinstance(unrelated[0], ImportError)


# ── other languages ──────────────────────────────────────────────────────────────────────────────


def with_engine(tmp_path, **engine):
    resolver = MagicMock()
    resolver.async_resolve = AsyncMock(return_value=Source(tmp_path))
    coordinator = MagicMock()
    coordinator.get.return_value = resolver
    coordinator.mount_points = {"tools": {}, "module-source-resolver": resolver}
    double = MagicMock(**engine)
    patches = (
        patch("amplifier_core._engine", double, create=True),
        patch.dict("sys.modules", {"amplifier_core._engine": double}),
    )
    return coordinator, patches


def test_an_engine_that_fails_is_a_warning(tmp_path, caplog):
    async def main():
        coordinator, patches = with_engine(tmp_path)
        loader = ModuleLoader(coordinator)
        with patches[0], patches[1] as modules:
            modules["amplifier_core._engine"].resolve_module.side_effect = RuntimeError("corrupt manifest")
            with (
                patch.object(loader, "_load_filesystem", return_value=None),
                patch.object(loader, "_validate_module", new_callable=AsyncMock),
                caplog.at_level(logging.WARNING, logger="amplifier_core.loader"),
                pytest.raises(ValueError, match="failed to load"),
            ):
                await loader.load("test-mod", {}, coordinator=coordinator)

    run(main)
    assert any("resolve_module failed" in r.message and r.levelno == logging.WARNING for r in caplog.records)


def test_webassembly_goes_to_the_engine(tmp_path):
    async def main():
        coordinator, patches = with_engine(tmp_path)
        with patches[0], patches[1] as modules:
            engine = modules["amplifier_core._engine"]
            engine.resolve_module.return_value = {"transport": "wasm", "module_type": "tool"}
            engine.load_and_mount_wasm.side_effect = lambda c, p: c.mount_points["tools"].update(echo=p)
            mount = await ModuleLoader(coordinator).load("echo", {}, source_hint="x", coordinator=coordinator)
            cleanup = await mount(coordinator)
        return cleanup, coordinator.mount_points["tools"]

    assert run(main) == (None, {"echo": str(tmp_path)})


def test_a_sidecar_must_be_there(tmp_path):
    (tmp_path / "amplifier.toml").write_text(
        '[module]\nname = "t"\ntype = "tool"\ntransport = "rust"\ncrate = "absent"\n'
    )

    async def main():
        coordinator, _ = with_engine(tmp_path)
        await ModuleLoader(coordinator).load("t", {}, coordinator=coordinator)

    with pytest.raises(FileNotFoundError, match="absent"):
        run(main)


# ── sources ──────────────────────────────────────────────────────────────────────────────────────


def test_sources():
    source = FileSystemModuleSource(paths=["/x"])
    source.get_module_paths().clear()
    assert source.get_module_paths() == ["/x"]
    assert source.get_mention_mappings() == {}
    assert FileSystemModuleSource().get_module_paths() == []
    with pytest.raises(TypeError):
        ModuleSource()
    assert issubclass(SourceNotFoundError, Exception)
    assert issubclass(ModuleLoadError, Exception)
    assert str(SourceNotFoundError("no module x")) == "no module x"
