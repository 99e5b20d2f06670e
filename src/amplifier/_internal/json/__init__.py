"""JSON values: canonical text, copies, comparison, redaction of secrets, and schemas."""

from ._schema_validator import SchemaRefused, Validator, build_validator
from ._text import canonical_dumps, sanitize_text, text_size, truncate_values, visible_text
from ._walk import (
    CIRCULAR,
    LEAVES,
    TOO_DEEP,
    Frame,
    copy_json,
    format_path,
    is_same_json,
    join_paths,
    rebuild,
)
from .redaction import REDACTED, SENSITIVE_KEYS, is_media, redact_secrets, redact_text
from .values import JSON

__all__ = [
    "CIRCULAR",
    "JSON",
    "LEAVES",
    "REDACTED",
    "SENSITIVE_KEYS",
    "TOO_DEEP",
    "Frame",
    "SchemaRefused",
    "Validator",
    "build_validator",
    "canonical_dumps",
    "copy_json",
    "format_path",
    "is_media",
    "is_same_json",
    "join_paths",
    "rebuild",
    "redact_secrets",
    "redact_text",
    "sanitize_text",
    "text_size",
    "truncate_values",
    "visible_text",
]
