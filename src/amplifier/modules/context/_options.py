"""The options that both built-in contexts have, read once at mount."""

from __future__ import annotations

import attrs

from amplifier.errors import PlanError

from .._shared.configuration import number, option, optional, seconds, text, texts, whole_number

_TARGET_SHARE = 0.625  # of the threshold: 0.5 of the budget for a threshold of 0.8
_share = number(0, 1, above=True, what="a share of the budget")


@attrs.frozen(kw_only=True)
class ContextOptions:
    """How much of the conversation a request may hold.

    Attributes:
        max_tokens: The budget where neither the caller nor the provider gives one.
        compaction_threshold: The share of the budget above which the view is compacted.
        compaction_target: The share that a compaction aims at. The gap up to the threshold is what the conversation
            may grow by before the beginning of the view moves again, which is what keeps a provider's cache warm.
        safety_margin: Tokens held back from a provider's window, because tokens are only estimated.
        chars_per_token: Bytes of JSON text that count as one token, until responses have corrected it.
        plan_tools: Tools that keep the plan or the list of what is to be done: their latest call always stays in the view.
        summary_seconds: How long a model may take to summarise what is left out; None for no summaries.
        summary_provider: The provider that is asked; without one that of the request.
        summary_model: The model that is asked; without one the provider's own.
    """

    max_tokens: int = option(whole_number(1), default=100_000)
    compaction_threshold: float = option(_share, default=0.8)
    compaction_target: float = option(
        _share, default=attrs.Factory(lambda self: self.compaction_threshold * _TARGET_SHARE, takes_self=True)
    )
    safety_margin: int = option(whole_number(0), default=1000)
    chars_per_token: float = option(number(0, above=True), default=4.0)
    plan_tools: tuple[str, ...] = option(texts(), default=("todo",))
    summary_seconds: float | None = option(optional(seconds), default=60.0)
    summary_provider: str | None = option(optional(text), default=None)
    summary_model: str | None = option(optional(text), default=None)

    def __attrs_post_init__(self) -> None:
        if self.compaction_target > self.compaction_threshold:
            expected = f"expected at most the compaction_threshold ({self.compaction_threshold!r})"
            raise PlanError([("$.compaction_target", f"{expected}, got {self.compaction_target!r}")])
