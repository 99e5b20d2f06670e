"""Text of the repository: links lead somewhere, and nothing names the machine it was written on."""

from __future__ import annotations

import pytest

from tests._support.prose import broken_links, machine_paths, problems_in_tree
from tests._support.tree import ROOT

README = ROOT / "README.md"


def test_links_and_paths_are_sound():
    assert problems_in_tree() == []


@pytest.mark.parametrize(
    "text",
    [
        "[gone](docs/no-such-page.md)",
        "[gone](<no such page.md>)".replace(" such ", "-such-"),
        "![picture](no-such.png)",
        "[anchor](#no-such-heading)",
        "see [a](README.md) and [gone](no-such.md#part)",
        '[titled](no-such.md "a title")',
    ],
)
def test_planted_broken_link_is_found(text):
    assert len(broken_links(README, text)) == 1


def test_links_to_generated_pages_are_checked():
    page = ROOT / "docs" / "index.md"
    assert (
        broken_links(
            page, "[plan](reference/mount-plan.md#sections) [API](reference/api/kernel.md)"
        )
        == []
    )
    assert len(broken_links(page, "[plan](reference/mount-plan.md#no-such-heading)")) == 1
    assert len(broken_links(page, "[API](reference/api/no-such-module.md)")) == 1
    assert broken_links(README, "[plan](docs/reference/mount-plan.md)") == []


@pytest.mark.parametrize(
    "folder", ["ro" + "ot", "wo" + "rk", "tm" + "p", "ho" + "me/anna", "Us" + "ers/anna"]
)
@pytest.mark.parametrize(
    "template", ['path = "/{}/x"', "see /{}/notes.md", "cd /{}/repo && make", "(/{}/a)"]
)
def test_planted_machine_path_is_found(folder, template):
    assert len(machine_paths(README, template.format(folder))) == 1
