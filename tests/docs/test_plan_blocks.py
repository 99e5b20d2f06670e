"""Every mount plan in the manual and in the examples, whole or in part, is accepted without a warning, by the kernel and by its modules."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from amplifier._internal.reading import keys_of
from amplifier.modules.tools.mcp._options import McpOptions
from amplifier.plan import check_plan, expand_variables, plan_schema
from tests._support.manual import DOCS, committed_pages, read_page
from tests._support.tree import ROOT, relative
from tests.modules.test_configuration import CASES

READERS: dict[str, Callable[[str], Any]] = {
    "json": json.loads,
    "yaml": yaml.safe_load,
    "toml": tomllib.loads,
}
SECTIONS = {"session", "providers", "tools", "hooks", "agents", "orchestrator", "context"}
SESSION = {"orchestrator": "loop-basic", "context": "context-simple"}

_BLOCK = re.compile(r"^```(json|yaml|toml)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_PYTHON_BLOCK = re.compile(r"^```(?:python|py)\n(.*?)^```", re.MULTILINE | re.DOTALL)


class Environment(dict[str, str]):
    """Every key is set; whatever has a default has it."""

    def get(self, name: str, default: Any = None) -> Any:
        return "set" if name.endswith("KEY") else default


def plans_in(page: Path) -> list[Any]:
    """Blocks that are nothing but sections of a plan; other content is not checked."""
    text = read_page(page)
    found = []
    for block in _BLOCK.finditer(text):
        content = READERS[block[1]](block[2])
        if isinstance(content, dict) and content and content.keys() <= SECTIONS | {"$schema"}:
            found.append(
                pytest.param(
                    content, id=f"{relative(page)}:{text.count(chr(10), 0, block.start()) + 1}"
                )
            )
    return found


def plan_files() -> list[Any]:
    files = [
        path
        for path in sorted((ROOT / "examples").rglob("*"))
        if path.suffix in (".yaml", ".json", ".toml")
    ]
    read = {".yaml": "yaml", ".json": "json", ".toml": "toml"}
    contents = [
        (path, READERS[read[path.suffix]](path.read_text(encoding="utf-8"))) for path in files
    ]
    return [
        pytest.param(content, id=relative(path))
        for path, content in contents
        if isinstance(content, dict) and "session" in content
    ]


PAGES = sorted([ROOT / "README.md", DOCS / "reference" / "mount-plan.md", *committed_pages()])
PLANS = [plan for page in PAGES for plan in plans_in(page)] + plan_files()


@pytest.mark.parametrize("plan", PLANS)
def test_plan_of_manual_is_valid(plan: dict[str, Any]) -> None:
    whole = {**plan, "session": {**SESSION, **plan.get("session", {})}}
    filled = expand_variables(whole, Environment())
    assert check_plan(filled) == ([], [])
    jsonschema_rs.validator_for(plan_schema()).validate(filled)


def test_plans_are_found() -> None:
    assert len(PLANS) >= 20


def configured(value: Any) -> Iterator[tuple[str, list[str]]]:
    """The modules in a plan or a part of one, each with the keys of its config."""
    if (
        isinstance(value, dict)
        and isinstance(value.get("module"), str)
        and isinstance(value.get("config"), dict)
    ):
        yield value["module"], list(value["config"])
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from configured(inner)


def configured_in_python(code: str) -> Iterator[tuple[str, list[str]]]:
    """The same for plans in Python: dicts whose values need not be constants."""
    try:
        tree = ast.parse(code)
    except SyntaxError:  # quoted from the middle of a file, which is read itself
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            members = {key.value: value for key, value in _named(node)}
            module, config = members.get("module"), members.get("config")
            if isinstance(module, ast.Constant) and isinstance(config, ast.Dict):
                yield str(module.value), [str(key.value) for key, _ in _named(config)]


def _named(node: ast.Dict) -> Iterator[tuple[ast.Constant, ast.expr]]:
    pairs = zip(node.keys, node.values, strict=True)
    return ((key, value) for key, value in pairs if isinstance(key, ast.Constant))


def all_configured() -> list[Any]:
    found = [(plan.id, each) for plan in PLANS for each in configured(list(plan.values))]
    for page in PAGES:
        for block in _PYTHON_BLOCK.finditer(read_page(page)):
            found += [(relative(page), each) for each in configured_in_python(block[1])]
    for file in sorted((ROOT / "examples").rglob("*.py")):
        found += [
            (relative(file), each)
            for each in configured_in_python(file.read_text(encoding="utf-8"))
        ]
    return [pytest.param(*each, id=f"{place}-{each[0]}") for place, each in found]


CONFIGURED = all_configured()


@pytest.mark.parametrize(("module", "keys"), CONFIGURED)
def test_config_of_manual_has_known_keys(module: str, keys: list[str]) -> None:
    options = (
        McpOptions if module == "tool-mcp" else CASES[module].options if module in CASES else None
    )
    if options is not None:  # not a module that the page itself defines
        assert set(keys) <= set(keys_of(options))


def test_configs_are_found() -> None:
    assert len([found for found in CONFIGURED if found.values[0] in CASES]) >= 30
