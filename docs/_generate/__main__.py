"""``python -m docs._generate``, from the root of the repository: writes the JSON Schemas beside the code they describe."""

from . import write_schemas

write_schemas()
