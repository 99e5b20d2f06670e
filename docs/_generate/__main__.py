"""``python -m docs._generate``, from the root of the repository: writes the pages and the JSON Schemas that come from the code."""

from . import write_pages, write_schemas

write_schemas()
write_pages()
