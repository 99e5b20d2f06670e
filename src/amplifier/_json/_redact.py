"""Secrets taken out of values and text before they reach an event, a log line or a screen.

Three questions are asked: is the *name* that of a secret (`_secret_names`), is the *place* one (the value beside
``"name": "Authorization"``, the word after ``--password``), does the *text* have the shape of one (`_secret_shapes`)?
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ._secret_names import SENSITIVE_KEYS, name_matcher
from ._secret_shapes import REDACTED, redact_text
from ._text import MAX_SHOWN_DEPTH
from ._walk import LEAVES, TOO_DEEP, Frame, rebuild

_CONTAINERS = (dict, list, tuple, set, frozenset)
_NAME_FIELDS = ("name", "Name", "key", "Key", "header", "field", "variable")
_VALUE_FIELDS = frozenset({"value", "Value", "values", "val"})
_JSON_IN_JSON = 3  # how often a string may be JSON inside a string of JSON before it is treated as text


def redact_secrets(value: Any, keys: Iterable[str] = SENSITIVE_KEYS) -> Any:
    """Copy a value with its secrets replaced by ``[REDACTED]``.

    The value of a sensitive key is replaced, except None and booleans, which show whether it was set.
    Dicts (keys included), lists, tuples, sets, bytes and JSON inside strings are searched. Dataclass and attrs
    instances and foreign mappings become dicts, exceptions become text; another object stays, unless its ``repr``
    shows a secret: then the redacted ``repr`` takes its place. Circular or very deep parts become a marker.
    """
    return _Redaction(name_matcher(frozenset(keys)), 0).run(value)


class _Redaction:
    """One pass over one value."""

    def __init__(self, is_sensitive: Callable[[str], bool], json_depth: int) -> None:
        self._is_sensitive_name = is_sensitive
        self._json_depth = json_depth
        self._names: dict[str, bool] = {}
        self._pair_lists: dict[int, bool] = {}
        self._new_keys: set[tuple[int, object]] = set()
        # One dict per object, so that the walk sees circles of objects; the objects are kept so that no id is reused.
        self._converted: dict[int, tuple[Any, Any]] = {}

    def run(self, value: Any) -> Any:
        return rebuild(value, self._visit, subject="", max_depth=MAX_SHOWN_DEPTH, containers=_CONTAINERS, mark=True)

    def _visit(self, value: Any, frames: Sequence[Frame]) -> Any:
        if frames:
            frame = frames[-1]
            secret = self._holds_secret(frame, frames)
            if frame.keys is not None:
                self._redact_key(frame)
            if (
                secret
                and value is not None
                and value is not True
                and value is not False
                and not _is_count(frame, value)
            ):
                return REDACTED.encode() if type(value) is bytes else REDACTED
        kind = type(value)  # not isinstance(): a test double may claim to be of any class
        if issubclass(kind, str):
            return self._redact_string(value)
        if issubclass(kind, (bytes, bytearray)):
            text = bytes(value).decode("latin-1")
            redacted = redact_text(text)
            return value if redacted == text else redacted.encode("latin-1")
        if kind in LEAVES or issubclass(kind, _CONTAINERS):
            return value
        identity = id(value)
        if identity not in self._converted:
            self._converted[identity] = (value, _readable(value))
        return self._converted[identity][1]

    def _sensitive(self, name: object) -> bool:
        if isinstance(name, bytes):
            name = name.decode("latin-1")
        if not isinstance(name, str):
            return False
        known = self._names.get(name)
        if known is None:
            known = self._names[name] = self._is_sensitive_name(name)
        return known

    def _holds_secret(self, frame: Frame, frames: Sequence[Frame]) -> bool:
        """Whether the name of the value looked at, or its neighbour in a pair or command line, gives it away."""
        at, values = frame.at, frame.values
        if frame.keys is not None:
            key = frame.keys[at]
            if self._sensitive(key):
                return True
            return key in _VALUE_FIELDS and any(self._sensitive(dict.get(frame.source, name)) for name in _NAME_FIELDS)
        if at == 0 or issubclass(frame.kind, (set, frozenset)):
            return False
        before = values[at - 1]
        if isinstance(before, str) and before.startswith("-"):
            option = before.lstrip("-")
            return self._sensitive(option) or (option in ("u", "user") and ":" in str(values[at]))
        if at != 1 or len(values) != 2 or not self._sensitive(before):
            return False
        return issubclass(frame.kind, tuple) or (len(frames) > 1 and self._lists_pairs(frames[-2].source))

    def _lists_pairs(self, source: Any) -> bool:
        """``[["authorization", "x"], …]`` is a list of headers; ``"required": ["token", "user"]`` is not one."""
        identity = id(source)
        if identity not in self._pair_lists:
            self._pair_lists[identity] = isinstance(source, (list, tuple)) and all(
                isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in source
            )
        return self._pair_lists[identity]

    def _redact_key(self, frame: Frame) -> None:
        assert frame.keys is not None
        key = frame.keys[frame.at]
        if isinstance(key, str):
            redacted: Any = redact_text(key)
        elif isinstance(key, (tuple, frozenset, bytes)):
            redacted = _Redaction(self._is_sensitive_name, self._json_depth).run(key)
        else:
            return
        if redacted is key or redacted == key:
            return
        if (id(frame), redacted) in self._new_keys:
            redacted = f"{redacted} ({frame.at})"  # two secrets must not become one entry
        self._new_keys.add((id(frame), redacted))
        frame.keys[frame.at] = redacted

    def _redact_string(self, text: str) -> str:
        opening = text.lstrip()[:1] if text else ""
        if opening in ("{", "[") and len(text) > 2 and self._json_depth < _JSON_IN_JSON:
            try:
                parsed = json.loads(text)
                redacted = _Redaction(self._is_sensitive_name, self._json_depth + 1).run(parsed)
                if redacted != parsed:
                    text = json.dumps(redacted, ensure_ascii=False)
            except (ValueError, RecursionError):  # no JSON after all, or a bomb: it is searched as text below
                pass
        return redact_text(text)


def _is_count(frame: Frame, value: Any) -> bool:
    """``{"pass": 12, "fail": 3}``: a number under a name that is also a word of test reports."""
    return type(value) in (int, float) and frame.keys is not None and frame.keys[frame.at] in ("pass", "PASS", "Pass")


def _readable(value: Any) -> Any:
    """An object as something the walk can search."""
    kind = type(value)
    try:
        if issubclass(kind, BaseException):
            return f"{kind.__name__}: {redact_text(str(value))}"
        names = [field.name for field in getattr(kind, "__attrs_attrs__", ())] or list(
            getattr(kind, "__dataclass_fields__", ())
        )
        if names:
            return {name: getattr(value, name, None) for name in names}
        if issubclass(kind, Mapping):
            return dict(value)
        shown = repr(value)
        redacted = redact_text(shown)
    except RecursionError:
        return TOO_DEEP
    except Exception:  # noqa: BLE001 - the methods of a foreign object; what cannot be read cannot be shown to be harmless
        return f"[UNREADABLE {kind.__name__}]"
    return value if redacted == shown else redacted
