"""Check contexts: stored messages, concurrent and cancelled calls, and compacted views."""

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

# A plain list holds the expected messages, and the stored ones are compared with it after each
# step. Every call has a deadline.
#
# Contexts count tokens in their own way. So every budget is far too small or far too large for the
# stored messages.

PLENTY = 10_000_000
"""A budget into which everything fits."""
_MAX_SHORT = 12
"""Number of short messages that should fit every window."""
_MAX_DEFAULT_MESSAGES, _MAX_DEFAULT_TOKENS = 4, 100
"""Size of a conversation that has to fit even without a budget."""


class ObservedContext:
    """A context with the messages that it should hold.

    Attributes:
        ctx: The check.
        mounted: The mounted module.
        context: The module's instance.
        expected: The messages that it should hold.
        arguments: Every argument that it received, with a copy made before the call.
    """

    def __init__(self, ctx: CheckContext, mounted: MountedModule) -> None:
        self.ctx = ctx
        self.mounted = mounted
        self.context: Any = mounted.instance
        self.expected: list[Message] = []
        self.arguments: list[tuple[Any, Any]] = []

    @property
    def has_faults(self) -> bool:
        """Whether any fault was reported."""
        return bool(self.ctx.faults)

    async def add(self, message: Message, clause: str = "C3") -> bool:
        """Add a message, and return whether that worked."""
        clause = "C13" if message.get("content", "") is None else clause
        if is_done := await self._do(clause, "add_message", message):
            self.expected.append(copy.deepcopy(message))
        return is_done

    async def add_all(self, messages: Sequence[Message], clause: str = "C3") -> bool:
        """Add messages up to the first that fails, and return whether all worked."""
        for message in messages:
            if not await self.add(message, clause):
                return False
        return True

    async def set(self, messages: Sequence[Message], clause: str = "C14") -> bool:
        """Replace all messages, and return whether that worked."""
        if is_done := await self._do(clause, "set_messages", list(messages)):
            self.expected = copy.deepcopy(list(messages))
        return is_done

    async def clear(self) -> bool:
        """Remove all messages, and return whether that worked."""
        if is_done := await self._do("C14", "clear"):
            self.expected = []
        return is_done

    async def _do(self, clause: str, name: str, *arguments: Any) -> bool:
        method = getattr(self.context, name)
        outcome = await self.mounted.call(method, *map(self._watched, arguments))
        return self._worked(outcome, name, clause, *arguments)

    async def stored(self, clause: str = "C6") -> Any:
        """Return the result of get_messages, or None if it fails."""
        outcome = await self.mounted.call(self.context.get_messages)
        return outcome.value if self._worked(outcome, "get_messages", clause) else None

    async def view(self, budget: int | None = None, **more: Any) -> Any:
        """Return the result of get_messages_for_request, or None if it fails.

        A context may refuse a budget that is too small for the required messages.
        """
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
        """Compare the stored messages with the expected ones, and return whether they are equal."""
        stored = await self.stored(clause)
        if stored is None:
            return False
        fault = difference(stored, self.expected)
        if fault is not None:
            self.ctx.fault(clause, f"{when}, {fault}")
        return fault is None

    def expect_untouched(self) -> None:
        """Report an argument that the context has changed."""
        for now, before in self.arguments:
            if now != before:
                self.ctx.fault(
                    "C4", f"it changed its argument: {shortened(before)} became {shortened(now)}"
                )
                return

    def check_view(self, view: Any, budget: int | None = None, clauses: Sequence[str] = ()) -> None:
        """Report the faults of a view of the expected messages. None means that the view failed."""
        for clause, what in () if view is None else view_violations(self.expected, view, budget):
            if not clauses or clause in clauses:
                self.ctx.fault(clause, what)

    async def check_unlimited_view(self) -> None:
        """Report a short conversation that is not shown whole, with a large budget or none."""
        view = await self.view(PLENTY)
        self.check_view(view)
        count = len(self.expected)
        is_short = view is not None and count <= _MAX_SHORT
        if is_short and not self.has_faults and not is_whole(self.expected, view):
            what = f"of {count} short messages the view shows {len(view)}, or shows them changed"
            self.ctx.fault("C16", f"{what}, with a budget of {PLENTY} tokens")
        if (
            0 < count <= _MAX_DEFAULT_MESSAGES
            and tokens(self.expected) < _MAX_DEFAULT_TOKENS
            and not self.has_faults
        ):
            view = await self.view()
            if view is not None and not is_whole(self.expected, view):
                what = f"of {count} short messages the view without a budget shows {len(view)}"
                self.ctx.fault("C16", f"{what}, or shows them changed")

    def _watched(self, value: Any) -> Any:
        own = copy.deepcopy(value)
        self.arguments.append((own, copy.deepcopy(value)))
        return own

    def _worked(self, outcome: Outcome, name: str, clause: str, argument: Any = None) -> bool:
        if outcome.returned:
            return True
        about = "" if argument is None else f" of {shortened(argument)}"
        self.ctx.fault(clause, f"{name}{about} {outcome}", error=outcome.error)
        return False

    def _is_hopeless(self, budget: int | None) -> bool:
        """Return whether the budget hardly holds the messages that a view must contain."""
        unit = newest_unit(self.expected)
        required = [
            message
            for at, message in enumerate(self.expected)
            if at in unit or message["role"] == "system"
        ]
        return budget is not None and budget < 3 * (tokens(required) + 10 * len(required))


