"""Apply the results of hooks to a turn."""

from __future__ import annotations

import copy

from amplifier.contracts import Coordinator
from amplifier.models import ContextInjection, HookResult

# `process_hook_result` stores injections at once. An injection between a tool call and its result
# would separate the pair. So the loop holds back durable injections from tool hooks, and stores
# them after the results of all calls in that answer.


class HookResults:
    """The hook results of one turn."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._ephemeral: list[ContextInjection] = []
        self._deferred: list[tuple[HookResult, str]] = []

    def module_of(self, tool: str) -> str | None:
        """Return the id of the module that mounted a tool, or None for the application."""
        owner = self._coordinator.owner_of("tools", tool)
        return None if owner is None else owner.partition("#")[0]

    async def apply(self, result: HookResult, event: str, *, defer: bool = False) -> HookResult:
        """Carry out approvals, messages and injections.

        Args:
            result: The result of ``emit``.
            event: The event.
            defer: Hold back durable injections until `store_deferred` is called.

        Returns:
            The rest of the result. Its action is deny, modify or continue.
        """
        durable: tuple[HookResult, str] | None = None
        if defer and result.action != "deny":
            result, durable = self._take_durable(result, event)
        rest = await self._coordinator.process_hook_result(result, event)
        # The user denied the request, so its injections are dropped.
        if rest.action == "deny" and durable is not None:
            self._deferred = [item for item in self._deferred if item is not durable]
        if rest.action == "inject_context":
            self._ephemeral.extend(rest.context_injections)
            rest = HookResult(
                action="modify" if getattr(rest, "modified", False) else "continue", data=rest.data
            )
        return rest

    async def store_deferred(self) -> None:
        """Store the deferred injections of tool hooks, in order."""
        deferred, self._deferred = self._deferred, []
        for result, event in deferred:
            await self._coordinator.process_hook_result(result, event)

    def take_ephemeral(self) -> list[ContextInjection]:
        """Return the injections for the next request, which are shown once and never stored."""
        ephemeral, self._ephemeral = self._ephemeral, []
        return ephemeral

    def _take_durable(
        self, result: HookResult, event: str
    ) -> tuple[HookResult, tuple[HookResult, str] | None]:
        """Defer durable injections before the user is prompted.

        While the prompt is open, the hooks of other calls may defer injections as well.

        Returns:
            The rest of the result, and the deferred part, if any.
        """
        items = _injections(result)
        durable = [item for item in items if not item.ephemeral]
        if not durable:
            return result, None
        deferred = HookResult(action="inject_context", context_injections=durable), event
        self._deferred.append(deferred)
        ephemeral = [item for item in items if item.ephemeral]
        modified = result.action == "modify" or getattr(result, "modified", False)
        action = result.action
        if action == "inject_context" and not ephemeral:
            action = "modify" if modified else "continue"
        # The copy preserves the other fields of the result.
        rest = copy.copy(result)
        rest.action = action
        rest.context_injections = ephemeral
        rest.context_injection = None
        rest.modified = modified
        return rest, deferred


def _injections(result: HookResult) -> list[ContextInjection]:
    if result.context_injections:
        return result.context_injections
    if result.action == "inject_context" and result.context_injection:
        return [
            ContextInjection(
                content=result.context_injection,
                role=result.context_injection_role,
                ephemeral=result.ephemeral,
                append_to_last_tool_result=result.append_to_last_tool_result,
            )
        ]
    return []
