"""``python -m docs._generate``, from the root of the repository."""

from . import write

write()
