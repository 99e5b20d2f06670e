"""loop-events: the plain loop, with hooks choosing the tool for every call (``tool:selecting``, ``tool:selected``)."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import ContextManager, Coordinator, Hooks, Provider, Tool

from ._turn import Turn, TurnOptions, read_options

__all__ = ["EventLoop", "mount"]

__amplifier_module_type__ = "orchestrator"


class EventLoop:
    """The event-driven loop: a hook may answer ``tool:selecting`` with `modify` and another ``tool_name``."""

    def __init__(self, options: TurnOptions) -> None:
        self._options = options

    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        coordinator: Coordinator | None = None,
        **_: Any,
    ) -> str:
        """Run one turn and return the model's final words."""
        turn = Turn(
            self._options, context=context, providers=providers, tools=tools, hooks=hooks, coordinator=coordinator
        )
        return await turn.run(prompt)


async def mount(coordinator: Coordinator, config: dict[str, Any] | None = None) -> None:
    """Mount the loop; see `TurnOptions` for what the config may say."""
    await coordinator.mount("orchestrator", EventLoop(read_options("loop-events", config, select_tools=True)))
    coordinator.register_contributor("observability.events", "loop-events", lambda: ["tool:selecting", "tool:selected"])
