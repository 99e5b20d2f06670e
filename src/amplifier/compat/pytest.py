"""``pytest -p amplifier.compat.pytest``: a published module's own suite runs on this kernel.

Installs the alias before pytest looks for the plugins of installed distributions; among those it then finds the
published one, in the mirror, by the alias's own metadata.
"""

from __future__ import annotations

from . import install

__all__: list[str] = []

install()
