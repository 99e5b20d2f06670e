"""loop-basic: ask the model, run its tools, repeat; answers arrive whole."""

from __future__ import annotations

from typing import Any

from amplifier.contracts import ContextManager, Coordinator, Hooks, Provider, Tool

from ._turn import Turn, TurnOptions, read_options

__all__ = ["BasicLoop", "mount"]

__amplifier_module_type__ = "orchestrator"


class BasicLoop:
    """The plain agent loop; it collects what `loop-streaming` passes on piece by piece."""

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
    await coordinator.mount("orchestrator", BasicLoop(read_options("loop-basic", config)))
