"""The checks, one file for each contract; importing this package registers them all."""

from . import _mount, _static

__all__: list[str] = ["_mount", "_static"]
