"""The kernel's side of budgets: meters around what is mounted, and the search for calls that go past them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, final

from amplifier.contracts import Coordinator, Step
from amplifier.errors import BudgetError
from amplifier.events import LLM_RESPONSE, PROVIDER_RESPONSE

from ._call_meter import CallMeter
from ._metered import MeteredProvider, MeteredTool


@final
class SessionMeter(CallMeter):
    """Counts the calls of one session and refuses those that do not fit."""

    def meter(self, point: str, module: Any) -> Any:
        """A provider or a tool inside its meter; anything else as it is."""
        kind: Any = {"providers": MeteredProvider, "tools": MeteredTool}.get(point)
        if kind is None:
            return module
        if type(module) is kind:  # of another session, or of this one under another name
            module = module.__wrapped__
        return kind(module, self)

    def meter_all(self, points: Mapping[str, Any]) -> None:
        """Put meters around what was put at the mount points past `mount`."""
        for point in ("providers", "tools"):
            modules: Any = points.get(point)
            for name, module in list(modules.items()) if isinstance(modules, dict) else ():
                if getattr(module, "meter_of_session", None) is not self:
                    modules[name] = self.meter(point, module)

    def watch(self, coordinator: Coordinator) -> None:
        """Listen for model calls that do not go through a meter.

        A provider emits ``llm:response``, a loop ``provider:response``. Either of them in a turn without a metered call is the
        report of a call past the budget, unless a step wrapper answered it from what it kept.
        """

        async def note_step(step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
            self._has_called = self._has_called or step.kind == "model"
            return await run()

        def note_response(event: str, data: Any) -> None:
            if self._stop is not None and not self._has_called and self.refusal is None:
                name = type(coordinator.get("orchestrator")).__name__
                self.refusal = BudgetError(
                    f"the budget of session {coordinator.session_id!r} cannot be enforced by orchestrator {name}: it reports a model "
                    f"call ({event}) that was not made through a provider mounted in the session; use a loop that calls the "
                    "providers it is given, or remove session.budget from the plan"
                )
                self._stop()

        coordinator.register_step_wrapper(note_step)
        for event in (LLM_RESPONSE, PROVIDER_RESPONSE):
            coordinator.hooks.register(event, note_response, name="budget", fields=())
