"""A context under observation: every call with a deadline, its outcome judged, and a plain list to compare it with.

Above stand the checks of contexts; below stand the mounted and the judgement of views.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.harness.mounted_module import (
    OWNER,
    CheckContext,
    MountedModule,
    MountFailed,
    Outcome,
    mount_subject,
)
from amplifier.conformance.inputs.conversations import Message, newest_unit, tokens
from amplifier.contracts import ContextManager
from amplifier.errors import AmplifierError
from amplifier.models import HookResult, ProviderInfo

from .view_rules import difference, is_whole, view_violations

PLENTY = 10_000_000
"""A budget into which everything fits."""
SHORT = 12
"""Messages that every window should hold."""
_VERY_FEW, _VERY_SHORT = 4, 100


class ObservedContext:
    """A context, and what it should hold.

    Attributes:
        context: The subject's instance.
        expected: What it should hold.
        given: What it was given, each with a copy made before.
    """

    def __init__(self, ctx: CheckContext, mounted: MountedModule) -> None:
        self.ctx = ctx
        self.mounted = mounted
        self.context = mounted.instance
        self.expected: list[Message] = []
        self.given: list[tuple[Any, Any]] = []

    @property
    def has_faults(self) -> bool:
        """Whether a fault was found."""
        return bool(self.ctx.faults)

    # ── calls ──

    async def add(self, message: Message, clause: str = "C3") -> bool:
        """Add a message; whether that worked."""
        outcome = await self.mounted.call(self.context.add_message, self._watched(message))
        if self._worked(outcome, "add_message", "C13" if message.get("content", "") is None else clause, message):
            self.expected.append(copy.deepcopy(message))
            return True
        return False

    async def set(self, messages: Sequence[Message], clause: str = "C14") -> bool:
        """Replace everything; whether that worked."""
        outcome = await self.mounted.call(self.context.set_messages, self._watched(list(messages)))
        if self._worked(outcome, "set_messages", clause, list(messages)):
            self.expected = copy.deepcopy(list(messages))
            return True
        return False

    async def clear(self) -> bool:
        """Forget everything; whether that worked."""
        outcome = await self.mounted.call(self.context.clear)
        if self._worked(outcome, "clear", "C14"):
            self.expected = []
            return True
        return False

    async def stored(self, clause: str = "C6") -> Any:
        """What get_messages returns; None if it does not."""
        outcome = await self.mounted.call(self.context.get_messages)
        return outcome.value if self._worked(outcome, "get_messages", clause) else None

    async def view(self, budget: int | None = None, **more: Any) -> Any:
        """What get_messages_for_request returns; None if it does not. A refusal of the impossible is not judged."""
        options = {**({} if budget is None else {"token_budget": budget}), **more}
        outcome = await self.mounted.call(self.context.get_messages_for_request, **options)
        if outcome.returned:
            return outcome.value
        if not (self._is_hopeless(budget) and _is_refusal(outcome)):
            has_none = any(message.get("content", "") is None for message in self.expected)
            clause = "C8" if "provider" in more else "C13" if has_none else "C7"
            self._worked(outcome, f"get_messages_for_request with {_named(options)}", clause)
        return None

    # ── judgements ──

    async def compare(self, clause: str, when: str) -> bool:
        """Compare what is stored with what should be; whether it is the same."""
        stored = await self.stored(clause)
        if stored is None:
            return False
        found = difference(stored, self.expected)
        if found is not None:
            self.ctx.fault(clause, f"{when}, {found}")
        return found is None

    def expect_untouched(self) -> None:
        """Nobody changes what he was given."""
        for now, before in self.given:
            if now != before:
                self.ctx.fault("C4", f"it changed what it was given: {_shortened(before)} became {_shortened(now)}")
                return

    def check_view(self, view: Any, budget: int | None = None, clauses: Sequence[str] = ()) -> None:
        """Judge a view of what should be stored."""
        for clause, what in view_violations(self.expected, view, budget):
            if not clauses or clause in clauses:
                self.ctx.fault(clause, what)

    async def check_unlimited_view(self) -> Any:
        """With a budget that holds everything, a short conversation should be shown whole."""
        view = await self.view(PLENTY)
        if view is not None:
            self.check_view(view)
            if len(self.expected) <= SHORT and not self.has_faults and not is_whole(self.expected, view):
                what = f"of {len(self.expected)} short messages the view shows {len(view)}, or shows them changed"
                self.ctx.fault("C16", f"{what}, with a budget of {PLENTY} tokens")
        if 0 < len(self.expected) <= _VERY_FEW and tokens(self.expected) < _VERY_SHORT and not self.has_faults:
            view = await self.view()
            if view is not None and not is_whole(self.expected, view):
                what = f"of {len(self.expected)} short messages the view without a budget shows {len(view)}"
                self.ctx.fault("C16", f"{what}, or shows them changed")
        return view

    # ── parts ──

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
        """Whether the budget hardly holds what must be shown."""
        unit = newest_unit(self.expected)
        must = [m for at, m in enumerate(self.expected) if at in unit or m["role"] == "system"]
        return budget is not None and budget < 3 * (tokens(must) + 10 * len(must))


@asynccontextmanager
async def observe_context(ctx: CheckContext, *, placed: bool = True) -> AsyncIterator[ObservedContext | None]:
    """A fresh context; None when there is none that could be used.

    Args:
        ctx: Where.
        placed: Whether it keeps files, if it can.
    """
    config = ctx.loaded.config if placed else ctx.loaded.given
    async with ctx.mount(config=config) as mounted:
        yield ObservedContext(ctx, mounted) if isinstance(mounted.instance, ContextManager) else None


async def remounted(observed: ObservedContext) -> bool:
    """Close the context and mount it again in the same session and place; whether that worked."""
    await observed.mounted.close()
    observed.mounted.is_cleaned = False
    observed.mounted.coordinator = observed.mounted.session.coordinator.view_for(
        OWNER
    )  # that of an undone module registers nothing
    try:
        await mount_subject(observed.mounted, observed.ctx.loaded.config)
    except MountFailed:
        return False
    observed.context = observed.mounted.instance
    return isinstance(observed.context, ContextManager)


def interrupt_compactions(mounted: MountedModule) -> None:
    """Let handlers of compaction events give way to other tasks, as handlers do."""

    async def give_way(event: str, data: dict[str, Any]) -> HookResult:
        await anyio.lowlevel.checkpoint()
        return HookResult(action="continue")

    for event in ("context:pre_compact", "context:post_compact", "context:compaction"):
        mounted.session.coordinator.hooks.register(event, give_way, name="give way")


class Window:
    """As much of a provider as a context may look at."""

    name = "window"

    def __init__(self, window: int | None = None, output: int | None = None) -> None:
        self._defaults = {} if window is None else {"context_window": window, "max_output_tokens": output}

    def get_info(self) -> ProviderInfo:
        """The context window and the output limit, nothing else."""
        return ProviderInfo(id="window", display_name="Window", defaults=dict(self._defaults))


def spoil(value: Any) -> None:
    """Change everything that can be changed in a value."""
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


def _is_refusal(outcome: Outcome) -> bool:
    """Whether an error was raised on purpose rather than by accident."""
    return isinstance(outcome.error, (ValueError, RuntimeError, AmplifierError)) and not isinstance(
        outcome.error, (UnicodeError, RecursionError)
    )


def _named(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in options.items() if key != "provider") or "no budget"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 160 else f"{text[:140]}… ({len(text)} characters)"
