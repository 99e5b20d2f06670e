"""What the tests of this folder share: a directory to install into, loaders that are closed, a process as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amplifier.loading import ModuleLoader
from amplifier.loading.importing import HeldRoots
from tests.loading._forge import forget_imports


@pytest.fixture(autouse=True)
def _process_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what was imported from this test's directory."""
    monkeypatch.delenv("AMPLIFIER_MODULES", raising=False)
    yield
    forget_imports(tmp_path)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on sys.path, in place of site-packages."""
    directory = tmp_path / "site"
    directory.mkdir()
    monkeypatch.syspath_prepend(directory)
    return directory


@pytest.fixture
def make_loader() -> Iterator[Callable[..., ModuleLoader]]:
    """Build loaders that give up their sys.path entries when the test ends."""
    loaders: list[ModuleLoader] = []

    def make(*args: Any, **kwargs: Any) -> ModuleLoader:
        loaders.append(ModuleLoader(*args, **kwargs))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.cleanup()


@pytest.fixture
def held() -> Iterator[HeldRoots]:
    """Entries of sys.path that end with the test."""
    roots = HeldRoots()
    yield roots
    roots.clear()
