"""Writes what has its one source in the code: most pages of the reference, and the JSON Schema of mount plans.

``make docs`` runs it; ``tests/architecture/test_generated_docs.py`` fails until that has been done.
"""

from ._markdown import NOTICE
from ._pages import ROOT, render, write

__all__ = ["NOTICE", "ROOT", "render", "write"]
