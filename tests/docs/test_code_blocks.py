"""Every Python block in README and docs runs: unchanged, and on both backends where it defines ``async def main()``."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from amplifier import compat

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def blocks() -> list[object]:
    found: list[object] = []
    for page in PAGES:
        if not page.exists():
            continue
        text = page.read_text(encoding="utf-8")
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            code = match.group(1)
            name = f"{page.relative_to(ROOT)}:{line}"
            backends = ["asyncio", "trio"] if "async def main(" in code else [None]
            found += [pytest.param(code, page, line, b, id=f"{name}-{b}" if b else name) for b in backends]
    return found


@pytest.fixture
def own_modules() -> Iterator[None]:
    """Packages of modules and the alias of the published kernel, which a block may bring, go with it."""
    before = set(sys.modules)
    yield
    for name in [name for name in sys.modules if name.startswith("amplifier_module_") and name not in before]:
        del sys.modules[name]
    if compat.is_installed():
        compat.uninstall()


@pytest.mark.usefixtures("own_modules")
@pytest.mark.parametrize(("code", "page", "line", "backend"), blocks())
def test_a_code_block_runs(code, page, line, backend, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Blank lines in front, so that a traceback names the line of the page.
    compiled = compile("\n" * (line - 1) + code, str(page), "exec", dont_inherit=True)
    namespace: dict[str, object] = {"__name__": "page"}
    exec(compiled, namespace)
    if backend is not None:
        anyio.run(namespace["main"], backend=backend)  # type: ignore[arg-type]
    assert namespace  # the block's own assertions are the test; without them it at least runs


def test_blocks_are_found():
    assert len(blocks()) >= 10
