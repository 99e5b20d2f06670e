"""What both built-in contexts are: a conversation, the view of it that fits a request, and the compactions of that view.

They differ only in where they keep things: `SharedContext._store_compaction`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, TypeGuard

import anyio
import attrs

from amplifier._json import copy_json
from amplifier.contracts import Coordinator, Hooks, contained_failure, tool_schema
from amplifier.events import (
    CONTEXT_COMPACTION,
    CONTEXT_POST_COMPACT,
    CONTEXT_PRE_COMPACT,
    PROVIDER_RESPONSE,
)
from amplifier.models import ChatRequest, Message, ToolSpec, to_dict

from ._compaction import Compaction, as_dict, draft, from_record
from ._conversation import Conversation, Statistics, copies
from ._entries import Entry
from ._options import ContextOptions
from ._shortening import shorten
from ._summary import Summariser, Summary
from ._token_estimate import Calibration

logger = logging.getLogger("amplifier.modules.context")

_ANNOUNCED = (CONTEXT_PRE_COMPACT, CONTEXT_POST_COMPACT, CONTEXT_COMPACTION)
_NOTE_TOKENS = 40
_NEAR = (0.75, 1.5)  # of what a view should not exceed: there a count may decide
_UNSURE = 0.1  # of the budget: so much may be estimated only
_COUNT_SECONDS = 5.0
_LEAST_TARGET = 800  # below it there is no room for a summary
_WORTH_COUNTING = 0.25  # of the budget: below it nothing has to be decided, and responses need not be reported for it


@attrs.frozen
class _Bounds:
    """What a view must not exceed, what it should not, and what a compaction brings it down to; by our estimate."""

    budget: int
    limit: int
    target: int
    is_asked: bool = False


class SharedContext:
    """Everything that does not depend on where messages are kept.

    Args:
        options: How much a request may hold.
        hooks: Where compactions are emitted.
        coordinator: Has the providers that write summaries.
    """

    def __init__(
        self,
        options: ContextOptions | None = None,
        hooks: Hooks | None = None,
        coordinator: Coordinator | None = None,
    ) -> None:
        self._options = options = options or ContextOptions()
        self._hooks = hooks
        self._coordinator = coordinator
        self._conversation = Conversation(options.chars_per_token, options.plan_tools)
        self._calibration = Calibration()
        self._can_count = True
        self._listen: Callable[[], None] | None = None

    def observe(self, coordinator: Coordinator, module: str) -> None:
        """Announce the events of a context, and learn from what responses report how tokens are counted, as soon as that matters."""
        coordinator.register_contributor("observability.events", module, lambda: list(_ANNOUNCED))

        def listen() -> None:
            register = coordinator.hooks.register
            coordinator.register_cleanup(register(PROVIDER_RESPONSE, self._learn, name=module, fields=("usage",)))

        self._listen = listen

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
        conversation = self._conversation
        await self._count(provider, self._bounds(given))
        bounds = self._bounds(given)
        if self._listen is not None and conversation.tokens > bounds.budget * _WORTH_COUNTING:
            self._listen()
            self._listen = None
        latest = conversation.latest
        if conversation.tokens <= bounds.limit and not (latest is not None and latest.is_asked):
            return self._counted(copies(conversation.shown), conversation.tokens)
        if conversation.view_tokens <= bounds.limit:
            return self._counted(copies(conversation.view), conversation.view_tokens)
        summariser = Summariser(self._options, self._coordinator, provider, bounds.target)
        if conversation.view_tokens <= bounds.budget:
            made = self._draft(bounds, summariser)
            # A small step would soon be followed by the next: it waits until it is needed.
            if made is None or made.after_tokens > (bounds.limit + bounds.target) // 2:
                return self._counted(copies(conversation.view), conversation.view_tokens)
        view, tokens, _ = await self._compacted(bounds, summariser, given)
        return self._counted(view, tokens)

    async def compact(self, provider: Any | None = None) -> dict[str, Any] | None:
        """Compact the view now, to a quarter of what it takes or 800 tokens, also where everything fits; `uncompact` undoes it.

        Args:
            provider: Is asked for a summary; without one the first that is mounted.

        Returns:
            The payload of its ``context:compaction``; None if nothing can be left out, or there is too little to compact.
        """
        if provider is None and self._coordinator is not None:
            provider = next(iter(self._coordinator.get("providers").values()), None)
        given = _budget(self._options, None, provider)
        bounds = self._bounds(given)
        target = min(bounds.target, max(_LEAST_TARGET, self._conversation.view_tokens // 4))
        bounds = attrs.evolve(bounds, limit=target, target=target, is_asked=True)
        # Between turns there are no steps, so it is none.
        summariser = Summariser(self._options, self._coordinator, provider, target, is_step=False)
        if self._conversation.view_tokens <= target or self._draft(bounds, summariser) is None:
            return None
        _, _, payload = await self._compacted(bounds, summariser, given)
        return payload

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
        if not await self._store_compaction(conversation.journal.index(latest), attrs.evolve(latest, is_undone=True)):
            return await self.uncompact()
        after = len(conversation.view), conversation.view_tokens
        details = {"before_messages": before[0], "after_messages": after[0], "before_tokens": before[1]}
        await self._emit(CONTEXT_COMPACTION, {**details, "after_tokens": after[1], "tier": "undone"})
        return True

    def compactions(self) -> list[Compaction]:
        """The journal: every compaction since the conversation began or was replaced, those that were undone included."""
        return list(self._conversation.journal)

    def compaction_records(self) -> list[dict[str, Any]]:
        """The journal as JSON, for hosts that hand a conversation over to another context."""
        return list(map(as_dict, self._conversation.journal))

    async def restore_compactions(self, records: list[dict[str, Any]]) -> None:
        """Take over the journal that belongs to the messages that were just set."""
        for number, record in enumerate(records):
            await self._store_compaction(number, from_record(record))

    def statistics(self) -> Statistics:
        """How much is stored, how many compactions are in force, and how far the latest count was off."""
        return attrs.evolve(self._conversation.statistics(), error=self._calibration.error)

    # ── compacting ──

    def _bounds(self, given: int) -> _Bounds:
        budget = self._calibration.estimated(given)
        share = 1.0 if self._conversation.is_held else self._options.compaction_threshold
        return _Bounds(budget, int(budget * share), int(budget * self._options.compaction_target))

    def _draft(self, bounds: _Bounds, summariser: Summariser) -> Compaction | None:
        reserve = summariser.tokens if summariser.is_there else min(_NOTE_TOKENS, bounds.target // 8)
        made = draft(
            self._conversation, budget=bounds.budget, limit=bounds.limit, target=bounds.target, reserve=reserve
        )
        return attrs.evolve(made, is_asked=True) if made is not None and bounds.is_asked else made

    async def _count(self, provider: Any, bounds: _Bounds) -> None:
        """Let the provider count the view, if that may decide and much of it was in no response yet.

        Once it cannot, or takes too long, it is not asked again: the estimate does.
        """
        conversation, count = self._conversation, getattr(provider, "count_tokens", None)
        tokens = conversation.view_tokens
        is_near = _NEAR[0] * bounds.limit < tokens < _NEAR[1] * bounds.limit
        if not (self._can_count and is_near and inspect.iscoroutinefunction(count)):
            return
        if abs(tokens - self._calibration.known) < _UNSURE * bounds.budget:
            return
        counted = None
        try:
            with anyio.fail_after(_COUNT_SECONDS):
                messages = [
                    Message(**{**each, "content": each.get("content") or ""}) for each in copies(conversation.view)
                ]
                counted = await count(ChatRequest(messages=messages, tools=self._tool_specs()))
        except BaseException as exc:
            logger.debug("a provider cannot count tokens", exc_info=contained_failure(exc, "the provider"))
        self._calibration.expect(tokens)
        self._can_count = _is_count(counted) and self._calibration.learn(counted, is_sure=True)

    def _tool_specs(self) -> list[ToolSpec]:
        tools = {} if self._coordinator is None else self._coordinator.get("tools")
        return [
            ToolSpec(name=name, description=tool.description, parameters=tool_schema(tool) or {"type": "object"})
            for name, tool in tools.items()
        ]

    async def _compacted(
        self, bounds: _Bounds, summariser: Summariser, given: int
    ) -> tuple[list[dict[str, Any]], int, dict[str, Any]]:
        """Make one compaction and emit it; returns the view, its tokens, and the payload."""
        conversation = self._conversation
        before = {"message_count": len(conversation.view), "token_count": conversation.view_tokens}
        await self._emit(CONTEXT_PRE_COMPACT, before)
        made, summary = await self._compact(bounds, summariser)
        view, tokens = self._fitted(conversation.view if made is None else conversation.after(made), bounds.budget)
        await self._emit(CONTEXT_POST_COMPACT, {"message_count": len(view), "token_count": tokens})
        payload = {
            "before_messages": before["message_count"],
            "after_messages": len(view),
            "before_tokens": before["token_count"],
            "after_tokens": tokens,
            "budget": given,
            "count_error": self._calibration.error,
            "tier": "shortened" if made is None else made.tier,
            "left_out": 0 if made is None else made.start - len(made.kept),
            "summary": summary.text or None,
            "failure": summary.failure or None,
            "usage": None if summary.usage is None else to_dict(summary.usage),
        }
        await self._emit(CONTEXT_COMPACTION, payload)
        return view, tokens, payload

    async def _compact(self, bounds: _Bounds, summariser: Summariser) -> tuple[Compaction | None, Summary]:
        """Make one compaction and store it; None if nothing can be left out, or another call was faster."""
        conversation, summary = self._conversation, Summary()
        made = self._draft(bounds, summariser)
        if made is None or conversation.view_tokens <= bounds.limit:
            return None, summary
        entries, latest, number = conversation.entries, conversation.latest, len(conversation.journal)
        if made.tier == "left_out" and summariser.is_there:
            shown = {entry.position for entry in conversation.after(made)}
            gone = [entry for entry in conversation.view if entry.position >= 0 and entry.position not in shown]
            if sum(entries[entry.position].tokens for entry in gone) > 2 * summariser.tokens:
                summary = await summariser.summarise(made.summary, gone, bounds.budget // 2)
            if summary.text:
                made = attrs.evolve(made, tier="summary", summary=summary.text, summarised=made.start, has_note=True)
                made = attrs.evolve(made, after_tokens=sum(entry.tokens for entry in conversation.after(made)))
        if conversation.entries is not entries or conversation.latest is not latest:
            return None, summary
        try:
            is_current = await self._store_compaction(number, made)
        except OSError:  # the request can be made all the same
            logger.warning("a compaction could not be stored", exc_info=True)
            is_current = conversation.entries is entries
        return made if is_current else None, summary

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

    async def _store_compaction(self, number: int, made: Compaction) -> bool:
        """Put a compaction into the journal at its number; all of it or, when cancelled or after an error, nothing.

        Returns:
            Whether it is there: not if the conversation was replaced or compacted meanwhile.
        """
        self._conversation.record(number, made)
        return True

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
