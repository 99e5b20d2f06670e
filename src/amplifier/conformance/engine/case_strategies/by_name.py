"""The strategies that cases are drawn from, by the names that checks use. Needs the ``testing`` extra."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis.strategies import SearchStrategy

from . import context, hook, orchestrator, provider, resolver, tool

INPUTS: dict[str, Callable[[dict[str, Any]], SearchStrategy[Any]]] = {
    "context_programs": context.programs,
    "long_conversations": context.long_conversations,
    "hook_events": hook.hook_events,
    "turns": orchestrator.turns,
    "hooked_turns": orchestrator.hooked_turns,
    "failing_turns": orchestrator.failing_turns,
    "stopped_turns": orchestrator.stopped_turns,
    "provider_requests": provider.requests,
    "provider_dialogues": provider.dialogues,
    "provider_answers": provider.answers,
    "questions": resolver.questions,
    "tool_inputs": tool.tool_inputs,
}
"""From the name of an input to a function of the facts about the module."""
