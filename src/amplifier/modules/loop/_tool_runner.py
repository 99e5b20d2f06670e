"""Runs the tool calls of one answer: hooks, input validation, the call itself, and one result each, whatever happens.

Inputs are checked against the JSON Schemas that the tools publish.
"""

from __future__ import annotations

import copy
import json
import logging
import traceback
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache, partial
from types import CoroutineType
from typing import Any

import anyio
import anyio.to_thread
import attrs
import orjson

from amplifier._internal.json import (
    LEAVES,
    SchemaRefused,
    Validator,
    build_validator,
    copy_json,
    is_same_json,
    redact_secrets,
    redact_text,
    visible_text,
)
from amplifier.contracts import (
    ApprovalQuestion,
    Coordinator,
    CurrentCall,
    Done,
    Hooks,
    NotDone,
    Reconciled,
    Step,
    Tool,
    Unknown,
    contained_failure,
    current_call,
    note_question,
    ordered_steps,
    tool_repeatable,
    tool_schema,
)
from amplifier.errors import (
    BudgetError,
    ContractError,
    DeadlineExceeded,
    MissingExtraError,
    ModelError,
    NoOneToAskError,
)
from amplifier.events import TOOL_ERROR, TOOL_POST, TOOL_PRE
from amplifier.models import ApprovalGate, HookResult, ToolCall, ToolResult, ToolSpec

from ._blocking import named_if_blocking
from ._containment import run_together, text_of
from ._hook_results import HookResults
from ._options import TurnOptions

logger = logging.getLogger("amplifier.modules.turn")

TOOL_SELECTING = "tool:selecting"
TOOL_SELECTED = "tool:selected"


def refusal(message: str, kind: str) -> ToolResult:
    """A result with the reason why a call was not carried out, for the model."""
    return ToolResult(success=False, error={"message": message, "type": kind})


_INTERRUPTED = (
    "[interrupted: the process ended while this call was running, and the call was not repeated: {reason}; "
    "whether it had an effect is not known]"
)
_LONGEST_SHOWN = 100_000


def may_have_run(step: Step) -> bool:
    """Whether the call may have had its effect in the process that was cut off."""
    return step.is_resumed and step.was_started is not False


def interrupted(reason: str) -> str:
    """The result of a call that may have had its effect and is not repeated, as text for the model."""
    return _INTERRUPTED.format(reason=reason)


async def why_not_repeated(
    call: ToolCall, tools: Mapping[str, Tool], hook_results: HookResults
) -> str | None:
    """Why a call that may have been running must not run again, as text for the model; None if it may."""
    tool = tools.get(call.name)
    if tool is None:
        return interrupted(f"there is no tool named {call.name!r} any more")
    try:
        repeatable = tool_repeatable(tool)
    except ContractError as exc:
        logger.warning("%s; the call is not repeated", exc)
        repeatable = False
    if repeatable is None:
        question = _question(call)
        if len(question) > _LONGEST_SHOWN:
            return interrupted(
                "its input is too long to be shown to a person, who would have to allow it"
            )
        gate = ApprovalGate(hook_name="resume", prompt=question)
        note_question(
            ApprovalQuestion(
                text=question,
                tool=call.name,
                arguments=call.arguments,
                module=hook_results.module_of(call.name),
                reason="the process ended while this call was running",
            )
        )
        asked = HookResult(action="ask_user", approval_prompt=gate.prompt, approval_gates=[gate])
        applied = await hook_results.apply(asked, TOOL_PRE)
        if applied.action != "deny":
            return None
        return interrupted("it was not approved")
    return None if repeatable else interrupted("the tool is declared as not repeatable")


def _question(call: ToolCall) -> str:
    given: Any = redact_secrets(call.arguments)
    shown = json.dumps(given, ensure_ascii=False, default=str)
    shown = visible_text(shown, multiline=False, strict=True)
    return (
        f"Run the tool {call.name!r} again? The process ended while this call was running, so it may have had its effect "
        f"already.\n{shown}"
    )


def _not_started(step: Step) -> ToolResult:
    """The result of a call that a stop prevents; an earlier process may have begun it."""
    if may_have_run(step):
        return refusal(interrupted("the turn is being stopped"), "Interrupted")
    return refusal("not started: the turn is being stopped", "Cancelled")


