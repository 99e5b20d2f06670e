"""The root of the tree."""

from __future__ import annotations

PUBLIC_MODULE = "amplifier.errors"
"""Tracebacks and pickles name the module that users import from, and not the file."""


class AmplifierError(Exception):
    """Base of everything this project raises on purpose."""

    __module__ = PUBLIC_MODULE

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls.__module__.startswith(f"{PUBLIC_MODULE}."):
            cls.__module__ = PUBLIC_MODULE


class MisspellingWarning(UserWarning):
    """A name that is not known but nearly is: a handler for ``tool:per``, ``ToolResult(sucess=False)``.

    Such a name is allowed (events may have any name, models ignore or keep keywords they do not know), so nothing fails; the
    handler is never called and the value never read. Shown once for each place in the code, as Python does with warnings.
    ``warnings.simplefilter("error", MisspellingWarning)`` makes it an error, and so does pytest's option
    ``-W error::amplifier.errors.MisspellingWarning``. While the alias of the published kernel is installed, models do not emit it.
    """

    __module__ = PUBLIC_MODULE
