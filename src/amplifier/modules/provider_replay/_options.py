"""The configuration of provider-replay."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from amplifier.errors import PlanError

from .._shared.configuration import Kind, choice, file_name, flag, option, text, texts

MODULE = "provider-replay"


def _is_placeholders(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and name and isinstance(text, str) and text for name, text in value.items()
    )


def _compiled(value: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    try:
        return tuple(map(re.compile, value))
    except re.error as error:
        raise PlanError([("$", f"expected regular expressions; {error.pattern!r:.80} is none: {error}")]) from None


_PATTERNS = attrs.evolve(texts(), convert=_compiled, expected="a list of regular expressions")


@attrs.frozen(kw_only=True)
class ReplayOptions:
    """The configuration of provider-replay.

    Attributes:
        cassette: The file with the recordings; without one the module declines.
        mode: ``none`` only replays; ``once`` records if the file is missing, else replays; ``new`` replays what is
            recorded and records the rest.
        placeholders: Names, each with the text that it stands for in the file, such as a directory that differs between
            machines.
        ignore: Regular expressions; what they match in a request is not compared.
        run: Sessions of one process with the same text share the file, also one after the other.
        waits: Whether replayed errors ask for the recorded waiting time before a retry.
    """

    cassette: Path | None = option(file_name, default=None, restricts=True)
    mode: str = option(choice("none", "once", "new"), default="none", restricts=True)
    placeholders: Mapping[str, str] = option(
        Kind("an object of non-empty texts", _is_placeholders, dict), default=attrs.Factory(dict)
    )
    ignore: tuple[re.Pattern[str], ...] = option(_PATTERNS, default=())
    run: str | None = option(text, default=None)
    waits: bool = option(flag, default=False)
