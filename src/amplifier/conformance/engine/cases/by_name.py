"""The cases that checks are run on, listed and drawn, by the names that checks use. Needs the ``testing`` extra."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from hypothesis.strategies import SearchStrategy

from . import context, orchestrator, provider, tool

DRAWN: dict[str, Callable[[dict[str, Any]], SearchStrategy[Any]]] = {
    "context_programs": context.programs,
    "long_conversations": context.long_conversations,
    "hook_events": tool.hook_events,
    "turns": orchestrator.turns,
    "hooked_turns": orchestrator.hooked_turns,
    "failing_turns": orchestrator.failing_turns,
    "stopped_turns": orchestrator.stopped_turns,
    "provider_requests": provider.requests,
    "provider_dialogues": provider.dialogues,
    "provider_answers": provider.answers,
    "questions": tool.questions,
    "tool_inputs": tool.tool_inputs,
}
"""From the name of an input to a strategy, a function of the facts about the module."""

LISTED: dict[str, Callable[[dict[str, Any]], Iterable[Any]]] = {
    "context_programs": context.listed_programs,
    "hook_events": tool.listed_events,
    "tool_inputs": tool.listed_inputs,
    "turns": orchestrator.plain_cases,
    "hooked_turns": orchestrator.hooked_cases,
    "failing_turns": orchestrator.failing_cases,
    "stopped_turns": orchestrator.stopped_cases,
    "provider_requests": provider.listed_requests,
    "provider_dialogues": provider.listed_dialogues,
}
"""Cases with one feature each that are played before any are drawn, by the name of the input."""
