"""Redacts a payload: returns a copy as JSON without secrets and personal data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from amplifier._json import REDACTED, SENSITIVE_KEYS, Frame, copy_json, rebuild, redact_secrets
from amplifier.models import ToolResult

from ._options import RedactionOptions, path_steps
from ._personal_data import redact_personal

_DEEPEST = 1000
_JSON_LEAVES = (str, int, float, bool, type(None))
_MARKS = ("[REDACTED", "[UNREADABLE ")


class Redactor:
    """Redacts payloads.

    Args:
        options: The configuration.
    """

    def __init__(self, options: RedactionOptions | None = None) -> None:
        self._options = options or RedactionOptions()
        self._keys = SENSITIVE_KEYS.union(self._options.keys)
        paths = [path_steps(path) for path in sorted(self._options.allowlist)]
        self._allowed_members = frozenset(steps[0] for steps in paths if len(steps) == 1)
        self._allowed_below = [steps for steps in paths if len(steps) > 1]
        literals = sorted(map(re.escape, self._options.literals), key=len, reverse=True)
        prefixes = [rf"(?<![\w]){re.escape(prefix)}[\w.~+/=-]*+" for prefix in self._options.prefixes]
        self._own = re.compile("|".join([*literals, *prefixes])) if literals or prefixes else None

    def redact(self, payload: dict[str, Any]) -> dict[str, Any] | None:
        """A redacted copy of the payload, or None if there is nothing to redact."""
        kept = {key: value for key, value in payload.items() if key in self._allowed_members}
        searched = {key: value for key, value in payload.items() if key not in kept}
        redacted: Any = searched
        if "secrets" in self._options.rules:
            redacted = redact_secrets(redacted, self._keys)
        if self._own is not None or "pii-basic" in self._options.rules:
            redacted = self._redact_texts(redacted)
        for steps in self._allowed_below:
            redacted = _put_back(searched, redacted, steps)
        if _is_json(payload):
            return None if redacted == searched else {**redacted, **copy_json(kept)}
        # Redaction converted objects of other classes, so a comparison shows nothing.
        plain: dict[str, Any] = ToolResult(output={**redacted, **kept}).safe_hook_presentation()["output"]
        return plain if _holds_mark({key: value for key, value in plain.items() if key not in kept}) else None

    def redact_text(self, text: str) -> str:
        """A redacted text."""
        found = self.redact({"text": text})
        return text if found is None else str(found["text"])

    # ── texts ──

    def _redact_texts(self, value: Any) -> Any:
        def visit(leaf: Any, frames: Sequence[Frame]) -> Any:
            if frames and frames[-1].keys is not None:
                self._redact_key(frames[-1])
            return self._redact_own(leaf) if isinstance(leaf, str) else leaf

        return rebuild(value, visit, subject="", max_depth=_DEEPEST, mark=True)

    def _redact_key(self, frame: Frame) -> None:
        assert frame.keys is not None
        key = frame.keys[frame.at]
        if isinstance(key, str) and (redacted := self._redact_own(key)) != key:
            # Two members must not get the same name.
            frame.keys[frame.at] = f"{redacted} ({frame.at})" if redacted in frame.keys else redacted

    def _redact_own(self, text: str) -> str:
        if self._own is not None:
            text = self._own.sub(REDACTED, text)
        return redact_personal(text) if "pii-basic" in self._options.rules else text


def _put_back(source: Any, target: Any, steps: Sequence[str | int]) -> Any:
    """A copy of the target with the source's value at a path, if both have the path."""
    if not steps:
        return copy_json(source)
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        if not isinstance(source, dict) or not isinstance(target, dict) or step not in source or step not in target:
            return target
        return {**target, step: _put_back(source[step], target[step], rest)}
    if not isinstance(source, list) or not isinstance(target, list) or not step < len(source) == len(target):
        return target
    return [*target[:step], _put_back(source[step], target[step], rest), *target[step + 1 :]]


def _is_json(payload: dict[str, Any]) -> bool:
    waiting: list[Any] = [payload]
    while waiting:
        value = waiting.pop()
        if type(value) is dict:
            if not all(type(key) is str for key in value):
                return False
            waiting += value.values()
        elif type(value) is list:
            waiting += value
        elif type(value) not in _JSON_LEAVES:
            return False
    return True


def _holds_mark(value: Any) -> bool:
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
        elif isinstance(value, str) and any(mark in value for mark in _MARKS):
            return True
    return False
