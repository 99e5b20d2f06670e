"""Checks of contexts: members, storing, copying, replacing, concurrent and cancelled calls, mounting again; what compacted views have to contain, and how large they may be.

Every call has a deadline and a checked outcome, and a plain list to compare with. Contexts count tokens in their own way, so budgets are far too small or far too large for
the stored messages.
"""

from __future__ import annotations

import ast
import copy
import itertools
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.conversations import (
    CHARACTERS_PER_TOKEN,
    Message,
    built,
    call_blocks,
    mark_of,
    newest_unit,
    prose,
    spoken,
    tokens,
    tool_turn,
    total_size,
)
from amplifier.conformance.oracles.calls import check_method, with_instance
from amplifier.conformance.oracles.view_rules import (
    MAX_CHARACTERS_PER_TOKEN,
    difference,
    holds,
    is_whole,
    marks,
    shortened,
    view_violations,
)
from amplifier.conformance.target.calls import Outcome, reraise_own_cancellation
from amplifier.conformance.target.held_threads import HeldThreads, hold_threads
from amplifier.conformance.target.mounted import OWNER, CheckContext, MountedModule, MountFailed
from amplifier.contracts import ContextManager
from amplifier.errors import AmplifierError, ProviderUnavailableError
from amplifier.models import (
    ChatResponse,
    ModelInfo,
    ProviderInfo,
    TextBlock,
    ToolCall,
    Usage,
)
from amplifier.testing import cancel_at

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
        clause = "C13" if message.get("content", "") is None else clause
        if is_done := await self._do(clause, "add_message", message):
            self.expected.append(copy.deepcopy(message))
        return is_done

    async def add_all(self, messages: Sequence[Message], clause: str = "C3") -> bool:
        """Add messages one after the other, up to the first that fails; return whether all worked."""
        for message in messages:
            if not await self.add(message, clause):
                return False
        return True

    async def set(self, messages: Sequence[Message], clause: str = "C14") -> bool:
        """Replace all messages; return whether that worked."""
        if is_done := await self._do(clause, "set_messages", list(messages)):
            self.expected = copy.deepcopy(list(messages))
        return is_done

    async def clear(self) -> bool:
        """Remove all messages; return whether that worked."""
        if is_done := await self._do("C14", "clear"):
            self.expected = []
        return is_done

    async def _do(self, clause: str, name: str, *given: Any) -> bool:
        outcome = await self.mounted.call(getattr(self.context, name), *map(self._watched, given))
        return self._worked(outcome, name, clause, *given)

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
        is_refusal = (
            isinstance(outcome.error, (ValueError, RuntimeError, AmplifierError))
            and not is_accident
        )
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
                self.ctx.fault(
                    "C4",
                    f"it changed what it was given: {shortened(before)} became {shortened(now)}",
                )
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
        if (
            0 < len(self.expected) <= _VERY_FEW
            and tokens(self.expected) < _VERY_SHORT
            and not self.has_faults
        ):
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
        about = "" if given is None else f" of {shortened(given)}"
        self.ctx.fault(clause, f"{name}{about} {outcome}", error=outcome.error)
        return False

    def _is_hopeless(self, budget: int | None) -> bool:
        """Whether the budget hardly holds what a view must contain."""
        unit = newest_unit(self.expected)
        must = [m for at, m in enumerate(self.expected) if at in unit or m["role"] == "system"]
        return budget is not None and budget < 3 * (tokens(must) + 10 * len(must))


@asynccontextmanager
async def observe_context(
    ctx: CheckContext, *, placed: bool | None = None
) -> AsyncIterator[ObservedContext | None]:
    """Mount a fresh context; None when mount gave none.

    Args:
        ctx: The check.
        placed: Whether it keeps files, if it can; by default as the case says, or it does.
    """
    if placed is None:
        placed = ctx.case is None or ctx.case["placed"]
    config = ctx.loaded.config if placed else ctx.loaded.given
    async with ctx.mount(config=config) as mounted:
        yield (
            ObservedContext(ctx, mounted) if isinstance(mounted.instance, ContextManager) else None
        )


_COMPACTIONS = ("context:pre_compact", "context:post_compact", "context:compaction")


class Window:
    """A whole provider with a context window, which answers whatever it is asked in one way.

    Args:
        window: The tokens of its context window; None for a provider that does not report it.
        output: The tokens of an answer.
        answer: What it answers; an error is raised.
    """

    name = "window"

    def __init__(
        self,
        window: int | None = None,
        output: int | None = None,
        answer: str | Exception = "A summary.",
    ) -> None:
        self._defaults = (
            {} if window is None else {"context_window": window, "max_output_tokens": output}
        )
        self._answer = answer

    def get_info(self) -> ProviderInfo:
        """Return the context window and the output limit, nothing else."""
        return ProviderInfo(id="window", display_name="Window", defaults=dict(self._defaults))

    async def list_models(self) -> list[ModelInfo]:
        """Return no model."""
        return []

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        """Answer, or raise."""
        await anyio.lowlevel.checkpoint()
        if isinstance(self._answer, Exception):
            raise self._answer
        usage = Usage(input_tokens=3, output_tokens=2, total_tokens=5)
        return ChatResponse(content=[TextBlock(text=self._answer)], usage=usage)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """Return no call."""
        return []


