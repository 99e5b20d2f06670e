"""The reference pages of the built-in hooks: their example plans mount, and their tables name every key and no other."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from amplifier._reading import keys_of
from amplifier.modules.hooks import approval as hooks_approval
from amplifier.modules.hooks import logging as hooks_logging
from amplifier.modules.hooks import redaction as hooks_redaction
from amplifier.modules.hooks.approval._hook import render_prompt
from amplifier.modules.hooks.approval._options import _RULE_MEMBERS, ApprovalOptions
from amplifier.modules.hooks.logging._options import LogOptions
from amplifier.modules.hooks.redaction import STRUCTURAL, RedactionOptions
from amplifier.testing import TestCoordinator
from tests._support.tree import ROOT

MODULES: dict[str, tuple[Any, Any]] = {
    "hooks-approval": (hooks_approval, ApprovalOptions),
    "hooks-logging": (hooks_logging, LogOptions),
    "hooks-redaction": (hooks_redaction, RedactionOptions),
}


def page(name: str) -> str:
    return (ROOT / "docs" / "reference" / "modules" / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


@pytest.mark.parametrize("name", MODULES)
async def test_the_plan_on_the_page_mounts(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = re.search(r"```json\n(.*?)```", page(name), re.DOTALL)
    assert block is not None
    (hook,) = json.loads(block[1])["hooks"]
    assert hook["module"] == name
    close = await MODULES[name][0].mount(TestCoordinator(), hook["config"])
    close()


@pytest.mark.parametrize("name", MODULES)
def test_the_table_names_every_key_and_no_other(name):
    rows = re.findall(r"^\| `([a-z_]+)` \|.*?$", section(page(name), "Config"), re.MULTILINE)
    also = re.findall(r"also `([a-z_]+_[a-z_]+)`", section(page(name), "Config"))
    assert {*rows, *also} == keys_of(MODULES[name][1]).keys() - {"patterns"}


def test_the_table_of_rules_names_every_key_and_no_other():
    text = section(page("hooks-approval"), "Rules")
    rows = re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)
    also = re.findall(r"Also `([a-z_]+)`", text)
    assert {*rows, *also} == set(_RULE_MEMBERS)


def test_the_question_on_the_page_is_the_one_that_is_asked():
    shown = re.search(r"```text\n(.*?)\n```", page("hooks-approval"), re.DOTALL)
    assert shown is not None
    reason = "asked for by the plan: it leaves this machine"
    asked = render_prompt("bash", {"command": "git push origin main", "timeout": 30}, reason)
    assert shown[1] == asked


def test_the_page_names_every_field_that_is_never_changed():
    text = section(page("hooks-redaction"), "Where").split("Never changed", 1)[1].split("\n\n", 1)[0]
    assert set(re.findall(r"`([a-z_.]+)`", text)) == STRUCTURAL
