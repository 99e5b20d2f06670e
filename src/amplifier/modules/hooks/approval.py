"""hooks-approval: asks the user before a tool does something that can't be undone."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, get_args

import anyio
import anyio.to_thread
import attrs

from amplifier._internal.json import canonical_dumps
from amplifier.contracts import (
    ApprovalProvider,
    ApprovalQuestion,
    Coordinator,
    current_call,
    note_question,
)
from amplifier.contracts.questions import one_line, render_prompt
from amplifier.errors import ApprovalTimeoutError, ModelError
from amplifier.events import APPROVAL_DENIED, APPROVAL_GRANTED, APPROVAL_REQUIRED, TOOL_PRE
from amplifier.models import ApprovalDefault, ApprovalRequest, HookResult

from .._shared.configuration import (
    Kind,
    choice,
    flag,
    list_each,
    mapping,
    object_with,
    option,
    optional,
    read_options,
    record,
    seconds,
    whole_number,
)
from .._shared.protected_places import UNPROTECTED, Judgement, ProtectedPlaces, protected_places
from ._approval_rules import ACTIONS, BUILT_IN_TOOLS, Action, Call, Rule, is_action, strictest

__all__ = [
    "DEFAULT_RULES",
    "FREE_TOOLS",
    "MODES",
    "MODULE",
    "ApprovalHook",
    "ApprovalOptions",
    "mount",
    "read_approval_options",
    "rule_for_call",
]

__amplifier_module_type__ = "hook"

MODULE = "hooks-approval"

_logger = logging.getLogger("amplifier.modules.hooks-approval")

FREE_TOOLS = frozenset({"read_file", "list_directory", "glob", "grep", "recall", "todo"})
"""Built-in tools that change nothing outside the session.

Every other tool needs approval unless the plan allows it.
"""

DEFAULT_RULES = (
    Rule(
        action="allow",
        tools=("bash",),
        command=("pwd",),
        reason="it only prints the working directory",
    ),
    Rule(action="allow", tools=("bash",), command=("ls", "*"), reason="it only lists names"),
    Rule(
        action="allow",
        tools=("bash",),
        command=("echo", "*"),
        reason="it only prints its arguments",
    ),
)
"""The default rules of the published module, limited to simple commands."""


def _requires_approval(value: object) -> bool | None:
    """Return the value in ``{"require_approval": true}``, the published module's form.

    Return None for any value in another form.
    """
    if (
        isinstance(value, Mapping)
        and value.keys() == {"require_approval"}
        and flag.accepts(value["require_approval"])
    ):
        return bool(value["require_approval"])
    return None


_TOOL_ACTION = Kind(
    "'allow', 'ask', 'deny' or an object with require_approval",
    lambda value: is_action(value) or _requires_approval(value) is not None,
    lambda value: (
        ACTIONS[value]
        if isinstance(value, str)
        else "ask"
        if _requires_approval(value)
        else "allow"
    ),
)
_TOOLS = Kind(
    "an object of tool names",
    mapping.accepts,
    lambda value: object_with(dict.fromkeys(value, _TOOL_ACTION)).read(value),
)
_DEFAULT_TIMEOUT = 300.0
# The published module's own default is null.
_TIMEOUT = attrs.evolve(
    optional(seconds, null="for the default"),
    convert=lambda value: _DEFAULT_TIMEOUT if value is None else value,
)
_DEFAULT_ACTION = attrs.evolve(
    choice("allow", "continue", "deny"),
    convert=lambda value: "deny" if value == "deny" else "allow",
)
_RULE = record(Rule, "an object with at least action")


@attrs.frozen(kw_only=True)
class ApprovalOptions:
    """The configuration of hooks-approval.

    Attributes:
        rules: The plan's rules. The strictest one that applies to a call decides. None if the plan
            has none.
        use_default_rules: Use the default rules where no rule of the plan applies. The default is
            true if the plan has no rules.
        tools: Actions by tool name, for calls to which no rule of the plan applies.
        unknown_tools: The action for all other tools except `FREE_TOOLS`.
        timeout: Seconds to wait for an answer.
        on_timeout: The decision if no answer arrives in time.
        remember: Offer to allow the same call for the rest of the session.
        policy_driven_only: Decide only on calls that a policy module or a rule names.
        priority: The priority of the handler, after those that change a tool's input.
        max_question_chars: The maximum length of a question. A call that needs a longer one is
            denied.
    """

    rules: tuple[Rule, ...] | None = option(list_each("rules", _RULE), default=None, restricts=True)
    use_default_rules: bool | None = option(flag, default=None, restricts=True)
    tools: Mapping[str, Action] = option(_TOOLS, default=attrs.Factory(dict), restricts=True)
    unknown_tools: Action = option(choice(*get_args(Action)), default="ask", restricts=True)
    timeout: float = option(_TIMEOUT, default=_DEFAULT_TIMEOUT, aliases=("default_timeout",))
    on_timeout: ApprovalDefault = option(
        _DEFAULT_ACTION, key="default_action", default="deny", restricts=True
    )
    remember: bool = option(flag, default=True)
    policy_driven_only: bool = option(flag, default=False, restricts=True)
    priority: int = option(whole_number(), default=80)
    max_question_chars: int = option(whole_number(64), default=100_000)

    @property
    def default_rules(self) -> tuple[Rule, ...]:
        """The rules that decide where no rule of the plan applies."""
        is_used = self.rules is None if self.use_default_rules is None else self.use_default_rules
        return DEFAULT_RULES if is_used else ()


def read_approval_options(config: Mapping[str, object] | None) -> ApprovalOptions:
    """Read the module's configuration.

    Raises:
        PlanError: The configuration is wrong.
    """
    return read_options(ApprovalOptions, MODULE, config)


@attrs.frozen
class _Answer:
    """The decision of a registered provider, or the default if it didn't answer in time."""

    allowed: bool
    reason: str
    remembered: bool = False