@attrs.define(eq=False)
class Attempt:
    """One call on its way to its result.

    Attributes:
        tool_name: The tool to call; a hook may have chosen another one than the model.
        given: The input, as hooks have left it.
        has_begun: Its gates have been entered.
        has_run: The tool was called.
        is_reconciled: Its result is that of a call in an earlier process, as the tool has found out.
        result: What is known of it so far; read when a turn is cut short.
        is_over: Its result is final.
        earlier: Those before it in its answer.
        entered: Its gates are entered; calls start in the order of their answer.
        judged: Hooks have decided about it; users are asked in the order of the answer.
        asks: A user is asked about it; such calls start in the order of the answer, whichever question is answered first.
        started: The tool is being called, or will not be.
        left: Nothing more happens to it.
    """

    call: ToolCall
    step: Step
    group_id: str
    tool_name: str
    given: Any
    has_begun: bool = False
    has_run: bool = False
    is_reconciled: bool = False
    result: ToolResult | None = None
    is_over: bool = False
    earlier: list[Attempt] = attrs.Factory(list)
    entered: anyio.Event = attrs.Factory(anyio.Event)
    judged: anyio.Event = attrs.Factory(anyio.Event)
    asks: bool = False
    started: anyio.Event = attrs.Factory(anyio.Event)
    left: anyio.Event = attrs.Factory(anyio.Event)

    def about(self) -> dict[str, Any]:
        """What events report about it."""
        return {
            "tool_name": self.tool_name,
            "tool_call_id": self.call.id,
            "parallel_group_id": self.group_id,
        }

    def as_resumed(self) -> dict[str, str]:
        """For the event ``turn:resumed``: its outcome is ``kept``, ``started`` (for the first time), ``repeated`` or ``interrupted``."""
        if not self.has_begun or self.is_reconciled:
            outcome = "kept"
        elif not self.has_run:
            outcome = "interrupted"
        else:
            outcome = "started" if self.step.was_started is False else "repeated"
        return {"tool_call_id": self.call.id, "tool_name": self.call.name, "outcome": outcome}


@attrs.define(eq=False)
class _Slot:
    """What a call of several takes before it starts, each time: its place in the order, then one of the slots."""

    _attempt: Attempt
    _limiter: anyio.CapacityLimiter | None

    async def __aenter__(self) -> None:
        if self._attempt.earlier:  # trio starts tasks in any order
            await self._attempt.earlier[-1].entered.wait()
        if self._limiter is not None:
            await self._limiter.acquire()

    async def __aexit__(self, *_: object) -> None:
        if self._limiter is not None:
            self._limiter.release()


