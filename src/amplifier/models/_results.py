"""Results of tools, results of hooks, and requests for a person's approval."""

from __future__ import annotations

import enum
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any, Literal, TypeAlias

import attrs

from amplifier._internal.json import JSON, rebuild, sanitize_text
from amplifier._internal.json.values import MAX_DEPTH
from amplifier.errors import ModelError

from ._messages import ImageBlock, TextBlock, UnknownBlock, is_base64
from .base import Model, model
from .fields import Field, checked

# ── content of a tool's result ───────────────────────────────────────────────────────────────────
# Text, images and audio in base64, reduced to the members that a model request may have. Audio is
# an `UnknownBlock` of the type ``audio``. A separate class would refuse existing blocks of that
# type in transcripts.

_OMITTED = "[{} omitted from tool event; original retained for model request if unmodified.]"
_EXAMPLES = {"image": "image/png", "audio": "audio/wav"}
# The restricted name of RFC 6838 after a lower-case "image/" or "audio/", without parameters and
# wildcards. It is compiled on first use because few sessions see an image.
_SUBTYPE = r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]*"


def _read_content(value: object) -> list[TextBlock | ImageBlock | UnknownBlock] | None:
    """Return new blocks without visibility and unknown members, or None for an empty list.

    Raises:
        ModelError: A block is invalid. The paths are relative to the list.
    """
    if value is None:
        return None
    if not isinstance(value, (list, tuple)):
        problem = f"invalid tool result content: expected list, got {type(value).__name__}"
        raise ModelError([("", problem)], subject="")
    blocks = []
    for index, block in enumerate(value):
        try:
            blocks.append(_read_block(block))
        except ValueError as error:
            raise ModelError([(f"[{index}]", str(error))], subject="") from None
    return blocks or None


def _read_block(block: object) -> TextBlock | ImageBlock | UnknownBlock:
    kind, text = _member(block, "type"), _member(block, "text")
    if kind == "text" and isinstance(text, str):
        return TextBlock(text=text)
    if kind == "image":
        return ImageBlock(source=_read_source("image", _member(block, "source")))
    if kind == "audio":
        members = block.extra if isinstance(block, UnknownBlock) else block
        audio = UnknownBlock(type="audio")
        audio.extra["source"] = _read_source("audio", _member(members, "source"))
        return audio
    expected = "a text block with a text, an image block or an audio block"
    raise ValueError(f"invalid tool result content: expected {expected}")


def _member(block: object, name: str) -> JSON:
    return block.get(name) if isinstance(block, Mapping) else getattr(block, name, None)


def _read_source(kind: str, source: JSON) -> dict[str, JSON]:
    subject = f"invalid tool result {kind}"
    if not isinstance(source, Mapping) or source.get("type") != "base64":
        raise ValueError(f"{subject} source: expected a dict with type 'base64'")
    media_type, data = source.get("media_type"), source.get("data")
    if not isinstance(media_type, str) or not re.fullmatch(f"{kind}/{_SUBTYPE}", media_type):
        expected = f"something like {_EXAMPLES[kind]!r}"
        raise ValueError(f"{subject} media type: expected {expected}")
    if not is_base64(data):
        raise ValueError(f"{subject} data: expected non-empty standard base64 with padding")
    return {"type": "base64", "media_type": media_type, "data": data}


def _check_assignment(result: ToolResult, field: Field, value: Any) -> Any:
    # A subclass may have another constructor.
    kind = ToolResult if hasattr(ToolResult, field.name) else type(result)
    return getattr(kind(**{field.name: value}), field.name)


