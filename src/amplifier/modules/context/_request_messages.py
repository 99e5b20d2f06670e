"""Makes the messages of one request from the conversation: the budget, the events, the view."""

from __future__ import annotations

import logging
from typing import Any, TypeGuard

from amplifier._json import copy_json
from amplifier.contracts import Coordinator, Hooks
from amplifier.events import CONTEXT_COMPACTION, CONTEXT_POST_COMPACT, CONTEXT_PRE_COMPACT

from ._conversation import Conversation, Entry, copies
from ._message_selection import select_messages
from ._options import ContextOptions
from ._shortening import shorten

logger = logging.getLogger("amplifier.modules.context")

_ANNOUNCED = (CONTEXT_PRE_COMPACT, CONTEXT_POST_COMPACT, CONTEXT_COMPACTION)


def announce_events(coordinator: Coordinator, module: str) -> None:
    """Let observers know which events to expect of a context."""
    coordinator.register_contributor("observability.events", module, lambda: list(_ANNOUNCED))


async def messages_for_request(
    conversation: Conversation,
    options: ContextOptions,
    hooks: Hooks | None,
    token_budget: int | None,
    provider: Any | None,
) -> list[dict[str, Any]]:
    """Copies of what the model is to be shown: everything if it fits, else a compacted view.

    The handlers of the events may use the context: nothing is held meanwhile, and the view is of the conversation as
    the handlers of ``context:pre_compact`` leave it.
    """
    budget = _budget(options, token_budget, provider)
    limit = int(budget * options.compaction_threshold)
    if conversation.tokens <= limit:
        return copies(conversation.shown)
    before = {"message_count": len(conversation.entries), "token_count": conversation.tokens}
    if hooks is not None:
        await hooks.emit(CONTEXT_PRE_COMPACT, before)
    conversation.compactions += 1
    view, tokens = _view(conversation.entries, options, budget, limit)
    if hooks is not None:
        await hooks.emit(CONTEXT_POST_COMPACT, {"message_count": len(view), "token_count": tokens})
        await hooks.emit(
            CONTEXT_COMPACTION,
            {
                "before_messages": before["message_count"],
                "after_messages": len(view),
                "before_tokens": before["token_count"],
                "after_tokens": tokens,
                "budget": budget,
            },
        )
    return view


def _view(entries: list[Entry], options: ContextOptions, budget: int, limit: int) -> tuple[list[dict[str, Any]], int]:
    target = int(budget * options.compaction_target)
    chosen = [entries[position] for position in select_messages(entries, budget=budget, limit=limit, target=target)]
    tokens = sum(entry.tokens for entry in chosen)
    if tokens <= budget or not chosen:
        return copies(chosen), tokens
    view, tokens = shorten([entry.message for entry in chosen], budget, options.chars_per_token)
    if tokens > budget:
        logger.warning(
            "the conversation cannot be cut down to %d tokens: system messages and the newest message take %d "
            "without their text; give the model a larger window or start a new conversation",
            budget,
            tokens,
        )
    copied: list[dict[str, Any]] = copy_json(view)
    return copied, tokens


def _budget(options: ContextOptions, token_budget: int | None, provider: Any | None) -> int:
    if token_budget is not None:
        return int(token_budget)
    if provider is not None:
        try:
            defaults = provider.get_info().defaults or {}
            window, output = defaults.get("context_window"), defaults.get("max_output_tokens")
        except Exception:  # foreign code: a provider that cannot describe itself can still be asked
            logger.debug("a provider could not describe its context window", exc_info=True)
            return options.max_tokens
        if _is_count(window):
            return _window_budget(options, window, output if _is_count(output) else None)
    return options.max_tokens


def _window_budget(options: ContextOptions, window: int, output: int | None) -> int:
    if output is None:
        return max(1, min(options.max_tokens, window - options.safety_margin))
    left = window - output - options.safety_margin
    if left > 0:
        return left
    # A window hardly larger than the longest answer: the margin does not fit, perhaps not even the answer.
    return window - output if window > output else max(1, window // 2)


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
