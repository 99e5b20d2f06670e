"""Applies the results of hooks to a turn.

`process_hook_result` stores injections at once. Between a tool call and its result that would tear the pair apart, so a loop takes
durable injections of tool hooks out first and has them stored when the results of that answer are in.
"""

from __future__ import annotations

import copy

from amplifier.contracts import Coordinator
from amplifier.models import ContextInjection, HookResult


class HookResults:
    """The hook results of one turn."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._ephemeral: list[ContextInjection] = []
        self._deferred: list[tuple[HookResult, str]] = []

    def module_of(self, tool: str) -> str | None:
        """Return the id of the module that mounted a tool; None for the application."""
        owner = self._coordinator.owner_of("tools", tool)
        return None if owner is None else owner.partition("#")[0]

    async def apply(self, result: HookResult, event: str, *, defer: bool = False) -> HookResult:
        """Carry out approvals, messages and injections; what is left is deny, modify or continue.

        Args:
            result: What ``emit`` returned.
            event: The event it was about.
            defer: Keep durable injections until `store_deferred`.
        """
        durable: tuple[HookResult, str] | None = None
        if defer and result.action != "deny":
            result, durable = self._take_durable(result, event)
        left = await self._coordinator.process_hook_result(result, event)
        if left.action == "deny" and durable is not None:  # by the user, who was asked
            self._deferred = [item for item in self._deferred if item is not durable]
        if left.action == "inject_context":
            self._ephemeral.extend(left.context_injections)
            left = HookResult(
                action="modify" if getattr(left, "modified", False) else "continue", data=left.data
            )
        return left

    async def store_deferred(self) -> None:
        """Store the injections of tool hooks, in the order they were made."""
        deferred, self._deferred = self._deferred, []
        for result, event in deferred:
            await self._coordinator.process_hook_result(result, event)

    def take_ephemeral(self) -> list[ContextInjection]:
        """The injections for the next request, which are shown once and never stored."""
        ephemeral, self._ephemeral = self._ephemeral, []
        return ephemeral

    def _take_durable(
        self, result: HookResult, event: str
    ) -> tuple[HookResult, tuple[HookResult, str] | None]:
        """Put durable injections aside, before questions are asked: those of other calls may come meanwhile.

        Returns:
            What is left of the result, and what was put aside, if anything.
        """
        items = _injections(result)
        durable = [item for item in items if not item.ephemeral]
        if not durable:
            return result, None
        aside = HookResult(action="inject_context", context_injections=durable), event
        self._deferred.append(aside)
        ephemeral = [item for item in items if item.ephemeral]
        modified = result.action == "modify" or getattr(result, "modified", False)
        action = result.action
        if action == "inject_context" and not ephemeral:
            action = "modify" if modified else "continue"
        rest = copy.copy(result)  # keeps everything else that the hooks returned
        rest.action = action
        rest.context_injections = ephemeral
        rest.context_injection = None
        rest.modified = modified
        return rest, aside


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
