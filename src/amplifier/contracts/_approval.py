"""The approval and display contracts: who answers when a hook asks for permission, and where messages to the user are shown.

Two Protocols for approvals are in use. The kernel calls an `ApprovalSystem`, which the application gives to the session.
Published approval hooks call an `ApprovalProvider`, which gets the whole request.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from amplifier.models import ApprovalDefault, ApprovalRequest, ApprovalResponse, UserMessageLevel


@runtime_checkable
class ApprovalProvider(Protocol):
    """Answers a request from an approval hook."""

    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse:
        """Ask the user and return the response.

        Args:
            request: The tool, the action, the risk and how long the asker will wait.
        """


@runtime_checkable
class ApprovalSystem(Protocol):
    """Answers the questions of hooks on behalf of the application's user.

    The kernel keeps the time itself and cancels a question that takes longer. A system that fails denies.
    """

    async def request_approval(
        self,
        prompt: str,
        options: list[str],
        timeout: float,
        default: ApprovalDefault,
    ) -> str:
        """Ask, wait, and return the option that was chosen.

        Args:
            prompt: The question.
            options: The answers on offer; "Allow", "Allow once" and "Allow always" in any case mean yes, all else no.
            timeout: How many seconds the kernel will wait.
            default: What the kernel will take for the answer after that.

        Raises:
            ApprovalTimeoutError: The system stopped waiting; the kernel applies the default.
        """


@runtime_checkable
class UserInput(Protocol):
    """Asks the user for values, not only for permission; an `ApprovalSystem` may be this as well.

    Modules that need values (an MCP server that asks for a form) look for it on the session's approval system.
    """

    async def request_input(self, prompt: str, schema: dict[str, Any], timeout: float) -> dict[str, Any] | None:
        """Ask, wait, and return the values.

        Args:
            prompt: The question.
            schema: A JSON Schema of an object whose properties are texts, numbers, booleans or enumerations.
            timeout: How many seconds the caller will wait.

        Returns:
            Values that fit the schema; None if the user declines.
        """


@runtime_checkable
class DisplaySystem(Protocol):
    """Shows messages; given to the session by the application. What it raises is logged and goes no further."""

    def show_message(self, message: str, level: UserMessageLevel, source: str = "hook") -> None:
        """Show a message without waiting for anybody.

        Args:
            message: The text.
            level: How loud it is.
            source: The origin of the message, such as ``hook:redaction``.
        """