def overwrite(value: Any) -> None:
    """Change everything in a value that can be changed."""
    if isinstance(value, dict):
        for inner in list(value.values()):
            overwrite(inner)
        value["content"] = "overwritten"
        value["overwritten"] = True
    elif isinstance(value, list):
        for inner in list(value):
            overwrite(inner)
        value.append({"role": "user", "content": "overwritten"})
        value.reverse()


_CONTEXT = ("context",)
PATIENCE = 12.0
"""Seconds that a call may take when many run at the same time, on a busy machine."""


@check("C1", kind="structure", types=_CONTEXT, on=with_instance)
async def has_five_methods(mounted: MountedModule) -> None:
    """Calls each of the five methods with the arguments of the contract; each has to be async."""
    message = {"role": "user", "content": "hello"}
    await check_method(mounted, "C1", "add_message", message)
    await check_method(mounted, "C1", "get_messages_for_request")
    await check_method(mounted, "C1", "get_messages_for_request", token_budget=1000, provider=None)
    await check_method(mounted, "C1", "get_messages")
    await check_method(mounted, "C1", "set_messages", [dict(message)])
    await check_method(mounted, "C1", "clear")


@check(
    "A9", "C3", "C4", "C5", "C6", "C7", "C9", "C10", "C11", "C12", "C13", "C14", "C15", "C16",
    kind="behaviour", types=_CONTEXT, inputs="context_programs", on=observe_context,
)  # fmt: skip
async def follows_the_model(observed: ObservedContext) -> None:
    """Runs programs of operations against a plain list, and compares both after every step."""
    program = _Program(observed)
    for number, step in enumerate(observed.ctx.case["steps"]):
        await program.do(step, number)
        observed.expect_untouched()
        if observed.has_faults:
            return


_BASE = [spoken(10, "user", 30), *tool_turn(20, 2, 30), spoken(30, "assistant", 30)]
_OTHERS = [spoken(50, "user", 5), spoken(60, "assistant", 5)]
_SMALL = 60
"""A budget into which `_BASE` does not fit."""


def _call_and_effect(
    what: str, message: Message, before: list[Message]
) -> tuple[tuple[Any, ...], list[Message]]:
    """Return the arguments of an operation, and the messages that are stored after it."""
    return {
        "add_message": ((message,), [*before, message]),
        "set_messages": (([message, *_OTHERS],), [message, *_OTHERS]),
        "clear": ((), []),
        "get_messages_for_request": ((_SMALL,), before),
    }[what]


