"""Which modules are installed. Above: the commands. Below: the loader, which reads files only."""

from __future__ import annotations

import logging

from amplifier.loading import CatalogueEntry, ModuleLoader

__all__ = ["all_modules", "installed_ids", "installed_modules"]

_ORDER = ["orchestrator", "context", "provider", "tool", "hook", "resolver"]


def all_modules() -> list[CatalogueEntry]:
    """Every module that is there, in order of kind and id; of those with one id the one in use comes first."""
    found = ModuleLoader().catalogue()
    return sorted(found, key=lambda entry: (_ORDER.index(entry.info.type), entry.info.id, not entry.is_used))


def installed_modules() -> list[CatalogueEntry]:
    """Every module that a plan can name by its id alone, or that contests one."""
    return [entry for entry in all_modules() if entry.is_used or entry.is_contested]


def installed_ids() -> list[str]:
    """Their ids, for completion: nothing may be written to the terminal then."""
    logging.disable(logging.CRITICAL)
    try:
        return list(dict.fromkeys(entry.info.id for entry in installed_modules()))
    finally:
        logging.disable(logging.NOTSET)
