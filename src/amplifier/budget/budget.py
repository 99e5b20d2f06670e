"""The budget of a session: its limits, the use so far, and the amounts held for running calls."""

from __future__ import annotations

import math
from collections.abc import Iterator
from decimal import Decimal
from typing import TypeAlias, final

import anyio
import attrs

from amplifier.contracts import Hooks
from amplifier.errors import BudgetExceeded, PlanError
from amplifier.events import BUDGET_EXCEEDED, BUDGET_WARNING
from amplifier.plan import BudgetLimits
from amplifier.plan.spec import BUDGET

Amount: TypeAlias = Decimal | float

COUNTED = ("tokens", "cost", "model_calls", "tool_calls", "seconds")
"""The limits of a budget, in the order in which they are shown."""


@final
@attrs.frozen(kw_only=True)
class BudgetUse:
    """The amounts that a session and its children have used.

    Attributes:
        input_tokens: Input tokens of all model calls.
        output_tokens: Output tokens of all model calls.
        cost: Cost in the currency of the budget, as far as prices are known.
        model_calls: Number of model calls. Every attempt counts.
        tool_calls: Number of tool calls.
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
    """The budget of one session, as ``session.budget``.

    The use of a child session counts here as well. If the child's plan has a budget, both apply.

    Args:
        limits: Limits of the session's plan.
        session_id: Id of the session.
        hooks: Hooks that receive the warnings.
        parent: Budget of the parent session, or None.
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
        # Only the topmost budget uses this event. The first waiting call creates it.
        self._changed: anyio.Event | None = None

    def __repr__(self) -> str:
        text = budget_text(self) or "no limits of its own"
        return f"<Budget of session {self._session_id!r}: {text}>"

    @property
    def limits(self) -> BudgetLimits:
        """The limits of this session. The limits of its parents apply in addition."""
        return self._limits

    @property
    def used(self) -> BudgetUse:
        """The use of this session and its children, without running calls."""
        return attrs.evolve(self._used, seconds=self._seconds())

    def set_limits(self, **limits: object) -> None:
        """Change limits, named as in ``session.budget`` of a plan.

        Other limits and the use so far are kept. A new limit of seconds applies from the next turn.

        Raises:
            PlanError: A name or a value is wrong. No limit was changed.
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
        """Yield this budget and those of all parents. A call has to fit into all of them."""
        budget: Budget | None = self
        while budget is not None:
            yield budget
            budget = budget._parent

    async def wait_for_change(self) -> None:
        """Wait until a call in the tree of sessions ends or a limit changes."""
        *_, top = self.chain()
        changed = top._changed = top._changed or anyio.Event()
        await changed.wait()

    def wake_waiting(self) -> None:
        """Wake the calls that wait for a change."""
        *_, top = self.chain()
        changed, top._changed = top._changed, None
        if changed is not None:
            changed.set()

    # ── amounts ──

    @property
    def limits_size(self) -> bool:
        """Whether the size of model calls is limited, not only their number."""
        return self._limits.tokens is not None or self._limits.cost is not None

    @property
    def is_holding(self) -> bool:
        """Whether amounts are held for running calls, which may need less."""
        return self.limits_size and (self._held_tokens > 0 or self._held_cost > 0)

    def free(self, name: str) -> Amount:
        """Return the rest of a limit that is neither used nor held, or infinity without one."""
        limit = getattr(self._limits, name)
        if limit is None:
            return math.inf
        held: dict[str, Amount] = {"tokens": self._held_tokens, "cost": self._held_cost}
        rest: Amount = limit - getattr(self._used, name) - held.get(name, 0)
        return rest

    def hold(self, tokens: int, cost: Decimal) -> None:
        """Hold an amount for a call. Negative amounts release it."""
        self._held_tokens += tokens
        self._held_cost += cost

    def charge(self, **amounts: Amount) -> None:
        """Count amounts as used."""
        self._used = attrs.evolve(
            self._used,
            **{name: getattr(self._used, name) + amount for name, amount in amounts.items()},
        )

    def shortage(self, name: str, requested: Amount) -> BudgetExceeded | None:
        """Return the error for an amount that exceeds a limit, or None if it fits.

        Amounts held for other calls do not count.
        """
        limit, used = getattr(self._limits, name), getattr(self._used, name)
        if limit is None or used + requested <= limit:
            return None
        return self._exceeded(name, limit, used, requested)

    def _exceeded(
        self, name: str, limit: Amount, used: Amount, requested: Amount
    ) -> BudgetExceeded:
        unit = {"cost": f" {self._limits.currency}", "seconds": " s"}.get(name, "")
        state = "is used up" if used >= limit else "does not suffice"
        need = f", and the next call needs at least {_format_amount(requested)}{unit}"
        return BudgetExceeded(
            f"the budget of session {self._session_id!r} for {name.replace('_', ' ')} {state}: "
            f"{_format_amount(used)} of {_format_amount(limit)}{unit} used"
            f"{'' if name == 'seconds' else need}; raise it with "
            f"session.budget.set_limits({name}=...), or start a session with a larger "
            f"session.budget.{name} in its plan",
            what=name,
            limit=limit,
            used=used,
            requested=requested,
            session_id=self._session_id,
        )

    # ── time ──

    def start_clock(self) -> None:
        """Start counting the time of a turn in this session or a child of it."""
        now = anyio.current_time()
        for budget in self.chain():
            if budget._running_turns == 0:
                budget._running_since = now
            budget._running_turns += 1

    def stop_clock(self) -> None:
        """Stop counting the time of a turn that has ended."""
        now = anyio.current_time()
        for budget in self.chain():
            budget._running_turns -= 1
            if budget._running_turns == 0:
                budget.charge(seconds=now - budget._running_since)

    def seconds_left(self) -> float:
        """Return the seconds until a budget of the chain expires, or infinity without one."""
        return min((budget._remaining() for budget in self.chain()), default=math.inf)

    def out_of_time(self) -> BudgetExceeded:
        """Return the error for a turn that has run out of time."""
        budget = min(self.chain(), key=Budget._remaining)
        return budget._exceeded("seconds", budget._limits.seconds or 0.0, budget._seconds(), 0.0)

    def _remaining(self) -> float:
        limit = self._limits.seconds
        return math.inf if limit is None else limit - self._seconds()

    def _seconds(self) -> float:
        running = anyio.current_time() - self._running_since if self._running_turns else 0.0
        return self._used.seconds + running

    # ── events ──

    async def emit_warnings(self) -> None:
        """Emit ``budget:warning`` once for every limit of the chain whose share is reached."""
        for budget in self.chain():
            share = budget._limits.warn_at
            if share is None:
                continue
            use = budget.used
            for name in COUNTED:
                limit, used = getattr(budget._limits, name), getattr(use, name)
                if limit is None or name in budget._warned:
                    continue
                if not 0 < float(used) >= share * float(limit):
                    continue
                budget._warned.add(name)
                amounts = {"limit": _as_json(limit), "used": _as_json(used)}
                await budget._hooks.emit(BUDGET_WARNING, {"what": name, **amounts, "share": share})

    async def emit_exceeded(self, error: BudgetExceeded) -> None:
        """Emit ``budget:exceeded`` in the session that has the limit."""
        for budget in self.chain():
            if budget._session_id == error.session_id:
                names = ("what", "limit", "used", "requested")
                payload = {name: _as_json(getattr(error, name)) for name in names}
                payload["refused_session_id"] = self._session_id
                await budget._hooks.emit(BUDGET_EXCEEDED, payload)
                return


def budget_text(budget: Budget | None) -> str | None:
    """Return the use of every limit as text, or None without limits."""
    if budget is None:
        return None
    use, limits = budget.used, budget.limits
    units = {"cost": limits.currency, "seconds": "s"}
    parts = []
    for name in COUNTED:
        limit, used = getattr(limits, name), getattr(use, name)
        if limit is not None:
            unit = units.get(name, name.replace("_", " "))
            parts.append(f"{_format_amount(used)} of {_format_amount(limit)} {unit}")
    return f"{', '.join(parts)} used" if parts else None


def budget_as_json(budget: Budget | None) -> dict[str, object] | None:
    """Return the use of every limit for programs, or None without a budget."""
    if budget is None:
        return None
    use, limits = budget.used, budget.limits
    names = [name for name in COUNTED if getattr(limits, name) is not None]
    return {
        "used": {name: _as_json(getattr(use, name)) for name in names},
        "limits": {name: _as_json(getattr(limits, name)) for name in names},
        "currency": limits.currency,
    }


def _as_json(value: object) -> object:
    """Return an amount as JSON. Money becomes text, which is exact."""
    return str(value) if isinstance(value, Decimal) else value


def _format_amount(value: Amount) -> str:
    if isinstance(value, Decimal):
        return f"{value.normalize():f}"
    # An amount may also be an int, which type checkers accept as a float.
    return f"{value:,}" if type(value) is int else f"{value:.1f}"