class _Program:
    """Runs the steps of one program and checks the clauses that each may break."""

    def __init__(self, observed: ObservedContext) -> None:
        self._observed = observed
        self._units = 0
        self._keeps = False  # whether its messages were there when it was mounted again
        self._cancelled: tuple[str, list[Message], str] | None = (
            None  # the call, what was stored before, and where
        )
        self._said: Message = {"role": "user", "content": "hello"}

    async def do(self, step: dict[str, Any], number: int) -> None:
        await getattr(self, f"_{step['do']}")(step, f"after step {number + 1}")

    async def _say(self, step: dict[str, Any], when: str) -> None:
        if await self._observed.add_all(self._messages(step)) and await self._observed.compare(
            "C3", when
        ):
            await self._observed.check_unlimited_view()

    _call = _again = _say

    async def _set(self, step: dict[str, Any], when: str) -> None:
        messages = [message for each in step["messages"] for message in self._messages(each)]
        if await self._observed.set(messages) and await self._observed.compare("C14", when):
            await self._observed.check_unlimited_view()

    async def _clear(self, step: dict[str, Any], when: str) -> None:
        if await self._observed.clear() and await self._observed.compare("C14", when):
            view = await self._observed.view(PLENTY)
            if view:
                self._observed.ctx.fault(
                    "C14", f"{when}, the view still shows {len(view)} messages"
                )

    async def _cancel(self, step: dict[str, Any], when: str) -> bool:
        """Cancel an operation: what is stored is what was there before it, or what it was to leave; return whether it came to that."""
        observed, what, before = self._observed, step["what"], self._observed.expected
        message = self._messages(
            {"do": "say", "role": "user", "content": step["content"], "extra": {}}
        )[0]
        call, done = _call_and_effect(what, message, before)
        with observed.ctx.watchdog(what=f"a cancelled {what}"):
            try:
                native = step.get("native", False)
                trial = await cancel_at(
                    step["at"], getattr(observed.context, what), *copy.deepcopy(call), native=native
                )
            except BaseException as error:  # noqa: BLE001 — foreign code; another check reports what leaves a cancelled call
                reraise_own_cancellation(error)
                return False
        stored = await observed.stored("A9")
        if stored is not None and difference(stored, done) is None:
            observed.expected = copy.deepcopy(list(done))
        elif stored is not None and (found := difference(stored, before)) is not None:
            clause = self._lost(what, stored, before)
            observed.ctx.fault(
                clause, f"{when}: {what} was cancelled, and {found}", cancelled_at=trial.where
            )
        self._cancelled = what, before, trial.where
        return bool(trial.fired) and not observed.has_faults

    async def _sweep_late_threads(self, step: dict[str, Any], when: str) -> None:
        """Cancel an operation whose threads begin late, write, and read when they have ended."""
        observed, ctx, what = self._observed, self._observed.ctx, step["what"]
        if await observed.set(_BASE, "C5"):
            await self._remount(step, when)
        for k in range(1, ctx.points + 1) if not observed.has_faults else ():
            fired = False
            for native in ctx.cancel_modes:
                if not (await observed.clear() and await observed.set(_BASE, "C5")):
                    return
                call, done = _call_and_effect(what, spoken(40, "user", 5), _BASE)
                with hold_threads() as held, ctx.watchdog(what=f"a cancelled {what}"):
                    try:
                        method = getattr(observed.context, what)
                        trial = await cancel_at(k, method, *copy.deepcopy(call), native=native)
                    except BaseException as error:  # noqa: BLE001 — as above
                        reraise_own_cancellation(error)
                        return
                if not trial.fired or not held.count:
                    break
                fired = True
                await self._write_before(held, what, done, trial.where, when)
                if observed.has_faults:
                    return
            if not fired:
                return

    async def _write_before(
        self, held: HeldThreads, what: str, done: list[Message], where: str, when: str
    ) -> None:
        """Write before late threads begin: afterwards that is stored behind the old or the new."""
        observed, later = self._observed, spoken(70, "user", 5)
        is_added = await observed.add(later, clause="A9")
        await held.let_go()
        stored = await observed.stored("A9") if is_added else None
        if stored is None:
            return
        possible = ([*_BASE, later], [*done, later])
        kept = next((each for each in possible if difference(stored, each) is None), None)
        if kept is None:
            found = difference(stored, possible[1])
            text = f"{when}: {what} was cancelled, add_message returned, a thread ended late, and {found}"
            observed.ctx.fault("A9", text, cancelled_at=where)
            return
        observed.expected = copy.deepcopy(kept)
        if self._keeps:
            self._cancelled = what, kept, where
            await self._remount({}, when)

    def _lost(self, what: str, stored: list[Any], before: list[Message]) -> str:
        """The clause that is broken: an acknowledged message is gone, or the state is half written."""
        replaces = what in ("set_messages", "clear")
        return "A9" if replaces or difference(stored[: len(before)], before) is None else "C5"

    async def _sweep(self, step: dict[str, Any], when: str) -> None:
        """Cancel an operation at each of its suspensions, and use the context afterwards, mounted again as well if it keeps its messages."""
        if step.get("late"):
            await self._sweep_late_threads(step, when)
            return
        observed, ctx = self._observed, self._observed.ctx
        observed.mounted.suspend_at(*_COMPACTIONS)
        if await observed.set(_BASE, "C5"):
            await self._remount(step, when)
        for k in range(1, ctx.points + 1) if not observed.has_faults else ():
            fired = False
            for native in ctx.cancel_modes:
                # Cleared first, because one that has read its messages from a file may keep these.
                if not (await observed.clear() and await observed.set(_BASE[:-1], "C5")):
                    return
                if not await observed.add(_BASE[-1], "C5"):
                    return
                cut = {"what": step["what"], "at": k, "native": native, "content": prose(40, 5)}
                if await self._cancel(cut, when):
                    fired = True
                    await self._use_again(step, when)
                if observed.has_faults:
                    return
            if not fired:
                return

    async def _use_again(self, step: dict[str, Any], when: str) -> None:
        """Look at a context after a cancelled call, by views, by adding, and by mounting it again."""
        observed, where = self._observed, self._cancelled[2] if self._cancelled else ""
        # To mount it again would heal what the cancelled call has broken.
        if self._keeps and not step.get("stays"):
            await self._remount(step, when)
        for budget in (PLENTY, _SMALL):
            view = None if observed.has_faults else await observed.view(budget)
            for _, what in () if view is None else view_violations(observed.expected, view):
                observed.ctx.fault(
                    "A9", f"{when}: {step['what']} was cancelled, and {what}", cancelled_at=where
                )
        if not observed.has_faults and await observed.add(spoken(70, "user", 5), clause="A9"):
            await observed.compare(
                "A9", f"{when}, after a cancelled {step['what']} and an add_message"
            )
            if self._keeps and not observed.has_faults:
                await self._remount(step, when)

    async def _remount(self, step: dict[str, Any], when: str) -> None:
        """Close it and mount it again: it holds everything, or nothing if it never keeps anything."""
        observed, before, mounted = self._observed, self._observed.expected, self._observed.mounted
        clause = "A9" if self._cancelled else "C3" if before else "C14"
        await mounted.close()
        mounted.is_cleaned = False
        mounted.coordinator = mounted.session.coordinator.view_for(
            OWNER
        )  # that of an undone module registers nothing
        observed.context = None
        with suppress(MountFailed):
            await mounted.mount(observed.ctx.loaded.config)
            observed.context = mounted.instance
        if not isinstance(observed.context, ContextManager):
            observed.ctx.fault(clause, f"{when}, it could not be mounted again in the same session")
            return
        stored = await observed.stored(clause)
        if stored is None or not (stored or self._keeps):
            observed.expected = []
            return
        self._keeps = True
        found = difference(stored, before)
        if found is not None:
            name, base, where = self._cancelled or ("", [], "")
            clause = (
                self._lost(name, stored, base)
                if name
                else "C14"
                if step.get("replaced")
                else clause
            )
            cancelled = f" after a cancelled {name}" if name else ""
            observed.ctx.fault(
                clause, f"{when}{cancelled}, mounted again, {found}", cancelled_at=where
            )

    async def _overwrite(self, step: dict[str, Any], when: str) -> None:
        observed = self._observed
        what = step["what"]
        if what == "given":
            for now, _ in observed.given:
                overwrite(now)
            observed.given.clear()
        elif what == "stored":
            overwrite(await observed.stored())
        else:
            overwrite(await observed.view(PLENTY if what == "view" else 20))
        changed = {"given": "what it was given", "stored": "what get_messages returned"}.get(
            what, "a view"
        )
        if await observed.compare("C4", f"{when}, when {changed} had been changed by its owner"):
            await observed.check_unlimited_view()

    async def _view(self, step: dict[str, Any], when: str) -> None:
        observed = self._observed
        before = await observed.stored()
        observed.check_view(await observed.view(step["budget"]))
        if (
            not observed.has_faults
            and await observed.compare("C6", when)
            and before != await observed.stored()
        ):
            observed.ctx.fault(
                "C6", f"{when}, what is stored is not what it was: to ask for a view has changed it"
            )

    async def _burst(self, step: dict[str, Any], when: str) -> None:
        """Add several messages at the same time; all have to be stored."""
        observed, count = self._observed, step["count"]
        added = [spoken((self._units + number) * 10, "user", 4) for number in range(1, count + 1)]
        self._units += count
        failed: list[str] = []

        async def add(message: Message) -> None:
            call = observed.mounted.call(
                observed.context.add_message, copy.deepcopy(message), seconds=PATIENCE
            )
            if not (outcome := await call).returned:
                failed.append(f"add_message {outcome}, called from {count} tasks at once")

        async with anyio.create_task_group() as group:
            for message in added:
                group.start_soon(add, message)
        stored = None if failed else await observed.stored("C15")
        if stored is not None:
            tail = stored[len(observed.expected) :]
            found = difference(stored[: len(observed.expected)], observed.expected)
            if found is None and len(tail) != count:
                found = (
                    f"of {count} messages added from {count} tasks at once {len(tail)} are there"
                )
            elif found is None and not all(
                any(holds(one, message) for one in tail) for message in added
            ):
                found = "a message added beside others is lost"
            failed += [] if found is None else [found]
            observed.expected += copy.deepcopy(tail)
        for what in failed[:1]:
            observed.ctx.fault("C15", f"{when}, {what}")

    def _messages(self, step: dict[str, Any]) -> list[Message]:
        self._units += 1
        if step["do"] == "call":
            content = copy.deepcopy(step["content"])
            more = {"between": step["between"], "blocks": step.get("blocks", False)}
            return tool_turn(self._units * 10, step["calls"], 3, content=content, **more)
        if step["do"] == "say":
            self._said = {"role": step["role"], "content": step["content"], **step["extra"]}
        return [copy.deepcopy(self._said)]


