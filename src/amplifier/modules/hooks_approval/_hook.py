"""The hook: the plan's rules first, then policy modules, then defaults; the user decides on the rest."""

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
from ._registered_provider import RegisteredProvider
from ._rules import Action, Call, strictest

logger = logging.getLogger("amplifier.modules.hooks-approval")

_OPTIONS = ("Allow once", "Allow always", "Deny")
_OPTIONS_WITHOUT_MEMORY = ("Allow", "Deny")


@attrs.frozen
class _Decision:
    """The action for a call, its reason, and whether an event reports it (not for free tools)."""

    action: Action
    reason: str
    is_reported: bool = True


class ApprovalHook:
    """Decides on tool calls before they run.

    Args:
        options: The configuration.
        coordinator: The session's, for tools, capabilities and hooks.
    """

    def __init__(self, options: ApprovalOptions, coordinator: Coordinator) -> None:
        self._options = options
        self._coordinator = coordinator
        self.approvals: RegisteredProvider = RegisteredProvider(
            options.timeout, options.on_timeout, remember=options.remember
        )

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Decide on one call: continue, deny or ask the user."""
        if event != TOOL_PRE:
            return HookResult()
        tool = data.get("tool_name")
        name = tool if isinstance(tool, str) and tool else "(unnamed)"
        given = data.get("tool_input")
        if isinstance(given, Mapping) and tool == name:
            is_read_only, is_sandboxed = self._is_read_only(name), self._is_sandboxed(name)
            decision = self._decide(
                Call(name, given, self._base(), is_read_only=is_read_only, is_sandboxed=is_sandboxed)
            )
        else:
            decision = _Decision("ask", "the call has an unexpected form")
        if decision.action == "ask":
            return await self._ask(name, given, decision, data)
        if decision.is_reported:
            await self._report(decision.action == "allow", name, decision.reason, data)
        if decision.action == "deny":
            return HookResult(action="deny", reason=decision.reason)
        return HookResult()

    # ── deciding ──

    def _decide(self, call: Call) -> _Decision:
        options = self._options
        if (rule := strictest(options.rules or (), call)) is not None:
            verb = {"allow": "allowed by", "ask": "asked for by", "deny": "forbidden by"}[rule.action]
            return _Decision(rule.action, f"{verb} the plan: {one_line(str(rule), 300)}")
        if (action := options.tools.get(call.tool)) is not None:
            return _Decision(action, f"the plan sets {action} for this tool")
        if self._policy_asks(call.tool):
            return _Decision("ask", "a policy module asks for it")
        if options.policy_driven_only:
            return _Decision("allow", "", is_reported=False)
        tool = self._coordinator.get("tools", call.tool)
        if getattr(tool, "require_approval", False) is True:
            return _Decision("ask", "the tool itself asks for it")
        if (rule := strictest(options.default_rules, call)) is not None:
            return _Decision(rule.action, f"{rule.action} by default: {rule.reason}")
        if call.tool in FREE_TOOLS:
            return _Decision("allow", "", is_reported=False)
        return _Decision(options.unknown_tools, self._why(call))

    def _why(self, call: Call) -> str:
        if call.command is not None and call.command.doubt is not None:
            return f"no rule can judge this command: {call.command.doubt}"
        return f"no rule is about this call of {one_line(call.tool, 80)}"

    def _is_read_only(self, name: str) -> bool:
        """What the tool states; tools of MCP servers pass on what their server states. It only matters to rules of the plan."""
        annotations = getattr(self._coordinator.get("tools", name), "annotations", None)
        return isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True

    def _policy_asks(self, tool: str) -> bool:
        """Whether another module requires approval: by a capability, or by a set in the session's state."""
        names = self._coordinator.session_state.get("require_approval_tools", ())
        if isinstance(names, set | frozenset | list | tuple | dict) and tool in names:
            return True
        check = self._coordinator.get_capability("approval.needs_check")
        if not callable(check):
            return False
        try:
            return bool(check(tool))
        except Exception:  # third-party code; if it fails, the user decides
            logger.exception("approval.needs_check failed for %r: the user is asked", tool)
            return True

    def _is_sandboxed(self, tool: str) -> bool:
        """Whether the tool says that it runs its calls in a sandbox; what says nothing does not."""
        sandbox = self._coordinator.get_capability(f"{tool}.sandbox")
        return isinstance(sandbox, Mapping) and sandbox.get("kind") not in (None, "off")

    def _base(self) -> str:
        try:
            return str(self._coordinator.get_capability("session.working_dir") or Path.cwd())
        except OSError:  # the working directory was deleted; relative patterns still match at any depth
            return "/"

    # ── asking and reporting ──

    async def _ask(self, tool: str, given: Any, decision: _Decision, data: dict[str, Any]) -> HookResult:
        options = self._options
        prompt = render_prompt(tool, given, decision.reason, longest=options.max_value_chars)
        if self.approvals.provider is not None:
            return await self._ask_provider(tool, given, prompt, data)
        return HookResult(
            action="ask_user",
            approval_prompt=prompt,
            approval_options=list(_OPTIONS if options.remember else _OPTIONS_WITHOUT_MEMORY),
            approval_timeout=options.timeout,
            approval_default=options.on_timeout,
        )

    async def _ask_provider(self, tool: str, given: Any, prompt: str, data: dict[str, Any]) -> HookResult:
        answer = self.approvals.recall(tool, given)
        if answer is None:
            risk = "high" if isinstance(given, Mapping) and "command" in given else "medium"
            about = {"tool_name": tool, "action": prompt.split("\n", 1)[0], "risk_level": risk, "prompt": prompt}
            await self._coordinator.hooks.emit(APPROVAL_REQUIRED, {**self._about(data), **about})
            answer = await self.approvals.ask(tool, given, prompt, risk)
        await self._report(answer.allowed, tool, answer.reason, data, remembered=answer.remembered)
        if answer.allowed:
            return HookResult()
        return HookResult(action="deny", reason=one_line(answer.reason, 300))

    async def _report(
        self, allowed: bool, tool: str, reason: str, data: dict[str, Any], *, remembered: bool = False
    ) -> None:
        """Emit the decision; the kernel reports those of its own approval system."""
        if self._options.announce:
            details = {**self._about(data), "tool_name": tool, "reason": reason, "remembered": remembered}
            await self._coordinator.hooks.emit(APPROVAL_GRANTED if allowed else APPROVAL_DENIED, details)

    def _about(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"hook_name": MODULE, "event": TOOL_PRE, "tool_call_id": data.get("tool_call_id")}
