"""The contracts of an application's user interface: approvals, input and display."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from amplifier.models import ApprovalDefault, ApprovalRequest, ApprovalResponse, UserMessageLevel


@runtime_checkable
class ApprovalProvider(Protocol):
    """Answers the request of a published approval hook.

    The hook passes the whole request. The kernel calls an `ApprovalSystem` instead.
    """

    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse:
        """Ask the user and return the response.

        Args:
            request: The tool, the action, the risk and the time until the caller stops waiting.
        """


@runtime_checkable
class ApprovalSystem(Protocol):
    """Answers the questions of hooks on behalf of the application's user.

    The application passes it to the session, and the kernel calls it. The kernel measures the time
    and cancels a question that takes longer. A system that fails denies.
    """

    async def request_approval(
        self,
        prompt: str,
        options: list[str],
        timeout: float,
        default: ApprovalDefault,
    ) -> str:
        """Ask, wait, and return the chosen option.

        Args:
            prompt: Text of the question.
            options: Possible answers. "Allow", "Allow once" and "Allow always", in any case, mean
                yes, and every other answer means no.
            timeout: Seconds until the kernel stops waiting.
            default: Decision of the kernel without an answer in time.

        Raises:
            ApprovalTimeoutError: The system stopped waiting. The kernel applies the default.
        """


@runtime_checkable
class UserInput(Protocol):
    """Asks the user for values, not only for permission.

    An `ApprovalSystem` may have this method as well. A module that needs values, such as an MCP
    server with a form, looks for it on the session's approval system.
    """

    async def request_input(
        self,
        prompt: str,
        schema: dict[str, Any],
        timeout: float,
    ) -> dict[str, Any] | None:
        """Ask, wait, and return the values.

        Args:
            prompt: Text of the question.
            schema: JSON Schema of an object with texts, numbers, booleans or enumerations.
            timeout: Seconds until the caller stops waiting.

        Returns:
            Values that fit the schema, or None if the user declines.
        """


@runtime_checkable
class DisplaySystem(Protocol):
    """Shows messages to the user. The application passes it to the session.

    The session logs an error of the system and continues.
    """

    def show_message(self, message: str, level: UserMessageLevel, source: str = "hook") -> None:
        """Show a message without waiting for the user.

        Args:
            message: Text of the message.
            level: Importance of the message.
            source: Origin of the message, such as ``hook:redaction``.
        """
