"""Asking the user: every gate in order, under its own deadline, failing closed.

Used by the coordinator's `process_hook_result`. A missing, failing or late approval system never lets anything through by
accident: only an explicit "allow" does, or a gate's own ``approval_default`` when time runs out.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any

import attrs

from amplifier.errors import ApprovalTimeoutError
from amplifier.models import ApprovalGate

from ..runtime.deadlines import DeadlinePassed, call_foreign, run_bounded
from ..runtime.watchdog import Watchdog

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

DEFAULT_PROMPT = "Allow this operation?"
DEFAULT_OPTIONS = ("Allow", "Deny")

_ALLOWED = frozenset({"allow", "allow once", "allow always"})
_SHOWN = 200

Emit = Callable[[str, dict[str, Any]], Awaitable[Any]]


@attrs.frozen
class Decision:
    """How one gate was decided."""

    allowed: bool
    reason: str
    remembered: bool = False


_Question = tuple[str, str, str, tuple[str, ...]]
"""Hook, event, prompt and options."""

_NONE_YET: frozenset[_Question] = frozenset()  # shared: each empty frozenset is an object of its own


class Approvals:
    """The questions of one session and the answers to remember."""

    __slots__ = ("_always", "_emit", "_watch")

    def __init__(self, emit: Emit, watch: Watchdog | None = None) -> None:
        self._emit = emit
        self._watch = watch
        self._always: frozenset[_Question] = _NONE_YET

    async def ask(self, system: Any, gates: list[ApprovalGate], event: str) -> Decision:
        """Ask every gate in order; the first denial decides."""
        decision = Decision(True, "")
        for gate in gates:
            decision = await self._ask_one(system, gate, event)
            if not decision.allowed:
                return decision
        return decision

    async def _ask_one(self, system: Any, gate: ApprovalGate, event: str) -> Decision:
        prompt = gate.prompt or DEFAULT_PROMPT
        options = list(gate.options or DEFAULT_OPTIONS)
        # Everything the user saw is part of the key, so an answer never covers another question.
        key = (gate.hook_name, event, prompt, tuple(options))
        about: dict[str, Any] = {"hook_name": gate.hook_name, "event": event, "prompt": prompt, "options": options}
        if key in self._always:
            decision = Decision(True, "allowed always, earlier in this session", remembered=True)
        else:
            await self._emit("approval:required", {**about, "timeout": gate.timeout, "default": gate.default})
            decision = await self._decide(system, gate, prompt, options, key)
        outcome = "approval:granted" if decision.allowed else "approval:denied"
        await self._emit(outcome, {**about, "reason": decision.reason, "remembered": decision.remembered})
        return decision

    async def _decide(
        self,
        system: Any,
        gate: ApprovalGate,
        prompt: str,
        options: list[str],
        key: _Question,
    ) -> Decision:
        if system is None:
            logger.warning("hook %r asks for approval but no approval system is available: denied", gate.hook_name)
            return Decision(False, "No approval system available")
        shown = _shorten(prompt)
        try:
            answer = call_foreign(system.request_approval, prompt, options, gate.timeout, gate.default)
            if isawaitable(answer):
                answer = await run_bounded(answer, gate.timeout, f"approval for hook {gate.hook_name!r}", self._watch)
        except (DeadlinePassed, ApprovalTimeoutError):
            if gate.default == "allow":
                return Decision(True, f"Approval timeout - allowed by default: {shown}")
            return Decision(False, f"Approval timeout - denied by default: {shown}")
        except Exception as exc:  # the approval system is foreign code
            logger.exception("the approval system failed: denied")
            return Decision(False, f"Approval failed ({type(exc).__name__}: {exc}): {shown}")
        if not isinstance(answer, str):
            logger.warning("the approval system answered %r instead of one of %r: denied", answer, options)
            return Decision(False, f"User denied: {shown}")
        chosen = answer.lower()
        if chosen not in _ALLOWED:
            if chosen != "deny":
                logger.warning("the approval system answered %r, which is not an allowing option: denied", answer)
            return Decision(False, f"User denied: {shown}")
        if chosen == "allow always":
            self._always |= {key}
        return Decision(True, "User allowed", remembered=chosen == "allow always")


def _shorten(prompt: str) -> str:
    if len(prompt) <= _SHOWN:
        return prompt
    return f"{prompt[:_SHOWN]}…[truncated]"
