"""What is held for one model call, from before it begins until it is known what it used; and how many tokens it may take.

The estimate is rather too high than too low: before a call no one knows the exact number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal
from typing import Any

import attrs
import orjson

from amplifier.errors import BudgetError
from amplifier.models import to_dict
from amplifier.plan import BudgetLimits

from .budget import Budget

BYTES_PER_TOKEN = 3
"""Of JSON text in UTF-8. English prose has four or five, program text three to four, and most other languages about three."""
_PICTURE_TOKENS = 5_000
"""More than the large services count for one picture at its largest size, and at least for a document."""
_DOCUMENT_BYTES = 10
"""Of base64 for a token: half of what a page of dense text has in a PDF."""
_REQUEST_TOKENS, _TOOLS_TOKENS = 16, 700
"""What services add to every request, and to one with tools, for which they have instructions of their own."""
_PARTS = ("messages", "tools", "response_format")


def request_tokens(request: Any) -> int:
    """Tokens of a request: its messages, the schemas of its tools and of its answer."""
    media = 0

    def without_media(value: Any) -> Any:
        nonlocal media
        if isinstance(value, list):
            return [without_media(item) for item in value]
        if not isinstance(value, dict):
            return value
        if value.get("type") in ("image", "image_url", "input_image"):
            media += _PICTURE_TOKENS
            return None
        if value.get("type") == "document":
            media += max(_PICTURE_TOKENS, len(orjson.dumps(value)) // _DOCUMENT_BYTES)
            return None
        return {key: without_media(item) for key, item in value.items()}

    added = _REQUEST_TOKENS + (_TOOLS_TOKENS if getattr(request, "tools", None) else 0)
    try:
        plain = to_dict(request)
        size = len(orjson.dumps(without_media({part: plain.get(part) for part in _PARTS})))
    except Exception:  # noqa: BLE001 — a request of a third-party loop may hold anything; its text is the larger estimate
        size = len(repr(request).encode("utf-8", "replace"))
    return added + math.ceil(size / BYTES_PER_TOKEN) + media


class Density:
    """How many times more tokens the input of a provider's latest call had than was estimated; text may be denser than expected."""

    def __init__(self) -> None:
        self._factor = 1.0

    def applied(self, estimate: int) -> int:
        """An estimate for the next call."""
        return math.ceil(estimate * self._factor)

    def learn(self, estimate: int, reported: int) -> None:
        """Compare an estimate, in which the factor is included, with what the provider reports."""
        if estimate > 0:
            self._factor = max(1.0, self._factor * reported / estimate)


def text_tokens(text: str) -> int:
    """Tokens of a text."""
    return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


def content_tokens(response: Any) -> int:
    """Tokens of the content of a response that reports no usage."""
    try:
        size = len(orjson.dumps(to_dict(response).get("content")))
    except Exception:  # noqa: BLE001 — as above
        size = len(repr(response).encode("utf-8", "replace"))
    return math.ceil(size / BYTES_PER_TOKEN)


# ── reservations ──────────────────────────────────────────────────────────────────────────────────


UNLIMITED = 2**20
"""Output tokens that are held for a call for which no one knows a limit: more than any model returns."""
_MILLION = 1_000_000


@attrs.frozen(kw_only=True)
class ModelCall:
    """A model call that is about to be made.

    Attributes:
        provider: The name of the provider.
        model: The name of the model, as far as it is known.
        input_tokens: An estimate.
        output_tokens: The most that it may return; None if no one has said so.
        density: Corrects the estimates of the calls after this one.
        estimate_cost: The provider's own estimate in US dollars for an input and an output; None if it knows no price.
    """

    provider: str
    model: str
    input_tokens: int
    output_tokens: int | None
    density: Density
    estimate_cost: Callable[[int, int], Decimal | None]

    def price(self, limits: BudgetLimits, input_tokens: int, output_tokens: int) -> Decimal | None:
        """What the tokens cost in the currency of the budget; None if that is not known."""
        given = limits.prices.get(self.model) or limits.prices.get("*")
        if given is not None:
            spent = (
                given.input_per_million * input_tokens + given.output_per_million * output_tokens
            )
            return spent / _MILLION
        estimated = self.estimate_cost(input_tokens, output_tokens)
        return estimated if limits.currency == "USD" or estimated == 0 else None

    def most_cost(self, limits: BudgetLimits, output_tokens: int) -> Decimal:
        """What the call may cost with this much output; 0 if the cost does not matter.

        Raises:
            BudgetError: The price is not known, and the budget does not allow that.
        """
        if limits.cost is None:
            return Decimal(0)
        price = self.price(limits, self.input_tokens, output_tokens)
        if price is not None:
            return price
        if limits.unknown_price == "allow":
            return Decimal(0)
        raise BudgetError(
            f"the plan limits the cost to {limits.cost} {limits.currency}, but the price of model {self.model!r} of provider "
            f"{self.provider!r} in {limits.currency} is not known; give it in session.budget.prices as {{{self.model!r}: "
            '{"input_per_million": ..., "output_per_million": ...}}, set session.budget.unknown_price to "allow" to call it '
            "without counting its cost, or limit tokens instead",
            what="cost",
        )


