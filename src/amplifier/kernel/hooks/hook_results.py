"""Carry out a merged hook result: approvals, injections and messages to the user."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Protocol

import anyio
import attrs

from amplifier._internal.json import visible_text
from amplifier.contracts import ApprovalSystem, Coordinator
from amplifier.errors import ApprovalTimeoutError, ExecutionDenied, NoOneToAskError
from amplifier.events import PROMPT_SUBMIT, PROVIDER_REQUEST
from amplifier.models import ApprovalGate, ContextInjection, HookResult

from ..runtime.deadlines import DeadlinePassed, call_foreign, failure_words, run_bounded
from ..runtime.loop import timestamp
from ..runtime.watchdog import Watchdog
from .merge import InvalidAnswer, gates_of, processed_result, sanitised_injections

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

DEFAULT_PROMPT = "Allow this operation?"
DEFAULT_OPTIONS = ("Allow", "Deny")

_ALLOWING_ANSWERS = frozenset({"allow", "allow once", "allow always"})
_MAX_SHOWN_PROMPT = 200

# A question is identified by hook, event, prompt and options: everything the user saw. With a
# shorter key, "Allow always" would cover a question that was never shown.
_Question = tuple[str, str, str, tuple[str, ...]]


@attrs.define
class TurnEffects:
    """The effects of hooks on the running turn.

    Attributes:
        injected_tokens: Estimated tokens that hooks have injected, four characters each.
        denial: The denial of the prompt or of a model call. None if nothing was denied.
    """

    injected_tokens: int = 0
    denial: ExecutionDenied | None = None


class HookHost(Coordinator, Protocol):
    """The part of the coordinator that carrying out a result needs.

    Attributes:
        effects: The effects of hooks on the running turn.
    """

    effects: TurnEffects

    @property
    def approvals(self) -> Approvals:
        """The approvals of this session, including remembered answers."""

    @property
    def injection_size_limit(self) -> int | None:
        """Characters that one injection may have. None for no limit."""

    @property
    def injection_budget_per_turn(self) -> int | None:
        """Tokens that hooks may inject per turn before a warning is logged. None for no limit."""

    async def call_bounded(self, answer: object, what: str) -> object:
        """Await the answer of foreign code within the deadline of a handler."""


async def process_hook_result(
    coordinator: HookHost, result: HookResult, event: str, hook_name: str
) -> HookResult:
    """Carry out a result and return the rest for the orchestrator.

    Raises:
        ValueError: An injection is longer than ``session.injection_size_limit``. Nothing was
            stored.
    """
    action = result.action
    asks = action == "ask_user" or bool(result.approval_gates)
    has_effects = result.user_message is not None or bool(result.context_injections)
    if action == "continue" and not asks and not has_effects:
        return result
    if action == "deny":
        await _show_message(coordinator, result, hook_name)
        return _note_denial(coordinator, result, event)
    if asks:
        denial = await _ask(coordinator, result, event, hook_name)
        if denial is not None:
            return _note_denial(coordinator, denial, event)
    ephemeral = await _inject(coordinator, result, event, hook_name)
    await _show_message(coordinator, result, hook_name)
    if result.suppress_output:
        logger.debug("hook %r asks to suppress output on %r", hook_name, event)
    return processed_result(result, ephemeral)


def _note_denial(coordinator: HookHost, denial: HookResult, event: str) -> HookResult:
    """Record a denial that ends the turn.

    A published loop returns the text of the denial as if the model had written it. The turn
    compares its answer with this record.
    """
    if event in (PROMPT_SUBMIT, PROVIDER_REQUEST):
        text = f"Operation denied: {denial.reason}"
        coordinator.effects.denial = ExecutionDenied(text, event=event, reason=denial.reason)
    return denial


async def _show_message(coordinator: HookHost, result: HookResult, hook_name: str) -> None:
    text = result.user_message
    if not text:
        return
    source = f"hook:{result.user_message_source or hook_name}"
    display = coordinator.display_system
    if display is None:
        logger.debug("no display system for a message of %s: %s", source, text)
        return
    try:
        # In the Protocol show_message is sync, but an async one is awaited.
        shown: object = call_foreign(display.show_message, text, result.user_message_level, source)
        await coordinator.call_bounded(shown, "display.show_message")
    except Exception:  # foreign code, and a message isn't worth a turn
        logger.exception("the display system failed to show a message of %s", source)


# ── approvals ─────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Decision:
    """The decision about one gate.

    Attributes:
        allowed: True if the operation may proceed.
        reason: The text for events and for a denial.
        remembered: True if the user allowed it for the whole session.
    """

    allowed: bool
    reason: str
    remembered: bool = False


async def _ask(
    coordinator: HookHost, result: HookResult, event: str, hook_name: str
) -> HookResult | None:
    """Request the approvals of all gates of a result.

    Return the denial, or None if everything was allowed.
    """
    try:
        gates = gates_of(result, hook_name)
    except InvalidAnswer as problem:
        logger.error("a question of hook %r on %r is denied: %s", hook_name, event, problem)
        return HookResult(action="deny", reason=str(problem), data=result.data)
    decision = await coordinator.approvals.ask(coordinator.approval_system, gates, event)
    if decision.allowed:
        return None
    return HookResult(action="deny", reason=decision.reason, data=result.data)


class Approvals:
    """Asks the user for the approvals of one session, and remembers answers.

    A missing, failing or late approval system never lets anything through by accident. Only an
    explicit "allow" does, or a gate's own default when its time runs out.
    """

    __slots__ = ("_always", "_emit", "_order", "_watch")

    def __init__(
        self,
        emit: Callable[[str, dict[str, object]], Awaitable[object]],
        watch: Watchdog | None = None,
    ) -> None:
        self._emit = emit
        self._watch = watch
        self._always: set[_Question] = set()
        self._order = anyio.Lock(fast_acquire=True)

    async def ask(
        self, system: ApprovalSystem | None, gates: list[ApprovalGate], event: str
    ) -> Decision:
        """Request the approval of every gate in order, each under its own deadline.

        The first denial decides.
        """
        decision = Decision(True, "")
        for gate in gates:
            # Make invisible characters visible, whichever system shows the prompt.
            prompt = visible_text(gate.prompt or DEFAULT_PROMPT, strict=True)
            options = list(gate.options or DEFAULT_OPTIONS)
            question = (gate.hook_name, event, prompt, tuple(options))
            about: dict[str, object] = {
                "hook_name": gate.hook_name,
                "event": event,
                "prompt": prompt,
                "options": options,
            }
            if question in self._always:
                reason = "allowed always, earlier in this session"
                decision = Decision(True, reason, remembered=True)
            else:
                terms = {"timeout": gate.timeout, "default": gate.default}
                # Prompt in the order of arrival, even if a handler of this event is slow.
                async with self._order:
                    await self._emit("approval:required", {**about, **terms})
                decision = await self._decide(system, gate, prompt, options)
                if decision.remembered:
                    self._always.add(question)
            outcome = "approval:granted" if decision.allowed else "approval:denied"
            answer = {"reason": decision.reason, "remembered": decision.remembered}
            await self._emit(outcome, {**about, **answer})
            if not decision.allowed:
                break
        return decision

    async def _decide(
        self, system: ApprovalSystem | None, gate: ApprovalGate, prompt: str, options: list[str]
    ) -> Decision:
        shown = prompt
        if len(prompt) > _MAX_SHOWN_PROMPT:
            shown = f"{prompt[:_MAX_SHOWN_PROMPT]}…[truncated]"
        if system is None:
            logger.warning(
                "hook %r asks for approval but no approval system is available: denied",
                gate.hook_name,
            )
            return Decision(False, "No approval system available")
        try:
            # In the Protocol this method is async, but a sync one is accepted.
            answer: object = call_foreign(
                system.request_approval, prompt, options, gate.timeout, gate.default
            )
            if isawaitable(answer):
                label = f"approval for hook {gate.hook_name!r}"
                answer = await run_bounded(answer, gate.timeout, label, self._watch)
        except (DeadlinePassed, ApprovalTimeoutError) as late:
            # A refusal counts even if it comes late.
            answer = getattr(late, "answer", None)
            was_refused = isinstance(answer, str) and answer.lower() not in _ALLOWING_ANSWERS
            if was_refused:
                return Decision(False, f"User denied: {shown}")
            if gate.default == "allow":
                return Decision(True, f"Approval timeout - allowed by default: {shown}")
            return Decision(False, f"Approval timeout - denied by default: {shown}")
        except NoOneToAskError as exc:
            if exc.keeps_turn:
                raise
            return Decision(False, f"No one could be asked: {shown}")
        except Exception as exc:  # the approval system is foreign code
            logger.exception("the approval system failed: denied")
            return Decision(False, f"Approval failed ({failure_words(exc)}): {shown}")
        chosen = answer.lower() if isinstance(answer, str) else None
        if chosen in _ALLOWING_ANSWERS:
            return Decision(True, "User allowed", remembered=chosen == "allow always")
        if chosen != "deny":
            logger.warning(
                "the approval system answered %r, which is not an allowing option: denied", answer
            )
        return Decision(False, f"User denied: {shown}")


# ── injections ────────────────────────────────────────────────────────────────────────────────


async def _inject(
    coordinator: HookHost, result: HookResult, event: str, hook_name: str
) -> list[ContextInjection]:
    """Store the durable injections of a result and return the ephemeral ones.

    The orchestrator shows ephemeral injections to the model once.
    """
    items = sanitised_injections(result, event, hook_name)
    # Charge the whole batch first, so it is stored completely or not at all.
    _charge(coordinator, items)
    context = coordinator.get("context")
    add_message = getattr(context, "add_message", None)
    ephemeral = []
    for item in items:
        logger.info(
            "hook %r injects %d characters as %s on %r%s",
            item.hook_name,
            len(item.content),
            item.role,
            item.event,
            " (ephemeral)" if item.ephemeral else "",
        )
        if item.ephemeral:
            ephemeral.append(item)
        elif add_message is not None:
            await coordinator.call_bounded(add_message(_message_of(item)), "context.add_message")
    return ephemeral


def _message_of(item: ContextInjection) -> dict[str, object]:
    """Return an injection as a message that names its origin."""
    return {
        "role": item.role,
        "content": item.content,
        "metadata": {
            "source": "hook",
            "hook_name": item.hook_name,
            "event": item.event,
            "timestamp": timestamp(),
            "requested_role": item.role,
            "ephemeral": False,
            "persisted": True,
        },
    }


def _charge(coordinator: HookHost, items: list[ContextInjection]) -> None:
    """Check the size of injections and count their tokens.

    Raises:
        ValueError: An injection is longer than the limit. Nothing was counted.
    """
    limit = coordinator.injection_size_limit
    for item in items:
        if limit is not None and len(item.content) > limit:
            raise ValueError(
                f"Context injection exceeds {limit} characters: hook {item.hook_name!r} injects "
                f"{len(item.content)} on {item.event!r}; shorten it or raise "
                "session.injection_size_limit"
            )
    effects = coordinator.effects
    effects.injected_tokens += sum(len(item.content) // 4 for item in items)
    budget = coordinator.injection_budget_per_turn
    if items and budget is not None and effects.injected_tokens > budget:
        logger.warning(
            "hooks have injected about %d tokens in this turn, over %s",
            effects.injected_tokens,
            f"session.injection_budget_per_turn = {budget}",
        )
