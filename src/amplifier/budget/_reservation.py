"""Reservations of model calls: the amounts that are held until the actual use is known.

The estimates of tokens are high rather than low, because the exact numbers are unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from decimal import Decimal

import attrs
import orjson

from amplifier.errors import BudgetError
from amplifier.models import to_dict
from amplifier.plan import BudgetLimits

from .budget import Budget

# In JSON text in UTF-8, English prose has four or five bytes per token, program text three to four,
# and most other languages about three.
BYTES_PER_TOKEN = 3
# This is more than the large services count for a picture of the maximum size. It is the minimum
# for a document as well.
_PICTURE_TOKENS = 5_000
# Bytes of base64 per token: half as many as for a page of dense text in a PDF.
_DOCUMENT_BYTES = 10
# Services add tokens to every request, and their own instructions to a request with tools.
_REQUEST_TOKENS, _TOOLS_TOKENS = 16, 700
_PARTS = ("messages", "tools", "response_format")


def request_tokens(request: object) -> int:
    """Estimate the tokens of a request: its messages and the schemas of tools and answer."""
    media = 0

    def without_media(value: object) -> object:
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
    # The request of a third-party loop may contain anything. Its `repr` gives a larger estimate.
    except Exception:  # noqa: BLE001
        size = len(repr(request).encode("utf-8", "replace"))
    return added + math.ceil(size / BYTES_PER_TOKEN) + media


class Density:
    """Ratio of the reported input tokens of a provider's latest call to their estimate, at least 1.

    It corrects the next estimate, because text may be denser than expected.
    """

    def __init__(self) -> None:
        self._factor = 1.0

    def apply(self, estimate: int) -> int:
        """Return a corrected estimate."""
        return math.ceil(estimate * self._factor)

    def learn(self, estimate: int, reported: int) -> None:
        """Update the ratio from a corrected estimate and the provider's report."""
        if estimate > 0:
            self._factor = max(1.0, self._factor * reported / estimate)


def text_tokens(text: str) -> int:
    """Estimate the tokens of a text."""
    return math.ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


def content_tokens(response: object) -> int:
    """Estimate the tokens of the content of a response that reports no usage."""
    try:
        size = len(orjson.dumps(to_dict(response).get("content")))
    except Exception:  # noqa: BLE001 — as in request_tokens()
        size = len(repr(response).encode("utf-8", "replace"))
    return math.ceil(size / BYTES_PER_TOKEN)


# ── reservations ──────────────────────────────────────────────────────────────────────────────────


# Output tokens that are held for a call without a known limit: more than any model returns.
UNLIMITED = 2**20
_MILLION = 1_000_000


@attrs.frozen(kw_only=True)
class ModelCall:
    """A model call that is about to be made.

    Attributes:
        provider: Name of the provider.
        model: Name of the model, or an empty text if it is unknown.
        input_tokens: Estimated input tokens.
        output_tokens: Maximum number of output tokens, or None if it is unknown.
        density: Correction of estimates for this provider.
        estimate_cost: Function from input and output tokens to the provider's estimate in US
            dollars. It returns None if the provider has no price.
    """

    provider: str
    model: str
    input_tokens: int
    output_tokens: int | None
    density: Density
    estimate_cost: Callable[[int, int], Decimal | None]

    def price(self, limits: BudgetLimits, input_tokens: int, output_tokens: int) -> Decimal | None:
        """Return the cost of tokens in the currency of the budget, or None if it is unknown."""
        price = limits.prices.get(self.model) or limits.prices.get("*")
        if price is not None:
            input_cost = price.input_per_million * input_tokens
            return (input_cost + price.output_per_million * output_tokens) / _MILLION
        estimate = self.estimate_cost(input_tokens, output_tokens)
        return estimate if limits.currency == "USD" or estimate == 0 else None

    def max_cost(self, limits: BudgetLimits, output_tokens: int) -> Decimal:
        """Return the cost of the call with this output, or 0 if the cost does not matter.

        Raises:
            BudgetError: The price is unknown, and the budget does not allow that.
        """
        if limits.cost is None:
            return Decimal(0)
        price = self.price(limits, self.input_tokens, output_tokens)
        if price is not None:
            return price
        if limits.unknown_price == "allow":
            return Decimal(0)
        raise BudgetError(
            f"the plan limits the cost to {limits.cost} {limits.currency}, but the price of model "
            f"{self.model!r} of provider {self.provider!r} in {limits.currency} is not known; "
            f"set it in session.budget.prices as {{{self.model!r}: "
            '{"input_per_million": ..., "output_per_million": ...}}, set '
            'session.budget.unknown_price to "allow" to call it without counting its cost, '
            "or limit tokens instead",
            what="cost",
        )


