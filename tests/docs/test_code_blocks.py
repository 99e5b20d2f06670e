"""Every Python block in README and docs runs as it stands: unchanged, and on both backends where it defines ``async def main()``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

from amplifier import compat
from tests._support.manual import committed_pages
from tests.docs.scripted_model import running_model

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *committed_pages()])


STARTS_UNDER_A_GUARD = re.compile(r"^ +anyio\.run\(main", re.MULTILINE)


def blocks() -> list[Any]:
    found: list[Any] = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            code = match.group(1)
            name = f"{page.relative_to(ROOT)}:{line}"
            backends = ["asyncio", "trio"] if "async def main(" in code else [None]
            found += [
                pytest.param(code, page, line, b, id=f"{name}-{b}" if b else name) for b in backends
            ]
    return found


@pytest.fixture
def own_modules() -> Iterator[None]:
    """Packages of modules and the alias of the published kernel, which a block may bring, go with it."""
    before = set(sys.modules)
    yield
    for name in [
        name for name in sys.modules if name.startswith("amplifier_module_") and name not in before
    ]:
        del sys.modules[name]
    if compat.is_installed():
        compat.uninstall()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """For programs that name a model of a service."""
    with running_model() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(("code", "page", "line", "backend"), blocks())
def test_code_block_runs_unchanged(code, page, line, backend, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if '"anthropic:' in code or '"openai:' in code:
        request.getfixturevalue("model")
    if backend is not None:  # what a reader runs on the other backend, too
        monkeypatch.setattr(anyio, "run", partial(anyio.run, backend=backend))
    # Blank lines in front, so that a traceback names the line of the page.
    compiled = compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True)
    module = ModuleType("page")
    module.__file__ = str(tmp_path / "page.py")
    Path(module.__file__).write_text(code, encoding="utf-8")  # a program may start itself
    monkeypatch.setitem(sys.modules, "page", module)
    exec(compiled, module.__dict__)
    if STARTS_UNDER_A_GUARD.search(code):
        anyio.run(module.main)
    assert vars(module)  # the block's own assertions are the test; without them it at least runs


def test_program_starts_itself():
    """A reader can paste it into a file and run it; the walks of the tutorials run those that start under a guard as files."""
    programs = [parameters.values for parameters in blocks() if parameters.values[3]]
    stuck = [
        f"{page.name}:{line}"
        for code, page, line, _ in programs
        if not re.search(r"run\(\s*main", code)
    ]
    assert len(programs) > 80
    assert stuck == []


def test_unrun_blocks_hide_no_program():
    hidden = [
        f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, match.start()) + 1}"
        for page in PAGES
        for text in [page.read_text(encoding="utf-8")]
        for match in re.finditer(r"^```(?:text|)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if re.search(r"^(?:import|from) \w+", match[1], re.MULTILINE)
    ]
    assert hidden == []