def _key(
    tool: str, tool_input: object, module: str | None = None, about: Sequence[object] = ()
) -> str:
    """Return a key for a call, made of its tool, module, whole input, real place and sandbox.

    This way, a remembered decision never applies to a different call.
    """
    try:
        text = canonical_dumps([tool, module, tool_input, *about])
    except ModelError:
        text = repr((tool, module, tool_input, *about))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_OPTIONS = ("Allow once", "Allow always", "Deny")
_OPTIONS_WITHOUT_MEMORY = ("Allow", "Deny")


@attrs.frozen
class _Decision:
    """The decision on a call.

    Attributes:
        action: The action.
        reason: The reason, for the user and the model.
        is_reported: True if an event reports it. False for free tools.
        is_protected: True if the call changes a protected place.
    """

    action: Action
    reason: str
    is_reported: bool = True
    is_protected: bool = False


_UNEXPECTED = _Decision("ask", "the call has an unexpected form")
_NO_PLACES: tuple[tuple[str, ...], str] = ((), "/")
_MAX_JUDGED = 1000
"""Maximum number of calls with remembered places. A forgotten place causes a second question."""

_SYSTEM_FOLDERS = ("/bin", "/usr/bin", "/sbin", "/usr/sbin")


def _is_answer(tool: object) -> bool:
    """Return whether the running call is a turn's typed answer, which is a tool of the loop."""
    call = current_call()
    return call is not None and call.is_answer and call.tool_name == tool


def _declared_approval(tool: object, tool_input: Mapping[str, object]) -> bool | None:
    """Return whether the call needs approval according to its tool, or None if undeclared."""
    if getattr(tool, "require_approval", False) is True:
        return True
    needs_approval = getattr(tool, "needs_approval", None)
    declared = needs_approval(tool_input) if callable(needs_approval) else None
    return declared if isinstance(declared, bool) else None