@asynccontextmanager
async def observe_context(
    ctx: CheckContext, *, placed: bool | None = None
) -> AsyncIterator[ObservedContext | None]:
    """Mount a fresh context, and return it, or None if mount returned none.

    Args:
        ctx: The check.
        placed: True lets the context keep files, if it can. None means the value of the case, or
            True for a check without cases.
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
    """A complete provider with a context window, which gives the same answer to every request.

    Args:
        window: The tokens of its context window, or None for a provider that does not report it.
        output: The tokens of an answer.
        answer: The text of each answer, or the error that is raised instead.
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
        """Return the context window and the output limit as the only defaults."""
        return ProviderInfo(id="window", display_name="Window", defaults=dict(self._defaults))

    async def list_models(self) -> list[ModelInfo]:
        """Return no model."""
        return []

    async def complete(self, request: Any, **kwargs: Any) -> ChatResponse:
        """Return the answer, or raise the error."""
        await anyio.lowlevel.checkpoint()
        if isinstance(self._answer, Exception):
            raise self._answer
        usage = Usage(input_tokens=3, output_tokens=2, total_tokens=5)
        return ChatResponse(content=[TextBlock(text=self._answer)], usage=usage)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        """Return no call."""
        return []


def overwrite(value: Any) -> None:
    """Change every dict and list in a value."""
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
_CONCURRENT_CALL_SECONDS = 12.0
"""Deadline of a call that runs alongside many others on a busy machine."""


@check("C1", kind="structure", types=_CONTEXT, on=with_instance)
async def has_five_methods(mounted: MountedModule) -> None:
    """Call each of the five methods, which have to be async, with the arguments of the contract."""
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
    """Run programs of operations against a plain list, and compare both after every step."""
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
    name: str, message: Message, before: list[Message]
) -> tuple[tuple[Any, ...], list[Message]]:
    """Return the arguments of a method, and the messages that are stored after its call."""
    return {
        "add_message": ((message,), [*before, message]),
        "set_messages": (([message, *_OTHERS],), [message, *_OTHERS]),
        "clear": ((), []),
        "get_messages_for_request": ((_SMALL,), before),
    }[name]


