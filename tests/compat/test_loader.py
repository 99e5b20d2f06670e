"""Ids that built-in modules have as well, in a published session; `corpus/check_loader.py` has the rest of the loader."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests.loading._forge import distribution, package


@pytest.fixture
def published_todo(alias, tmp_path, monkeypatch):
    """A published tool-todo, installed."""
    distribution(
        tmp_path,
        "amplifier_module_tool_todo",
        {"tool-todo": "amplifier_module_tool_todo:mount"},
        "1.2",
    )
    package(tmp_path, "amplifier_module_tool_todo")
    monkeypatch.syspath_prepend(tmp_path)
    return "amplifier_module_tool_todo"


async def mounted_from(source: Any = None, resolver: Any = None) -> str:
    from amplifier_core.loader import ModuleLoader as Published  # type: ignore[import-not-found]

    coordinator = None if resolver is None else SimpleNamespace(get=lambda point: resolver)
    mount = await Published(coordinator).load("tool-todo", source_hint=source)
    return str(mount.mount.__module__)


async def test_published_session_mounts_built_in_or_pinned(published_todo: str, monkeypatch):
    assert await mounted_from("builtin") == "amplifier.modules.tools.todo"
    assert await mounted_from({"distribution": published_todo}) == published_todo
    monkeypatch.undo()
    sys.modules.pop(published_todo, None)
    assert await mounted_from() == "amplifier.modules.tools.todo"


async def test_pin_bypasses_resolver(published_todo: str):
    class Resolver:
        def resolve(self, module_id: str, **_: Any) -> Any:
            raise AssertionError(f"asked about {module_id}")

    assert await mounted_from("builtin", Resolver()) == "amplifier.modules.tools.todo"


async def test_unmatched_pin_is_error(alias: None):
    with pytest.raises(Exception, match="does not provide it"):
        await mounted_from({"distribution": "absent"})
