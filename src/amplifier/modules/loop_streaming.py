"""loop-streaming: the plain loop, with every piece of an answer passed on as it arrives (``content_block:delta``)."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import ContextManager, Coordinator, Hooks, Provider, Tool

from ._turn import Turn, TurnOptions, read_options

__all__ = ["StreamingLoop", "mount"]

__amplifier_module_type__ = "orchestrator"


class StreamingLoop:
    """The agent loop for people who watch; providers that cannot stream are asked as usual."""

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
    await coordinator.mount("orchestrator", StreamingLoop(read_options("loop-streaming", config, streaming=True)))
