"""What hooks inject into the context: sanitised, measured, stored with provenance; ephemeral items handed back.

Used by the coordinator's `process_hook_result`. All checks come before the first item is stored, so a batch is stored whole or
not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from amplifier._json import sanitize_text
from amplifier.models import ContextInjection, HookResult

from ..runtime.timestamp import timestamp

logger: logging.Logger = logging.getLogger("amplifier.coordinator")

AddMessage = Callable[[dict[str, Any]], Awaitable[None]]


class InjectionMeter:
    """Limits of one session and what the present turn has used of them.

    Attributes:
        used: Estimated tokens injected in this turn (four characters each).
    """

    __slots__ = ("used",)

    def __init__(self) -> None:
        self.used: int = 0

    def charge(self, items: list[ContextInjection], *, size_limit: int | None, budget: int | None) -> None:
        """Check the size of every item, then count them.

        Raises:
            ValueError: An item is longer than the limit; nothing was counted.
        """
        if size_limit is not None:
            for item in items:
                if len(item.content) > size_limit:
                    raise ValueError(
                        f"Context injection exceeds {size_limit} characters: hook {item.hook_name!r} injects "
                        f"{len(item.content)} on {item.event!r}; shorten it or raise session.injection_size_limit"
                    )
        for item in items:
            self.used += len(item.content) // 4
        if budget is not None and self.used > budget:
            logger.warning(
                "hooks have injected about %d tokens in this turn, over session.injection_budget_per_turn = %d",
                self.used,
                budget,
            )


def sanitised_injections(result: HookResult, event: str, hook_name: str) -> list[ContextInjection]:
    """The injections of a result without control characters and without empty items; scalar forms get a provenance."""
    if result.context_injections:
        given = result.context_injections
    elif result.context_injection:
        given = [
            ContextInjection(
                content=result.context_injection,
                role=result.context_injection_role,
                ephemeral=result.ephemeral,
                append_to_last_tool_result=result.append_to_last_tool_result,
                hook_name=hook_name,
                event=event,
            )
        ]
    else:
        return []
    items = []
    for item in given:
        content = sanitize_text(item.content)
        if content is item.content or content == item.content:
            if content:
                items.append(item)
        elif content:
            items.append(
                ContextInjection(
                    content=content,
                    role=item.role,
                    ephemeral=item.ephemeral,
                    append_to_last_tool_result=item.append_to_last_tool_result,
                    hook_name=item.hook_name,
                    event=item.event,
                )
            )
    return items


async def store(items: list[ContextInjection], add_message: AddMessage | None) -> list[ContextInjection]:
    """Store the durable items and return the ephemeral ones, which are the orchestrator's to show once."""
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
            await add_message(
                {
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
            )
    return ephemeral
