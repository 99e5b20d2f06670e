"""What the snippets take for granted: modules that can be found, a logger, a process as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier.testing import TestCoordinator
from tests.seeds.seed_sessions import CONTEXT_ON_DISK, LOOP_ON_DISK


@pytest.fixture
def coordinator() -> TestCoordinator:
    """A coordinator without a session."""
    return TestCoordinator()


@pytest.fixture
def seed_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """A plan whose two modules lie on the search path, so that ``AmplifierSession(config)`` alone finds them."""
    for module_id, code in (("loop-seed", LOOP_ON_DISK), ("context-seed", CONTEXT_ON_DISK)):
        package = (
            tmp_path
            / f"amplifier-module-{module_id}"
            / f"amplifier_module_{module_id.replace('-', '_')}"
        )
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(code, encoding="utf-8")
    monkeypatch.setenv("AMPLIFIER_MODULES", str(tmp_path))
    yield {"session": {"orchestrator": "loop-seed", "context": "context-seed"}}
    for name in [name for name in sys.modules if name.startswith("amplifier_module_")]:
        del sys.modules[name]
