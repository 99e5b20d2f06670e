"""Mounts hooks-approval."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from amplifier.contracts import Coordinator
from amplifier.events import TOOL_PRE

from ._hook import ApprovalHook
from ._options import MODULE, read_approval_options

logger = logging.getLogger("amplifier.modules.hooks-approval")

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
    coordinator.register_capability("approval.register_provider", hook.approvals.register_provider)
    logger.info("tools are approved by %s: %d rules, then defaults", MODULE, len(options.rules or ()))

    def close() -> None:
        unregister()
        hook.approvals.provider = None

    return close