@model(on_setattr=_check_assignment)
class ToolResult(Model):
    """The result of a tool call.

    A failed result without output has the message of its error as output. An assignment is checked
    like an argument of the constructor.

    Attributes:
        success: False if the tool could not do its work.
        output: Result for the model: text, or a JSON value.
        error: The failure, with a ``message`` and optional members such as ``type``.
        content: Text, images and audio for the model in order, or None. Audio is an `UnknownBlock`
            of the type ``audio``, with the same form of ``source`` as an image.
    """

    success: bool = True
    output: JSON = None
    error: dict[str, JSON] | None = None
    content: list[TextBlock | ImageBlock | UnknownBlock] | None = checked(
        _read_content,
        default=None,
        raw=True,
    )

    def __attrs_post_init__(self) -> None:
        if not self.success and self.output is None and self.error and self.error.get("message"):
            object.__setattr__(self, "output", self.error["message"])

    def __str__(self) -> str:
        if self.success:
            return str(self.output) if self.output else "Success"
        return f"Error: {self.error.get('message', 'Unknown error')}" if self.error else "Failed"

    def get_serialized_output(self) -> str:
        """Return the output for the model: JSON text for dicts and lists, else plain text.

        This never raises, and the JSON is always valid. A value that JSON cannot hold is shown as
        text, a set as a sorted list, NaN as null, and a value that contains itself as a marker.
        """
        if self.output is not None:
            if isinstance(self.output, (dict, list)):
                return _json_text(self.output)
            return _clean_text(self.output)
        if self.success:
            return "Success"
        if not self.error:
            return "Error: Failed"
        return _clean_text(f"Error: {self.error.get('message', 'Unknown error')}")

    def safe_hook_presentation(self) -> dict[str, JSON]:
        """Return the result for hooks, as JSON values with a note in place of images and audio."""
        presentation = {
            "success": self.success,
            "output": _json_value(self.output),
            "error": _json_value(self.error),
        }
        if self.content:
            texts = map(_block_text, self.content)
            presentation["content"] = [{"type": "text", "text": text} for text in texts]
        return presentation


def _block_text(block: TextBlock | ImageBlock | UnknownBlock) -> str:
    return block.text if isinstance(block, TextBlock) else _OMITTED.format(block.type.capitalize())


# ── output as text ───────────────────────────────────────────────────────────────────────────────
# These functions accept any object and never raise. Unlike the converter they may lose types.

_SURROGATES = re.compile(r"[\ud800-\udfff]")
# Far beyond any number a model could use, and below the length that Python refuses to write.
_MAX_BITS = 12_000


def _clean_text(value: object) -> str:
    """Return the text of an object without control characters."""
    return sanitize_text(_show(value))


def _json_text(value: object) -> str:
    """Return valid JSON text for any object."""
    return sanitize_text(json.dumps(_json_value(value), allow_nan=False))


def _json_value(value: object) -> JSON:
    """Return the nearest JSON value for any object."""
    return rebuild(value, _convert, max_depth=MAX_DEPTH - 2, mark=True, unroll=True)


def _convert(value: Any, frames: Sequence[object]) -> JSON:
    """Convert one value of the walk, which then enters a dict or list."""
    kind = type(value)
    if kind is str:
        return value if value.isascii() else _SURROGATES.sub("", value)
    if value is None or kind is bool:
        return value
    if isinstance(value, enum.Enum):
        return _convert(value.value, frames)
    if isinstance(value, int):
        return int(value) if value.bit_length() <= _MAX_BITS else _show(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return _with_text_keys(value)
    if isinstance(value, (list, tuple)):
        return list(value) if kind is not list else value
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=_show)
    return _SURROGATES.sub("", _show(value))


def _with_text_keys(value: Mapping[Any, JSON]) -> dict[str, JSON]:
    if type(value) is dict and all(type(key) is str and key.isascii() for key in value):
        return value
    keys = (_SURROGATES.sub("", _key_text(key)) for key in value)
    return dict(zip(keys, value.values(), strict=True))


def _key_text(key: object) -> str:
    return json.dumps(key) if key is None or isinstance(key, bool) else _show(key)


def _show(value: object) -> str:
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(value).decode("utf-8", errors="replace")
        return value.isoformat() if isinstance(value, (date, time)) else str(value)
    except Exception:  # noqa: BLE001
        # The class of a tool may have any __str__. Showing an object must not fail the turn.
        return f"<{type(value).__name__}>"


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────


HookAction: TypeAlias = Literal["continue", "deny", "modify", "inject_context", "ask_user"]
"""The action that a hook requests."""

ContextInjectionRole: TypeAlias = Literal["system", "user", "assistant"]
"""The role of an injected message."""

