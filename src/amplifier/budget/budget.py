"""What one session and its children may use, have used, and hold for calls that are under way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, final

import anyio
import attrs

from amplifier.contracts import Hooks
from amplifier.errors import BudgetExceeded, PlanError
from amplifier.events import BUDGET_EXCEEDED, BUDGET_WARNING
from amplifier.plan import BudgetLimits
from amplifier.plan.spec import BUDGET

COUNTED = ("tokens", "cost", "model_calls", "tool_calls", "seconds")
"""What can be limited."""


@final
@attrs.frozen(kw_only=True)
class BudgetUse:
    """What was used.

    Attributes:
        cost: In the currency of the budget, as far as prices are known.
        seconds: Time in which turns ran.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost: Decimal = Decimal(0)
    model_calls: int = 0
    tool_calls: int = 0
    seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.input_tokens + self.output_tokens


@final
class Budget:
    """The budget of one session; ``session.budget``.

    What a child session uses counts here as well. A child whose plan has a budget of its own has to keep both.

    Args:
        limits: Of the session's own plan.
        session_id: The session's.
        hooks: Where warnings are emitted.
        parent: The budget of the session above.
    """

    def __init__(
        self, limits: BudgetLimits, *, session_id: str, hooks: Hooks, parent: Budget | None = None
    ) -> None:
        self._limits = limits
        self._session_id = session_id
        self._hooks = hooks
        self._parent = parent
        self._used = BudgetUse()
        self._held_tokens = 0
        self._held_cost = Decimal(0)
        self._warned: set[str] = set()
        self._running_turns = 0
        self._running_since = 0.0
        self._changed: anyio.Event | None = None  # of the topmost budget: made by those who wait

    def __repr__(self) -> str:
        return f"<Budget of session {self._session_id!r}: {budget_text(self) or 'no limits of its own'}>"

    @property
    def limits(self) -> BudgetLimits:
        """The limits of this session; those of the sessions above apply in addition."""
        return self._limits

    @property
    def used(self) -> BudgetUse:
        """What this session and its children have used; calls under way are not in it."""
        return attrs.evolve(self._used, seconds=self._seconds())

    def set_limits(self, **limits: Any) -> None:
        """Set limits anew, by their names in ``session.budget`` of a plan; the others stay, and so does what was used.

        A new limit of seconds applies from the next turn on.

        Raises:
            PlanError: A name or a value is wrong; nothing was changed.
        """
        try:
            new = BUDGET.read(limits)
        except PlanError as error:
            raise PlanError(error.problems, subject="invalid budget") from None
        self.use_limits(attrs.evolve(self._limits, **{name: getattr(new, name) for name in limits}))

    def use_limits(self, limits: BudgetLimits) -> None:
        """Replace the limits."""
        self._limits = limits
        self._warned.clear()
        self.wake_waiting()

    # ── the sessions above ──

    def chain(self) -> Iterator[Budget]:
        """This budget and those of the sessions above; a call has to fit into all of them."""
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget._parent

    async def wait_for_change(self) -> None:
        """Wait until a call of the tree has ended or a limit was changed."""
        *_, top = self.chain()
        changed = top._changed = top._changed or anyio.Event()
        await changed.wait()

    def wake_waiting(self) -> None:
        """Let the calls that wait look again."""
        *_, top = self.chain()
        changed, top._changed = top._changed, None
        if changed is not None:
            changed.set()

    # ── amounts ──

    @property
    def limits_size(self) -> bool:
        """Whether the size of a model call matters, not only that there is one."""
        return self._limits.tokens is not None or self._limits.cost is not None

    @property
    def is_holding(self) -> bool:
        """Whether calls are under way that may need less than is held for them."""
        return self.limits_size and (self._held_tokens > 0 or self._held_cost > 0)

    def free(self, what: str) -> Any:
        """What is neither used nor held of a limit; infinite without one."""
        limit = getattr(self._limits, what)
        if limit is None:
            return math.inf
        held: Any = {"tokens": self._held_tokens, "cost": self._held_cost}.get(what, 0)
        return limit - getattr(self._used, what) - held

    def hold(self, tokens: int, cost: Decimal) -> None:
        """Set an amount aside for a call; a negative one gives it back."""
        self._held_tokens += tokens
        self._held_cost += cost

    def charge(self, **amounts: Any) -> None:
        """Count something as used."""
        self._used = attrs.evolve(
            self._used,
            **{name: getattr(self._used, name) + amount for name, amount in amounts.items()},
        )

    def shortage(self, what: str, requested: Any) -> BudgetExceeded | None:
        """The error for a request that does not fit, even if nothing was held for other calls; None if it fits."""
        limit, used = getattr(self._limits, what), getattr(self._used, what)
        if limit is None or used + requested <= limit:
            return None
        return self._exceeded(what, limit, used, requested)

    def _exceeded(self, what: str, limit: Any, used: Any, requested: Any) -> BudgetExceeded:
        unit = {"cost": f" {self._limits.currency}", "seconds": " s"}.get(what, "")
        needs = (
            ""
            if what == "seconds"
            else f", and the next call needs at least {_shown(requested)}{unit}"
        )
        return BudgetExceeded(
            f"the budget of session {self._session_id!r} for {what.replace('_', ' ')} "
            f"{'is used up' if used >= limit else 'does not suffice'}: {_shown(used)} of {_shown(limit)}{unit} used{needs}; raise it "
            f"with session.budget.set_limits({what}=...), or begin a session with a larger session.budget.{what} in its plan",
            what=what,
            limit=limit,
            used=used,
            requested=requested,
            session_id=self._session_id,
        )

    # ── time ──

    def start_clock(self) -> None:
        """A turn begins in this session or in one below it."""
        now = anyio.current_time()
        for budget in self.chain():
            if budget._running_turns == 0:
                budget._running_since = now
            budget._running_turns += 1

    def stop_clock(self) -> None:
        """A turn has ended."""
        now = anyio.current_time()
        for budget in self.chain():
            budget._running_turns -= 1
            if budget._running_turns == 0:
                budget.charge(seconds=now - budget._running_since)

    def seconds_left(self) -> float:
        """Until the first budget of the chain has run out of time; infinite without a limit."""
        return min(
            (
                b._limits.seconds - b._seconds()
                for b in self.chain()
                if b._limits.seconds is not None
            ),
            default=math.inf,
        )

    def out_of_time(self) -> BudgetExceeded:
        """The error for a turn that has run out of time."""
        timed = [budget for budget in self.chain() if budget._limits.seconds is not None]
        budget = min(timed, key=lambda each: (each._limits.seconds or 0.0) - each._seconds())
        return budget._exceeded("seconds", budget._limits.seconds, budget._seconds(), 0.0)

    def _seconds(self) -> float:
        running = anyio.current_time() - self._running_since if self._running_turns else 0.0
        return self._used.seconds + running

    # ── events ──

    async def emit_warnings(self) -> None:
        """Emit ``budget:warning`` for limits of the chain whose share is reached, once each."""
        for budget in self.chain():
            share = budget._limits.warn_at
            if share is None:
                continue
            used = budget.used
            for what in COUNTED:
                limit, amount = getattr(budget._limits, what), float(getattr(used, what))
                if (
                    limit is None
                    or what in budget._warned
                    or not 0 < amount >= share * float(limit)
                ):
                    continue
                budget._warned.add(what)
                details = {
                    "what": what,
                    "limit": _plain(limit),
                    "used": _plain(getattr(used, what)),
                    "share": share,
                }
                await budget._hooks.emit(BUDGET_WARNING, details)

    async def emit_exceeded(self, error: BudgetExceeded) -> None:
        """Emit ``budget:exceeded`` in the session whose limit it is."""
        for budget in self.chain():
            if budget._session_id == error.session_id:
                details = {
                    name: _plain(getattr(error, name))
                    for name in ("what", "limit", "used", "requested")
                }
                await budget._hooks.emit(
                    BUDGET_EXCEEDED, {**details, "refused_session_id": self._session_id}
                )
                return


def budget_text(budget: Budget | None) -> str | None:
    """What was used of each limit; None without limits."""
    if budget is None:
        return None
    used, limits = budget.used, budget.limits
    units = {"cost": limits.currency, "seconds": "s"}
    parts = [
        f"{_shown(getattr(used, name))} of {_shown(getattr(limits, name))} {units.get(name, name.replace('_', ' '))}"
        for name in COUNTED
        if getattr(limits, name) is not None
    ]
    return f"{', '.join(parts)} used" if parts else None


def budget_as_json(budget: Budget | None) -> dict[str, Any] | None:
    """The same for programs; money as text."""
    if budget is None:
        return None
    values = {"used": budget.used, "limits": budget.limits}
    described = {
        key: {
            name: _plain(getattr(value, name))
            for name in COUNTED
            if getattr(budget.limits, name) is not None
        }
        for key, value in values.items()
    }
    return {**described, "currency": budget.limits.currency}


def _plain(value: Any) -> Any:
    """A value as JSON; money as text, which is exact."""
    return str(value) if isinstance(value, Decimal) else value


def _shown(value: Any) -> str:
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"
