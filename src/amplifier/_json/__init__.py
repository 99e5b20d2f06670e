"""JSON values: types, canonical text, and the walks that copy, cut, redact and show them.

It imports the standard library and `amplifier.errors`, nothing else.
"""

from ._copies import Copies, copies_for
from ._equality import is_same_json
from ._redact import redact_secrets
from ._secret_names import SENSITIVE_KEYS
from ._secret_shapes import REDACTED, redact_text
from ._text import canonical_dumps, sanitize_text, truncate_values, visible_text
from ._walk import (
    CIRCULAR,
    LEAVES,
    TOO_DEEP,
    Frame,
    JSONArray,
    JSONObject,
    JSONScalar,
    JSONValue,
    copy_json,
    format_path,
    rebuild,
)

__all__ = [
    "CIRCULAR",
    "LEAVES",
    "REDACTED",
    "SENSITIVE_KEYS",
    "TOO_DEEP",
    "Copies",
    "Frame",
    "JSONArray",
    "JSONObject",
    "JSONScalar",
    "JSONValue",
    "canonical_dumps",
    "copies_for",
    "copy_json",
    "format_path",
    "is_same_json",
    "rebuild",
    "redact_secrets",
    "redact_text",
    "sanitize_text",
    "truncate_values",
    "visible_text",
]
