from __future__ import annotations

from contextlib import asynccontextmanager

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.errors import ModuleLoadError
from amplifier.loading import LoadedModule, ModuleLoader
from amplifier.loading.discovery import package_name
from amplifier.plan import is_module_id, type_from_id


def loaded(mount, **changes):
    fields = {
        "module_id": "tool-x",
        "module_type": "tool",
        "mount": mount,
        "config": {"key": 1},
        "origin": "here",
    }
    return LoadedModule(**(fields | changes))


@pytest.mark.parametrize(
    "module_id", ["a", "tool-bash", "loop_basic", "hooks-tool-x", "x1", "a" * 64, "a-", "a--b"]
)
def test_id_of_grammar_is_accepted(module_id):
    loader = ModuleLoader(modules={module_id: print})
    assert [found.module_id for found in loader._registered.values()] == [module_id]


@given(st.from_regex(r"[a-z][a-z0-9_-]{0,63}", fullmatch=True))
def test_every_id_makes_importable_name(module_id):
    name = package_name(module_id)
    assert name.isidentifier()
    assert name.isascii()


@given(st.text(max_size=80))
def test_accepted_id_follows_grammar(text):
    if not is_module_id(text):
        return
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_")
    assert text[0].isalpha()
    assert len(text) <= 64


@pytest.mark.parametrize(
    ("module_id", "expected"),
    [
        ("loop-basic", "orchestrator"),
        ("orchestrator-x", "orchestrator"),
        ("provider-openai", "provider"),
        ("tool-bash", "tool"),
        ("tools-all", "tool"),
        ("hook-x", "hook"),
        ("hooks-logging", "hook"),
        ("hooks-tool-x", "hook"),
        ("hooks-loop", "hook"),
        ("context_simple", "context"),
        ("resolver-git", "resolver"),
        ("my-tool", None),
        ("toolbox", None),
        ("looper-x", None),
        ("x", None),
    ],
)
def test_first_word_of_id_names_kind(module_id, expected):
    assert type_from_id(module_id) == expected


def test_record_is_frozen_and_hides_configuration():
    record = loaded(print, config={"api_key": "sk-secret"})
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        record.module_id = "other"
    assert "tool-x" in repr(record)
    assert "sk-secret" not in repr(record)


async def test_calling_record_mounts_with_configuration():
    async def mount(coordinator, config):
        return coordinator, config

    assert await loaded(mount)("coordinator") == ("coordinator", {"key": 1})
    assert await loaded(mount)("coordinator", {"other": 2}) == ("coordinator", {"other": 2})
    assert await loaded(mount, config={})("coordinator") == ("coordinator", {})


async def test_structured_mount_is_passed_to_host():
    entered = []

    @asynccontextmanager
    async def mount(coordinator, config):
        entered.append(config)
        yield "instance"

    class Host:
        async def host(self, manager, *, name):
            async with manager as value:
                return name, value

    assert await loaded(mount)(Host()) == ("tool-x", "instance")
    assert entered == [{"key": 1}]


async def test_structured_mount_needs_host():
    @asynccontextmanager
    async def mount(coordinator, config):
        yield

    with pytest.raises(
        ModuleLoadError, match=r"has no host\(\); mount it through a session"
    ) as caught:
        await loaded(mount)(object())
    assert caught.value.reason_code == "mount_failed"


async def test_context_manager_instance_is_returned_unentered():
    class Instance:
        async def __aenter__(self):
            raise AssertionError("not to be called")

        async def __aexit__(self, *exc_info):
            raise AssertionError("not to be called")

    instance = Instance()

    async def mount(coordinator, config):
        return instance

    assert await loaded(mount)(object()) is instance
