from __future__ import annotations

import functools
import inspect
import types
from contextlib import asynccontextmanager

import pytest

from amplifier.errors import ModuleLoadError
from amplifier.loading import FoundModule
from amplifier.loading.inspection import LoadedModule
from amplifier.loading.inspection import examine_imported as examine
from amplifier.loading.inspection import examine_registered as examine_found


async def good_mount(coordinator, config):
    return None


def examine_imported(module_id, module, attribute="", *, origin) -> LoadedModule:
    return examine(
        FoundModule(module_id=module_id, import_name="here", attribute=attribute), module
    )


def examine_registered(module_id, source, module_type) -> LoadedModule:
    return examine_found(
        FoundModule(module_id=module_id, registered=source, registered_type=module_type)
    )


def module_with(**attributes):
    module = types.ModuleType("amplifier_module_example")
    vars(module).update(attributes)
    return module


class Mounting:
    def method(self, coordinator, config=None):
        return None

    def __call__(self, coordinator, config):
        return None

    @asynccontextmanager
    async def structured(self, coordinator, config):
        yield

    @asynccontextmanager
    async def structured_without_config(self, coordinator):
        yield


@asynccontextmanager
async def structured(coordinator, config):
    yield


@asynccontextmanager
async def structured_without_config(coordinator):
    yield


def lying(coordinator):
    return None


lying.__signature__ = inspect.signature(good_mount)  # type: ignore[attr-defined]

FITTING = [
    good_mount,
    lambda coordinator, config=None: None,
    lambda *arguments: None,
    lambda coordinator, *rest, **options: None,
    lambda coordinator, config, more=1, *, option=2: None,
    functools.partial(lambda first, coordinator, config: None, 1),
    Mounting().method,
    Mounting(),
    Mounting().structured,
    structured,
    lying,
    dict,
]
UNFITTING = [
    lambda: None,
    lambda coordinator: None,
    lambda coordinator, *, config: None,
    lambda coordinator, config, more: None,
    lambda coordinator, config, *, option: None,
    lambda **options: None,
    functools.partial(good_mount, 1),
    structured_without_config,
    Mounting().structured_without_config,
]


@pytest.mark.parametrize("mount", FITTING)
def test_mount_with_fitting_signature_is_accepted(mount):
    assert examine_registered("tool-x", mount, None).mount is mount


@pytest.mark.parametrize("mount", UNFITTING)
def test_mount_with_wrong_signature_is_refused(mount):
    with pytest.raises(
        ModuleLoadError, match=r"the signature is mount\(.*expected one that can be called as"
    ) as caught:
        examine_imported("tool-x", module_with(mount=mount), origin="here")
    assert caught.value.reason_code == "invalid_entry_point"
    assert caught.value.module_id == "tool-x"


@pytest.mark.parametrize("mount", [None, 7, "mount", types.ModuleType("m")])
def test_uncallable_mount_is_refused(mount):
    with pytest.raises(
        ModuleLoadError, match=r"expected async def mount\(coordinator, config\)"
    ) as caught:
        examine_imported("tool-x", module_with(mount=mount), origin="here")
    assert caught.value.reason_code == "invalid_entry_point"


def test_missing_mount_is_refused():
    with pytest.raises(
        ModuleLoadError, match="has no 'mount' in the Python module 'amplifier_module_example'"
    ):
        examine_imported("tool-x", module_with(), origin="here")
    with pytest.raises(ModuleLoadError, match=r"has no 'a\.b' in the Python module"):
        examine_imported("tool-x", module_with(mount=good_mount), "a.b", origin="here")


def test_declared_kind_wins_over_id():
    module = module_with(mount=good_mount, __amplifier_module_type__="hook")
    assert examine_imported("tool-x", module, origin="here").module_type == "hook"
    assert examine_registered("tool-x", module, None).module_type == "hook"
    assert examine_registered("tool-x", module, "context").module_type == "context"


def test_undeclared_kind_follows_id_or_is_unknown():
    assert (
        examine_imported("hooks-tool-x", module_with(mount=good_mount), origin="here").module_type
        == "hook"
    )
    assert (
        examine_imported("my-tool", module_with(mount=good_mount), origin="here").module_type
        is None
    )


@pytest.mark.parametrize("declared", ["widget", "Tool", "", 7, ["tool"]])
def test_unknown_declared_kind_is_refused(declared):
    module = module_with(mount=good_mount, __amplifier_module_type__=declared)
    with pytest.raises(ModuleLoadError, match="expected one of 'orchestrator'") as caught:
        examine_imported("tool-x", module, origin="here")
    assert caught.value.reason_code == "invalid_module_metadata"
    assert repr(declared) in str(caught.value)


def test_asynchronous_ready_callback_is_kept():
    async def on_session_ready(coordinator):
        return None

    class Callback:
        async def __call__(self, coordinator):
            return None

    for callback in (on_session_ready, functools.partial(on_session_ready), Callback()):
        definition = examine_imported(
            "tool-x", module_with(mount=good_mount, on_session_ready=callback), origin="here"
        )
        assert definition.on_session_ready is callback
        assert definition.complaint is None


@pytest.mark.parametrize("ready", [lambda coordinator: None, 7])
def test_invalid_ready_callback_is_dropped_with_complaint(ready):
    definition = examine_registered(
        "tool-x", module_with(mount=good_mount, on_session_ready=ready), None
    )
    assert definition.on_session_ready is None
    assert definition.complaint is not None
    assert "expected async def on_session_ready(coordinator)" in definition.complaint


def test_bare_function_ignores_its_defining_module(monkeypatch):
    async def on_session_ready(coordinator):
        return None

    monkeypatch.setitem(globals(), "on_session_ready", on_session_ready)
    assert examine_registered("tool-x", good_mount, None).on_session_ready is None


def test_exploding_attribute_is_module_failure():
    def explode(name):
        raise RuntimeError("lazily broken")

    with pytest.raises(ModuleLoadError, match="RuntimeError: lazily broken") as caught:
        examine_imported("tool-x", module_with(__getattr__=explode), origin="here")
    assert isinstance(caught.value.__cause__, RuntimeError)
