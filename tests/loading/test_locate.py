"""`ModuleLoader.locate`: the one finder of modules. It imports nothing."""

from __future__ import annotations

import sys

import pytest

from amplifier.errors import ModuleConflictError, ModuleLoadError
from amplifier.loading import FoundModule, ModuleLoader
from tests.loading._forge import MOUNT, distribution, root

POISON = "raise AssertionError('looking for a module must not import it')\n"


def mount(coordinator, config):
    return None


def located(module_id, source=None, **options) -> FoundModule:
    before = set(sys.modules)
    found = ModuleLoader(**options).locate(module_id, source)
    assert {
        name for name in set(sys.modules) - before if "amplifier_module" in name or "acme" in name
    } == set()
    assert found is not None
    return found


def test_directory_precedes_built_in_module(site, tmp_path):
    directory = root(tmp_path, "tool-todo", POISON)
    found = located("tool-todo", search_paths=[tmp_path])
    assert (found.root, found.source) == (directory, str(directory))
    assert located("tool-todo").is_built_in
    assert located("tool-todo", "builtin", search_paths=[tmp_path]).is_built_in


def test_source_is_path_or_pin(site, tmp_path):
    distribution(site, "acme", {"tool-x": "acme:mount"})
    distribution(site, "evil", {"tool-x": "evil:mount"})
    assert located("tool-x", str(tmp_path)).root == tmp_path
    assert located("tool-x", {"distribution": "evil"}).import_name == "evil"
    with pytest.raises(ModuleConflictError, match="is claimed by"):
        ModuleLoader().locate("tool-x")
    with pytest.raises(
        ModuleLoadError, match="is pinned to the built-in one, which does not provide it"
    ):
        ModuleLoader().locate("tool-x", "builtin")
    with pytest.raises(ModuleLoadError, match="neither a filesystem path nor a plain file: URI"):
        ModuleLoader().locate("tool-x", "git+https://example.org/x")


def test_declarations_are_read_without_import(tmp_path):
    body = (
        '"""Does x."""\n__amplifier_module_type__ = "hook"\n__amplifier_backends__ = ("asyncio",)\n'
        + POISON
        + MOUNT
    )
    directory = root(tmp_path, "my-thing", body)
    found = located("my-thing", str(directory))
    assert (found.info.type, found.info.mount_point, found.needs_asyncio) == ("hook", "hooks", True)
