"""Makes what may be written to a file: without secrets, with placeholders for texts that differ between machines."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from amplifier._json import REDACTED, Frame, rebuild, redact_secrets

from ._difference import common_prefix

_SHORTEST_SECRET = 8
"""Shorter values of sensitive names, such as ``AUTH=none``, are ordinary words that occur in other texts, too."""


_NO_SECRETS = ("PWD", "OLDPWD")
"""Variables that have the name of a password and hold a directory."""


class Scrubber:
    """Removes secrets from JSON values and exchanges texts with placeholders.

    Secrets are what `redact_secrets` finds, and the values that the plan and the environment have under sensitive names,
    wherever they occur: a service may quote a key in an error.

    Args:
        placeholders: Names and the texts that they stand for.
        plan: The mount plan.
    """

    def __init__(self, placeholders: Mapping[str, str], plan: Mapping[str, Any]) -> None:
        variables = {name: value for name, value in os.environ.items() if name not in _NO_SECRETS}
        secrets = {*_secret_values(dict(plan)), *_secret_values(variables)}
        self._secrets = _any_of(secrets)
        self._names = {text: name for name, text in placeholders.items()}
        self._texts = dict(placeholders)
        self._known_texts, self._known_names = _any_of(self._names), _any_of(self._texts)

    def scrub(self, value: Any) -> Any:
        """A copy of a JSON value that may be written."""

        def hide(text: str) -> str:
            return text if self._secrets is None else self._secrets.sub(REDACTED, text)

        def name(text: str) -> str:
            return text if self._known_texts is None else self._known_texts.sub(lambda m: self._names[m[0]], text)

        return map_texts(redact_secrets(map_texts(value, hide)), name)

    def restore(self, value: Any) -> Any:
        """A copy of a written JSON value with the texts in place of their placeholders."""
        known = self._known_names
        return value if known is None else map_texts(value, lambda text: known.sub(lambda m: self._texts[m[0]], text))

    def scrub_pieces(self, pieces: Sequence[str]) -> list[str]:
        """The pieces of a text, which may be written; a secret may begin in one piece and end in another one.

        Cuts before the first and after the last change stay where they were; those between them are dropped.
        """
        text = "".join(pieces)
        scrubbed: str = self.scrub(text)
        if scrubbed == text:
            return list(pieces)
        same_before = common_prefix(text, scrubbed)
        most_after = min(len(text), len(scrubbed)) - same_before
        same_after = min(most_after, common_prefix(text[::-1], scrubbed[::-1]))
        cuts, position = {0, len(scrubbed)}, 0
        for piece in pieces:
            position += len(piece)
            if position <= same_before:
                cuts.add(position)
            elif len(text) - position <= same_after:
                cuts.add(len(scrubbed) - (len(text) - position))
        ordered = sorted(cuts)
        return [scrubbed[start:end] for start, end in pairwise(ordered)]


def map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value whose texts, keys aside, went through a function."""

    def visit(leaf: Any, _frames: Sequence[Frame]) -> Any:
        return change(leaf) if isinstance(leaf, str) else leaf

    return rebuild(value, visit, subject="the request or answer cannot be recorded")


def _any_of(texts: Mapping[str, str] | set[str]) -> re.Pattern[str] | None:
    longest_first = sorted(filter(None, texts), key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None


def _secret_values(value: Any) -> Iterator[str]:
    """The texts that redaction removes as a whole, because of the names they have."""
    waiting = [(value, redact_secrets(value))]
    while waiting:
        given, redacted = waiting.pop()
        if isinstance(given, dict) and isinstance(redacted, dict):
            waiting += [(member, redacted[key]) for key, member in given.items() if key in redacted]
        elif isinstance(given, list) and isinstance(redacted, list):
            waiting += zip(given, redacted, strict=False)
        elif redacted == REDACTED and isinstance(given, str) and len(given) >= _SHORTEST_SECRET:
            yield given