_under_way: ContextVar[Reservation | None] = ContextVar(
    "amplifier_budget_reservation", default=None
)


@attrs.define(eq=False)
class Reservation:
    """Amounts held for one call in every budget that applies to it.

    A provider that calls another mounted provider, such as a router, makes a call inside a call.
    The outer call then releases its amounts. At its end, only its use beyond the inner calls
    counts.

    Attributes:
        call: The call.
        output_tokens: The output limit to send, or None to keep the caller's.
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
        """Hold the amounts of a call in a budget and those above it, and count the call."""
        held: list[tuple[Budget, int, Decimal]] = []
        for member in budget.chain():
            tokens, cost = 0, Decimal(0)
            if output_tokens is not None:
                tokens = call.input_tokens + output_tokens
                cost = call.max_cost(member.limits, output_tokens)
            member.hold(tokens, cost)
            member.charge(model_calls=1)
            held.append((member, tokens, cost))
        return cls(call, None if output_tokens == UNLIMITED else output_tokens, held, _outer())

    @staticmethod
    def hand_over() -> None:
        """Release the amounts of the enclosing call, if any, before a call inside it."""
        outer = _outer()
        if outer is not None and not outer._has_calls_inside:
            outer._has_calls_inside = True
            outer._release()
            for budget, _, _ in outer._held:
                budget.charge(model_calls=-1)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        """Mark the code inside the block as part of this call."""
        token = _under_way.set(self)
        try:
            yield
        finally:
            _under_way.reset(token)

    def note_chunk(self, chunk: object) -> None:
        """Record a piece of the answer. The last piece may contain the response."""
        self._has_begun = True
        response = getattr(chunk, "response", None)
        if response is not None:
            self.settle(response)
            return
        text = getattr(chunk, "text", None)
        if not text and isinstance(chunk, dict):
            text = chunk.get("content")
        if isinstance(text, str):
            self._streamed.append(text)

    def settle(self, response: object) -> None:
        """Charge the reported use in place of the held amounts."""
        usage = getattr(response, "usage", None)
        sent, received = _count(usage, "input_tokens"), _count(usage, "output_tokens")
        # OpenAI-compatible services may report no usage.
        if sent + received == 0:
            sent, received = self.call.input_tokens, content_tokens(response)
            usage = None
        else:
            self.call.density.learn(self.call.input_tokens, sent)
        cost = getattr(usage, "cost_usd", None)
        self._close(sent, received, cost if isinstance(cost, Decimal) else None)

    def close(self) -> None:
        """End the call.

        Without a response, charge the streamed text, and the input if any text arrived.
        """
        if self._has_begun:
            self._close(self.call.input_tokens, text_tokens("".join(self._streamed)), None)
        else:
            self._close(0, 0, Decimal(0))

    def _close(self, sent: int, received: int, reported: Decimal | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        if not self._has_calls_inside:
            self._release()
        for budget, _, _ in self._held:
            cost = self._cost(budget.limits, sent, received, reported)
            inside = self._inside.get(budget, (0, 0, Decimal(0)))
            budget.charge(
                input_tokens=max(0, sent - inside[0]),
                output_tokens=max(0, received - inside[1]),
                cost=max(Decimal(0), cost - inside[2]),
            )
            if self._outer is not None:
                sums = self._outer._inside.get(budget, (0, 0, Decimal(0)))
                self._outer._inside[budget] = (
                    sums[0] + max(sent, inside[0]),
                    sums[1] + max(received, inside[1]),
                    sums[2] + max(cost, inside[2]),
                )
        self._wake()

    def _cost(
        self, limits: BudgetLimits, sent: int, received: int, reported: Decimal | None
    ) -> Decimal:
        has_own_price = self.call.model in limits.prices or "*" in limits.prices
        if reported is not None and limits.currency == "USD" and not has_own_price:
            return reported
        return self.call.price(limits, sent, received) or Decimal(0)

    def _release(self) -> None:
        for budget, tokens, cost in self._held:
            budget.hold(-tokens, -cost)
        self._wake()

    def _wake(self) -> None:
        if self._held:
            self._held[0][0].wake_waiting()


def _outer() -> Reservation | None:
    """Return the open call that the running code is part of, if any.

    A task that outlives its call is no longer part of it.
    """
    outer = _under_way.get()
    return outer if outer is not None and outer._is_open else None


def _count(usage: object, name: str) -> int:
    value = getattr(usage, name, None)
    return value if type(value) is int and value > 0 else 0
