"""Results of tools, results of hooks, and requests for a person's approval.

Of a tool's result: its rules, and its output as a language model and a hook can read it.
"""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any, Literal, TypeAlias

import attrs

from amplifier._json import rebuild, sanitize_text
from amplifier._json._values import MAX_DEPTH
from amplifier.errors import ModelError

from ._base import Model, checked, model
from ._messages import ImageBlock, TextBlock, UnknownBlock, is_base64

_OMITTED = "[{} omitted from tool event; original retained for model request if unmodified.]"

# ── content ──────────────────────────────────────────────────────────────────────────────────────
# Text, and images and audio as base64, reduced to what a model request may carry. Audio is an `UnknownBlock` of the type
# ``audio``: a class for it would refuse what transcripts hold under that type today.

# RFC 6838's restricted name after a lower-case "image/" or "audio/"; no parameters, no wildcard. Compiled when it is first
# used: few sessions see an image.
_SUBTYPE = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*"
_EXAMPLES = {"image": "image/png", "audio": "audio/wav"}


def _as_tool_content(value: Any) -> list[TextBlock | ImageBlock | UnknownBlock] | None:
    """Return fresh blocks without visibility and unknown members; nothing at all is None.

    Raises:
        ModelError: With paths relative to the list.
    """
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        raise ModelError([("", f"invalid tool result content: expected list, got {type(value).__name__}")], subject="")
    blocks = []
    for index, given in enumerate(value):
        try:
            blocks.append(_as_block(given))
        except ValueError as error:
            raise ModelError([(f"[{index}]", str(error))], subject="") from None
    return blocks or None


def _as_block(given: Any) -> TextBlock | ImageBlock | UnknownBlock:
    kind, text = _member(given, "type"), _member(given, "text")
    if kind == "text" and isinstance(text, str):
        return TextBlock(text=text)
    if kind == "image":
        return ImageBlock(source=_as_source("image", _member(given, "source")))
    if kind == "audio":
        given = given.extra if isinstance(given, UnknownBlock) else given
        audio = UnknownBlock(type="audio")
        audio.extra["source"] = _as_source("audio", _member(given, "source"))
        return audio
    raise ValueError("invalid tool result content: expected a text block with a text, an image block or an audio block")


def _member(given: Any, name: str) -> Any:
    return given.get(name) if isinstance(given, Mapping) else getattr(given, name, None)


def _as_source(kind: str, source: Any) -> dict[str, Any]:
    if not isinstance(source, Mapping) or source.get("type") != "base64":
        raise ValueError(f"invalid tool result {kind} source: expected a dict with type 'base64'")
    media_type, data = source.get("media_type"), source.get("data")
    if not isinstance(media_type, str) or re.fullmatch(f"{kind}/{_SUBTYPE}", media_type) is None:
        raise ValueError(f"invalid tool result {kind} media type: expected something like {_EXAMPLES[kind]!r}")
    if not is_base64(data):
        raise ValueError(f"invalid tool result {kind} data: expected non-empty standard base64 with padding")
    return {"type": "base64", "media_type": media_type, "data": data}


def _checked_assignment(result: ToolResult, field: attrs.Attribute[Any], value: Any) -> Any:
    kind = ToolResult if hasattr(ToolResult, field.name) else type(result)  # a subclass may have another constructor
    return getattr(kind(**{field.name: value}), field.name)