ApprovalDefault: TypeAlias = Literal["allow", "deny"]
"""The decision of an approval without an answer in time."""

UserMessageLevel: TypeAlias = Literal["info", "warning", "error"]
"""The level of a hook's message to the user."""


@model
class ContextInjection(Model):
    """A text that a hook injects into the context, and its origin.

    Attributes:
        content: The injected text.
        role: Role of the injected message.
        ephemeral: True adds the text to the next request only. The context does not store it.
        append_to_last_tool_result: True puts an ephemeral text at the end of the newest tool result
            instead of a separate message.
        hook_name: Name of the hook that injects the text.
        event: Event on which the hook injected the text.
    """

    content: str
    role: ContextInjectionRole = "system"
    ephemeral: bool = False
    append_to_last_tool_result: bool = False
    hook_name: str = "unknown"
    event: str = ""


def _is_no_bool(seconds: Any) -> Any:
    # True would be one second: a person's answer without a waiter, and then the default.
    if isinstance(seconds, bool):
        raise ValueError(f"expected a number of seconds, got {seconds}")
    return seconds


@model
class ApprovalGate(Model):
    """A question of a hook.

    `HookResult.approval_gates` holds the questions in the order in which they must be asked.

    Attributes:
        hook_name: Name of the hook with the question.
        prompt: Text of the question.
        options: Possible answers. None means "Allow" and "Deny".
        timeout: Seconds to wait for an answer.
        default: Decision without an answer in time.
    """

    hook_name: str = "unknown"
    prompt: str | None = None
    options: list[str] | None = None
    timeout: float = checked(_is_no_bool, default=300.0, before=True)
    default: ApprovalDefault = "deny"


class _Merged(Model):
    """Slots in which the kernel marks a merged result.

    They are not fields: they are not compared and not written as JSON.

    Attributes:
        modified: True if a handler changed the payload, regardless of the winning action. It is
            unset on a result that was not merged.
    """

    __slots__ = ("modified",)

    modified: bool


@model
class HookResult(_Merged):
    """The result of a hook, or the merged result of all hooks of one event.

    Attributes:
        action: Action that the hook requests.
        data: The whole new payload for ``modify``. In a merged result, the final payload.
        reason: Reason for ``deny``, for the model and the logs.
        context_injection: Text for the model, for ``inject_context``.
        context_injection_role: Role of the injected message.
        ephemeral: True adds the text to the next request only. The context does not store it.
        approval_prompt: Text of the question, for ``ask_user``.
        approval_options: Possible answers. None means "Allow" and "Deny".
        approval_timeout: Seconds to wait for an answer.
        approval_default: Decision without an answer in time.
        suppress_output: True tells the application not to show the output.
        user_message: Message for the user, with any action.
        user_message_level: Level of the message.
        user_message_source: Source to show with the message. None means the name of the hook.
        append_to_last_tool_result: True puts an ephemeral text at the end of the newest tool result
            instead of a separate message.
        context_injections: Every injection in order. The scalar fields are their joined form.
        approval_gates: Every question in order. The scalar fields are those of the first one.
    """

    action: HookAction = "continue"
    data: dict[str, JSON] | None = None
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


def _check_positive(seconds: float | None) -> float | None:
    if seconds is not None and not seconds > 0:
        expected = "expected seconds greater than 0, or None to wait indefinitely"
        raise ValueError(f"{expected}; got {seconds!r}")
    return seconds


@model
class ApprovalRequest(Model):
    """A request for approval of a tool call.

    Attributes:
        tool_name: Name of the tool that is about to run.
        action: Description of the call for people.
        details: Data about the call for programs that show it.
        risk_level: The risk in the requester's words.
        timeout: Seconds to wait for the response. None waits indefinitely.
    """

    tool_name: str
    action: str
    details: dict[str, JSON] = attrs.field(factory=dict)
    risk_level: str
    timeout: float | None = checked(_check_positive, default=None)


@model
class ApprovalResponse(Model):
    """A person's decision.

    Attributes:
        approved: True allows the call, and False denies it.
        reason: Reason for the decision, for the logs and the model.
        remember: True applies the decision to every further request of this kind.
    """

    approved: bool
    reason: str | None = None
    remember: bool = False
