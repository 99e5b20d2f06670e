"""A context under observation: every call has a deadline and a checked outcome, and a plain list to compare with."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.inputs.conversations import Message, newest_unit, tokens
from amplifier.conformance.oracles.view_rules import difference, is_whole, view_violations
from amplifier.conformance.target.calls import Outcome
from amplifier.conformance.target.mounted import OWNER, CheckContext, MountedModule, MountFailed
from amplifier.contracts import ContextManager
from amplifier.errors import AmplifierError
from amplifier.models import HookResult, ProviderInfo

PLENTY = 10_000_000
"""A budget into which everything fits."""
SHORT = 12
"""So many messages should fit every window."""
_VERY_FEW, _VERY_SHORT = 4, 100


class ObservedContext:
    """A context, and the messages it should hold.

    Attributes:
        context: The module's instance.
        expected: The messages it should hold.
        given: Every value it was given, with a copy made before.
    """

    def __init__(self, ctx: CheckContext, mounted: MountedModule) -> None:
        self.ctx = ctx
        self.mounted = mounted
        self.context: Any = mounted.instance
        self.expected: list[Message] = []
        self.given: list[tuple[Any, Any]] = []

    @property
    def has_faults(self) -> bool:
        """Whether any fault was reported."""
        return bool(self.ctx.faults)

    async def add(self, message: Message, clause: str = "C3") -> bool:
        """Add a message; return whether that worked."""
        outcome = await self.mounted.call(self.context.add_message, self._watched(message))
        if self._worked(outcome, "add_message", "C13" if message.get("content", "") is None else clause, message):
            self.expected.append(copy.deepcopy(message))
            return True
        return False

    async def add_all(self, messages: Sequence[Message], clause: str = "C3") -> bool:
        """Add messages one after the other, up to the first that fails; return whether all worked."""
        for message in messages:
            if not await self.add(message, clause):
                return False
        return True

    async def set(self, messages: Sequence[Message], clause: str = "C14") -> bool:
        """Replace all messages; return whether that worked."""
        outcome = await self.mounted.call(self.context.set_messages, self._watched(list(messages)))
        if self._worked(outcome, "set_messages", clause, list(messages)):
            self.expected = copy.deepcopy(list(messages))
            return True
        return False

    async def clear(self) -> bool:
        """Remove all messages; return whether that worked."""
        outcome = await self.mounted.call(self.context.clear)
        if self._worked(outcome, "clear", "C14"):
            self.expected = []
            return True
        return False

    async def stored(self, clause: str = "C6") -> Any:
        """The result of get_messages; None if it fails."""
        outcome = await self.mounted.call(self.context.get_messages)
        return outcome.value if self._worked(outcome, "get_messages", clause) else None

    async def view(self, budget: int | None = None, **more: Any) -> Any:
        """The result of get_messages_for_request; None if it fails. It may refuse an impossible budget."""
        options = {**({} if budget is None else {"token_budget": budget}), **more}
        outcome = await self.mounted.call(self.context.get_messages_for_request, **options)
        if outcome.returned:
            return outcome.value
        is_accident = isinstance(outcome.error, (UnicodeError, RecursionError))
        is_refusal = isinstance(outcome.error, (ValueError, RuntimeError, AmplifierError)) and not is_accident
        if not (self._is_hopeless(budget) and is_refusal):
            has_none = any(message.get("content", "") is None for message in self.expected)
            clause = "C8" if "provider" in more else "C13" if has_none else "C7"
            limit = "no budget" if budget is None else f"token_budget={budget!r}"
            self._worked(outcome, f"get_messages_for_request with {limit}", clause)
        return None

    async def compare(self, clause: str, when: str) -> bool:
        """Compare the stored messages with the expected ones; return whether they are the same."""
        stored = await self.stored(clause)
        if stored is None:
            return False
        found = difference(stored, self.expected)
        if found is not None:
            self.ctx.fault(clause, f"{when}, {found}")
        return found is None

    def expect_untouched(self) -> None:
        """Report a message that the context changed after it was given."""
        for now, before in self.given:
            if now != before:
                self.ctx.fault("C4", f"it changed what it was given: {_shortened(before)} became {_shortened(now)}")
                return

    def check_view(self, view: Any, budget: int | None = None, clauses: Sequence[str] = ()) -> None:
        """Report what is wrong with a view of the expected messages; None is a view that failed."""
        for clause, what in () if view is None else view_violations(self.expected, view, budget):
            if not clauses or clause in clauses:
                self.ctx.fault(clause, what)

    async def check_unlimited_view(self) -> None:
        """Report a short conversation that is not shown whole, with a budget for everything or without one."""
        view = await self.view(PLENTY)
        self.check_view(view)
        is_short = view is not None and len(self.expected) <= SHORT
        if is_short and not self.has_faults and not is_whole(self.expected, view):
            what = f"of {len(self.expected)} short messages the view shows {len(view)}, or shows them changed"
            self.ctx.fault("C16", f"{what}, with a budget of {PLENTY} tokens")
        if 0 < len(self.expected) <= _VERY_FEW and tokens(self.expected) < _VERY_SHORT and not self.has_faults:
            view = await self.view()
            if view is not None and not is_whole(self.expected, view):
                what = f"of {len(self.expected)} short messages the view without a budget shows {len(view)}"
                self.ctx.fault("C16", f"{what}, or shows them changed")

    def _watched(self, value: Any) -> Any:
        own = copy.deepcopy(value)
        self.given.append((own, copy.deepcopy(value)))
        return own

    def _worked(self, outcome: Outcome, name: str, clause: str, given: Any = None) -> bool:
        if outcome.returned:
            return True
        about = "" if given is None else f" of {_shortened(given)}"
        self.ctx.fault(clause, f"{name}{about} {outcome}", error=outcome.error)
        return False

    def _is_hopeless(self, budget: int | None) -> bool:
        """Whether the budget hardly holds what a view must contain."""
        unit = newest_unit(self.expected)
        must = [m for at, m in enumerate(self.expected) if at in unit or m["role"] == "system"]
        return budget is not None and budget < 3 * (tokens(must) + 10 * len(must))


@asynccontextmanager
async def observe_context(ctx: CheckContext, *, placed: bool = True) -> AsyncIterator[ObservedContext | None]:
    """Mount a fresh context; None when mount gave none.

    Args:
        ctx: The check.
        placed: Whether it keeps files, if it can.
    """
    config = ctx.loaded.config if placed else ctx.loaded.given
    async with ctx.mount(config=config) as mounted:
        yield ObservedContext(ctx, mounted) if isinstance(mounted.instance, ContextManager) else None


async def remounted(observed: ObservedContext) -> bool:
    """Close the context and mount it again in the same session and directory; return whether that worked."""
    await observed.mounted.close()
    observed.mounted.is_cleaned = False
    # The view of an undone module registers nothing.
    observed.mounted.coordinator = observed.mounted.session.coordinator.view_for(OWNER)
    try:
        await observed.mounted.mount(observed.ctx.loaded.config)
    except MountFailed:
        return False
    observed.context = observed.mounted.instance
    return isinstance(observed.context, ContextManager)


def interrupt_compactions(mounted: MountedModule) -> None:
    """Register handlers of compaction events that suspend once."""

    async def suspend(event: str, data: dict[str, Any]) -> HookResult:
        await anyio.lowlevel.checkpoint()
        return HookResult(action="continue")

    for event in ("context:pre_compact", "context:post_compact", "context:compaction"):
        mounted.session.coordinator.hooks.register(event, suspend, name="suspend")


class Window:
    """The part of a provider that a context may read."""

    name = "window"

    def __init__(self, window: int | None = None, output: int | None = None) -> None:
        self._defaults = {} if window is None else {"context_window": window, "max_output_tokens": output}

    def get_info(self) -> ProviderInfo:
        """The context window and the output limit, nothing else."""
        return ProviderInfo(id="window", display_name="Window", defaults=dict(self._defaults))


def spoil(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, dict):
        for inner in list(value.values()):
            spoil(inner)
        value["content"] = "spoiled"
        value["spoiled"] = True
    elif isinstance(value, list):
        for inner in list(value):
            spoil(inner)
        value.append({"role": "user", "content": "spoiled"})
        value.reverse()


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:140]}… ({len(text)} characters)"