class _Program:
    """Runs the steps of one program, and checks the clauses that each may break."""

    def __init__(self, observed: ObservedContext) -> None:
        self._observed = observed
        self._units = 0
        # True if the context still had its messages when it was mounted again.
        self._keeps = False
        # The last cancelled method, the messages stored before it, and the place in the code.
        self._cancelled: tuple[str, list[Message], str] | None = None
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
        messages = [message for part in step["messages"] for message in self._messages(part)]
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
        """Cancel an operation, and return whether the cancellation was delivered without a fault.

        The stored messages have to be those before the operation, or those after it.
        """
        observed, name, before = self._observed, step["what"], self._observed.expected
        message = self._messages(
            {"do": "say", "role": "user", "content": step["content"], "extra": {}}
        )[0]
        arguments, after = _call_and_effect(name, message, before)
        with observed.ctx.watchdog(what=f"a cancelled {name}"):
            try:
                method, native = getattr(observed.context, name), step.get("native", False)
                trial = await cancel_at(
                    step["at"], method, *copy.deepcopy(arguments), native=native
                )
            # Foreign code may raise anything, which another check reports.
            except BaseException as error:  # noqa: BLE001
                reraise_own_cancellation(error)
                return False
        stored = await observed.stored("A9")
        if stored is not None and difference(stored, after) is None:
            observed.expected = copy.deepcopy(list(after))
        elif stored is not None and (fault := difference(stored, before)) is not None:
            clause = self._broken_clause(name, stored, before)
            observed.ctx.fault(
                clause, f"{when}: {name} was cancelled, and {fault}", cancelled_at=trial.where
            )
        self._cancelled = name, before, trial.where
        return bool(trial.fired) and not observed.has_faults

    async def _sweep_late_threads(self, step: dict[str, Any], when: str) -> None:
        """Cancel an operation whose threads start late, and write before they start."""
        observed, ctx, name = self._observed, self._observed.ctx, step["what"]
        if await observed.set(_BASE, "C5"):
            await self._remount(step, when)
        for k in range(1, ctx.points + 1) if not observed.has_faults else ():
            fired = False
            for native in ctx.cancel_modes:
                if not (await observed.clear() and await observed.set(_BASE, "C5")):
                    return
                arguments, after = _call_and_effect(name, spoken(40, "user", 5), _BASE)
                with hold_threads() as held, ctx.watchdog(what=f"a cancelled {name}"):
                    try:
                        method = getattr(observed.context, name)
                        trial = await cancel_at(k, method, *copy.deepcopy(arguments), native=native)
                    # Foreign code may raise anything, which another check reports.
                    except BaseException as error:  # noqa: BLE001
                        reraise_own_cancellation(error)
                        return
                if not trial.fired or not held.count:
                    break
                fired = True
                await self._write_before(held, name, after, trial.where, when)
                if observed.has_faults:
                    return
            if not fired:
                return

    async def _write_before(
        self, held: HeldThreads, name: str, after: list[Message], where: str, when: str
    ) -> None:
        """Add a message before late threads start.

        It has to be stored after the messages from before the cancelled call, or from after it.
        """
        observed, later = self._observed, spoken(70, "user", 5)
        is_added = await observed.add(later, clause="A9")
        await held.let_go()
        stored = await observed.stored("A9") if is_added else None
        if stored is None:
            return
        possible = ([*_BASE, later], [*after, later])
        kept = next((state for state in possible if difference(stored, state) is None), None)
        if kept is None:
            fault = difference(stored, possible[1])
            text = f"{when}: {name} was cancelled, add_message returned, a thread ended late"
            observed.ctx.fault("A9", f"{text}, and {fault}", cancelled_at=where)
            return
        observed.expected = copy.deepcopy(kept)
        if self._keeps:
            self._cancelled = name, kept, where
            await self._remount({}, when)

    def _broken_clause(self, name: str, stored: list[Any], before: list[Message]) -> str:
        """Return the clause about lost messages, or that about a half-written state."""
        replaces = name in ("set_messages", "clear")
        return "A9" if replaces or difference(stored[: len(before)], before) is None else "C5"

    async def _sweep(self, step: dict[str, Any], when: str) -> None:
        """Cancel an operation at each of its suspensions, and use the context afterwards.

        A context that keeps its messages is also mounted again.
        """
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
                # A context that has read its messages from a file may keep them, so clear it first.
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
        """Read views after a cancelled call, add a message, and mount the context again."""
        observed, where = self._observed, self._cancelled[2] if self._cancelled else ""
        # A new mount would repair a state that the cancelled call has broken.
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
        """Close the context and mount it again.

        It has to hold everything, or nothing if it never keeps messages.
        """
        observed, before, mounted = self._observed, self._observed.expected, self._observed.mounted
        clause = "A9" if self._cancelled else "C3" if before else "C14"
        await mounted.close()
        mounted.is_cleaned = False
        # The view of a closed module registers nothing, so it needs a new one.
        mounted.coordinator = mounted.session.coordinator.view_for(OWNER)
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
        fault = difference(stored, before)
        if fault is not None:
            name, base, where = self._cancelled or ("", [], "")
            if name:
                clause = self._broken_clause(name, stored, base)
            elif step.get("replaced"):
                clause = "C14"
            cancelled = f" after a cancelled {name}" if name else ""
            observed.ctx.fault(
                clause, f"{when}{cancelled}, mounted again, {fault}", cancelled_at=where
            )

    async def _overwrite(self, step: dict[str, Any], when: str) -> None:
        observed = self._observed
        target = step["what"]
        if target == "given":
            for now, _ in observed.arguments:
                overwrite(now)
            observed.arguments.clear()
        elif target == "stored":
            overwrite(await observed.stored())
        else:
            overwrite(await observed.view(PLENTY if target == "view" else 20))
        changed = {"given": "its argument", "stored": "the result of get_messages"}.get(
            target, "a view"
        )
        if await observed.compare("C4", f"{when}, when the caller had changed {changed}"):
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
            observed.ctx.fault("C6", f"{when}, a request for a view changed the stored messages")

    async def _burst(self, step: dict[str, Any], when: str) -> None:
        """Add several messages concurrently, all of which have to be stored."""
        observed, count = self._observed, step["count"]
        added = [spoken((self._units + number) * 10, "user", 4) for number in range(1, count + 1)]
        self._units += count
        failed: list[str] = []

        async def add(message: Message) -> None:
            call = observed.mounted.call(
                observed.context.add_message,
                copy.deepcopy(message),
                seconds=_CONCURRENT_CALL_SECONDS,
            )
            if not (outcome := await call).returned:
                failed.append(f"add_message {outcome}, called from {count} tasks at once")

        async with anyio.create_task_group() as group:
            for message in added:
                group.start_soon(add, message)
        stored = None if failed else await observed.stored("C15")
        if stored is not None:
            tail = stored[len(observed.expected) :]
            fault = difference(stored[: len(observed.expected)], observed.expected)
            if fault is None and len(tail) != count:
                fault = (
                    f"of {count} messages added from {count} tasks at once {len(tail)} are there"
                )
            elif fault is None and not all(
                any(holds(one, message) for one in tail) for message in added
            ):
                fault = "a message added beside others is lost"
            failed += [] if fault is None else [fault]
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
    """Request views and replace the conversation from several tasks at once.

    Neither a view nor a conversation may be a mixture.
    """
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
    """Request views of several sizes in turn and then concurrently, with the same results."""
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
            what = f"a view for {budget} tokens, requested beside others, shows {len(third)}"
            observed.ctx.fault(
                "C15", f"{what} messages instead of the {len(first)} that it shows alone"
            )
            return