_under_way: ContextVar[Reservation | None] = ContextVar(
    "amplifier_budget_reservation", default=None
)


@attrs.define(eq=False)
class Reservation:
    """Held amounts of one call, in every budget that it has to fit into.

    A provider that asks another mounted provider, such as a router, makes a call inside a call. The outer one then gives back what
    is held for it, and at its end counts only what it reports beyond the calls inside.

    Attributes:
        output_tokens: The limit to send; None leaves it as it is.
    """

    call: ModelCall
    output_tokens: int | None
    _held: list[tuple[Budget, int, Decimal]]
    _outer: Reservation | None = None
    _streamed: list[str] = attrs.field(factory=list)
    _has_begun: bool = False
    _is_open: bool = True
    _inside: dict[Budget, tuple[int, int, Decimal]] = attrs.field(factory=dict)
    _has_calls_inside: bool = False

    @classmethod
    def open(cls, budget: Budget, call: ModelCall, output_tokens: int | None) -> Reservation:
        """Hold what a call may need in a budget and those above it, and count the call."""
        held: list[tuple[Budget, int, Decimal]] = []
        for each in budget.chain():
            tokens = 0 if output_tokens is None else call.input_tokens + output_tokens
            cost = (
                Decimal(0) if output_tokens is None else call.most_cost(each.limits, output_tokens)
            )
            each.hold(tokens, cost)
            each.charge(model_calls=1)
            held.append((each, tokens, cost))
        return cls(call, None if output_tokens == UNLIMITED else output_tokens, held, _outer())

    @staticmethod
    def hand_over() -> None:
        """A call is about to be made; if it is made inside another one, that one gives back what is held for it."""
        outer = _outer()
        if outer is not None and not outer._has_calls_inside:
            outer._has_calls_inside = True
            outer._release()
            for budget, _, _ in outer._held:
                budget.charge(model_calls=-1)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """The call is running inside the block."""
        token = _under_way.set(self)
        try:
            yield
        finally:
            _under_way.reset(token)

    def note_chunk(self, chunk: Any) -> None:
        """A piece of the answer has arrived; the last one may have the response."""
        self._has_begun = True
        response = getattr(chunk, "response", None)
        if response is not None:
            self.settle(response)
            return
        text = getattr(chunk, "text", None) or (
            chunk.get("content") if isinstance(chunk, dict) else None
        )
        if isinstance(text, str):
            self._streamed.append(text)

    def settle(self, response: Any) -> None:
        """Count what the call used instead of what was held for it, by the provider's report."""
        usage = getattr(response, "usage", None)
        asked, answered = _count(usage, "input_tokens"), _count(usage, "output_tokens")
        if (
            asked + answered == 0
        ):  # nothing is reported: services of the OpenAI wire may leave it out
            asked, answered = self.call.input_tokens, content_tokens(response)
            usage = None
        else:
            self.call.density.learn(self.call.input_tokens, asked)
        cost = getattr(usage, "cost_usd", None)
        self._close(asked, answered, cost if isinstance(cost, Decimal) else None)

    def close(self) -> None:
        """The call has ended. Without a response, what was streamed counts, and the input if anything was."""
        if self._has_begun:
            self._close(self.call.input_tokens, text_tokens("".join(self._streamed)), None)
        else:
            self._close(0, 0, Decimal(0))

    def _close(self, asked: int, answered: int, reported: Decimal | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if not self._has_calls_inside:
            self._release()
        for budget, _, _ in self._held:
            cost = self._cost(budget.limits, asked, answered, reported)
            inside = self._inside.get(budget, (0, 0, Decimal(0)))
            budget.charge(
                input_tokens=max(0, asked - inside[0]),
                output_tokens=max(0, answered - inside[1]),
                cost=max(Decimal(0), cost - inside[2]),
            )
            if self._outer is not None:
                sums = self._outer._inside.get(budget, (0, 0, Decimal(0)))
                total = (max(asked, inside[0]), max(answered, inside[1]), max(cost, inside[2]))
                self._outer._inside[budget] = (
                    sums[0] + total[0],
                    sums[1] + total[1],
                    sums[2] + total[2],
                )
        self._wake()

    def _cost(
        self, limits: BudgetLimits, asked: int, answered: int, reported: Decimal | None
    ) -> Decimal:
        has_own_price = self.call.model in limits.prices or "*" in limits.prices
        if reported is not None and limits.currency == "USD" and not has_own_price:
            return reported
        return self.call.price(limits, asked, answered) or Decimal(0)

    def _release(self) -> None:
        for budget, tokens, cost in self._held:
            budget.hold(-tokens, -cost)
        self._wake()

    def _wake(self) -> None:
        if self._held:
            self._held[0][0].wake_waiting()


def _outer() -> Reservation | None:
    """The call that the running code is part of; a task that a call has left behind is part of none."""
    outer = _under_way.get()
    return outer if outer is not None and outer._is_open else None


def _count(usage: Any, name: str) -> int:
    value = getattr(usage, name, None)
    return value if type(value) is int and value > 0 else 0