class ApprovalHook:
    """Decides on tool calls before they run.

    Args:
        options: The configuration.
        coordinator: The coordinator of the session.
    """

    def __init__(self, options: ApprovalOptions, coordinator: Coordinator) -> None:
        self._options = options
        self._coordinator = coordinator
        self._rules: tuple[Rule, ...] = options.rules or ()
        self._provider: ApprovalProvider | None = None
        # The approval provider's answers that hold for the rest of the session.
        self._remembered: dict[str, bool] = {}
        self._protected: ProtectedPlaces = protected_places(coordinator)
        self._first_start = ""
        self._judged: OrderedDict[str, tuple[str, bool]] = OrderedDict()

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Decide on one call: continue, deny or ask the user."""
        if event != TOOL_PRE:
            return HookResult()
        tool, tool_input = data.get("tool_name"), data.get("tool_input")
        if _is_answer(tool):
            return HookResult()
        name = tool if isinstance(tool, str) and tool else "(unnamed)"
        call, decision = None, _UNEXPECTED
        if tool == name and isinstance(tool_input, Mapping):
            call = self._call(name, tool_input)
            decision = self._decide(call, await self._locate_and_judge(call))
            self._note_place(call, decision, data.get("tool_call_id"))
        if decision.action == "ask":
            return await self._ask(name, tool_input, decision, data, call)
        if decision.is_reported:
            await self._report(decision.action == "allow", name, decision.reason, data)
        if decision.action == "deny":
            return HookResult(action="deny", reason=decision.reason)
        return HookResult()

    def register_provider(self, provider: ApprovalProvider | None) -> None:
        """Ask this provider from now on.

        Without a provider, the hook returns ``ask_user``, and the kernel asks the session's
        approval system. This is registered as the capability ``approval.register_provider``.
        """
        self._provider = provider

    def set_rules(self, rules: Sequence[Mapping[str, object]]) -> None:
        """Apply these rules together with the plan's from now on.

        The strictest rule decides, so a rule in the plan that asks or denies is never loosened.
        This is registered as the capability ``approval.set_rules``.

        Raises:
            PlanError: A rule is wrong. The earlier rules remain in effect.
        """
        self._rules = (
            *(self._options.rules or ()),
            *(read_approval_options({"rules": list(rules)}).rules or ()),
        )

    # ── deciding ──

    async def lets_pass(self, tool: str, tool_input: object) -> bool:
        """Return whether this hook lets a call pass without a question.

        This is registered as the capability ``approval.lets_pass``.
        """
        if not isinstance(tool_input, Mapping):
            return False
        call = self._call(tool, tool_input)
        return self._decide(call, await self._locate_and_judge(call)).action == "allow"

    def rule_for_call(self, tool: str, tool_input: Mapping[str, object]) -> dict[str, Any] | None:
        """Return the narrowest rule that a user would expect of "always", or None.

        The rule is bound to the real place of a file, and to the sandbox of a command. Finding it
        accesses the file system. This is registered as the capability ``approval.rule_for_call``.
        """
        call, running = self._located(tool, tool_input), current_call()
        judged = None if running is None else self._judged.get(running.call_id)
        if judged is not None:
            # The question showed this place.
            call.places = (judged[0],)
        return rule_for_call(call)

    def judged_place(self, call_id: str) -> tuple[str, bool] | None:
        """Return the real path checked for a running call. Tools must open exactly that file.

        This is registered as the capability ``approval.judged_place``.

        Returns:
            The place, and whether it may be changed even if it is protected. None if no path was
            checked for the call.
        """
        return self._judged.get(call_id)

    def _note_place(self, call: Call, decision: _Decision, call_id: object) -> None:
        if not isinstance(call_id, str):
            return
        self._judged.pop(call_id, None)
        if len(call.places) == 1 and decision.action != "deny":
            # After a question, the tool runs only if the answer was yes.
            is_allowed = decision.action == "ask" or decision.is_protected
            self._judged[call_id] = (call.places[0], is_allowed)
            if len(self._judged) > _MAX_JUDGED:
                self._judged.popitem(last=False)

    def _call(self, name: str, tool_input: Mapping[str, object]) -> Call:
        call = Call(
            name,
            tool_input,
            self._base(),
            module=self._module_of(name),
            is_read_only=self._is_read_only(name),
        )
        call.is_sandboxed = not call.is_stand_in and self._is_sandboxed(name)
        return call

    def _located(self, name: str, tool_input: Mapping[str, object]) -> Call:
        call = self._call(name, tool_input)
        call.places, call.start = self._places(call)
        return call

    async def _locate_and_judge(self, call: Call) -> Judgement:
        """Find the paths of a call, and return the strictest decision."""
        if not call.paths:
            return UNPROTECTED
        # Use a thread, because the first search of a large folder takes about a second.
        call.places, call.start = await anyio.to_thread.run_sync(self._places, call)
        return await anyio.to_thread.run_sync(self._protection, call)

    def _places(self, call: Call) -> tuple[tuple[str, ...], str]:
        """Return the real paths of a call, and of the folder to which relative paths refer."""
        if not call.paths or self._runs_at_client(call):
            return _NO_PLACES
        locate = self._coordinator.get_capability("filesystem.real_place")
        if call.module in BUILT_IN_TOOLS["write_file"] and callable(locate):
            # The tool's roots may differ from the session's.
            located = [locate(path) for path in call.paths]
            if all(located):
                return tuple(place for place, _ in located), located[0][1]
        start = os.path.realpath(call.base)
        places = []
        for path in call.paths:
            try:
                places.append(os.path.realpath(os.path.join(start, path)))  # noqa: PTH118
            # No such path can be opened.
            except (OSError, ValueError):
                return _NO_PLACES
        return tuple(places), start

    def _protection(self, call: Call) -> Judgement:
        """Return the strictest decision for the paths that a call changes."""
        if call.is_read_only:
            return UNPROTECTED
        judgements = [self._protected.judge(place, root=call.start) for place in call.places]
        return max(
            judgements,
            key=lambda judgement: ("none", "ask", "refuse").index(judgement.verdict),
            default=UNPROTECTED,
        )

    def _runs_at_client(self, call: Call) -> bool:
        tool = self._coordinator.get("tools", call.tool)
        return call.module is None and getattr(tool, "runs_at_client", False) is True

    def _decide(self, call: Call, protection: Judgement = UNPROTECTED) -> _Decision:
        if protection.verdict == "refuse":
            return _Decision("deny", f"{call.places[0]} is never changed: {protection.reason}")
        decision = self._decide_by_rules(call)
        if protection.verdict == "none" or decision.action == "deny":
            return decision
        if decision.action == "allow" and any(rule.names_place(call) for rule in self._rules):
            return attrs.evolve(decision, is_protected=True)
        return _Decision("ask", f"the place is protected: {protection.reason}", is_protected=True)

    def _decide_by_rules(self, call: Call) -> _Decision:
        options = self._options
        if (rule := strictest(self._rules, call)) is not None:
            verb = {"allow": "allowed", "ask": "asked for", "deny": "forbidden"}[rule.action]
            # Other rules come from `set_rules`.
            is_of_plan = any(rule is planned for planned in options.rules or ())
            source = " by the plan" if is_of_plan else ""
            return _Decision(rule.action, f"{verb}{source}: {one_line(str(rule), 300)}")
        action = options.tools.get(call.tool)
        if action is not None and not (action == "allow" and call.is_stand_in):
            return _Decision(action, f"the plan sets {action} for this tool")
        if self._policy_asks(call.tool):
            return _Decision("ask", "a policy module asks for it")
        if options.policy_driven_only:
            return _Decision("allow", "", is_reported=False)
        tool = self._coordinator.get("tools", call.tool)
        declared = _declared_approval(tool, call.arguments)
        if declared:
            return _Decision("ask", "the tool itself asks for it")
        if declared is False and not call.is_stand_in:
            return _Decision("allow", "", is_reported=False)
        # A server offers this tool on behalf of its client.
        if self._runs_at_client(call):
            return _Decision("allow", "", is_reported=False)
        rule = strictest(options.default_rules, call)
        if rule is not None and (
            call.is_sandboxed or call.command is None or _is_of_system(call.command.words[0])
        ):
            return _Decision(rule.action, f"{rule.action} by default: {rule.reason}")
        if call.tool in FREE_TOOLS and not call.is_stand_in:
            return _Decision("allow", "", is_reported=False)
        return _Decision(options.unknown_tools, self._why(call))

    def _why(self, call: Call) -> str:
        if call.command is not None and call.command.doubt is not None:
            return f"no rule can judge this command: {call.command.doubt}"
        if call.is_stand_in:
            expected = " or ".join(BUILT_IN_TOOLS[call.tool])
            advice = "a rule allows it only if it names that module"
            return f"{call.module} mounted it, not {expected}; {advice}"
        return f"no rule is about this call of {one_line(call.tool, 80)}"

    def _module_of(self, name: str) -> str | None:
        """Return the id of the module that mounted a tool, or None for the application."""
        owner = self._coordinator.owner_of("tools", name)
        return None if owner is None else owner.partition("#")[0]

    def _is_read_only(self, name: str) -> bool:
        """Return whether the tool declares that it changes nothing. Only rules use this.

        The tools of an MCP server pass on the server's declarations.
        """
        if name in FREE_TOOLS and self._module_of(name) in BUILT_IN_TOOLS.get(name, ()):
            return True
        annotations = getattr(self._coordinator.get("tools", name), "annotations", None)
        return isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True

    def _policy_asks(self, tool: str) -> bool:
        """Return whether another module requires approval.

        Such a module uses a capability, or a set in the session's state.
        """
        names = self._coordinator.session_state.get("require_approval_tools", ())
        if isinstance(names, set | frozenset | list | tuple | dict) and tool in names:
            return True
        check = self._coordinator.get_capability("approval.needs_check")
        if not callable(check):
            return False
        try:
            return bool(check(tool))
        # The policy is third-party code. If it fails, the user decides.
        except Exception:
            _logger.exception("approval.needs_check failed for %r: the user is prompted", tool)
            return True

    def _is_sandboxed(self, tool: str) -> bool:
        """Return whether the tool declares that it runs its calls in a sandbox."""
        sandbox = self._coordinator.get_capability(f"{tool}.sandbox")
        return isinstance(sandbox, Mapping) and sandbox.get("kind") not in (None, "off")

    def _base(self) -> str:
        try:
            return str(self._coordinator.get_capability("session.working_dir") or Path.cwd())
        # The working directory was deleted. Relative patterns still match at any depth.
        except OSError:
            return "/"

    # ── asking and reporting ──

    async def _ask(
        self,
        tool: str,
        tool_input: object,
        decision: _Decision,
        data: Mapping[str, object],
        call: Call | None,
    ) -> HookResult:
        options = self._options
        module = self._module_of(tool)
        source = None if module is None or module in BUILT_IN_TOOLS.get(tool, ()) else module
        place = (
            None if call is None else self._hidden_place(call, is_protected=decision.is_protected)
        )
        is_unconfined = (
            call is not None
            and call.tool == "bash"
            and call.command is not None
            and not call.is_sandboxed
        )
        prompt = render_prompt(
            tool,
            tool_input,
            decision.reason,
            module=source,
            place=place,
            is_unconfined=is_unconfined,
        )
        if len(prompt) > options.max_question_chars:
            reason = (
                f"a person has to allow this call, but the question would have {len(prompt)} "
                f"characters, and at most {options.max_question_chars} are shown; split the call "
                "into smaller ones (max_question_chars in the plan sets the limit)"
            )
            await self._report(False, tool, reason, data)
            return HookResult(action="deny", reason=reason)
        if self._provider is not None:
            about = (place, is_unconfined)
            return await self._ask_provider(
                self._provider, tool, tool_input, prompt, data, module, about
            )
        arguments = tool_input if isinstance(tool_input, Mapping) else {"input": tool_input}
        note_question(
            ApprovalQuestion(
                text=prompt, tool=tool, arguments=arguments, module=module, reason=decision.reason
            )
        )
        return HookResult(
            action="ask_user",
            approval_prompt=prompt,
            approval_options=list(_OPTIONS if options.remember else _OPTIONS_WITHOUT_MEMORY),
            approval_timeout=options.timeout,
            approval_default=options.on_timeout,
        )

    def _hidden_place(self, call: Call, *, is_protected: bool) -> str | None:
        """Return the real place of a call if its input doesn't show it, or if it is protected."""
        if len(call.places) != 1:
            return None
        self._first_start = self._first_start or call.start
        # In another working directory, the same input means another file.
        named = os.path.normpath(os.path.join(self._first_start, call.paths[0]))  # noqa: PTH118
        return call.places[0] if is_protected or call.places[0] != named else None

    async def _ask_provider(
        self,
        provider: ApprovalProvider,
        tool: str,
        tool_input: object,
        prompt: str,
        data: Mapping[str, object],
        module: str | None,
        about_call: tuple[str | None, bool],
    ) -> HookResult:
        key = _key(tool, tool_input, module, about_call)
        if key in self._remembered:
            answer = _Answer(
                self._remembered[key], "decided earlier in this session", remembered=True
            )
        else:
            risk = (
                "high" if isinstance(tool_input, Mapping) and "command" in tool_input else "medium"
            )
            payload = {
                "tool_name": tool,
                "action": prompt.split("\n", 1)[0],
                "risk_level": risk,
                "prompt": prompt,
            }
            await self._coordinator.hooks.emit(APPROVAL_REQUIRED, {**self._about(data), **payload})
            details = dict(tool_input) if isinstance(tool_input, dict) else {"input": tool_input}
            if about_call[0] is not None:
                details["(real place)"] = about_call[0]
            timeout = self._options.timeout
            answer = await self._answer(
                provider,
                ApprovalRequest(
                    tool_name=tool, action=prompt, details=details, risk_level=risk, timeout=timeout
                ),
            )
            if answer.remembered:
                self._remembered[key] = answer.allowed
        await self._report(answer.allowed, tool, answer.reason, data, remembered=answer.remembered)
        if answer.allowed:
            return HookResult()
        return HookResult(action="deny", reason=one_line(answer.reason, 300))

    async def _answer(self, provider: ApprovalProvider, request: ApprovalRequest) -> _Answer:
        """Ask and wait. Only ``approved is True`` allows the call."""
        options = self._options
        with anyio.move_on_after(options.timeout), suppress(ApprovalTimeoutError, TimeoutError):
            try:
                response = await provider.request_approval(request)
            except (ApprovalTimeoutError, TimeoutError):
                raise
            # The provider is third-party code. If it fails, the call is denied.
            except Exception as error:
                _logger.exception("the approval provider failed: denied")
                return _Answer(False, f"the approval provider failed ({type(error).__name__})")
            allowed = getattr(response, "approved", None) is True
            remembered = options.remember and getattr(response, "remember", None) is True
            reason = getattr(response, "reason", None)
            if not isinstance(reason, str) or not reason:
                reason = f"User {'allowed' if allowed else 'denied'}"
            return _Answer(allowed, reason, remembered)
        allowed = options.on_timeout == "allow"
        outcome = "allowed" if allowed else "denied"
        return _Answer(allowed, f"no answer within {options.timeout:g} s - {outcome} by default")

    async def _report(
        self,
        allowed: bool,
        tool: str,
        reason: str,
        data: Mapping[str, object],
        *,
        remembered: bool = False,
    ) -> None:
        """Emit the decision. The kernel reports the decisions of the session's approval system."""
        details = {
            **self._about(data),
            "tool_name": tool,
            "reason": reason,
            "remembered": remembered,
        }
        await self._coordinator.hooks.emit(
            APPROVAL_GRANTED if allowed else APPROVAL_DENIED, details
        )

    def _about(self, data: Mapping[str, object]) -> dict[str, object]:
        return {"hook_name": MODULE, "event": TOOL_PRE, "tool_call_id": data.get("tool_call_id")}


