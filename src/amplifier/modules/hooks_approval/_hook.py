"""The gate: the plan's rules first, then what policy modules ask for, then defaults, and in doubt a question."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from amplifier.contracts import Coordinator
from amplifier.events import APPROVAL_DENIED, APPROVAL_GRANTED, APPROVAL_REQUIRED, TOOL_PRE
from amplifier.models import HookResult

from ._options import FREE_TOOLS, MODULE, ApprovalOptions
from ._prompt import one_line, render_prompt
from ._registered_provider import ProviderDesk
from ._rules import Action, Call, strictest

logger = logging.getLogger("amplifier.modules.hooks-approval")

_OPTIONS = ("Allow once", "Allow always", "Deny")
_OPTIONS_WITHOUT_MEMORY = ("Allow", "Deny")


@attrs.frozen
class _Judgement:
    """What to do with a call, why, and whether it is worth telling: free tools are not."""

    action: Action
    reason: str
    is_told: bool = True


class ApprovalHook:
    """Judges tool calls before they run.

    Args:
        options: How.
        coordinator: Whose tools, capabilities and hooks it looks at.
    """

    def __init__(self, options: ApprovalOptions, coordinator: Coordinator) -> None:
        self._options = options
        self._coordinator = coordinator
        self.desk: ProviderDesk = ProviderDesk(options.timeout, options.on_timeout, remember=options.remember)

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Judge one call; the answer is to go on, to deny, or to ask."""
        if event != TOOL_PRE:
            return HookResult()
        tool = data.get("tool_name")
        name = tool if isinstance(tool, str) and tool else "(unnamed)"
        given = data.get("tool_input")
        if isinstance(given, Mapping) and tool == name:
            judgement = self._judge(Call(name, given, self._base()))
        else:
            judgement = _Judgement("ask", "the call is not of the usual form")
        if judgement.action == "ask":
            return await self._ask(name, given, judgement, data)
        if judgement.is_told:
            await self._tell(judgement.action == "allow", name, judgement.reason, data)
        if judgement.action == "deny":
            return HookResult(action="deny", reason=judgement.reason)
        return HookResult()

    # ── judging ──

    def _judge(self, call: Call) -> _Judgement:
        options = self._options
        if (rule := strictest(options.rules or (), call)) is not None:
            verb = {"allow": "allowed by", "ask": "asked for by", "deny": "forbidden by"}[rule.action]
            return _Judgement(rule.action, f"{verb} the plan: {one_line(str(rule), 300)}")
        if (action := options.tools.get(call.tool)) is not None:
            return _Judgement(action, f"the plan says {action} for this tool")
        if self._policy_asks(call.tool):
            return _Judgement("ask", "a policy module asks for it")
        if options.policy_driven_only:
            return _Judgement("allow", "", is_told=False)
        tool = self._coordinator.get("tools", call.tool)
        if getattr(tool, "require_approval", False) is True:
            return _Judgement("ask", "the tool itself asks for it")
        if (rule := strictest(options.default_rules, call)) is not None:
            return _Judgement(rule.action, f"{rule.action} by default: {rule.reason}")
        if call.tool in FREE_TOOLS:
            return _Judgement("allow", "", is_told=False)
        return _Judgement(options.unknown_tools, self._why(call))

    def _why(self, call: Call) -> str:
        if call.command is not None and call.command.doubt is not None:
            return f"no rule can judge this command: {call.command.doubt}"
        return f"no rule is about this call of {one_line(call.tool, 80)}"

    def _policy_asks(self, tool: str) -> bool:
        """What other modules want asked about: by a capability, or by a set in the session's state."""
        names = self._coordinator.session_state.get("require_approval_tools", ())
        if isinstance(names, set | frozenset | list | tuple | dict) and tool in names:
            return True
        check = self._coordinator.get_capability("approval.needs_check")
        if not callable(check):
            return False
        try:
            return bool(check(tool))
        except Exception:  # another module's function; what cannot be judged is asked about
            logger.exception("approval.needs_check failed for %r: a person is asked", tool)
            return True

    def _base(self) -> str:
        try:
            return str(self._coordinator.get_capability("session.working_dir") or Path.cwd())
        except OSError:  # the process's directory is gone; relative patterns fit at any depth all the same
            return "/"

    # ── asking and telling ──

    async def _ask(self, tool: str, given: Any, judgement: _Judgement, data: dict[str, Any]) -> HookResult:
        options = self._options
        prompt = render_prompt(tool, given, judgement.reason, longest=options.max_value_chars)
        if self.desk.provider is not None:
            return await self._ask_provider(tool, given, prompt, data)
        return HookResult(
            action="ask_user",
            approval_prompt=prompt,
            approval_options=list(_OPTIONS if options.remember else _OPTIONS_WITHOUT_MEMORY),
            approval_timeout=options.timeout,
            approval_default=options.on_timeout,
        )

    async def _ask_provider(self, tool: str, given: Any, prompt: str, data: dict[str, Any]) -> HookResult:
        answer = self.desk.recall(tool, given)
        if answer is None:
            risk = "high" if isinstance(given, Mapping) and "command" in given else "medium"
            about = {"tool_name": tool, "action": prompt.split("\n", 1)[0], "risk_level": risk, "prompt": prompt}
            await self._coordinator.hooks.emit(APPROVAL_REQUIRED, {**self._about(data), **about})
            answer = await self.desk.ask(tool, given, prompt, risk)
        await self._tell(answer.allowed, tool, answer.reason, data, remembered=answer.remembered)
        if answer.allowed:
            return HookResult()
        return HookResult(action="deny", reason=one_line(answer.reason, 300))

    async def _tell(
        self, allowed: bool, tool: str, reason: str, data: dict[str, Any], *, remembered: bool = False
    ) -> None:
        """Emit what was decided here; what the kernel asks about, the kernel tells."""
        if self._options.announce:
            details = {**self._about(data), "tool_name": tool, "reason": reason, "remembered": remembered}
            await self._coordinator.hooks.emit(APPROVAL_GRANTED if allowed else APPROVAL_DENIED, details)

    def _about(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"hook_name": MODULE, "event": TOOL_PRE, "tool_call_id": data.get("tool_call_id")}