@check("C15", kind="behaviour", types=_CONTEXT)
async def takes_many_at_once(ctx: CheckContext) -> None:
    """Requests views and replaces the conversation from several tasks at once; no view and no conversation may be a mixture."""
    for placed in (True, False):
        async with observe_context(ctx, placed=placed) as observed:
            if observed is None:
                return
            observed.mounted.suspend_at(*_COMPACTIONS)
            if not await observed.add_all(
                [spoken(number * 10, "user", 30) for number in range(60)], clause="C15"
            ):
                return
            await _view_concurrently(observed)
            if not observed.has_faults:
                await _add_beside_a_view(observed)
            if not observed.has_faults:
                await _replace_concurrently(observed)
        if ctx.faults or ctx.loaded.config == ctx.loaded.given:
            return


async def _view_concurrently(observed: ObservedContext) -> None:
    """Request views of several sizes in turn and then concurrently: each has to be the same."""
    budgets = (200, 1000, PLENTY, 500)
    alone = [[await observed.view(budget) for budget in budgets] for _ in range(2)]
    together: list[Any] = [None] * len(budgets)

    async def request(number: int) -> None:
        together[number] = await observed.view(budgets[number])

    async with anyio.create_task_group() as group:
        for number in range(len(budgets)):
            group.start_soon(request, number)
    for budget, once, again, beside in zip(budgets, *alone, together, strict=True):
        first, second, third = (marks(view) for view in (once, again, beside))
        if first == second != third and beside is not None:
            what = (
                f"{len(third)} messages instead of the {len(first)} that it shows when asked alone"
            )
            observed.ctx.fault(
                "C15", f"a view for {budget} tokens, asked for beside others, shows {what}"
            )
            return