def _is_of_system(program: str) -> bool:
    """Return whether the first program of this name on the search path belongs to the system."""
    if "/" in program:
        return os.path.dirname(program) in _SYSTEM_FOLDERS  # noqa: PTH120
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        # A relative entry depends on the folder of the command, which may contain any program.
        if not folder.startswith("/"):
            return False
        if os.path.lexists(f"{folder}/{program}"):
            return folder.rstrip("/") in _SYSTEM_FOLDERS
    return False


_LEEWAY_SECONDS = 30.0


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], None]:
    """Register the hook for every tool call.

    Args:
        coordinator: The coordinator of the session.
        config: The configuration. See `ApprovalOptions` for its keys.

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
        # The handler waits for a registered provider.
        timeout=options.timeout + _LEEWAY_SECONDS,
        on_failure="deny",
        fields=("tool_name", "tool_call_id", "tool_input"),
    )
    coordinator.register_capability("approval.register_provider", hook.register_provider)
    coordinator.register_capability("approval.lets_pass", hook.lets_pass)
    coordinator.register_capability("approval.set_rules", hook.set_rules)
    coordinator.register_capability("approval.rule_for_call", hook.rule_for_call)
    coordinator.register_capability("approval.judged_place", hook.judged_place)
    _logger.info(
        "tools are approved by %s: %d rules, then defaults", MODULE, len(options.rules or ())
    )

    def close() -> None:
        unregister()
        hook.register_provider(None)

    return close


# ── rules for "always" ────────────────────────────────────────────────────────────────────────────


def rule_for_call(call: Call) -> dict[str, Any] | None:
    """Return the narrowest rule that a user would expect of "always", in the form of a plan.

    For a simple command, the rule allows exactly these words, inside a sandbox if the command ran
    in one, and otherwise outside. For an edit, it allows the real place of this file. For any other
    tool, it allows every call.

    Returns:
        The rule, or None if there is none. No rule allows a compound command.
    """
    rule: dict[str, Any] = {"tool": call.tool, "action": "allow"}
    if call.command is not None or call.tool == "bash":
        rule |= {
            "command": [] if call.command is None else [*call.command.words],
            "sandboxed": call.is_sandboxed,
        }
    elif call.tool in _EDITS:
        rule |= {"tool": _EDITS, "path": ([*call.places, *call.paths] or [""])[0]}
    patterns = [*rule.get("command", []), rule.get("path", "")]
    if {"*", "?"} & set("".join(patterns)) or not rule.get("command", True):
        return None
    parsed = Rule(
        action="allow",
        tools=(call.tool,),
        command=tuple(rule.get("command", ())) or None,
        path=rule.get("path"),
    )
    return rule if parsed.applies(call) else None


_EDITS: Final = ["write_file", "edit_file"]
_EDIT_RULES: Final = [{"tool": _EDITS, "path": "**", "action": "allow"}]
MODES: Final[Mapping[str, tuple[str, list[dict[str, Any]]]]] = {
    "ask": ("you are asked before anything is changed", []),
    "edits": (
        "files of this folder are edited without a question, but for protected places",
        _EDIT_RULES,
    ),
    "plan": (
        "nothing is changed, the agent reads and proposes",
        [
            {
                "tool": "*",
                "read_only": False,
                "action": "deny",
                "reason": "plan mode: change nothing, propose the change",
            }
        ],
    ),
    "full": (
        (
            "files are edited, and commands run in the sandbox, without a question, "
            "but for protected places"
        ),
        [*_EDIT_RULES, {"tool": "bash", "sandboxed": True, "action": "allow"}],
    ),
}
"""The text of each mode, and the rules that it adds to the plan's. The strictest rule decides."""