@model(on_setattr=_checked_assignment)
class ToolResult(Model):
    """The result of a tool call.

    A failed result without output shows its error's message as output. Assignments are checked like the constructor's
    arguments.

    Attributes:
        success: Whether the tool did what it was asked to do.
        output: The result for the model: text, or a JSON value.
        error: Of a failure: ``message``, and more where there is more, such as ``type``.
        content: Text, images and audio for the model, in order; empty is None. Audio is an `UnknownBlock` of the type ``audio``
            whose ``source`` is like that of an image.
    """

    success: bool = True
    output: Any = None
    error: dict[str, Any] | None = None
    content: list[TextBlock | ImageBlock | UnknownBlock] | None = checked(_as_tool_content, default=None, raw=True)

    def __attrs_post_init__(self) -> None:
        if not self.success and self.output is None and self.error and self.error.get("message"):
            object.__setattr__(self, "output", self.error["message"])

    def __str__(self) -> str:
        if self.success:
            return str(self.output) if self.output else "Success"
        return f"Error: {self.error.get('message', 'Unknown error')}" if self.error else "Failed"

    def get_serialized_output(self) -> str:
        """The output as the model should read it: JSON text for dicts and lists, else plain text.

        Never raises, and the JSON is always valid: what JSON cannot hold is shown as text (a set as a sorted list, bytes
        as text, NaN as null, a value that contains itself as a marker).
        """
        if self.output is not None:
            if isinstance(self.output, (dict, list)):
                return _json_text(self.output)
            return _clean_text(self.output)
        if self.success:
            return "Success"
        return _clean_text(f"Error: {self.error.get('message', 'Unknown error')}") if self.error else "Error: Failed"

    def safe_hook_presentation(self) -> dict[str, Any]:
        """The result as hooks may see it: JSON values only, with every image and all audio replaced by a note."""
        shown = {"success": self.success, "output": _json_value(self.output), "error": _json_value(self.error)}
        if self.content:
            shown["content"] = [
                {
                    "type": "text",
                    "text": block.text if isinstance(block, TextBlock) else _OMITTED.format(block.type.capitalize()),
                }
                for block in self.content
            ]
        return shown


# ── output as text ───────────────────────────────────────────────────────────────────────────────
# Total functions from any object to JSON values and to text. They never raise and may lose types, unlike the converter.

_SURROGATES = re.compile(r"[\ud800-\udfff]")
# Far beyond any number a model could use, and below the length at which Python refuses to write it.
_MAX_BITS = 12_000


def _clean_text(value: object) -> str:
    """The object's text without control characters."""
    return sanitize_text(_shown(value))


def _json_text(value: object) -> str:
    """Valid JSON text for any object whatever."""
    return sanitize_text(json.dumps(_json_value(value), allow_nan=False))


def _json_value(value: object) -> Any:
    """The nearest JSON value for any object whatever."""
    return rebuild(value, _as_json, max_depth=MAX_DEPTH - 2, mark=True, unroll=True)


def _as_json(value: Any, frames: Sequence[object]) -> Any:
    """One step of the walk; what it returns is entered in turn if it is a dict or a list."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _SURROGATES.sub("", value)
    if value is None or kind is bool:
        return value
    if isinstance(value, enum.Enum):
        return _as_json(value.value, frames)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_BITS else _shown(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return _with_text_keys(value)
    if isinstance(value, (list, tuple)):
        return list(value) if kind is not list else value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=_shown)
    return _SURROGATES.sub("", _shown(value))


def _with_text_keys(value: Mapping[Any, Any]) -> dict[str, Any]:
    if type(value) is dict and all(type(key) is str and key.isascii() for key in value):
        return value
    texts = (json.dumps(key) if key is None or isinstance(key, bool) else _shown(key) for key in value)
    return {_SURROGATES.sub("", text): member for text, member in zip(texts, value.values(), strict=True)}


def _shown(value: object) -> str:
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value).decode("utf-8", errors="replace")
        return value.isoformat() if isinstance(value, (date, time)) else str(value)
    except Exception:  # noqa: BLE001  # a tool's own class may have any __str__; showing it must not fail the turn
        return f"<{type(value).__name__}>"


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────


HookAction: TypeAlias = Literal["continue", "deny", "modify", "inject_context", "ask_user"]
"""What a hook requests."""

ContextInjectionRole: TypeAlias = Literal["system", "user", "assistant"]
"""The role of the message that a hook injects."""

ApprovalDefault: TypeAlias = Literal["allow", "deny"]
"""What an approval without an answer in time means."""

UserMessageLevel: TypeAlias = Literal["info", "warning", "error"]
"""The level of a hook's message to the user."""