async def _add_beside_a_view(observed: ObservedContext) -> None:
    """Store a message while a view is being built, and expect it in later views."""
    for steps in range(8):
        newest = spoken(1000 + steps, "user", 5)
        # After one more message no remembered view fits.
        if not await observed.add(spoken(1100 + steps, "user", 5), "C15"):
            return
        async with anyio.create_task_group() as group:
            group.start_soon(observed.view, 200)
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            group.start_soon(observed.add, newest, "C15")
        view = await observed.view(200)
        if view is not None and not observed.has_faults and marks([newest])[0] not in marks(view):
            observed.ctx.fault(
                "C15", "a message that was stored while a view was built is not in later views"
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
        what = f"two set_messages at once left {len(stored)} messages"
        observed.ctx.fault("C15", f"{what}, which are those of neither call")
        return
    observed.expected = one if difference(stored, one) is None else other
    await observed.add(spoken(300, "user", 5), clause="C15")
    await observed.compare("C15", "after two set_messages at once and an add_message")


@check("C3", kind="behaviour", types=_CONTEXT, on=observe_context)
async def keeps_a_thousand(observed: ObservedContext) -> None:
    """Store well over a thousand messages, some of them very long, and compare them."""
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
    """Add a message without a role, which should raise a ValueError and not be stored."""
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
    """Request small views of long conversations, and check their content and size."""
    ctx = observed.ctx
    history, budget = _long_conversation(ctx.case)
    # Adding messages to a file one by one takes long.
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
            ctx.fault("C6", "a view with room for everything lacks messages after a small view")


def _long_conversation(case: dict[str, Any]) -> tuple[list[Message], int]:
    """Return the conversation of a case, and a budget for its number of units."""
    units = list(itertools.islice(itertools.cycle(case["pattern"]), case["count"]))
    history = [spoken(0, "user", 20), *built(units, first=1)]
    last = len(units) + 1
    newest = spoken(last * 10, "user", case.get("newest", 20))
    history += [newest] if case["ends"] == "user" else tool_turn(last * 10, 2, 10)
    for at in range(5, len(history) - 8, 9) if case["echo"] else ():
        # Equal messages must be kept too.
        if history[at]["role"] == "user":
            history[at] = {"role": "user", "content": "go on"}
    for number, at in enumerate(sorted(case["systems"])):
        history.insert(at % (len(history) - 3), spoken(9000 + number, "system", 10))
    required = [history[at] for at in newest_unit(history)]
    required += [message for message in history if message["role"] == "system"]
    budget = max(case["units"] * tokens(history) // len(units), 3 * tokens(required) + 100)
    if case["huge"] is not None:
        _enlarge(history, case["huge"], budget)
    return history, budget


def _enlarge(history: list[Message], role: str, budget: int) -> None:
    """Make an older message of a role far larger than the budget.

    It is the newest message that a view with this budget does not contain.
    """
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
    """Request a small view of a conversation in which the newest message has no content.

    The form of that message in the view is not checked.
    """
    history = [
        *(spoken(number * 10, "user", 30) for number in range(1, 21)),
        {"role": "assistant", "content": None},
    ]
    if await observed.set(history):
        await observed.view(400)
        observed.ctx.fill_input({"token_budget": 400, "messages": history})


@check("C8", kind="behaviour", types=_CONTEXT)
async def counts_blocks(ctx: CheckContext) -> None:
    """Request small views of conversations with all text in content blocks.

    The blocks are the user's in one conversation, and results of tools in the other.
    """
    said: list[Message] = [
        {"role": "user", "content": [{"type": "text", "text": prose(number, 100)}]}
        for number in range(60)
    ]
    results = [
        message
        for number in range(1, 61)
        for message in tool_turn(number * 10 + 1, 1, 150, blocks=True)
    ]
    for history in (said, results):
        async with observe_context(ctx) as observed:
            if observed is not None and await observed.set(history):
                budget = tokens(history) // 8
                observed.check_view(await observed.view(budget), budget, ("C8",))


@check("C8", kind="behaviour", types=_CONTEXT)
async def asks_the_provider(ctx: CheckContext) -> None:
    """Request views for providers with windows of several sizes, and with an explicit budget."""
    for window, output, count, length in (
        (200_000, 150_000, 100, 1500),
        (20_000, 10_000, 80, 500),
        (9_000, 6_000, 80, 200),
    ):
        async with observe_context(ctx) as observed:
            if observed is None:
                return
            if not await observed.set([spoken(number, "user", length) for number in range(count)]):
                return
            # Show a large window first, since the context has to read the window each time.
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
            # A provider need not report its window.
            await observed.view(provider=Window())


@check("C20", kind="behaviour", types=_CONTEXT, on=observe_context)
async def keeps_its_beginning(observed: ObservedContext) -> None:
    """Request two views after each message and two compacted ones, and compare them."""
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
            what = f"the view of {number} messages does not begin with that of {number - 1}"
            ctx.fault("C20", f"{what}, and both fit")
        if ctx.faults:
            return
        before = view
    small = tokens(history) // 3
    if await observed.view(small) != await observed.view(small):
        ctx.fault("C20", "two compacted views of the same messages differ")


_AWAY = ProviderUnavailableError("this provider is away", provider=Window.name)


@check("C21", kind="behaviour", types=_CONTEXT, on=observe_context)
async def needs_no_summary(observed: ObservedContext) -> None:
    """Request a view that has to be compacted, for a provider that refuses to answer."""
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
"""Answers of a provider to a request for a summary."""


@check("C7", "C8", "C14", "C21", kind="behaviour", types=_CONTEXT)
async def copes_with_summaries(ctx: CheckContext) -> None:
    """Request views for providers with short, long, empty and failing answers, twice each.

    The second view is of another conversation of the same size.
    """
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
                    what = f"get_messages_for_request {outcome}"
                    what += f", for a provider that {_does(answer)}"
                    ctx.fault(clause, what, error=outcome.error)
                    return
                view = outcome.value
                observed.check_view(view, 3_000, ("C7", "C8"))
                if not ctx.faults and total_size(view) > MAX_CHARACTERS_PER_TOKEN * 3_000:
                    size = total_size(view) // CHARACTERS_PER_TOKEN
                    what = f"the view takes about {size} tokens, for a budget of 3000"
                    ctx.fault("C8", f"{what} and a provider that {_does(answer)}")
                if ctx.faults:
                    return
            text = json.dumps(view, default=repr)
            left = [mark for mark in map(mark_of, old) if mark is not None and mark in text]
            if left:
                what = f"after set_messages the view shows {left[0]!r} of the earlier messages"
                ctx.fault("C14", what)
                return


def _does(answer: str | Exception) -> str:
    if isinstance(answer, Exception):
        return f"raises {type(answer).__name__}"
    return f"answers with {len(answer)} characters"


_BUDGETS = (1_200, 2_000, 3_000)
_MAX_GROWTH = 1.3
"""Factor by which a view with instructions may be larger than a view without any."""


@check("C8", kind="behaviour", types=_CONTEXT)
async def counts_instructions(ctx: CheckContext) -> None:
    """Request views with long instructions, and with the same words from a user.

    The tokens of the instructions have to count towards the budget.
    """
    for budget in _BUDGETS:
        sizes = []
        required = 0
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
            required = total_size(message for message in history if message["role"] == "system")
        plain, with_instructions = sizes
        if with_instructions > _MAX_GROWTH * max(plain, required) + 200:
            what = f"for a budget of {budget} the view with long instructions takes"
            what += f" {with_instructions} characters"
            ctx.fault("C8", f"{what}; with the same words from a user it takes {plain}")
            return


@check("C9", kind="behaviour", types=_CONTEXT, on=observe_context)
async def keeps_blocks_together(observed: ObservedContext) -> None:
    """Request views of a conversation with calls only in content blocks, for many budgets."""
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
    """Return a message of each documented form, and texts that merely look equal."""
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
    """Store messages of every documented form, then all in another order, and compare them."""
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
    """Request a small view of a long conversation, with room for the newest request.

    The tool calls after that request fit too.
    """
    newest = [spoken(800, "user", 60), *tool_turn(810, 2, 20), *tool_turn(850, 1, 20)]
    if not await observed.set([*(spoken(at, "user", 60) for at in range(60)), *newest]):
        return
    view = await observed.view(4 * tokens(newest))
    if view is not None and not any(
        message.get("content") == newest[0]["content"] for message in view
    ):
        what = "a view with room for the newest request and all after it does not show it"
        observed.ctx.fault("C22", f"{what} word for word")


@check("C18", kind="structure", types=_CONTEXT)
async def can_be_configured(ctx: CheckContext) -> None:
    """Check in the source that mount uses its configuration."""
    mount = ctx.loaded.target.definition(ctx.loaded.target.attribute)
    node = None if mount is None else mount.node
    if mount is None or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    arguments = [*node.args.posonlyargs, *node.args.args]
    if len(arguments) < 2 or node.args.vararg is not None:
        return
    name = arguments[1].arg
    if not any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node)):
        ctx.fault(
            "C18",
            "mount reads nothing of its configuration, so no limit can be set",
            location=mount.location,
        )
