"""Asking a registered approval provider, the way published applications answer: they get the whole request at once.

Without a registered provider the gate answers ``ask_user`` and the kernel asks the session's approval system.
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
    """What the provider said, or what its silence means."""

    allowed: bool
    reason: str
    remembered: bool = False


class ProviderDesk:
    """The provider of one session and the answers it wants remembered.

    Args:
        timeout: Seconds to wait for an answer.
        on_timeout: What no answer means.
        remember: Whether answers may be remembered.
    """

    def __init__(self, timeout: float, on_timeout: ApprovalDefault, *, remember: bool) -> None:
        self._timeout = timeout
        self._on_timeout = on_timeout
        self._remember = remember
        self._remembered: dict[str, bool] = {}
        self.provider: ApprovalProvider | None = None

    def register_provider(self, provider: ApprovalProvider) -> None:
        """Have questions answered by a provider from now on; offered as ``approval.register_provider``."""
        self.provider = provider
        logger.info("approvals are answered by %s", type(provider).__name__)

    def recall(self, tool: str, given: Any) -> Answer | None:
        """The answer to exactly this call, if one was to be remembered."""
        allowed = self._remembered.get(_key(tool, given))
        return None if allowed is None else Answer(allowed, "decided earlier in this session", remembered=True)

    async def ask(self, tool: str, given: Any, prompt: str, risk_level: str) -> Answer:
        """Ask and wait; only an answer that says so allows."""
        assert self.provider is not None
        details = dict(given) if isinstance(given, dict) else {"input": given}
        request = ApprovalRequest(
            tool_name=tool, action=prompt, details=details, risk_level=risk_level, timeout=self._timeout
        )
        with anyio.move_on_after(self._timeout) as waiting:
            try:
                response = await self.provider.request_approval(request)
            except (ApprovalTimeoutError, TimeoutError):
                return self._late()
            except Exception as error:  # the provider is foreign code; its failure denies
                logger.exception("the approval provider failed: denied")
                return Answer(False, f"the approval provider failed ({type(error).__name__})")
        if waiting.cancelled_caught:
            return self._late()
        allowed = getattr(response, "approved", None) is True
        remembered = self._remember and getattr(response, "remember", None) is True
        if remembered:
            self._remembered[_key(tool, given)] = allowed
        told = getattr(response, "reason", None)
        words = told if isinstance(told, str) and told else f"User {'allowed' if allowed else 'denied'}"
        return Answer(allowed, words, remembered)

    def _late(self) -> Answer:
        allowed = self._on_timeout == "allow"
        return Answer(
            allowed, f"no answer within {self._timeout:g} s - {'allowed' if allowed else 'denied'} by default"
        )


def _key(tool: str, given: Any) -> str:
    """Everything about a call: an answer never covers another one."""
    try:
        text = canonical_dumps([tool, given])
    except ModelError:
        text = repr((tool, given))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
