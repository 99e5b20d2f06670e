"""Results of tools and of hooks."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs

from amplifier.models._definition.base import Coercion, Model
from amplifier.models._definition.decorator import checked, model

from ._content import ImageBlock, TextBlock, UnknownBlock
from ._tool_output_text import clean_text, json_text, json_value
from ._tool_result_content import as_tool_content

HookAction: TypeAlias = Literal["continue", "deny", "modify", "inject_context", "ask_user"]
"""What a hook requests."""

ContextInjectionRole: TypeAlias = Literal["system", "user", "assistant"]
"""The role of the message that a hook injects."""

ApprovalDefault: TypeAlias = Literal["allow", "deny"]
"""What an approval without an answer in time means."""

UserMessageLevel: TypeAlias = Literal["info", "warning", "error"]
"""The level of a hook's message to the user."""

_OMITTED = "[{} omitted from tool event; original retained for model request if unmodified.]"


@model
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
    content: list[TextBlock | ImageBlock | UnknownBlock] | None = checked(as_tool_content, default=None, raw=True)

    def __attrs_post_init__(self) -> None:
        if not self.success and self.output is None and self.error and self.error.get("message"):
            object.__setattr__(self, "output", self.error["message"])

    def __setattr__(self, name: str, value: Any) -> None:
        for field in self.__model_fields_of__:
            if field.name == name:
                coercion = Coercion()
                value = field.type.coerce(value, (None, name), coercion)
                coercion.finish(type(self).__name__)
        object.__setattr__(self, name, value)

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
                return json_text(self.output)
            return clean_text(self.output)
        if self.success:
            return "Success"
        return clean_text(f"Error: {self.error.get('message', 'Unknown error')}") if self.error else "Error: Failed"

    def safe_hook_presentation(self) -> dict[str, Any]:
        """The result as hooks may see it: JSON values only, with every image and all audio replaced by a note."""
        shown = {"success": self.success, "output": json_value(self.output), "error": json_value(self.error)}
        if self.content:
            shown["content"] = [
                {
                    "type": "text",
                    "text": block.text if isinstance(block, TextBlock) else _OMITTED.format(block.type.capitalize()),
                }
                for block in self.content
            ]
        return shown


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
    timeout: float = 300.0
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
    approval_timeout: float = 300.0
    approval_default: ApprovalDefault = "deny"
    suppress_output: bool = False
    user_message: str | None = None
    user_message_level: UserMessageLevel = "info"
    user_message_source: str | None = None
    append_to_last_tool_result: bool = False
    context_injections: list[ContextInjection] = attrs.field(factory=list)
    approval_gates: list[ApprovalGate] = attrs.field(factory=list)
