"""Every mount plan in the manual and in the examples, whole or in part, is accepted by the kernel without a warning."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from amplifier.plan import check_plan, expand_variables, plan_schema
from tests._support.tree import ROOT, relative

READERS: dict[str, Callable[[str], Any]] = {"json": json.loads, "yaml": yaml.safe_load, "toml": tomllib.loads}
SECTIONS = {"session", "providers", "tools", "hooks", "agents", "orchestrator", "context"}
SESSION = {"orchestrator": "loop-basic", "context": "context-simple"}

_BLOCK = re.compile(r"^```(json|yaml|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Environment(dict[str, str]):
    """Every key is set; whatever has a default has it."""

    def get(self, name: str, default: Any = None) -> Any:
        return "set" if name.endswith("KEY") else default


def plans_in(page: Path) -> list[Any]:
    """Blocks that are nothing but sections of a plan; other content is not checked."""
    text = page.read_text(encoding="utf-8")
    found = []
    for block in _BLOCK.finditer(text):
        content = READERS[block[1]](block[2])
        if isinstance(content, dict) and content and content.keys() <= SECTIONS | {"$schema"}:
            found.append(pytest.param(content, id=f"{relative(page)}:{text.count(chr(10), 0, block.start()) + 1}"))
    return found


def plan_files() -> list[Any]:
    files = [path for path in sorted((ROOT / "examples").rglob("*")) if path.suffix in (".yaml", ".json", ".toml")]
    read = {".yaml": "yaml", ".json": "json", ".toml": "toml"}
    contents = [(path, READERS[read[path.suffix]](path.read_text(encoding="utf-8"))) for path in files]
    return [
        pytest.param(content, id=relative(path))
        for path, content in contents
        if isinstance(content, dict) and "session" in content
    ]


PAGES = sorted([ROOT / "README.md", *(path for path in (ROOT / "docs").rglob("*.md") if "_build" not in path.parts)])
PLANS = [plan for page in PAGES for plan in plans_in(page)] + plan_files()


@pytest.mark.parametrize("plan", PLANS)
def test_plan_of_the_manual_is_valid(plan: dict[str, Any]) -> None:
    whole = {**plan, "session": {**SESSION, **plan.get("session", {})}}
    filled = expand_variables(whole, Environment())
    assert check_plan(filled) == ([], [])
    jsonschema_rs.validator_for(plan_schema()).validate(filled)


def test_plans_are_found() -> None:
    assert len(PLANS) >= 20
