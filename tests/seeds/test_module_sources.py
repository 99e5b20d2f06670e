"""The module source protocol, which is in two of the documents: sources, resolvers, the loader, its errors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier import AmplifierSession, ModuleLoader, ModuleNotFoundError
from amplifier.contracts import ModuleSource, ModuleSourceResolver
from amplifier.loading import AmplifierModuleLoader
from amplifier.testing import TestCoordinator
from tests.seeds.seed_sessions import seed_session

TOOL_ON_DISK = """
from amplifier.testing import MockTool


async def mount(coordinator, config):
    return MockTool(config.get("name", "from_disk"))
"""


class FileSource:
    """A source as an application would write it: a place in the filesystem."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resolve(self) -> Path:
        if not self.path.is_dir():
            raise ModuleNotFoundError(f"nothing at {self.path}")
        return self.path


class MyCustomResolver:
    """The document's example of an application's policy; its package source is a file source here."""

    def __init__(self, overrides: dict[str, Path], packages: Path) -> None:
        self.overrides = overrides
        self.packages = packages
        self.asked: list[tuple[str, Any]] = []

    def parse_profile_hint(self, profile_hint: Any) -> ModuleSource:
        return FileSource(Path(profile_hint))

    def resolve(self, module_id: str, profile_hint: Any = None) -> ModuleSource:
        self.asked.append((module_id, profile_hint))
        if module_id in self.overrides:
            return FileSource(self.overrides[module_id])

        if profile_hint:
            return self.parse_profile_hint(profile_hint)

        return FileSource(self.packages / f"myapp-module-{module_id}")


@pytest.fixture
def checkout(tmp_path: Path, seed_plan: dict[str, Any]) -> Path:
    """A directory that holds the importable package of tool-disk; what is imported is forgotten by ``seed_plan``."""
    package = tmp_path / "checkout" / "amplifier_module_tool_disk"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TOOL_ON_DISK, encoding="utf-8")
    return package.parent


@pytest.fixture
def make_loader() -> Iterator[Callable[..., ModuleLoader]]:
    loaders: list[ModuleLoader] = []

    def make(*args: Any, **kwargs: Any) -> ModuleLoader:
        loaders.append(AmplifierModuleLoader(*args, **kwargs))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.cleanup()


# ── protocols ──


def test_resolution_goes_through_source_to_path(tmp_path: Path) -> None:
    resolver: ModuleSourceResolver = MyCustomResolver({}, tmp_path)
    source: ModuleSource = resolver.resolve("tool-disk", str(tmp_path))
    assert isinstance(source, ModuleSource)
    assert isinstance(resolver, ModuleSourceResolver)
    assert source.resolve() == tmp_path
    assert list(inspect.signature(ModuleSource.resolve).parameters) == ["self"]
    parameters = inspect.signature(ModuleSourceResolver.resolve).parameters
    assert list(parameters) == ["self", "module_id", "profile_hint"]
    assert parameters["profile_hint"].default is None


# ── loader ──


def test_loader_has_documented_signature() -> None:
    """``load`` also takes ``source_hint``, the newer name of ``profile_source``, and takes precedence (DESIGN 9)."""
    assert AmplifierModuleLoader is ModuleLoader
    coordinator = TestCoordinator()
    assert ModuleLoader(coordinator).coordinator is coordinator
    parameters = inspect.signature(ModuleLoader.load).parameters
    assert list(parameters)[:3] == ["self", "module_id", "config"]
    assert parameters["config"].default is None
    assert parameters["profile_source"].default is None
    assert inspect.iscoroutinefunction(ModuleLoader.load)


async def test_mounted_resolver_gets_profile_source(
    checkout: Path, tmp_path: Path, make_loader: Callable[..., ModuleLoader]
) -> None:
    """The document mounts without ``await``: mounting happens at the call (DESIGN 6)."""
    coordinator = TestCoordinator()
    resolver = MyCustomResolver({}, tmp_path)

    coordinator.mount("module-source-resolver", resolver)

    loader = make_loader(coordinator)
    loaded = await loader.load("tool-disk", {"name": "given"}, profile_source=str(checkout))

    assert resolver.asked == [("tool-disk", str(checkout))]
    assert loaded.path == checkout / "amplifier_module_tool_disk"
    tool = await loaded(coordinator)
    assert tool.name == "given"


async def test_custom_resolver_precedence(
    checkout: Path, tmp_path: Path, make_loader: Callable[..., ModuleLoader]
) -> None:
    coordinator = TestCoordinator()
    resolver = MyCustomResolver({"tool-disk": checkout}, tmp_path)
    await coordinator.mount("module-source-resolver", resolver)
    loader = make_loader(coordinator)
    loaded = await loader.load("tool-disk", profile_source="elsewhere")
    assert loaded.path == checkout / "amplifier_module_tool_disk"
    with pytest.raises(ModuleNotFoundError, match="myapp-module-tool-other"):
        await loader.load("tool-other")


async def test_session_loads_through_resolver(checkout: Path, tmp_path: Path) -> None:
    """Modules the resolver does not know are found in the ordinary way: here, in process."""
    session = seed_session()
    resolver = MyCustomResolver({}, tmp_path)
    session.config["tools"] = [{"module": "tool-disk", "source": str(checkout)}]
    await session.coordinator.mount("module-source-resolver", resolver)
    async with session:
        assert list(session.coordinator.get("tools")) == ["from_disk"]
    assert ("tool-disk", str(checkout)) in resolver.asked


async def test_loading_without_resolver_searches_paths(
    seed_plan: dict[str, Any],
) -> None:
    async with AmplifierSession(seed_plan) as session:
        assert session.coordinator.get("module-source-resolver") is None
        assert (await session.execute("hello")).startswith("hello, by ")
