"""Distributions are built where the builder is installed: in the environment for development, once for all Pythons."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests._support.made_once import made_once
from tests._support.tree import ROOT

collect_ignore = (
    []
    if find_spec("build")
    else [
        "test_distributions.py",
        "test_public_types.py",
        "test_beside_published.py",
        "test_supply_chain.py",
    ]
)


@pytest.fixture(scope="session")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheel, made from the sdist, and the sdist, made from this tree."""
    from .environments import built

    wheel, sdist = sorted(
        made_once(tmp_path_factory, "dist", lambda target: built(ROOT, target)).iterdir()
    )
    return wheel, sdist
