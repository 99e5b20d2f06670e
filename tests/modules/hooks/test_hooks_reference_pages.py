"""What the reference pages of the built-in hooks state about rules, questions and fields."""

from __future__ import annotations

import re

from amplifier._internal.reading import keys_of
from amplifier.contracts.questions import render_prompt
from amplifier.modules.hooks._approval_rules import Rule
from amplifier.modules.hooks.redaction import STRUCTURAL
from tests._support.tree import ROOT


def page(name: str) -> str:
    return (ROOT / "docs" / "reference" / "modules" / f"{name}.md").read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_rules_table_names_every_key():
    text = section(page("hooks-approval"), "Rules")
    rows = re.findall(r"^\| `([a-z_]+)` \|", text, re.MULTILINE)
    also = re.findall(r"Also `([a-z_]+)`", text)
    assert {*rows, *also} == set(keys_of(Rule))


def test_question_on_page_is_real():
    shown = re.search(r"```text\n(.*?)\n```", page("hooks-approval"), re.DOTALL)
    assert shown is not None
    reason = "asked for by the plan: it leaves this machine"
    asked = render_prompt("bash", {"command": "git push origin main", "timeout": 30}, reason)
    assert shown[1] == asked


def test_page_names_every_unchanged_field():
    text = (
        section(page("hooks-redaction"), "Where").split("Never changed", 1)[1].split("\n\n", 1)[0]
    )
    assert set(re.findall(r"`([a-z_.]+)`", text)) == STRUCTURAL
