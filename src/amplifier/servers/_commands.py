"""Commands of one's own: texts for the model, with a name that stands for them.

One may begin with a head, between two lines ``---``, whose ``description`` is what people are shown; the model is not given the head.
"""

from __future__ import annotations

import re
from typing import Final

from amplifier._json import visible_text

_ARGUMENTS: Final = "$ARGUMENTS"
_HEAD: Final = re.compile(r"---\n(.*?)^---\s*?(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_DESCRIPTION: Final = re.compile(r"""^description:\s*(["']?)(.+?)\1\s*$""", re.MULTILINE)


def summary(text: str) -> str:
    """A command in a few words: the description in its head, else its first line."""
    head = _HEAD.match(text)
    described = None if head is None else _DESCRIPTION.search(head[1])
    first = _body(text).partition("\n")[0].lstrip("# ")
    return visible_text(first if described is None else described[2], multiline=False)


def takes_input(text: str) -> bool:
    """Whether a command says where its arguments go."""
    return _ARGUMENTS in text


def expanded(text: str, argument: str) -> str:
    """What a command with this argument stands for."""
    body = _body(text)
    return body.replace(_ARGUMENTS, argument) if takes_input(body) else f"{body}\n\n{argument}".strip()


def _body(text: str) -> str:
    head = _HEAD.match(text)
    return (text if head is None else text[head.end() :]).strip()
