"""Commands of one's own: texts for the model, with a name that stands for them."""

from __future__ import annotations

from typing import Final

from amplifier._json import visible_text

__all__ = ["expanded", "summary", "takes_input"]

_ARGUMENTS: Final = "$ARGUMENTS"


def summary(text: str) -> str:
    """A command in a few words: its first line."""
    return visible_text(text.partition("\n")[0].lstrip("# "), multiline=False)


def takes_input(text: str) -> bool:
    """Whether a command says where its arguments go."""
    return _ARGUMENTS in text


def expanded(text: str, argument: str) -> str:
    """What a command with this argument stands for."""
    return text.replace(_ARGUMENTS, argument) if takes_input(text) else f"{text}\n\n{argument}".strip()
