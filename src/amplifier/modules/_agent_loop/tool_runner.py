"""Runs the tool calls of one answer: hooks, input validation, the call itself, and one result each, whatever happens."""

from __future__ import annotations

import copy
import logging
import traceback
import uuid
from functools import partial
from typing import Any

import anyio

from amplifier._json import redact_text
from amplifier.contracts import Coordinator, CurrentCall, Hooks, Tool, call_scope
from amplifier.events import TOOL_ERROR, TOOL_POST, TOOL_PRE
from amplifier.models import HookResult, ToolCall, ToolResult

from .containment import Overran, call_within, run_together, text_of
from .hook_results import HookResults
from .options import TurnOptions
from .tool_schemas import ToolSchemas

logger = logging.getLogger("amplifier.modules.turn")

TOOL_SELECTING = "tool:selecting"
TOOL_SELECTED = "tool:selected"


def refusal(message: str, kind: str) -> ToolResult:
    """A result with the reason why a call was not carried out, for the model."""
    return ToolResult(success=False, error={"message": message, "type": kind})


class ToolRunner:
    """Runs tool calls for one turn.

    Attributes:
        results: Results so far by call id; read when a turn is cut short.
    """

    def __init__(
        self,
        tools: dict[str, Tool],
        schemas: ToolSchemas,
        hooks: Hooks,
        hook_results: HookResults,
        coordinator: Coordinator | None,
        options: TurnOptions,
    ) -> None:
        self._tools = tools
        self._schemas = schemas
        self._hooks = hooks
        self._hook_results = hook_results
        self._coordinator = coordinator
        self._cancellation = None if coordinator is None else coordinator.cancellation
        self._options = options
        self._iteration = 0
        self.results: dict[str, ToolResult] = {}

    async def run(self, calls: list[ToolCall], iteration: int = 0) -> list[ToolResult]:
        """Run the calls, at the same time where there are several, and return their results in order.

        Args:
            calls: Of one answer.
            iteration: Of the model call that gave it.

        Raises:
            BaseException: No tool's failure, which is a result, but what ends the turn: a hook result that cannot be applied,
                a cancellation, Ctrl-C.
        """
        self.results = {}
        self._iteration = iteration
        group_id = str(uuid.uuid4())
        if len(calls) == 1:
            await self._run_one(calls[0], group_id)
        else:
            limiter = anyio.CapacityLimiter(self._options.max_parallel_tools)

            async def run_limited(call: ToolCall) -> None:
                async with limiter:
                    await self._run_undisturbed(call, group_id)

            await run_together(partial(run_limited, call) for call in calls)
        return [self.results[call.id] for call in calls]

    async def _run_undisturbed(self, call: ToolCall, group_id: str) -> None:
        """One of several concurrent calls: a second native cancel must not cut its unwinding off."""
        if self._coordinator is None:
            await self._run_one(call, group_id)
        else:
            await self._coordinator.run_section(self._run_one, call, group_id, name=f"tool {call.name}")

    async def _run_one(self, call: ToolCall, group_id: str) -> None:
        with call_scope(self._current(call)):
            await self._run_gated(call, group_id)

    def _current(self, call: ToolCall) -> CurrentCall:
        return CurrentCall(
            kind="tool",
            session_id="" if self._coordinator is None else self._coordinator.session_id,
            turn_number=0 if self._coordinator is None else self._coordinator.turn_number,
            iteration=self._iteration,
            call_id=call.id,
            tool_name=call.name,
        )

    async def _run_gated(self, call: ToolCall, group_id: str) -> None:
        about = {"tool_name": call.name, "tool_call_id": call.id, "parallel_group_id": group_id}
        given = call.arguments
        try:
            refused = self._too_late()
            if refused is None:
                given, about, refused = await self._admit(call, about)
            if refused is None:
                refused = self._too_late()  # stopped while the hooks were deciding
            if refused is not None:
                self.results[call.id] = refused
                await self._emit_error(about, given, refused)
                return
            await self._execute(call, about, given)
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            if call.id not in self.results:
                self.results[call.id] = refusal("cancelled while it was running", "Cancelled")
                await self._emit_error(about, given, self.results[call.id])  # a terminal event: delivered all the same
            raise

    def _too_late(self) -> ToolResult | None:
        if self._cancellation is None or not self._cancellation.is_cancelled:
            return None
        return refusal("not started: the turn is being stopped", "Cancelled")

    async def _admit(
        self, call: ToolCall, about: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any], ToolResult | None]:
        """Whether the call may run and with which input: what it is about, its input, a refusal or None."""
        given: Any = call.arguments
        if self._options.select_tools:
            about = {**about, "tool_name": await self._select(call)}
        name = about["tool_name"]
        if name not in self._tools:
            known = ", ".join(self._tools) or "none"
            return given, about, refusal(f"there is no tool named {name!r}; available: {known}", "UnknownTool")
        emitted = await self._hooks.emit(TOOL_PRE, {**about, "tool_input": given})
        applied = await self._hook_results.apply(emitted, TOOL_PRE, defer=True)
        if applied.action == "deny":
            return given, about, refusal(f"denied: {applied.reason or 'no reason given'}", "Denied")
        if applied.action == "modify" and applied.data is not None:
            given = applied.data.get("tool_input", given)
        if not isinstance(given, dict):
            return {}, about, refusal(f"arguments must be a JSON object, got {type(given).__name__}", "BadArguments")
        if (problem := self._schemas.problem(name, given)) is not None:
            return given, about, refusal(f"arguments do not fit the tool's schema: {problem}", "BadArguments")
        return given, about, None

    async def _select(self, call: ToolCall) -> str:
        """Let hooks choose the tool for a call, in the event-driven loop."""
        asked = {
            "tool_name": call.name,
            "tool_call_id": call.id,
            "tool_input": call.arguments,
            "available_tools": list(self._tools),
        }
        chosen = await self._hook_results.apply(
            await self._hooks.emit(TOOL_SELECTING, asked), TOOL_SELECTING, defer=True
        )
        name = call.name
        source = "model"
        if chosen.action == "modify" and chosen.data is not None:
            selected = chosen.data.get("selected_tool") or chosen.data.get("tool_name") or call.name
            if isinstance(selected, str) and selected != call.name:
                name, source = selected, "hook"
        await self._hooks.emit(TOOL_SELECTED, {"tool_name": name, "tool_call_id": call.id, "source": source})
        return name

    async def _execute(self, call: ToolCall, about: dict[str, Any], given: dict[str, Any]) -> None:
        if self._cancellation is not None:
            self._cancellation.register_tool_start(call.id, about["tool_name"])
        try:
            result, failed = await self._call(about["tool_name"], given)
        finally:
            if self._cancellation is not None:
                self._cancellation.register_tool_complete(call.id)
        self.results[call.id] = result  # before the hooks: a result is never lost to a cancelled observer
        if failed:
            await self._emit_error(about, given, result)
        else:
            self.results[call.id] = await self._after(about, given, result)

    async def _call(self, name: str, given: dict[str, Any]) -> tuple[ToolResult, bool]:
        """Call the tool; the flag is True if it raised or overran instead of returning a result."""
        seconds = self._options.tool_timeout
        tool = self._tools.get(name)
        try:
            result = await call_within(seconds, f"tool {name!r}", self._run_tool, name, given)
        except Overran:
            return refusal(f"the tool did not return within {seconds:g} s and was cancelled", "Timeout"), True
        except Exception as exc:  # noqa: BLE001 — a tool is third-party code; its failure is an answer for the model
            logger.warning("tool %r (%s) failed with %s", name, _class_of(tool), _written_out(exc))
            return refusal(text_of(exc), type(exc).__name__), True
        if isinstance(result, ToolResult):
            return result, False
        problem = f"returned {type(result).__name__} instead of a ToolResult"
        logger.warning("tool %r (%s) %s", name, _class_of(tool), problem)
        return refusal(f"the tool {problem}", "ContractError"), True

    async def _run_tool(self, name: str, given: dict[str, Any]) -> Any:
        # A tool gets input of its own: it may keep or change it without changing the transcript.
        return await self._tools[name].execute(copy.deepcopy(given))

    async def _after(self, about: dict[str, Any], given: dict[str, Any], result: ToolResult) -> ToolResult:
        shown = result.safe_hook_presentation()
        emitted = await self._hooks.emit(
            TOOL_POST, {**about, "tool_input": given, "tool_result": shown, "result": shown}
        )
        applied = await self._hook_results.apply(emitted, TOOL_POST, defer=True)
        if applied.action == "deny":
            return refusal(f"the result was withheld: {applied.reason or 'no reason given'}", "Withheld")
        return _modified_result(result, shown, applied)

    async def _emit_error(self, about: dict[str, Any], given: Any, result: ToolResult) -> None:
        await self._hooks.emit(TOOL_ERROR, {**about, "tool_input": given, "error": result.error})


def _class_of(tool: Any) -> str:
    return f"{type(tool).__module__}.{type(tool).__qualname__}"


def _written_out(exc: Exception) -> str:
    """An exception with its traceback, as text: what tools raise is known to carry credentials, which are taken out here."""
    return redact_text(f"{type(exc).__name__}: {text_of(exc)}\n{''.join(traceback.format_exception(exc))}")


def _modified_result(result: ToolResult, shown: dict[str, Any], applied: HookResult) -> ToolResult:
    """The result as a hook rewrote it; hooks of either vocabulary write under ``result`` or ``tool_result``."""
    if applied.action != "modify" or applied.data is None:
        return result
    for key in ("result", "tool_result"):
        new = applied.data.get(key, shown)
        if new == shown:
            continue
        if isinstance(new, ToolResult):
            return new
        if isinstance(new, dict) and new.keys() <= {"success", "output", "error", "content"}:
            return ToolResult(
                **{**new, "content": result.content if new.get("content") == shown.get("content") else None}
            )
        return ToolResult(success=result.success, output=new, error=result.error)
    return result
