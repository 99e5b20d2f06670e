"""Check modules that emit events: handlers of these events call the module again."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import attrs

from amplifier.conformance.checks.registry import check
from amplifier.conformance.inputs.conversations import spoken
from amplifier.conformance.target.calls import Outcome, call_with_deadline
from amplifier.conformance.target.mounted import CheckContext, MountedModule
from amplifier.conformance.target.use import Operation, typical_operations
from amplifier.models import HookResult

_CLAUSES = {"context": "C15", "tool": "T10", "provider": "P14", "hook": "H3"}
"""The clause about concurrent calls, by type.

Loops are left out because a turn within a turn is refused.
"""
_ALLOWED = {"P14": ("returned", "raised")}
"""Permitted outcomes of a call in a handler.

A provider with a limit may wrap one that emits, and refuse.
"""
_HINT = "Emit events outside of locks and slots, and let the state be whole before you emit."
_MAX_EVENTS = 4
_MAX_CALLED = 5
_CALLS = 400
_HANDLER_SECONDS = 20.0


@attrs.define
class _Caller:
    """A handler that calls the module at the first event of a name.

    Attributes:
        mounted: The module.
        event: The name of the event.
        operation: The call to make.
        outcome: The outcome of the call, or None if no event came.
    """

    mounted: MountedModule
    event: str
    operation: Operation
    outcome: Outcome | None = None
    _is_called: bool = False

    async def __call__(self, event: str, data: dict[str, Any]) -> HookResult:
        """Make the call, once."""
        if not self._is_called:
            self._is_called = True
            # This is the outcome if the handler is cancelled at its deadline.
            self.outcome = Outcome(kind="late", seconds=_HANDLER_SECONDS)
            self.outcome = await call_with_deadline(self.operation.run, self.mounted)
        return HookResult(action="continue")

    def listen(self) -> None:
        """Register for the event."""
        hooks = self.mounted.session.coordinator.hooks
        hooks.register(self.event, self, name="calls-the-module", timeout=_HANDLER_SECONDS)


@check("C15", "T10", "P14", "H3", kind="behaviour", types=_CLAUSES)
async def answers_its_own_handlers(ctx: CheckContext) -> None:
    """Let handlers of the module's own events call its methods, and expect all calls to end."""
    budget = ctx.budget(_CALLS)
    for index, event in await _emitting_operations(ctx):
        async with ctx.mount() as mounted:
            count = len(_called(mounted))
        for number in range(count):
            if budget.is_spent():
                return
            await _call_in_handler(ctx, index, event, number)
            if ctx.faults:
                return


async def _emitting_operations(ctx: CheckContext) -> list[tuple[int, str]]:
    """Return the number of an emitting operation for each of the first events, with the event."""
    emitters: dict[str, int] = {}
    async with ctx.mount() as mounted:
        for index, operation in enumerate(typical_operations(mounted)):
            before = len(mounted.events.events)
            outcome = await mounted.call(operation.run, mounted)
            for name, _ in mounted.events.events[before:] if outcome.returned else ():
                emitters.setdefault(name, index)
    return [(index, name) for name, index in emitters.items()][:_MAX_EVENTS]


def _called(mounted: MountedModule) -> list[Operation]:
    """Return the calls for a handler: each method of a context, typical operations otherwise."""
    if mounted.loaded.module_type == "context":
        return [Operation(name, None, run) for name, run in _CONTEXT_METHODS.items()]
    return typical_operations(mounted)[:_MAX_CALLED]


async def _call_in_handler(ctx: CheckContext, index: int, event: str, number: int) -> None:
    async with ctx.mount() as mounted:
        operation, inner = typical_operations(mounted)[index], _called(mounted)[number]
        usual = await mounted.call(inner.run, mounted)
    async with ctx.mount() as mounted:
        caller = _Caller(mounted, event, inner)
        caller.listen()
        outer = await mounted.call(operation.run, mounted)
    if caller.outcome is None:
        return
    clause = _CLAUSES[ctx.loaded.module_type]
    where = f"a handler of {event}, which {operation.name} emits, calls {inner.name}"
    if not outer.returned:
        what = f"{where}, and {operation.name} {outer}"
        ctx.fault(clause, what, given=operation.given, error=outer.error, hint=_HINT)
    elif usual.returned and caller.outcome.kind not in _ALLOWED.get(clause, ("returned",)):
        what = f"{where}, which then {caller.outcome}"
        error = caller.outcome.error
        ctx.fault(clause, what, given=inner.given, error=error, hint=_HINT)


# ── contexts ──

_LATER = spoken(900, "user", 5)
_OTHER = [spoken(910, "user", 5), spoken(920, "assistant", 5)]


async def _add(mounted: MountedModule) -> Any:
    await mounted.instance.add_message(dict(_LATER))


async def _set(mounted: MountedModule) -> Any:
    await mounted.instance.set_messages([dict(message) for message in _OTHER])


async def _clear(mounted: MountedModule) -> Any:
    await mounted.instance.clear()


async def _read(mounted: MountedModule) -> Any:
    return await mounted.instance.get_messages()


async def _view(mounted: MountedModule) -> Any:
    return await mounted.instance.get_messages_for_request(token_budget=300)


_CONTEXT_METHODS: dict[str, Callable[[MountedModule], Coroutine[Any, Any, Any]]] = {
    "add_message": _add,
    "get_messages": _read,
    "get_messages_for_request": _view,
    "set_messages": _set,
    "clear": _clear,
}