class ToolRunner:
    """Runs tool calls for one turn.

    Args:
        answer_tool: The name of the tool for the answer of the turn, whose calls run one after the other: the first one counts.

    Attributes:
        schemas: Those of the tools.
    """

    def __init__(
        self,
        tools: dict[str, Tool],
        hooks: Hooks,
        hook_results: HookResults,
        coordinator: Coordinator,
        options: TurnOptions,
        store: Callable[[ToolCall, ToolResult], Awaitable[None]],
        answer_tool: str | None = None,
    ) -> None:
        self._tools = tools
        self.schemas = ToolSchemas(tools)
        self._hooks = hooks
        self._is_heard = hooks.has_handlers
        self._hook_results = hook_results
        self._coordinator = coordinator
        self._cancellation = coordinator.cancellation
        self._options = options
        self._store = store
        self._answer_tool = answer_tool
        self._running: list[Attempt] = []

    @property
    def results(self) -> dict[str, ToolResult]:
        """Results so far by call id, of the calls that are running."""
        return {
            attempt.call.id: attempt.result
            for attempt in self._running
            if attempt.result is not None
        }

    async def run(
        self, calls: list[ToolCall], iteration: int, *, are_resumed: bool = False
    ) -> list[Attempt]:
        """Run the calls, at the same time where there are several; store each result once those of the calls before it are stored.

        Args:
            calls: Of one answer, in its order.
            iteration: The model call that it answered.
            are_resumed: They had no results yet when an earlier process was cut off.

        Returns:
            What became of the calls.

        Raises:
            BaseException: No tool's failure, which is a result, but what ends the turn: a hook result that cannot be applied,
                a step wrapper or a context that fails, a cancellation, Ctrl-C.
        """
        group_id = str(uuid.uuid4())
        attempts = self._running = [
            Attempt(
                call,
                self._step(call, iteration, is_resumed=are_resumed),
                group_id,
                call.name,
                call.arguments,
            )
            for call in calls
        ]
        if len(attempts) == 1:
            await self._run_one(attempts[0], None)
            await self._store_result(attempts[0])
        else:
            await self._run_several(attempts)
        self._running = []  # all are stored; a later answer may use the same ids
        return attempts

    async def _store_result(self, attempt: Attempt) -> None:
        assert attempt.result is not None
        await self._store(attempt.call, attempt.result)

    async def _run_several(self, attempts: list[Attempt]) -> None:
        waiting, storing = deque(attempts), anyio.Lock()
        slots = self._options.max_parallel_tools
        limiter = anyio.CapacityLimiter(slots) if len(attempts) > slots else None

        async def run_and_store(attempt: Attempt) -> None:
            try:  # an answer takes no slot: one that waited for another, which waits for a slot, would wait for ever
                await self._run_one(
                    attempt, _Slot(attempt, None if self._is_answer(attempt) else limiter)
                )
            finally:
                for event in (attempt.entered, attempt.judged, attempt.started, attempt.left):
                    event.set()
            async with storing:
                while waiting and waiting[0].is_over:
                    await self._store_result(waiting[0])
                    waiting.popleft()

        ordered_steps(attempt.step for attempt in attempts)
        for number, attempt in enumerate(attempts):
            attempt.earlier = attempts[:number]
        await run_together(partial(run_and_store, attempt) for attempt in attempts)

    def _is_answer(self, attempt: Attempt) -> bool:
        return attempt.call.name == self._answer_tool

    def _step(self, call: ToolCall, iteration: int, *, is_resumed: bool) -> Step:
        made = CurrentCall(
            kind="tool",
            session_id=self._coordinator.session_id,
            turn_number=self._coordinator.turn_number,
            iteration=iteration,
            call_id=call.id,
            tool_name=call.name,
            is_answer=call.name == self._answer_tool,
        )
        return Step(call=made, arguments=call.arguments, is_resumed=is_resumed)

    async def known_result(self, call: ToolCall) -> ToolResult | None:
        """The result of a call that an earlier turn left open, if a step wrapper has kept it; the call is not made."""
        unknown = refusal("not known", "Interrupted")

        async def refuse() -> ToolResult:
            return unknown

        result = await self._coordinator.run_step(
            self._step(call, 0, is_resumed=True), refuse, admit=refuse
        )
        return result if isinstance(result, ToolResult) and result is not unknown else None

    async def _run_one(self, attempt: Attempt, slot: _Slot | None) -> None:
        try:
            result = await self._coordinator.run_step(
                attempt.step,
                partial(self._execute, attempt),
                admit=partial(self._admit, attempt),
                limiter=slot,
            )
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            if (
                attempt.has_begun and attempt.result is None
            ):  # perhaps while hooks decided, or a user was asked
                running = refusal("cancelled while it was running", "Cancelled")
                attempt.result = running if attempt.has_run else _not_started(attempt.step)
                await self._emit_error(
                    attempt, attempt.result
                )  # a terminal event: delivered all the same
            raise
        if not isinstance(result, ToolResult):
            raise ContractError(
                f"a step wrapper returned {type(result).__name__} for a call of tool {attempt.call.name!r}; expected the "
                "ToolResult that run() returned, or one that it kept"
            )
        attempt.result, attempt.is_over = result, True

    async def _admit(self, attempt: Attempt) -> ToolResult | None:
        """The result in place of the tool's if the call must not run; None if it may."""
        attempt.entered.set()
        for earlier in attempt.earlier if self._is_answer(attempt) else ():
            if self._is_answer(earlier):
                await earlier.left.wait()
        attempt.has_begun = True
        found: Reconciled = Unknown()
        if may_have_run(attempt.step) and not self._cancellation.is_cancelled:
            found = await self._reconcile(attempt)
        if isinstance(found, Done):
            attempt.is_reconciled = True
            attempt.result = _own(found.tool_result)
            return await self._after(attempt, attempt.result)
        refused = self._too_late(attempt.step) or await self._pass_gates(
            attempt, was_not_done=isinstance(found, NotDone)
        )
        refused = refused or self._too_late(attempt.step)  # stopped while the hooks were deciding
        if refused is not None:
            attempt.result = refused
            await self._emit_error(attempt, refused)
        return refused

    def _too_late(self, step: Step) -> ToolResult | None:
        return _not_started(step) if self._cancellation.is_cancelled else None

    async def _reconcile(self, attempt: Attempt) -> Reconciled:
        """Let the tool find out what became of a call that may have run in a process that was cut off."""
        call, seconds = attempt.call, self._options.tool_timeout
        tool = self._tools.get(call.name)
        reconcile = getattr(tool, "reconcile", None)
        if not callable(reconcile) or not isinstance(call.arguments, dict):
            return Unknown()
        about = current_call() or attempt.step.call
        try:
            arguments = copy.deepcopy(call.arguments)
            found = await self._coordinator.call_within(
                seconds, f"reconcile of tool {call.name!r}", reconcile, arguments, about
            )
        except DeadlineExceeded:
            logger.warning("reconcile of tool %r did not return within %g s", call.name, seconds)
            return Unknown()
        except Exception as exc:  # noqa: BLE001 — a tool is third-party code; what it does not find out is not known
            logger.warning(
                "reconcile of tool %r (%s) failed with %s",
                call.name,
                _class_of(tool),
                _written_out(exc),
            )
            return Unknown()
        if isinstance(found, Done | NotDone | Unknown):
            return found
        logger.warning(
            "reconcile of tool %r returned %s; expected Done(result), NotDone() or Unknown()",
            call.name,
            type(found).__name__,
        )
        return Unknown()

    async def _pass_gates(self, attempt: Attempt, *, was_not_done: bool) -> ToolResult | None:
        """Let hooks choose, forbid or change the call; leaves what they chose in ``attempt``.

        Args:
            attempt: The call.
            was_not_done: It has had no effect in the process that was cut off.
        """
        call, step = attempt.call, attempt.step
        if may_have_run(step) and not was_not_done:
            reason = await why_not_repeated(call, self._tools, self._hook_results)
            if reason is not None:
                return refusal(reason, "Interrupted")
        if self._options.select_tools and (refused := await self._select(attempt)) is not None:
            return refused
        name = attempt.tool_name
        if name not in self._tools:
            known = ", ".join(self._tools) or "none"
            return refusal(f"there is no tool named {name!r}; available: {known}", "UnknownTool")
        tool = self._tools[name]
        emitted = await self._hooks.emit(TOOL_PRE, {**attempt.about(), "tool_input": attempt.given})
        if name == self._answer_tool:
            emitted = _without_questions(emitted)
        attempt.asks = emitted.action == "ask_user" or bool(emitted.approval_gates)
        for earlier in attempt.earlier if attempt.asks else ():
            await earlier.judged.wait()
        attempt.judged.set()
        applied = await self._hook_results.apply(emitted, TOOL_PRE, defer=True)
        if applied.action == "deny":
            return _denial(applied)
        for earlier in attempt.earlier if attempt.asks else ():
            if earlier.asks:
                await earlier.started.wait()
        if applied.action == "modify" and applied.data is not None:
            attempt.given = applied.data.get("tool_input", attempt.given)
        if (
            self._tools.get(name) is not tool
        ):  # hooks and users decided about the one that was there before
            return refusal(
                f"the tool {name!r} was replaced or removed while hooks decided about this call",
                "UnknownTool",
            )
        given = attempt.given
        if not isinstance(given, dict):
            attempt.given = {}
            return refusal(
                f"arguments must be a JSON object, got {type(given).__name__}", "BadArguments"
            )
        if (problem := await self.schemas.problem(name, given)) is not None:
            return refusal(f"arguments do not fit the tool's schema: {problem}", "BadArguments")
        return None

    async def _select(self, attempt: Attempt) -> ToolResult | None:
        """Let hooks choose the tool for a call, in the event-driven loop; the result is a refusal if one denies it."""
        call = attempt.call
        asked = {
            "tool_name": call.name,
            "tool_call_id": call.id,
            "tool_input": call.arguments,
            "available_tools": list(self._tools),
        }
        chosen = await self._hook_results.apply(
            await self._hooks.emit(TOOL_SELECTING, asked), TOOL_SELECTING, defer=True
        )
        if chosen.action == "deny":
            return _denial(chosen)
        source = "model"
        if chosen.action == "modify" and chosen.data is not None:
            selected = chosen.data.get("selected_tool") or chosen.data.get("tool_name") or call.name
            if isinstance(selected, str) and selected != call.name:
                attempt.tool_name, source = selected, "hook"
        await self._hooks.emit(
            TOOL_SELECTED,
            {"tool_name": attempt.tool_name, "tool_call_id": call.id, "source": source},
        )
        return None

    async def _execute(self, attempt: Attempt) -> ToolResult:
        call_id, name = attempt.call.id, attempt.tool_name
        attempt.has_run = True
        attempt.started.set()
        self._cancellation.register_tool_start(call_id, name)
        try:
            result, failed = await self._call(name, attempt.given)
        finally:
            self._cancellation.register_tool_complete(call_id)
        attempt.result = result  # before the hooks: a result is never lost to a cancelled observer
        if failed:
            await self._emit_error(attempt, result)
            return result
        return await self._after(attempt, result)

    async def _call(self, name: str, given: dict[str, Any]) -> tuple[ToolResult, bool]:
        """Call the tool; the flag is True if it raised or overran instead of returning a result."""
        seconds = self._options.tool_timeout
        tool = self._tools.get(name)
        who = f"tool {name!r}"
        try:
            result = await self._coordinator.call_within(seconds, who, self._run_tool, name, given)
        except (
            NoOneToAskError
        ):  # by a session of the tool's own: this turn, too, is left to be resumed
            raise
        except BudgetError as exc:  # the tool was not called
            return refusal(text_of(exc), type(exc).__name__), True
        except Exception as exc:  # noqa: BLE001 — a tool is third-party code; its failure is an answer for the model
            if isinstance(exc, DeadlineExceeded) and exc.operation == who:
                return refusal(
                    f"the tool did not return within {seconds:g} s and was cancelled", "Timeout"
                ), True
            logger.warning("tool %r (%s) failed with %s", name, _class_of(tool), _written_out(exc))
            return refusal(text_of(exc), type(exc).__name__), True
        if isinstance(result, ToolResult):
            return result, False
        problem = f"returned {type(result).__name__} instead of a ToolResult"
        logger.warning("tool %r (%s) %s", name, _class_of(tool), problem)
        return refusal(f"the tool {problem}", "ContractError"), True

    async def _run_tool(self, name: str, given: dict[str, Any]) -> Any:
        # A tool gets input of its own: it may keep or change it without changing the transcript.
        is_flat = type(given) is dict and LEAVES.issuperset(map(type, given.values()))
        call: Any = self._tools[name].execute(given.copy() if is_flat else copy.deepcopy(given))
        result: Any = await (named_if_blocking(call, name) if type(call) is CoroutineType else call)
        return _own(result) if isinstance(result, ToolResult) else result

    async def _after(self, attempt: Attempt, result: ToolResult) -> ToolResult:
        shown: Any = result.safe_hook_presentation() if self._is_heard(TOOL_POST) else result
        details = {
            **attempt.about(),
            "tool_input": attempt.given,
            "tool_result": shown,
            "result": shown,
        }
        applied = await self._hook_results.apply(
            await self._hooks.emit(TOOL_POST, details), TOOL_POST, defer=True
        )
        if applied.action == "deny":
            return refusal(
                f"the result was withheld: {applied.reason or 'no reason given'}", "Withheld"
            )
        return _modified_result(result, shown, applied)

    async def _emit_error(self, attempt: Attempt, result: ToolResult) -> None:
        await self._hooks.emit(
            TOOL_ERROR, {**attempt.about(), "tool_input": attempt.given, "error": result.error}
        )


