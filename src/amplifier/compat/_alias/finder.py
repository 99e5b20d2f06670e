"""The finder of ``amplifier_core`` for Python's import system and for `importlib.metadata`.

The mirror tree is loaded under the published name only, as ordinary modules with files: they can be patched, reloaded and
read. The finder answers for the top-level name; Python itself then finds the submodules through the package's path, so that
other import hooks still apply (pytest rewrites the assertions of the suites in there).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

ALIAS: Final = "amplifier_core"
DISTRIBUTION: Final = "amplifier-core"
VERSION: Final = "2.0.2"
"""The published version whose surface the mirror has."""

MIRROR: Final = Path(__file__).parents[1] / ALIAS

_METADATA: Final = f"""\
Metadata-Version: 2.1
Name: {DISTRIBUTION}
Version: {VERSION}
Summary: The published kernel's surface on this one, installed by amplifier.compat
Requires-Python: >=3.11
"""

_FILES: Final = {
    "METADATA": _METADATA,
    "entry_points.txt": (
        f"[console_scripts]\n{DISTRIBUTION} = {ALIAS}.cli:main\n\n[pytest11]\namplifier_module = {ALIAS}.pytest_plugin\n"
    ),
    "top_level.txt": f"{ALIAS}\n",
    "INSTALLER": "amplifier.compat\n",
}


def alias_spec() -> ModuleSpec:
    """Where ``amplifier_core`` is imported from."""
    spec = spec_from_file_location(ALIAS, MIRROR / "__init__.py", submodule_search_locations=[str(MIRROR)])
    assert spec is not None  # a path that ends in .py always has a loader
    return spec


def is_alias(module: ModuleType) -> bool:
    """Whether a module is the mirror's top level and not the published package."""
    return getattr(module, "__file__", None) == str(MIRROR / "__init__.py")


def alias_modules() -> list[str]:
    """The names in sys.modules that belong to ``amplifier_core``, the alias or the published package."""
    return [name for name in sys.modules if name == ALIAS or name.startswith(f"{ALIAS}.")]


class AliasFinder:
    """The first finder, so that an installed wheel of the published kernel is not imported."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Answer for the top-level name."""
        return alias_spec() if fullname == ALIAS else None

    def find_distributions(self, context: DistributionFinder.Context | None = None) -> Iterator[Distribution]:
        """Answer for the distribution of that name, unless the query is limited to certain directories."""
        query: dict[str, Any] = {} if context is None else vars(context)
        name = query.get("name")
        if "path" in query or (name is not None and _normalized(name) != DISTRIBUTION):
            return
        yield _distribution()


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _distribution() -> Distribution:
    # Imported here because it brings email, csv and zipfile along, and few programs query distributions.
    from importlib.metadata import Distribution  # noqa: PLC0415

    class AliasDistribution(Distribution):
        """The metadata of a distribution that had installed the mirror."""

        def read_text(self, filename: str) -> str | None:
            return _FILES.get(filename)

        def locate_file(self, path: Any) -> Any:
            return MIRROR.parent / path

    return AliasDistribution()
