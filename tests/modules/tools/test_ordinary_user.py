"""The attacks on protected places and on git once more, by an ordinary user, for whom the kernel has other rules than for root."""

from __future__ import annotations

import pytest

from tests.modules.tools.ordinary_user import run_tests
from tests.modules.tools.test_tool_bash_sandbox import in_bubblewrap

FOLDER = "tests/modules/tools"
PARTS = {
    "what is planted": ("test_protected_places_attacks.py", "test_protected_places.py"),
    "what comes later": ("test_protected_places_later.py",),
    "git": ("test_tool_bash_git.py",),
    "git calls": ("test_tool_bash_git_calls.py",),
}


@pytest.mark.long
@in_bubblewrap
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("files", PARTS.values(), ids=PARTS)
def test_attacks_win_nothing_for_an_ordinary_user(files: tuple[str, ...], backend: str) -> None:
    paths = [f"{FOLDER}/{name}" for name in files]
    done = run_tests(*paths, backend=backend)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
