"""Writes what has its one source in the code: most pages of the reference, and the JSON Schemas that are shipped.

The pages are written by every build of the manual and are not in the repository. The schemas are: ``make docs`` writes them,
and ``tests/architecture/test_generated_docs.py`` fails until that has been done.
"""

from ._pages import PAGES, ROOT, SCHEMAS, page_text, write_pages, write_schemas

__all__ = ["PAGES", "ROOT", "SCHEMAS", "page_text", "write_pages", "write_schemas"]
