"""Asks a registered approval provider, which gets the whole request at once, as in published applications.

Without a registered provider the hook returns ``ask_user`` and the kernel asks the session's approval system.
"""

from __future__ import annotations

import hashlib
import logging
from typing import Any

import anyio
import attrs

from amplifier._json import canonical_dumps
from amplifier.contracts import ApprovalProvider
from amplifier.errors import ApprovalTimeoutError, ModelError
from amplifier.models import ApprovalDefault, ApprovalRequest

logger = logging.getLogger("amplifier.modules.hooks-approval")


@attrs.frozen
class Answer:
    """The provider's decision, or the default if there is none."""

    allowed: bool
    reason: str
    remembered: bool = False


class RegisteredProvider:
    """The approval provider of one session and its remembered decisions.

    Args:
        timeout: Seconds to wait for an answer.
        on_timeout: The decision if there is no answer.
        remember: Whether decisions may be remembered.
    """

    def __init__(self, timeout: float, on_timeout: ApprovalDefault, *, remember: bool) -> None:
        self._timeout = timeout
        self._on_timeout = on_timeout
        self._remember = remember
        self._remembered: dict[str, bool] = {}
        self.provider: ApprovalProvider | None = None

    def register_provider(self, provider: ApprovalProvider) -> None:
        """Ask this provider from now on; registered as the capability ``approval.register_provider``."""
        self.provider = provider
        logger.info("approvals are answered by %s", type(provider).__name__)

    def recall(self, tool: str, given: Any) -> Answer | None:
        """The remembered decision for exactly this call, if there is one."""
        allowed = self._remembered.get(_key(tool, given))
        return None if allowed is None else Answer(allowed, "decided earlier in this session", remembered=True)

    async def ask(self, tool: str, given: Any, prompt: str, risk_level: str) -> Answer:
        """Ask and wait; only ``approved is True`` allows the call."""
        assert self.provider is not None
        details = dict(given) if isinstance(given, dict) else {"input": given}
        request = ApprovalRequest(
            tool_name=tool, action=prompt, details=details, risk_level=risk_level, timeout=self._timeout
        )
        with anyio.move_on_after(self._timeout) as waiting:
            try:
                response = await self.provider.request_approval(request)
            except (ApprovalTimeoutError, TimeoutError):
                return self._timed_out()
            except Exception as error:  # third-party code; its failure denies the call
                logger.exception("the approval provider failed: denied")
                return Answer(False, f"the approval provider failed ({type(error).__name__})")
        if waiting.cancelled_caught:
            return self._timed_out()
        allowed = getattr(response, "approved", None) is True
        remembered = self._remember and getattr(response, "remember", None) is True
        if remembered:
            self._remembered[_key(tool, given)] = allowed
        reason = getattr(response, "reason", None)
        if not isinstance(reason, str) or not reason:
            reason = f"User {'allowed' if allowed else 'denied'}"
        return Answer(allowed, reason, remembered)

    def _timed_out(self) -> Answer:
        allowed = self._on_timeout == "allow"
        return Answer(
            allowed, f"no answer within {self._timeout:g} s - {'allowed' if allowed else 'denied'} by default"
        )


def _key(tool: str, given: Any) -> str:
    """Identifies a call by all of its input: a decision never applies to another call."""
    try:
        text = canonical_dumps([tool, given])
    except ModelError:
        text = repr((tool, given))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