async def _add_beside_a_view(observed: ObservedContext) -> None:
    """Store a message while a view is being made: later views show it."""
    for steps in range(8):
        newest = spoken(1000 + steps, "user", 5)
        if not await observed.add(
            spoken(1100 + steps, "user", 5), "C15"
        ):  # so that no remembered view fits
            return
        async with anyio.create_task_group() as group:
            group.start_soon(observed.view, 200)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            group.start_soon(observed.add, newest, "C15")
        view = await observed.view(200)
        if view is not None and not observed.has_faults and marks([newest])[0] not in marks(view):
            observed.ctx.fault(
                "C15",
                "a message that was stored while a view was made is not in the views after that",
            )
            return


async def _replace_concurrently(observed: ObservedContext) -> None:
    one = [spoken(100 + number, "user", 5) for number in range(6)]
    other = [spoken(200 + number, "assistant", 5) for number in range(4)]
    async with anyio.create_task_group() as group:
        for messages in (one, other):
            group.start_soon(
                observed.mounted.call, observed.context.set_messages, copy.deepcopy(messages)
            )
    stored = await observed.stored("C15")
    if stored is None:
        return
    if difference(stored, one) is not None and difference(stored, other) is not None:
        observed.ctx.fault(
            "C15",
            f"two set_messages at once left {len(stored)} messages, neither the ones nor the others",
        )
        return
    observed.expected = one if difference(stored, one) is None else other
    await observed.add(spoken(300, "user", 5), clause="C15")
    await observed.compare("C15", "after two set_messages at once and an add_message")


@check("C3", kind="behaviour", types=_CONTEXT, on=observe_context)
async def keeps_a_thousand(observed: ObservedContext) -> None:
    """Stores well over a thousand messages, some very long, by set_messages and then by add_message, and compares them."""
    many = [spoken(number, "user" if number % 2 else "assistant", 4) for number in range(2500)]
    many[7]["content"] = prose(7, 60_000)
    long = [
        *tool_turn(2600, 2, 30_000),
        spoken(2700, "system", 30_000),
        spoken(2800, "assistant", 30_000),
    ]
    if await observed.set(many, clause="C3") and await observed.add_all(long):
        await observed.compare("C3", f"after {len(observed.expected)} messages")


@check("C19", "C3", kind="behaviour", types=_CONTEXT, on=observe_context)
async def refuses_what_has_no_role(observed: ObservedContext) -> None:
    """Adds a message without a role, which should raise a ValueError and not be stored."""
    ctx = observed.ctx
    outcome = await observed.mounted.call(
        observed.context.add_message, {"content": "without a role"}
    )
    if outcome.returned:
        ctx.fault("C19", "a message without a role was accepted")
    elif not isinstance(outcome.error, ValueError):
        ctx.fault(
            "C19", f"a message without a role {outcome}; expected a ValueError", error=outcome.error
        )
    stored = None if outcome.returned else await observed.stored()
    if stored:
        ctx.fault("C19", "a message without a role was refused, and stored all the same")
    elif stored is not None and await observed.add(spoken(10, "user", 3)):
        await observed.compare("C3", "after a message that was refused")


# ── compacted views ──


@check(
    "C6", "C7", "C8", "C9", "C10", "C11", "C12", "C17",
    kind="behaviour", types=_CONTEXT, inputs="long_conversations", on=observe_context,
)  # fmt: skip
async def shows_what_fits(observed: ObservedContext) -> None:
    """Requests views of long conversations with budgets for a fraction of them, and checks their content and size."""
    ctx = observed.ctx
    history, budget = _long_conversation(ctx.case)
    # Adding messages one by one to a file takes long.
    is_file = ctx.case["placed"] and ctx.loaded.config != ctx.loaded.given
    how = "both" if is_file else ctx.case["how"]
    at = {"add": 0, "set": len(history), "both": len(history) - 10}[how]
    # A message that set_messages replaces must not count.
    if how != "add" and not (
        await observed.add(spoken(1, "user", 3)) and await observed.set(history[:at])
    ):
        return
    if not await observed.add_all(history[at:]):
        return
    if not await observed.compare("C3", f"after storing {len(history)} messages"):
        return
    before = await observed.view(PLENTY)
    view: list[dict[str, Any]] | None = None
    for _ in range(ctx.case["again"]):
        view = await observed.view(budget)
        observed.check_view(view, budget)
        if view is None or ctx.faults:
            return
    _check_events(observed, view)
    if await observed.compare("C6", "after a compacted view"):
        after = await observed.view(PLENTY)
        if is_whole(history, before) and not is_whole(history, after):
            ctx.fault(
                "C6",
                "a budget for everything, asked for after a small one, no longer shows everything",
            )


