"""The call of the orchestrator, as published tests patch it."""

from __future__ import annotations

import logging
from typing import Any

from amplifier.compat._modules.streaming import providers_for

from .utils import redact_secrets

__all__ = ["emit_raw_field_if_configured", "run_orchestrator"]

logger = logging.getLogger(__name__)


async def run_orchestrator(coordinator: Any, prompt: str) -> Any:
    """Hand a prompt and what is mounted to the orchestrator."""
    providers = coordinator.get("providers") or {}
    logger.debug("orchestrator runs with providers %s", list(providers))
    orchestrator, tools = coordinator.get("orchestrator"), coordinator.get("tools") or {}
    return await orchestrator.execute(
        prompt=prompt,
        context=coordinator.get("context"),
        providers=providers_for(orchestrator, providers, tools),
        tools=tools,
        hooks=coordinator.hooks,
        coordinator=coordinator,
    )


async def emit_raw_field_if_configured(
    coordinator: Any, config: dict[str, Any], session_id: str, event_base: str
) -> None:
    """Announce the whole plan, without secrets, as ``session:config`` if ``session.raw`` is set.

    Args:
        coordinator: Whose hooks receive the event.
        config: The mount plan.
        session_id: The session's id.
        event_base: Not used; published callers pass it.
    """
    if config.get("session", {}).get("raw", False):
        await coordinator.hooks.emit("session:config", {"session_id": session_id, "raw": redact_secrets(config)})
