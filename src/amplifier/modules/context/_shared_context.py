"""What both built-in contexts are: a conversation, the view of it that fits a request, and the compactions of that view.

They differ only in where they keep things: `SharedContext._store_compaction`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any, TypeGuard

import attrs

from amplifier._json import copy_json
from amplifier.contracts import Coordinator, Hooks
from amplifier.events import (
    CONTEXT_COMPACTION,
    CONTEXT_POST_COMPACT,
    CONTEXT_PRE_COMPACT,
    PROVIDER_RESPONSE,
)
from amplifier.models import to_dict

from ._compaction import Compaction, draft
from ._conversation import Conversation, Statistics, copies
from ._entries import Entry
from ._options import ContextOptions
from ._shortening import shorten
from ._summary import Summariser, Summary
from ._token_estimate import Calibration

logger = logging.getLogger("amplifier.modules.context")

_ANNOUNCED = (CONTEXT_PRE_COMPACT, CONTEXT_POST_COMPACT, CONTEXT_COMPACTION)
_NOTE_TOKENS = 40
_WORTH_COUNTING = 0.25  # of the budget: below it nothing has to be decided, and responses need not be told for it


class SharedContext:
    """Everything that does not depend on where messages are kept.

    Args:
        options: How much a request may hold.
        hooks: Where compactions are emitted.
        coordinator: Has the providers that write summaries.
    """

    def __init__(self, options: ContextOptions, hooks: Hooks | None, coordinator: Coordinator | None) -> None:
        self._options = options
        self._hooks = hooks
        self._coordinator = coordinator
        self._conversation = Conversation(options.chars_per_token, options.plan_tools)
        self._calibration = Calibration()
        self._listen: Callable[[], object] | None = None

    def observe(self, coordinator: Coordinator, module: str) -> None:
        """Announce the events of a context, and learn from what responses report how tokens are counted, as soon as that matters."""
        coordinator.register_contributor("observability.events", module, lambda: list(_ANNOUNCED))
        register = coordinator.hooks.register
        self._listen = partial(register, PROVIDER_RESPONSE, self._learn, name=module, fields=("usage",))

    def _learn(self, event: str, data: dict[str, Any]) -> None:
        usage = data.get("usage")
        if isinstance(usage, dict) and _is_count(usage.get("input_tokens")):
            self._calibration.learn(usage["input_tokens"])

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """What the model is to be shown: everything if it fits, else a compacted view.

        The view stays as it is, but for new messages at its end, until it does not fit any more. Handlers of the events may use the
        context: nothing is held meanwhile. Cancelled anywhere, the compaction has happened or has not.

        Args:
            token_budget: What it must fit; without one the provider is asked, then the config decides.
            provider: Its ``get_info().defaults`` have the context window and the longest answer. It may be asked for a summary.
        """
        given = _budget(self._options, token_budget, provider)
        budget = self._calibration.estimated(given)
        limit, target = self._thresholds(budget)
        conversation = self._conversation
        if self._listen is not None and conversation.tokens > budget * _WORTH_COUNTING:
            self._listen()
            self._listen = None
        if conversation.tokens <= limit:
            return self._counted(copies(conversation.shown), conversation.tokens)
        if conversation.view_tokens <= limit:
            return self._counted(copies(conversation.view), conversation.view_tokens)
        summariser = Summariser(self._options, self._coordinator, provider, target)
        if conversation.view_tokens <= budget and self._draft(budget, summariser) is None:
            return self._counted(copies(conversation.view), conversation.view_tokens)
        before = {"message_count": len(conversation.view), "token_count": conversation.view_tokens}
        await self._emit(CONTEXT_PRE_COMPACT, before)
        made, summary = await self._compact(budget, summariser)
        view, tokens = self._fitted(conversation.view if made is None else conversation.after(made), budget)
        await self._emit(CONTEXT_POST_COMPACT, {"message_count": len(view), "token_count": tokens})
        await self._emit(
            CONTEXT_COMPACTION,
            {
                "before_messages": before["message_count"],
                "after_messages": len(view),
                "before_tokens": before["token_count"],
                "after_tokens": tokens,
                "budget": given,
                "tier": "shortened" if made is None else made.tier,
                "left_out": 0 if made is None else made.start - len(made.kept),
                "summary": summary.text or None,
                "failure": summary.failure or None,
                "usage": None if summary.usage is None else to_dict(summary.usage),
            },
        )
        return self._counted(view, tokens)

    async def get_messages(self) -> list[dict[str, Any]]:
        """Everything stored, never compacted."""
        return self._conversation.copy()

    async def uncompact(self) -> bool:
        """Undo the latest compaction; the view is compacted again only when it exceeds the whole budget.

        Returns:
            Whether there was one.
        """
        conversation = self._conversation
        latest, before = conversation.latest, (len(conversation.view), conversation.view_tokens)
        if latest is None:
            return False
        await self._store_compaction(conversation.journal.index(latest), attrs.evolve(latest, is_undone=True))
        after = len(conversation.view), conversation.view_tokens
        details = {"before_messages": before[0], "after_messages": after[0], "before_tokens": before[1]}
        await self._emit(CONTEXT_COMPACTION, {**details, "after_tokens": after[1], "tier": "undone"})
        return True

    def compactions(self) -> list[Compaction]:
        """The journal: every compaction since the conversation began or was replaced, those that were undone included."""
        return list(self._conversation.journal)

    def statistics(self) -> Statistics:
        """How much is stored, how many compactions are in force, and how far the latest count was off."""
        return attrs.evolve(self._conversation.statistics(), error=self._calibration.error)

    # ── compacting ──

    def _thresholds(self, budget: int) -> tuple[int, int]:
        share = 1.0 if self._conversation.is_held else self._options.compaction_threshold
        return int(budget * share), int(budget * self._options.compaction_target)

    def _draft(self, budget: int, summariser: Summariser) -> Compaction | None:
        limit, target = self._thresholds(budget)
        reserve = summariser.tokens if summariser.is_there else min(_NOTE_TOKENS, target // 8)
        return draft(self._conversation, budget=budget, limit=limit, target=target, reserve=reserve)

    async def _compact(self, budget: int, summariser: Summariser) -> tuple[Compaction | None, Summary]:
        """Make one compaction and store it; None if nothing can be left out, or another call was faster."""
        conversation, summary = self._conversation, Summary()
        made = self._draft(budget, summariser)
        if made is None or conversation.view_tokens <= self._thresholds(budget)[0]:
            return None, summary
        entries, latest, number = conversation.entries, conversation.latest, len(conversation.journal)
        if made.tier == "left_out" and summariser.is_there:
            shown = {entry.position for entry in conversation.after(made)}
            gone = [entry for entry in conversation.view if entry.position >= 0 and entry.position not in shown]
            if sum(entries[entry.position].tokens for entry in gone) > 2 * summariser.tokens:
                summary = await summariser.summarise(made.summary, gone, budget // 2)
            if summary.text:
                made = attrs.evolve(made, tier="summary", summary=summary.text, summarised=made.start, has_note=True)
                made = attrs.evolve(made, after_tokens=sum(entry.tokens for entry in conversation.after(made)))
        if conversation.entries is not entries or conversation.latest is not latest:
            return None, summary
        try:
            await self._store_compaction(number, made)
        except OSError:  # the request can be made all the same
            logger.warning("a compaction could not be stored", exc_info=True)
        return made, summary

    def _fitted(self, entries: list[Entry], budget: int) -> tuple[list[dict[str, Any]], int]:
        tokens = sum(entry.tokens for entry in entries)
        if tokens <= budget or not entries:
            return copies(entries), tokens
        view, tokens = shorten(entries, budget, self._options.chars_per_token)
        if tokens > budget:
            logger.warning(
                "the conversation cannot be cut down to %d tokens: system messages and the newest message take %d "
                "without their text; give the model a larger window or start a new conversation",
                budget,
                tokens,
            )
        copied: list[dict[str, Any]] = copy_json(view)
        return copied, tokens

    async def _store_compaction(self, number: int, made: Compaction) -> None:
        """Put a compaction into the journal at its number; all of it or, when cancelled or after an error, nothing."""
        self._conversation.record(number, made)

    def _counted(self, view: list[dict[str, Any]], tokens: int) -> list[dict[str, Any]]:
        self._calibration.expect(tokens)
        return view

    async def _emit(self, event: str, data: dict[str, Any]) -> None:
        if self._hooks is not None:
            await self._hooks.emit(event, data)


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