def _long_conversation(case: dict[str, Any]) -> tuple[list[Message], int]:
    """The conversation of a case, and a budget for the given number of its units."""
    units = list(itertools.islice(itertools.cycle(case["pattern"]), case["count"]))
    history = [spoken(0, "user", 20), *built(units, first=1)]
    last = len(units) + 1
    newest = spoken(last * 10, "user", case.get("newest", 20))
    history += [newest] if case["ends"] == "user" else tool_turn(last * 10, 2, 10)
    for at in range(5, len(history) - 8, 9) if case["echo"] else ():
        if history[at]["role"] == "user":
            history[at] = {"role": "user", "content": "go on"}  # equal messages must be kept, too
    for number, at in enumerate(sorted(case["systems"])):
        history.insert(at % (len(history) - 3), spoken(9000 + number, "system", 10))
    must = [history[at] for at in newest_unit(history)] + [
        m for m in history if m["role"] == "system"
    ]
    budget = max(case["units"] * tokens(history) // len(units), 3 * tokens(must) + 100)
    if case["huge"] is not None:
        _enlarge(history, case["huge"], budget)
    return history, budget


def _enlarge(history: list[Message], role: str, budget: int) -> None:
    """Make an older message of a role far larger than the budget: the last one that does not fit into it."""
    taken = 0
    for at in range(len(history) - 1, 0, -1):
        taken += tokens([history[at]])
        if history[at]["role"] == role and taken * 2 > budget and at not in newest_unit(history):
            number = int((mark_of(history[at]) or "m0")[1:])
            history[at]["content"] = prose(number, 12 * budget)
            return


def _check_events(observed: ObservedContext, view: Any) -> None:
    if is_whole(observed.expected, view):
        return
    for name in ("context:pre_compact", "context:post_compact"):
        emitted = observed.mounted.events.get_events(name)
        if not emitted:
            observed.ctx.fault("C17", f"a view was compacted, and {name} was not emitted")
            return
        missing = [
            key
            for key in ("message_count", "token_count")
            if not isinstance(emitted[-1][1].get(key), int)
        ]
        if missing:
            observed.ctx.fault("C17", f"{name} was emitted without {missing[0]!r}")
            return


@check("C13", kind="behaviour", types=_CONTEXT, on=observe_context)
async def takes_messages_without_content(observed: ObservedContext) -> None:
    """Requests a small view of a conversation whose newest message has no content; what the view shows of it is not checked."""
    history = [
        *(spoken(number * 10, "user", 30) for number in range(1, 21)),
        {"role": "assistant", "content": None},
    ]
    if await observed.set(history):
        await observed.view(400)
        observed.ctx.fill_input({"token_budget": 400, "messages": history})


@check("C8", kind="behaviour", types=_CONTEXT)
async def counts_blocks(ctx: CheckContext) -> None:
    """Requests small views of conversations whose words are in content blocks: of the user, and of tools' results."""
    said: list[Message] = [
        {"role": "user", "content": [{"type": "text", "text": prose(number, 100)}]}
        for number in range(60)
    ]
    results = [
        each for number in range(1, 61) for each in tool_turn(number * 10 + 1, 1, 150, blocks=True)
    ]
    for history in (said, results):
        async with observe_context(ctx) as observed:
            if observed is not None and await observed.set(history):
                budget = tokens(history) // 8
                observed.check_view(await observed.view(budget), budget, ("C8",))


@check("C8", kind="behaviour", types=_CONTEXT)
async def asks_the_provider(ctx: CheckContext) -> None:
    """Requests views for providers with windows of several sizes, and with an explicit budget beside a large window."""
    for window, output, count, words in (
        (200_000, 150_000, 100, 1500),
        (20_000, 10_000, 80, 500),
        (9_000, 6_000, 80, 200),
    ):
        async with observe_context(ctx) as observed:
            if observed is None:
                return
            if not await observed.set([spoken(number, "user", words) for number in range(count)]):
                return
            # A large window first: the context has to ask for the window anew each time.
            await observed.view(provider=Window(10 * window, output))
            budget = window - output
            observed.check_view(
                await observed.view(provider=Window(window, output)), budget, ("C7", "C8")
            )
            if not ctx.faults:
                view = await observed.view(budget // 4, provider=Window(10 * window, output))
                observed.check_view(view, budget // 4, ("C7", "C8"))
        if ctx.faults:
            return
    async with observe_context(ctx) as observed:
        if observed is not None:
            await observed.add_all([spoken(number, "user", 5) for number in range(4)])
            await observed.view(provider=Window())  # a provider need not report its window


@check("C20", kind="behaviour", types=_CONTEXT, on=observe_context)
async def keeps_its_beginning(observed: ObservedContext) -> None:
    """Requests views of a growing conversation that fits, twice after each message, and of one that does not, twice."""
    history = [
        spoken(1, "system", 10),
        *built([{"role": "user", "words": 8}, {"calls": 2, "words": 6}] * 4, first=1),
    ]
    ctx, before = observed.ctx, list[Any]()
    for number, message in enumerate(history, 1):
        if not await observed.add(message):
            return
        view, again = await observed.view(PLENTY), await observed.view(PLENTY)
        if view is None or again is None:
            return
        if view != again:
            ctx.fault("C20", f"two views of the same {number} messages differ")
        elif view[: len(before)] != before:
            ctx.fault(
                "C20",
                f"the view of {number} messages does not begin with that of {number - 1}, and both fit",
            )
        if ctx.faults:
            return
        before = view
    small = tokens(history) // 3
    if await observed.view(small) != await observed.view(small):
        ctx.fault("C20", "two compacted views of the same messages differ")


_AWAY = ProviderUnavailableError("this provider is away", provider=Window.name)


@check("C21", kind="behaviour", types=_CONTEXT, on=observe_context)
async def needs_no_summary(observed: ObservedContext) -> None:
    """Requests a view that has to be compacted, for a provider that refuses to answer."""
    if not await observed.set([spoken(number, "user", 200) for number in range(80)]):
        return
    away = Window(9_000, 6_000, _AWAY)
    outcome = await observed.mounted.call(observed.context.get_messages_for_request, provider=away)
    if outcome.returned:
        await observed.compare("C6", "after a request for which the provider did not answer")
        return
    what = f"get_messages_for_request {outcome}, because the provider does not answer"
    observed.ctx.fault("C21", what, error=outcome.error)


_ANSWERS = (
    "A summary.",
    "",
    "and so on and on " * 20_000,
    f"A summary of {prose(7, 60)}.",
    ConnectionResetError("the connection was reset"),
)
"""What a provider answers that is asked for a summary."""


@check("C7", "C8", "C14", "C21", kind="behaviour", types=_CONTEXT)
async def copes_with_summaries(ctx: CheckContext) -> None:
    """Requests views for providers that answer briefly, at length, with nothing or not at all, and again after another conversation of the same size."""
    for answer in _ANSWERS:
        async with observe_context(ctx) as observed:
            if observed is None:
                return
            provider = Window(9_000, 6_000, answer)
            old, new = (
                [spoken(first + number, "user", 100) for number in range(100)]
                for first in (1_000, 2_000)
            )
            view: Any = None
            for history in (old, new):
                if not await observed.set(history):
                    return
                outcome = await observed.mounted.call(
                    observed.context.get_messages_for_request, provider=provider
                )
                if not outcome.returned:
                    clause = "C7" if isinstance(answer, str) else "C21"
                    what = (
                        f"get_messages_for_request {outcome}, for a provider that {_does(answer)}"
                    )
                    ctx.fault(clause, what, error=outcome.error)
                    return
                view = outcome.value
                observed.check_view(view, 3_000, ("C7", "C8"))
                if not ctx.faults and total_size(view) > MAX_CHARACTERS_PER_TOKEN * 3_000:
                    size = total_size(view) // CHARACTERS_PER_TOKEN
                    what = f"the view takes about {size} tokens, for a budget of 3000 and a provider that {_does(answer)}"
                    ctx.fault("C8", what)
                if ctx.faults:
                    return
            text = json.dumps(view, default=repr)
            left = [mark for mark in map(mark_of, old) if mark is not None and mark in text]
            if left:
                what = f"after set_messages the view shows {left[0]!r}, of the messages before"
                ctx.fault("C14", what)
                return


def _does(answer: str | Exception) -> str:
    if isinstance(answer, Exception):
        return f"raises {type(answer).__name__}"
    return f"answers with {len(answer)} characters"


_BUDGETS = (1_200, 2_000, 3_000)
_MORE_FOR_INSTRUCTIONS = 1.3


@check("C8", kind="behaviour", types=_CONTEXT)
async def counts_instructions(ctx: CheckContext) -> None:
    """Requests views of conversations in which long messages are instructions, and of the same words from a user: what instructions take, others leave."""
    for budget in _BUDGETS:
        sizes = []
        must = 0
        for role in ("user", "system"):
            history = [
                spoken(1, "user", 20),
                spoken(2, role, 400),
                *(spoken(number, "user", 20) for number in range(10, 160)),
                spoken(200, role, 400),
                *(spoken(number, "user", 20) for number in range(300, 306)),
            ]
            async with observe_context(ctx) as observed:
                if observed is None or not await observed.set(history):
                    return
                view = await observed.view(budget)
            if not isinstance(view, list):
                return
            sizes.append(total_size(view))
            # The instructions alone may be most of the budget.
            must = total_size(each for each in history if each["role"] == "system")
        plain, with_instructions = sizes
        if with_instructions > _MORE_FOR_INSTRUCTIONS * max(plain, must) + 200:
            what = f"for a budget of {budget} the view with long instructions takes {with_instructions} characters"
            ctx.fault("C8", f"{what}; with the same words from a user it takes {plain}")
            return


@check("C9", kind="behaviour", types=_CONTEXT, on=observe_context)
async def keeps_blocks_together(observed: ObservedContext) -> None:
    """Requests views of a conversation whose calls are content blocks alone, with many budgets."""
    history = [spoken(1, "user", 10)]
    for number in range(1, 16):
        history += call_blocks(number * 10, 1 + number % 3, 12 + number)
        if number % 4 == 0:
            history.append(spoken(number * 10 + 8, "user", 9))
    if not await observed.set(history):
        return
    for share in range(2, 20):
        budget = tokens(history) * share // 14 + 60
        observed.check_view(await observed.view(budget), None, ("C9",))
        if observed.has_faults:
            return


def _forms() -> list[Message]:
    """Return a message of each form that is documented, and texts that are equal to others only by sight."""
    call = {
        "type": "tool_call",
        "id": "call-1",
        "name": "look",
        "input": {"text": "é", "n": [None]},
    }
    result = {"type": "tool_result", "tool_call_id": "call-1", "output": {"seen": [1, None]}}
    image = {"type": "base64", "media_type": "image/png", "data": "aGk="}
    return [
        {"role": "user", "content": "cafe\u0301 A\u030a"},
        {"role": "user", "content": "caf\u00e9 \u212b \ufb01"},
        {"role": "user", "content": "later", "timestamp": "2031-01-02T03:04:05+00:00"},
        {"role": "assistant", "content": "earlier", "timestamp": "2001-01-02T03:04:05Z"},
        {"role": "user", "content": "without a time"},
        {"role": "user", "content": "a number", "timestamp": 12.5, "id": "a", "index": 3},
        {
            "role": "user",
            "content": [{"type": "text", "text": "e\u0301"}, {"type": "image", "source": image}],
        },
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                {"type": "redacted_thinking", "data": "aGlkZGVu"},
                {"type": "text", "text": "so", "visibility": "internal"},
                call,
            ],
        },
        {"role": "tool", "tool_call_id": "call-1", "content": [result]},
        {"role": "assistant", "content": [{"type": "newfangled", "part": [1, {"deep": None}]}]},
        {"role": "user", "content": "tab\tbell\x07 \x85 \u2028 \u2029 \x1c end"},
    ]


@check("C3", "C14", kind="behaviour", types=_CONTEXT)
async def keeps_every_form(ctx: CheckContext) -> None:
    """Stores messages of every documented form one by one, then all in another order, and compares them."""
    for placed in (True, False):
        async with observe_context(ctx, placed=placed) as observed:
            if observed is None:
                return
            for message in _forms():
                if not await observed.add(message) or not await observed.compare(
                    "C3", "after add_message"
                ):
                    ctx.fill_input(message)
                    return
            if await observed.set(_forms()[::-1]):
                await observed.compare("C14", "after set_messages in another order")
        if ctx.faults or ctx.loaded.config == ctx.loaded.given:
            return


@check("C22", kind="behaviour", types=_CONTEXT, on=observe_context)
async def keeps_the_request(observed: ObservedContext) -> None:
    """Requests a small view of a long conversation whose newest request is followed by tool calls, with room for all of these."""
    newest = [spoken(800, "user", 60), *tool_turn(810, 2, 20), *tool_turn(850, 1, 20)]
    if not await observed.set([*(spoken(at, "user", 60) for at in range(60)), *newest]):
        return
    view = await observed.view(4 * tokens(newest))
    if view is not None and not any(
        message.get("content") == newest[0]["content"] for message in view
    ):
        what = "a view with room for the newest request and all after it does not show it word for word"
        observed.ctx.fault("C22", what)


@check("C18", kind="structure", types=_CONTEXT)
async def can_be_configured(ctx: CheckContext) -> None:
    """Reads in the source whether mount uses its configuration."""
    found = ctx.loaded.target.definition(ctx.loaded.target.attribute)
    node = None if found is None else found.node
    if found is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    arguments = [*node.args.posonlyargs, *node.args.args]
    if len(arguments) < 2 or node.args.vararg is not None:
        return
    name = arguments[1].arg
    if not any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node)):
        ctx.fault(
            "C18",
            "mount reads nothing of its configuration, so no limit can be set",
            location=found.location,
        )
