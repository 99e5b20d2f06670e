"""Writes what has its one source in the code: most pages of the reference, and the JSON Schemas that are shipped.

Both are in the repository, so that links work in every clone. ``make docs`` and ``python -m docs._generate`` write them; ``tests/architecture/test_generated_docs.py``
fails until that has been done.
"""

from ._pages import PAGES, ROOT, SCHEMAS, page_text, write_pages, write_schemas

__all__ = ["PAGES", "ROOT", "SCHEMAS", "page_text", "write_pages", "write_schemas"]
