"""Installed modules for the published loader: third-party ones first, built-in ones where there is no other."""

from __future__ import annotations

import importlib
import importlib.metadata
from typing import Any

from amplifier.errors import ModuleLoadError
from amplifier.loading import entry_points


def third_party_entries() -> list[Any]:
    """Entry points of third-party modules; ours are in another group, except in older metadata."""
    found = importlib.metadata.entry_points(group="amplifier.modules")
    return [entry for entry in found if not str(getattr(entry, "value", "")).startswith("amplifier.modules.")]


def built_in_claim(module_id: str) -> Any:
    """The built-in module of an id; None if there is none."""
    return next((claim for claim in entry_points().get(module_id, ()) if claim.is_built_in), None)


def mount_of(claim: Any) -> tuple[Any, Any]:
    """The mount function of an installed module, and the Python module it is in.

    Raises:
        ModuleLoadError: It cannot be imported.
    """
    try:
        module = importlib.import_module(claim.module)
        mount = getattr(module, claim.attribute or "mount")
    except Exception as exc:
        raise ModuleLoadError(
            f"module {claim.module_id!r} ({claim}) cannot be used: {exc}", module_id=claim.module_id
        ) from exc
    return mount, module
