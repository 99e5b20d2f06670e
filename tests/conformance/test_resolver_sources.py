"""Sample modules for resolvers, questions, and a filesystem that refuses access."""

from __future__ import annotations

import os
import runpy
from pathlib import Path
from typing import Any

import pytest

from amplifier.conformance.target.locate import find_target
from amplifier.conformance.target.process import audited, refused_access
from amplifier.conformance.target.resolver_samples import (
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
from tests.conformance.modules import write_module

RESOLVER = """
    __amplifier_module_type__ = "resolver"
    PLACES = ["plugins", "tool-known", "providers"]

    async def mount(coordinator, config):
        pass
"""


@pytest.fixture
def samples(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    subject = find_target(write_module(tmp_path, RESOLVER, "resolver_x.py"))
    work = tmp_path / "work"
    work.mkdir()
    install_samples(work, subject)
    return work


@pytest.mark.parametrize("place", ["modules", ".", "plugins", ".amplifier/modules"])
def test_samples_are_installed_where_a_resolver_may_look_and_are_not_executed(samples, place):
    for module_id in SAMPLES:
        assert holds_a_package(samples / place / module_id)
        assert holds_a_package(samples / place / f"amplifier-module-{module_id}")
    assert not list(samples.rglob(EXECUTED))


def test_a_sample_leaves_a_file_when_it_is_executed(samples):
    found = runpy.run_path(str(next((samples / "modules" / SAMPLES[0]).rglob("__init__.py"))))
    assert found["__amplifier_module_type__"] == "tool"
    assert len(list(samples.rglob(EXECUTED))) == 1


def test_module_ids_are_recognised_among_other_words():
    assert ids_in(
        ["plugins", "tool-known", "module-source-resolver", "not an id", "amplifier-module-x"]
    ) == ["tool-known"]


def test_settings_are_guessed_by_their_names():
    one, listed = settings_for(["root", "search_paths", "index", "overrides", "verbose"])
    assert one["root"] == "{directory}/modules"
    assert one["search_paths"] == ["{directory}/modules"]
    assert set(one["overrides"]) == set(SAMPLES)
    assert "verbose" not in one
    assert listed["root"] == ["{directory}/modules"]


@pytest.mark.anyio
@pytest.mark.parametrize("parameter", ["profile_hint", "source_hint", "where"])
async def test_a_hint_arrives_whatever_its_parameter_is_called(samples, parameter):
    space: dict[str, Any] = {}
    exec(f"def resolve(module_id, {parameter}=None):\n    return {parameter}", space)
    question = Question(SAMPLES[0], "a path")
    assert await locate(space["resolve"], question, samples) == hints(samples, SAMPLES[0])["a path"]


def test_access_is_refused_below_the_folder_and_inside_the_block_only(samples, tmp_path):
    with refused_access(samples) as refused:
        with pytest.raises(PermissionError):
            (samples / "modules").is_dir()
        with pytest.raises(PermissionError):
            os.listdir(samples)
        with pytest.raises(PermissionError):
            (samples / "index.json").read_text()
        assert tmp_path.is_dir()
        assert Path("/").is_dir()
    assert len(refused) == 3
    assert (samples / "index.json").read_text()


def test_audit_events_are_collected_inside_the_block_only():
    with audited("os.system") as seen:
        os.system("true")
    assert [each.partition(" ")[0] for each in seen] == ["os.system"]
    os.system("true")
    assert len(seen) == 1
