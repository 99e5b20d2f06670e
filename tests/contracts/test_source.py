"""The module source contract: its shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amplifier.contracts import AsyncModuleSourceResolver, ModuleSource, ModuleSourceResolver


class Folder:
    def __init__(self, path: Path) -> None:
        self._path = path

    def resolve(self) -> Path:
        return self._path


class Workspace:
    def resolve(self, module_id: str, profile_hint: Any = None) -> ModuleSource:
        return Folder(Path(module_id))


class Registry:
    async def async_resolve(self, module_id: str, profile_hint: Any = None) -> ModuleSource:
        return Folder(Path(module_id))


class WorkspaceOfToday:
    """The later spelling, with both hints."""

    def resolve(self, module_id: str, source_hint: Any = None, profile_hint: Any = None) -> ModuleSource:
        return Folder(Path(module_id))


def test_a_class_with_resolve_is_a_source() -> None:
    source: ModuleSource = Folder(Path())
    assert isinstance(source, ModuleSource)


def test_a_resolver_of_either_spelling_is_recognised() -> None:
    resolver: ModuleSourceResolver = Workspace()
    assert isinstance(resolver, ModuleSourceResolver)
    assert isinstance(WorkspaceOfToday(), ModuleSourceResolver)


def test_a_resolver_that_only_waits_is_recognised_as_such() -> None:
    resolver: AsyncModuleSourceResolver = Registry()
    assert isinstance(resolver, AsyncModuleSourceResolver)
    assert not isinstance(resolver, ModuleSourceResolver)


def test_a_resolver_that_does_not_wait_is_not_taken_for_one_that_does() -> None:
    assert not isinstance(Workspace(), AsyncModuleSourceResolver)


async def test_a_resolver_leads_to_a_path() -> None:
    assert Workspace().resolve("tool-x").resolve() == Path("tool-x")
    assert (await Registry().async_resolve("tool-x")).resolve() == Path("tool-x")
