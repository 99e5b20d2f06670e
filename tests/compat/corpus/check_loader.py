"""The loader, as programs use it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from amplifier_core import ModuleCoordinator
from amplifier_core.loader import ModuleLoader, ModuleValidationError, module_failure_reason
from amplifier_core.module_sources import ModuleNotFoundError as SourceNotFoundError

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


def test_missing_module():
    async def main():
        with pytest.raises(ValueError, match="tool-that-is-not-there"):
            await ModuleLoader().load("tool-that-is-not-there")

    run(main)


def test_reasons_of_failures():
    assert ModuleValidationError("x").reason_code == "validation_failed"
    assert (
        module_failure_reason(ModuleValidationError("x", reason_code="invalid_entry_point"))
        == "invalid_entry_point"
    )
    assert module_failure_reason(ModuleValidationError("x", reason_code="forged")) == "unknown"
    assert module_failure_reason(SourceNotFoundError("nowhere")) == "missing_source"
    assert module_failure_reason(KeyError("x")) == "unknown"


def test_discovery(tmp_path, write):
    for name in ("tool-a", "hooks-b"):
        write(tmp_path / f"amplifier-module-{name}", f"amplifier_module_{name.replace('-', '_')}")
    write(
        tmp_path / "amplifier-module-odd",
        "amplifier_module_odd",
        source='__amplifier_module_type__ = "provider"\n',
    )
    (tmp_path / "unrelated").mkdir()

    async def main():
        return await ModuleLoader(search_paths=[tmp_path]).discover()

    found = {info.id: (info.type, info.mount_point, info.name) for info in run(main)}
    expected = {
        "tool-a": ("tool", "tools", "Tool A"),
        "hooks-b": ("tool", "tools", "Hooks B"),
        "odd": ("provider", "providers", "Odd"),
    }
    assert {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize("kind", [Resolver, AsyncResolver])
def test_resolver_names_source(tmp_path, write, kind):
    name = f"amplifier_module_tool_one_{kind.__name__.lower()}"
    write(tmp_path / "source", name, "theirs")
    module_id = name.removeprefix("amplifier_module_").replace("_", "-")
    before = list(sys.path)

    async def main():
        resolver = kind(tmp_path / "source")
        loader = ModuleLoader(Resolving(resolver))
        mount = await loader.load(module_id, source_hint="hint")
        coordinator = ModuleCoordinator()
        await mount(coordinator)
        assert type(coordinator.get("tools")["own"]) is sys.modules[name].Own
        assert resolver.asked == [(module_id, "hint", "hint")]
        loader.cleanup()

    run(main)
    assert sys.path == before


def test_second_source_of_package_is_refused(tmp_path, write):
    name = "amplifier_module_tool_two"
    write(tmp_path / "a", name, "a")
    write(tmp_path / "b", name, "b")

    async def main():
        await ModuleLoader(Resolving(Resolver(tmp_path / "a"))).load("tool-two")
        with pytest.raises(ModuleValidationError):
            await ModuleLoader(Resolving(Resolver(tmp_path / "b"))).load("tool-two")
        return sys.modules[name].Own.description

    assert run(main) == "a"


def test_resolver_errors_are_passed_on():
    class Broken:
        def resolve(self, module_id, source_hint=None, profile_hint=None):
            raise LookupError("broken")

    async def main():
        with pytest.raises(LookupError):
            await ModuleLoader(Resolving(Broken())).load("tool-g")

    run(main)