@model
class ContextInjection(Model):
    """One text that a hook injects into the context, and its origin.

    Attributes:
        content: The text.
        role: The role of the injected message.
        ephemeral: For the next request only; not stored in the context.
        append_to_last_tool_result: If ephemeral, at the end of the newest tool result rather than as a message of its own.
        hook_name: The hook that injects it.
        event: The event on which it was injected.
    """

    content: str
    role: ContextInjectionRole = "system"
    ephemeral: bool = False
    append_to_last_tool_result: bool = False
    hook_name: str = "unknown"
    event: str = ""


def _is_no_bool(seconds: Any) -> Any:
    # True would be one second: an answer of a person that nobody waits for, and then the default.
    if isinstance(seconds, bool):
        raise ValueError(f"expected a number of seconds, got {seconds}")
    return seconds


@model
class ApprovalGate(Model):
    """One question of one hook; `HookResult.approval_gates` holds them in the order they must be asked.

    Attributes:
        hook_name: The hook that asks.
        prompt: The question.
        options: The answers on offer; "Allow" and "Deny" if absent.
        timeout: Seconds to wait.
        default: What no answer in time means.
    """

    hook_name: str = "unknown"
    prompt: str | None = None
    options: list[str] | None = None
    timeout: float = checked(_is_no_bool, default=300.0, before=True)
    default: ApprovalDefault = "deny"


class _Merged(Model):
    """What the kernel records on a merged result beside its data: not a field, not compared, not written as JSON.

    Attributes:
        modified: Some handler changed the payload, whatever action won; unset on results that were not merged.
    """

    __slots__ = ("modified",)

    modified: bool


@model
class HookResult(_Merged):
    """The result of a hook, or the merged result of all hooks of one event.

    Attributes:
        action: What the hook requests.
        data: The whole new payload for ``modify``; in a merged result, the final payload.
        reason: Why, for ``deny``; for the model and the logs.
        context_injection: Text for the model, for ``inject_context``.
        context_injection_role: The role of the injected message.
        ephemeral: For the next request only; not stored in the context.
        approval_prompt: The question, for ``ask_user``.
        approval_options: The answers on offer; "Allow" and "Deny" if absent.
        approval_timeout: Seconds to wait.
        approval_default: What no answer in time means.
        suppress_output: Ask the application not to show this.
        user_message: Something to show the user, whatever the action.
        user_message_level: Its level.
        user_message_source: The source to show; the hook if absent.
        append_to_last_tool_result: If ephemeral, at the end of the newest tool result rather than as a message of its own.
        context_injections: Every injection in order; the scalar fields are their joined form.
        approval_gates: Every question in order; the scalar fields are the first one's.
    """

    action: HookAction = "continue"
    data: dict[str, Any] | None = None
    reason: str | None = None
    context_injection: str | None = None
    context_injection_role: ContextInjectionRole = "system"
    ephemeral: bool = False
    approval_prompt: str | None = None
    approval_options: list[str] | None = None
    approval_timeout: float = checked(_is_no_bool, default=300.0, before=True)
    approval_default: ApprovalDefault = "deny"
    suppress_output: bool = False
    user_message: str | None = None
    user_message_level: UserMessageLevel = "info"
    user_message_source: str | None = None
    append_to_last_tool_result: bool = False
    context_injections: list[ContextInjection] = attrs.field(factory=list)
    approval_gates: list[ApprovalGate] = attrs.field(factory=list)


# ── approvals ────────────────────────────────────────────────────────────────────────────────────


def _positive(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:
        raise ValueError(f"expected seconds greater than 0, or None to wait for ever; got {seconds!r}")
    return seconds


@model
class ApprovalRequest(Model):
    """A request for approval of a tool call.

    Attributes:
        tool_name: The tool that wants to run.
        action: What it would do, for people.
        details: More about it, for programs that show it.
        risk_level: The risk, in the requester's words.
        timeout: Seconds to wait for the response; None waits for ever.
    """

    tool_name: str
    action: str
    details: dict[str, Any] = attrs.field(factory=dict)
    risk_level: str
    timeout: float | None = checked(_positive, default=None)


@model
class ApprovalResponse(Model):
    """A person's decision.

    Attributes:
        approved: Yes or no.
        reason: Why, for logs and for the model.
        remember: Apply the decision to the same request from now on.
    """

    approved: bool
    reason: str | None = None
    remember: bool = False