def _without_questions(emitted: HookResult) -> HookResult:
    """Return the result of hooks without what they ask: the loop itself offers this tool, and it changes nothing."""
    if emitted.action != "ask_user" and not emitted.approval_gates:
        return emitted
    rest = copy.copy(emitted)
    rest.approval_gates, rest.approval_prompt = [], None
    if rest.action == "ask_user":
        if rest.context_injections:
            rest.action = "inject_context"
        else:
            rest.action = "modify" if getattr(emitted, "modified", False) else "continue"
    return rest


def _denial(applied: HookResult) -> ToolResult:
    return refusal(f"denied: {applied.reason or 'no reason given'}", "Denied")


def _class_of(tool: Any) -> str:
    tool = getattr(tool, "__wrapped__", tool)  # which a budget meters
    return f"{type(tool).__module__}.{type(tool).__qualname__}"


def _written_out(exc: Exception) -> str:
    """An exception with its traceback, as text: what tools raise is known to carry credentials, which are taken out here."""
    return redact_text(
        f"{type(exc).__name__}: {text_of(exc)}\n{''.join(traceback.format_exception(exc))}"
    )


def _own(result: ToolResult) -> ToolResult:
    """A result that the tool cannot change any more: hooks judge it, and it may wait for those of other calls."""
    own = copy.copy(result)
    try:
        output, error = copy_json(result.output), copy_json(result.error)
    except ModelError:  # it contains itself
        shown = result.safe_hook_presentation()
        output, error = shown["output"], shown["error"]
    # The members are as they were; assigned the usual way, images would be decoded once more.
    object.__setattr__(own, "output", output)
    object.__setattr__(own, "error", error)
    if result.content:
        object.__setattr__(own, "content", copy.deepcopy(result.content))
    return own


