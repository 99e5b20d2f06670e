"""The hook: rules, then defaults, then a question to the user or to the provider that the application registered."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import attrs

from amplifier._json import canonical_dumps, visible_text
from amplifier.contracts import ApprovalProvider, Coordinator
from amplifier.errors import ApprovalTimeoutError, ModelError
from amplifier.events import APPROVAL_DENIED, APPROVAL_GRANTED, APPROVAL_REQUIRED, TOOL_PRE
from amplifier.models import ApprovalRequest, HookResult, ToolResult

from ._options import FREE_TOOLS, MODULE, ApprovalOptions, read_approval_options
from ._rules import BUILT_IN_TOOLS, Action, Call, Rule, strictest

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_LOOKS_LIKE_JSON = re.compile(r"null|true|false|NaN|-?Infinity|-?\d[\d.eE+-]*").fullmatch
_MANY_SPACES = re.compile(r" {16,}")


# ── prompt ────────────────────────────────────────────────────────────────────────────────────────
# Renders the question to the user from the call's data.
#
# Two different calls never have the same text, so a decision remembered for a text applies to one call. Nothing in
# the input can move the cursor, hide, run backwards or begin a new line: text that is not plain and printable is
# written as a JSON string with invisible characters escaped. Everything is shown, whole.


def render_prompt(tool: str, given: Any, reason: str, *, module: str | None = None) -> str:
    """The question about one call, with all of its input.

    Args:
        tool: The tool's name.
        given: Its input, anything.
        reason: Why the user is asked.
        module: The module that mounted the tool, where the name does not show it.
    """
    of_module = "" if module is None else f" of module {_name(module)}"
    lines = [f"Allow the tool {_name(tool)}{of_module} to run?"]
    if isinstance(given, Mapping):
        lines += [question_line(key, value) for key, value in given.items()]
        if not given:
            lines.append("  (no input)")
    else:
        lines.append(_line("(input)", given))
    lines.append(f"Asked because: {one_line(reason, 300)}")
    return "\n".join(lines)


def one_line(text: str, longest: int) -> str:
    """Untrusted text as part of one line; for reasons, not for the input that the user approves."""
    shown = _seen(text[: longest + 1])
    return shown if len(text) <= longest else f"{shown[:longest]}… ({len(text)} characters)"


def question_line(name: Any, value: Any) -> str:
    """The line of a question that shows a member of the input."""
    return _line(_name(name), value)


def _line(label: str, value: Any) -> str:
    plain = isinstance(value, str) and _is_plain(value)
    return f"  {label}: {_seen(value if plain else _json(value))}"


def _name(name: Any) -> str:
    """A plain name unchanged, anything else as JSON, which begins with a quote and so is distinct from a name."""
    return name if isinstance(name, str) and _PLAIN_NAME.fullmatch(name) else _seen(_json(name))


def _is_plain(text: str) -> bool:
    # Text that begins with a quote or looks like JSON is quoted: no two values may have the same text.
    return bool(text) and text[0] not in '"{[(' and text == text.strip() == _seen(text) and not _LOOKS_LIKE_JSON(text)


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    except (TypeError, ValueError, RecursionError):  # an input that is not JSON: shown in part, with its type
        shown = ToolResult(output=value).safe_hook_presentation()["output"]
        return f"(no JSON) {json.dumps([type(value).__name__, shown], ensure_ascii=False)}"


def _seen(text: str) -> str:
    """Escape invisible characters and long runs of spaces in a way that JSON itself never does."""
    shown = visible_text(text, multiline=False, strict=True)
    return _MANY_SPACES.sub(lambda found: rf"\u0020{{{len(found[0])}}}", shown)


logger = logging.getLogger("amplifier.modules.hooks-approval")


@attrs.frozen
class _Answer:
    """The decision of a registered provider, or the default if there is none."""

    allowed: bool
    reason: str
    remembered: bool = False


def _key(tool: str, given: Any, module: str | None = None) -> str:
    """Identifies a call by its tool, the module that mounted it and all of its input: a decision never applies to another call."""
    try:
        text = canonical_dumps([tool, module, given])
    except ModelError:
        text = repr((tool, module, given))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_OPTIONS = ("Allow once", "Allow always", "Deny")
_OPTIONS_WITHOUT_MEMORY = ("Allow", "Deny")


@attrs.frozen
class _Decision:
    """The action for a call, its reason, and whether an event reports it (not for free tools)."""

    action: Action
    reason: str
    is_reported: bool = True


_UNEXPECTED = _Decision("ask", "the call has an unexpected form")


class ApprovalHook:
    """Decides on tool calls before they run.

    Args:
        options: The configuration.
        coordinator: The session's, for tools, capabilities and hooks.
    """

    def __init__(self, options: ApprovalOptions, coordinator: Coordinator) -> None:
        self._options = options
        self._coordinator = coordinator
        self._rules: tuple[Rule, ...] = options.rules or ()
        self._provider: ApprovalProvider | None = None
        self._remembered: dict[str, bool] = {}  # what the provider has answered for the rest of the session

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Decide on one call: continue, deny or ask the user."""
        if event != TOOL_PRE:
            return HookResult()
        tool, given = data.get("tool_name"), data.get("tool_input")
        name = tool if isinstance(tool, str) and tool else "(unnamed)"
        decision = self._judge(name, given) if tool == name else _UNEXPECTED
        if decision.action == "ask":
            return await self._ask(name, given, decision, data)
        if decision.is_reported:
            await self._report(decision.action == "allow", name, decision.reason, data)
        if decision.action == "deny":
            return HookResult(action="deny", reason=decision.reason)
        return HookResult()

    def register_provider(self, provider: ApprovalProvider | None) -> None:
        """Ask this provider from now on, which gets the whole request at once; registered as the capability ``approval.register_provider``.

        Without one the hook returns ``ask_user``, and the kernel asks the session's approval system.
        """
        self._provider = provider

    def set_rules(self, rules: Sequence[Mapping[str, Any]]) -> None:
        """Decide by these rules beside those of the plan from now on; registered as the capability ``approval.set_rules``.

        The strictest of all decides, so a rule of the plan that asks or denies is never loosened.

        Raises:
            PlanError: A rule is wrong; those before stay.
        """
        self._rules = (*(self._options.rules or ()), *(read_approval_options({"rules": list(rules)}).rules or ()))

    # ── deciding ──

    def lets_pass(self, tool: str, given: Any) -> bool:
        """Whether no one is asked here about a call that is not denied; registered as the capability ``approval.lets_pass``."""
        return self._judge(tool, given).action == "allow"

    def _judge(self, name: str, given: Any) -> _Decision:
        if not isinstance(given, Mapping):
            return _UNEXPECTED
        call = Call(name, given, self._base(), module=self._module_of(name), is_read_only=self._is_read_only(name))
        call.is_sandboxed = not call.is_stand_in and self._is_sandboxed(name)
        return self._decide(call)

    def _decide(self, call: Call) -> _Decision:
        options = self._options
        if (rule := strictest(self._rules, call)) is not None:
            verb = {"allow": "allowed", "ask": "asked for", "deny": "forbidden"}[rule.action]
            by = " by the plan" if any(rule is each for each in options.rules or ()) else ""  # not by `set_rules`
            return _Decision(rule.action, f"{verb}{by}: {one_line(str(rule), 300)}")
        action = options.tools.get(call.tool)
        if action is not None and not (action == "allow" and call.is_stand_in):
            return _Decision(action, f"the plan sets {action} for this tool")
        if self._policy_asks(call.tool):
            return _Decision("ask", "a policy module asks for it")
        if options.policy_driven_only:
            return _Decision("allow", "", is_reported=False)
        tool = self._coordinator.get("tools", call.tool)
        if getattr(tool, "require_approval", False) is True:
            return _Decision("ask", "the tool itself asks for it")
        if call.module is None and getattr(tool, "runs_at_client", False) is True:  # a server offers it for its client
            return _Decision("allow", "", is_reported=False)
        if (rule := strictest(options.default_rules, call)) is not None:
            return _Decision(rule.action, f"{rule.action} by default: {rule.reason}")
        if call.tool in FREE_TOOLS and not call.is_stand_in:
            return _Decision("allow", "", is_reported=False)
        return _Decision(options.unknown_tools, self._why(call))

    def _why(self, call: Call) -> str:
        if call.command is not None and call.command.doubt is not None:
            return f"no rule can judge this command: {call.command.doubt}"
        if call.is_stand_in:
            return f"{call.module} mounted it, not {' or '.join(BUILT_IN_TOOLS[call.tool])}; a rule allows it only if it names that module"
        return f"no rule is about this call of {one_line(call.tool, 80)}"

    def _module_of(self, name: str) -> str | None:
        """The id of the module that mounted a tool, as the host keeps it; None for the application."""
        owner = self._coordinator.owner_of("tools", name)
        return None if owner is None else owner.partition("#")[0]

    def _is_read_only(self, name: str) -> bool:
        """What the tool states; tools of MCP servers pass on what their server states. It only matters to rules."""
        if name in FREE_TOOLS and self._module_of(name) in BUILT_IN_TOOLS.get(name, ()):
            return True
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
        """Whether the tool states that it runs its calls in a sandbox; a tool that states nothing does not."""
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
        module = self._module_of(tool)
        source = None if module is None or module in BUILT_IN_TOOLS.get(tool, ()) else module
        prompt = render_prompt(tool, given, decision.reason, module=source)
        if len(prompt) > options.max_question_chars:
            reason = (
                f"a person has to allow this call, and the question would have {len(prompt)} characters, more than the "
                f"{options.max_question_chars} that are shown; split the call up (the plan sets max_question_chars)"
            )
            await self._report(False, tool, reason, data)
            return HookResult(action="deny", reason=reason)
        if self._provider is not None:
            return await self._ask_provider(self._provider, tool, given, prompt, data, module)
        return HookResult(
            action="ask_user",
            approval_prompt=prompt,
            approval_options=list(_OPTIONS if options.remember else _OPTIONS_WITHOUT_MEMORY),
            approval_timeout=options.timeout,
            approval_default=options.on_timeout,
        )

    async def _ask_provider(
        self, provider: ApprovalProvider, tool: str, given: Any, prompt: str, data: dict[str, Any], module: str | None
    ) -> HookResult:
        key = _key(tool, given, module)
        if key in self._remembered:
            answer = _Answer(self._remembered[key], "decided earlier in this session", remembered=True)
        else:
            risk = "high" if isinstance(given, Mapping) and "command" in given else "medium"
            about = {"tool_name": tool, "action": prompt.split("\n", 1)[0], "risk_level": risk, "prompt": prompt}
            await self._coordinator.hooks.emit(APPROVAL_REQUIRED, {**self._about(data), **about})
            details = dict(given) if isinstance(given, dict) else {"input": given}
            timeout = self._options.timeout
            answer = await self._answer(
                provider,
                ApprovalRequest(tool_name=tool, action=prompt, details=details, risk_level=risk, timeout=timeout),
            )
            if answer.remembered:
                self._remembered[key] = answer.allowed
        await self._report(answer.allowed, tool, answer.reason, data, remembered=answer.remembered)
        if answer.allowed:
            return HookResult()
        return HookResult(action="deny", reason=one_line(answer.reason, 300))

    async def _answer(self, provider: ApprovalProvider, request: ApprovalRequest) -> _Answer:
        """Ask and wait; only ``approved is True`` allows the call."""
        options = self._options
        with anyio.move_on_after(options.timeout), suppress(ApprovalTimeoutError, TimeoutError):
            try:
                response = await provider.request_approval(request)
            except (ApprovalTimeoutError, TimeoutError):
                raise
            except Exception as error:  # third-party code; its failure denies the call
                logger.exception("the approval provider failed: denied")
                return _Answer(False, f"the approval provider failed ({type(error).__name__})")
            allowed = getattr(response, "approved", None) is True
            remembered = options.remember and getattr(response, "remember", None) is True
            reason = getattr(response, "reason", None)
            if not isinstance(reason, str) or not reason:
                reason = f"User {'allowed' if allowed else 'denied'}"
            return _Answer(allowed, reason, remembered)
        allowed = options.on_timeout == "allow"
        return _Answer(
            allowed, f"no answer within {options.timeout:g} s - {'allowed' if allowed else 'denied'} by default"
        )

    async def _report(
        self, allowed: bool, tool: str, reason: str, data: dict[str, Any], *, remembered: bool = False
    ) -> None:
        """Emit the decision; the kernel reports those of its own approval system."""
        details = {**self._about(data), "tool_name": tool, "reason": reason, "remembered": remembered}
        await self._coordinator.hooks.emit(APPROVAL_GRANTED if allowed else APPROVAL_DENIED, details)

    def _about(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"hook_name": MODULE, "event": TOOL_PRE, "tool_call_id": data.get("tool_call_id")}


_LEEWAY = 30.0


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> Callable[[], None]:
    """Register the hook for every tool call; see `ApprovalOptions` and the module's reference page for the configuration.

    Returns:
        The cleanup, which unregisters the hook.

    Raises:
        PlanError: The configuration is wrong.
    """
    options = read_approval_options(config)
    hook = ApprovalHook(options, coordinator)
    unregister = coordinator.hooks.register(
        TOOL_PRE,
        hook,
        priority=options.priority,
        name=MODULE,
        timeout=options.timeout + _LEEWAY,  # the handler waits for a registered provider
        on_failure="deny",
        fields=("tool_name", "tool_call_id", "tool_input"),
    )
    coordinator.register_capability("approval.register_provider", hook.register_provider)
    coordinator.register_capability("approval.lets_pass", hook.lets_pass)
    coordinator.register_capability("approval.set_rules", hook.set_rules)
    logger.info("tools are approved by %s: %d rules, then defaults", MODULE, len(options.rules or ()))

    def close() -> None:
        unregister()
        hook.register_provider(None)

    return close
