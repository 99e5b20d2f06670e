"""What resolvers are asked with: sample modules that can be found, and a filesystem that refuses."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from amplifier.conformance.checks.resolver.resolving import refusing, watching
from amplifier.conformance.harness.resolver_sources import (
    EXECUTED,
    SAMPLES,
    Question,
    hints,
    holds_a_package,
    ids_in,
    install_samples,
    locate,
    settings_for,
)
from amplifier.conformance.target.locate import find_subject
from tests.conformance.modules import write_module

RESOLVER = """
    __amplifier_module_type__ = "resolver"
    PLACES = ["plugins", "tool-known", "providers"]

    async def mount(coordinator, config):
        pass
"""


@pytest.fixture
def furnished(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    subject = find_subject(write_module(tmp_path, RESOLVER, "resolver_x.py"))
    work = tmp_path / "work"
    work.mkdir()
    install_samples(work, subject)
    return work


@pytest.mark.parametrize("place", ["modules", ".", "plugins", ".amplifier/modules"])
def test_samples_stand_where_a_resolver_may_look_and_nothing_of_them_was_run(furnished, place):
    for module_id in SAMPLES:
        assert holds_a_package(furnished / place / module_id)
        assert holds_a_package(furnished / place / f"amplifier-module-{module_id}")
    assert not list(furnished.rglob(EXECUTED))


def test_a_sample_says_that_it_was_run(furnished):
    found = runpy.run_path(str(next((furnished / "modules" / SAMPLES[0]).rglob("__init__.py"))))
    assert found["__amplifier_module_type__"] == "tool"
    assert len(list(furnished.rglob(EXECUTED))) == 1


def test_ids_are_told_from_other_words():
    assert ids_in(["plugins", "tool-known", "module-source-resolver", "not an id", "amplifier-module-x"]) == [
        "tool-known"
    ]


def test_settings_are_guessed_by_their_names():
    one, listed = settings_for(["root", "search_paths", "index", "overrides", "verbose"])
    assert one["root"] == "{directory}/modules"
    assert one["search_paths"] == ["{directory}/modules"]
    assert set(one["overrides"]) == set(SAMPLES)
    assert "verbose" not in one
    assert listed["root"] == ["{directory}/modules"]


@pytest.mark.anyio
@pytest.mark.parametrize("parameter", ["profile_hint", "source_hint", "where"])
async def test_a_hint_arrives_whatever_its_parameter_is_called(furnished, parameter):
    space: dict[str, Any] = {}
    exec(f"def resolve(module_id, {parameter}=None):\n    return {parameter}", space)
    question = Question(SAMPLES[0], "a path")
    assert await locate(space["resolve"], question, furnished) == hints(furnished, SAMPLES[0])["a path"]


def test_a_refusing_filesystem_refuses_below_a_folder_only_and_not_for_ever(furnished, tmp_path):
    with refusing(furnished) as refused:
        with pytest.raises(PermissionError):
            (furnished / "modules").is_dir()
        with pytest.raises(PermissionError):
            os.listdir(furnished)
        with pytest.raises(PermissionError):
            (furnished / "index.json").read_text()
        assert tmp_path.is_dir()
        assert Path("/").is_dir()
    assert len(refused) == 3
    assert (furnished / "index.json").read_text()


def test_waiting_is_noticed_while_somebody_watches():
    with watching() as seen:
        os.system("true")
    assert "os.system" in seen
    os.system("true")
    assert seen.count("os.system") == 1