def _modified_result(result: ToolResult, shown: dict[str, Any], applied: HookResult) -> ToolResult:
    """The result as a hook rewrote it; hooks of either vocabulary write under ``result`` or ``tool_result``."""
    if applied.action != "modify" or applied.data is None:
        return result
    for key in ("result", "tool_result"):
        new = applied.data.get(key, shown)
        if is_same_json(new, shown):
            continue
        if isinstance(new, ToolResult):
            return _own(new)
        if isinstance(new, dict) and new.keys() <= {"success", "output", "error", "content"}:
            return ToolResult(
                **{
                    **new,
                    "content": result.content
                    if new.get("content") == shown.get("content")
                    else None,
                }
            )
        return ToolResult(success=result.success, output=new, error=result.error)
    return result


_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}

_BUILT_IN_PLACE = 16_384
"""Bytes; the validator for a larger schema is built in a thread."""
_SECONDS_TO_BUILD = 10.0


class ToolSchemas:
    """The schemas of the tools of one turn, read once."""

    def __init__(self, tools: dict[str, Tool]) -> None:
        self._tools = tools
        self._reported: set[str] = set()
        self._schemas: dict[str, dict[str, Any]] = {}

    def specs(self) -> list[ToolSpec]:
        """The tools as the request lists them; a tool that cannot describe itself is left out and logged.

        A schema is the tool's own; the list holds copies.
        """
        specs = []
        for name, tool in self._tools.items():
            try:
                parameters = copy_json(self._schema(name, tool))
                specs.append(
                    ToolSpec(name=name, description=tool.description, parameters=parameters)
                )
            except BaseException as exc:  # a tool's properties are foreign code
                failure = contained_failure(exc)
                logger.error(
                    "tool %r cannot describe itself and is not offered to the model",
                    name,
                    exc_info=failure,
                )
        return specs

    async def problem(self, name: str, given: dict[str, Any]) -> str | None:
        """What is wrong with an input, as text for the model; None if nothing is, or if it cannot be checked."""
        if name not in self._schemas:
            return None
        validator = await self._built(name)
        try:
            return self._problem(name, validator, given)
        except BaseException as exc:  # noqa: BLE001 — a Rust extension; its panics are no Exception
            failure = contained_failure(exc)
            logger.warning(
                "the input of tool %r cannot be checked against its schema: %s", name, failure
            )
            return None

    async def _built(self, name: str) -> Validator | str | None:
        try:
            written = orjson.dumps(self._schemas[name])
        except TypeError:  # what orjson does not write, such as a large number
            return _validator_of(self._schemas[name])
        if len(written) <= _BUILT_IN_PLACE:
            return _validator(written)
        with anyio.move_on_after(_SECONDS_TO_BUILD):
            return await anyio.to_thread.run_sync(_validator, written, abandon_on_cancel=True)
        return f"it could not be read within {_SECONDS_TO_BUILD:g} s"

    def _problem(
        self, name: str, validator: Validator | str | None, given: dict[str, Any]
    ) -> str | None:
        if isinstance(validator, str):
            if name not in self._reported:
                self._reported.add(name)
                logger.warning(
                    "the schema of tool %r cannot be used, and inputs are not checked: %s",
                    name,
                    validator,
                )
            return None
        problems = [] if validator is None else validator.problems(given, 5)
        return "; ".join(f"{_path(place)}: {message}" for place, message in problems) or None

    def _schema(self, name: str, tool: Tool) -> dict[str, Any]:
        if name not in self._schemas:
            try:
                self._schemas[name] = tool_schema(tool) or _ANYTHING
            except ContractError as exc:
                logger.warning("%s", exc)
                self._schemas[name] = _ANYTHING
        return self._schemas[name]


@lru_cache(
    maxsize=1024
)  # every turn reads the schemas anew, and they are nearly always those of the turn before
def _validator(schema: bytes) -> Validator | str | None:
    """A validator, or what is wrong with the schema, as text; None if the package that validates is not there."""
    return _validator_of(orjson.loads(schema))


def _validator_of(schema: Any) -> Validator | str | None:
    try:
        return build_validator(schema)
    except SchemaRefused as exc:
        return str(exc)
    except MissingExtraError:  # then the tool's own checks must do
        return None


def _path(place: Any) -> str:
    return "input" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in place)
