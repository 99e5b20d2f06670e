"""Tool calls that were cut off with their process: whether they run again when the turn is resumed, and what is reported."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import Any

import attrs

from amplifier._json import redact_secrets, visible_text
from amplifier.contracts import Step, Tool, tool_repeatable
from amplifier.errors import ContractError
from amplifier.events import TOOL_PRE
from amplifier.models import ApprovalGate, HookResult, ToolCall

from ._hook_results import HookResults

logger = logging.getLogger("amplifier.modules.turn")

_INTERRUPTED = (
    "[interrupted: the process ended while this call was running, and the call was not repeated: {reason}; "
    "whether it had an effect is not known]"
)
_LONGEST_SHOWN = 100_000


@attrs.frozen
class ResumedCall:
    """What became of one call.

    Attributes:
        was_reached: No step wrapper had a result for it.
        has_run: The tool was called.
        was_started: Whether it had been called before the turn was cut off; None where that is not known.
        has_succeeded: Its result reports success.
    """

    call: ToolCall
    was_reached: bool
    has_run: bool
    was_started: bool | None
    has_succeeded: bool

    @property
    def outcome(self) -> str:
        """``kept``, ``started`` (for the first time), ``repeated`` or ``interrupted``."""
        if not self.was_reached:
            return "kept"
        if not self.has_run:
            return "interrupted"
        return "started" if self.was_started is False else "repeated"

    def as_dict(self) -> dict[str, str]:
        """For the event ``turn:resumed``."""
        return {"tool_call_id": self.call.id, "tool_name": self.call.name, "outcome": self.outcome}


def may_have_run(step: Step) -> bool:
    """Whether the call may have had its effect in the process that was cut off."""
    return step.is_resumed and step.was_started is not False


def interrupted(reason: str) -> str:
    """The result of a call that may have had its effect and is not repeated, as text for the model."""
    return _INTERRUPTED.format(reason=reason)


async def why_not_repeated(call: ToolCall, tools: Mapping[str, Tool], hook_results: HookResults) -> str | None:
    """Why a call that may have been running must not run again, as text for the model; None if it may."""
    tool = tools.get(call.name)
    if tool is None:
        return interrupted(f"there is no tool named {call.name!r} any more")
    try:
        repeatable = tool_repeatable(tool)
    except ContractError as exc:
        logger.warning("%s; the call is not repeated", exc)
        repeatable = False
    if repeatable is None:
        question = _question(call)
        if len(question) > _LONGEST_SHOWN:
            return interrupted("its input is too long to be shown to a person, who would have to allow it")
        gate = ApprovalGate(hook_name="resume", prompt=question)
        asked = HookResult(action="ask_user", approval_prompt=gate.prompt, approval_gates=[gate])
        applied = await hook_results.apply(asked, TOOL_PRE)
        if applied.action != "deny":
            return None
        return interrupted("it was not approved")
    return None if repeatable else interrupted("the tool is declared as not repeatable")


def _question(call: ToolCall) -> str:
    given: Any = redact_secrets(call.arguments)
    shown = json.dumps(given, ensure_ascii=False, default=str)
    shown = visible_text(shown, multiline=False, strict=True)
    return (
        f"Run the tool {call.name!r} again? The process ended while this call was running, so it may have had its effect "
        f"already.\n{shown}"
    )
