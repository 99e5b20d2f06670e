"""Run the tool calls of one answer: hooks, input validation, the call, and one result for each."""

from __future__ import annotations

import copy
import json
import logging
import traceback
import uuid
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache, partial
from types import CoroutineType
from typing import Any

import anyio
import anyio.to_thread
import attrs
import orjson

from amplifier._internal.json import (
    JSON,
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
    """Return a result that tells the model why a call wasn't carried out."""
    return ToolResult(success=False, error={"message": message, "type": kind})


_INTERRUPTED = (
    "[interrupted: the process ended while this call was running, and the call was not repeated: "
    "{reason}; whether it had an effect is not known]"
)
_MAX_QUESTION_CHARS = 100_000


def may_have_run(step: Step) -> bool:
    """Return whether the call may have had its effect in an earlier process."""
    return step.is_resumed and step.was_started is not False


def interrupted(reason: str) -> str:
    """Return the text for the model about a call that may have run and isn't repeated."""
    return _INTERRUPTED.format(reason=reason)


async def reason_not_to_repeat(
    call: ToolCall, tools: Mapping[str, Tool], hook_results: HookResults
) -> str | None:
    """Return the reason, as text for the model, not to repeat a call that may have run, or None."""
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
        if len(question) > _MAX_QUESTION_CHARS:
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
        result = HookResult(action="ask_user", approval_prompt=gate.prompt, approval_gates=[gate])
        applied = await hook_results.apply(result, TOOL_PRE)
        if applied.action != "deny":
            return None
        return interrupted("it was not approved")
    return None if repeatable else interrupted("the tool is declared as not repeatable")


def _question(call: ToolCall) -> str:
    arguments: JSON = redact_secrets(call.arguments)
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    text = visible_text(text, multiline=False, strict=True)
    return (
        f"Run the tool {call.name!r} again? The process ended while this call was running, so it "
        f"may have had its effect already.\n{text}"
    )


def _not_started(step: Step) -> ToolResult:
    """Return the result of a call that a stop prevented. An earlier process may have started it."""
    if may_have_run(step):
        return refusal(interrupted("the turn is being stopped"), "Interrupted")
    return refusal("not started: the turn is being stopped", "Cancelled")


@attrs.define(eq=False)
class PendingCall:
    """One call on its way to its result.

    Attributes:
        call: The call of the model.
        step: The step for step wrappers.
        group_id: The id that the calls of one answer share in events.
        tool_name: The tool to call. A hook may choose another one than the model.
        arguments: The input, as changed by hooks.
        has_begun: True once its hooks are called.
        has_run: True once the tool is called.
        is_reconciled: True if the tool returned the result of a call in an earlier process.
        result: Its result so far, for a turn that ends early. None until there is one.
        is_over: True once its result is final.
        predecessors: The calls before it in its answer.
        entered: Set when its hooks are called. Calls start in the order of their answer.
        gated: Set when hooks have decided. Users are prompted in the order of the answer.
        prompts_user: True if a user is prompted about it. Such calls start in the order of the
            answer, not of the decisions.
        started: Set when the tool is called, or won't be.
        exited: Set when the call is over, with or without a result.
    """

    call: ToolCall
    step: Step
    group_id: str
    tool_name: str
    arguments: JSON
    has_begun: bool = False
    has_run: bool = False
    is_reconciled: bool = False
    result: ToolResult | None = None
    is_over: bool = False
    predecessors: list[PendingCall] = attrs.Factory(list)
    entered: anyio.Event = attrs.Factory(anyio.Event)
    gated: anyio.Event = attrs.Factory(anyio.Event)
    prompts_user: bool = False
    started: anyio.Event = attrs.Factory(anyio.Event)
    exited: anyio.Event = attrs.Factory(anyio.Event)

    def event_fields(self) -> dict[str, str]:
        """Return the fields that identify it in events."""
        return {
            "tool_name": self.tool_name,
            "tool_call_id": self.call.id,
            "parallel_group_id": self.group_id,
        }

    def as_resumed(self) -> dict[str, str]:
        """Return its entry in the event ``turn:resumed``.

        The outcome is ``kept``, ``started`` (for the first time), ``repeated`` or ``interrupted``.
        """
        if not self.has_begun or self.is_reconciled:
            outcome = "kept"
        elif not self.has_run:
            outcome = "interrupted"
        else:
            outcome = "started" if self.step.was_started is False else "repeated"
        return {"tool_call_id": self.call.id, "tool_name": self.call.name, "outcome": outcome}


@attrs.define(eq=False)
class _Slot:
    """Makes one call of several wait for its place in the order, and then for a free slot."""

    _pending: PendingCall
    _limiter: anyio.CapacityLimiter | None

    async def __aenter__(self) -> None:
        # Trio starts tasks in any order.
        if self._pending.predecessors:
            await self._pending.predecessors[-1].entered.wait()
        if self._limiter is not None:
            await self._limiter.acquire()

    async def __aexit__(self, *_: object) -> None:
        if self._limiter is not None:
            self._limiter.release()


class ToolRunner:
    """Runs tool calls for one turn.

    Args:
        tools: The tools by name.
        hooks: Emits events.
        hook_results: Applies the results of hooks.
        coordinator: The coordinator of the session.
        options: The options of the turn.
        store: Stores the result of a call.
        answer_tool: The name of the tool for a typed answer, or None. Its calls run one after the
            other, because only the first one counts.

    Attributes:
        schemas: The schemas of the tools.
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
        self._has_handlers = hooks.has_handlers
        self._hook_results = hook_results
        self._coordinator = coordinator
        self._cancellation = coordinator.cancellation
        self._options = options
        self._store = store
        self._answer_tool = answer_tool
        self._running: list[PendingCall] = []

    @property
    def results(self) -> dict[str, ToolResult]:
        """The results so far of the running calls, by call id."""
        return {
            pending.call.id: pending.result
            for pending in self._running
            if pending.result is not None
        }

    async def run(
        self, calls: list[ToolCall], iteration: int, *, are_resumed: bool = False
    ) -> list[PendingCall]:
        """Run calls at the same time, and store their results in order.

        Args:
            calls: The calls of one answer, in its order.
            iteration: The number of the model call that returned it.
            are_resumed: True if the calls had no results when an earlier process ended.

        Returns:
            The calls with their outcome.

        Raises:
            BaseException: The turn ends: a hook result that can't be applied, the failure of a step
                wrapper or of the context, a cancellation, Ctrl-C. The failure of a tool is a
                result.
        """
        group_id = str(uuid.uuid4())
        pending_calls = self._running = [
            PendingCall(
                call,
                self._step(call, iteration, is_resumed=are_resumed),
                group_id,
                call.name,
                call.arguments,
            )
            for call in calls
        ]
        if len(pending_calls) == 1:
            await self._run_one(pending_calls[0], None)
            await self._store_result(pending_calls[0])
        else:
            await self._run_several(pending_calls)
        # All results are stored, and a later answer may reuse the ids.
        self._running = []
        return pending_calls

    async def _store_result(self, pending: PendingCall) -> None:
        assert pending.result is not None
        await self._store(pending.call, pending.result)

    async def _run_several(self, pending_calls: list[PendingCall]) -> None:
        waiting, storing = deque(pending_calls), anyio.Lock()
        slots = self._options.max_parallel_tools
        limiter = anyio.CapacityLimiter(slots) if len(pending_calls) > slots else None

        async def run_and_store(pending: PendingCall) -> None:
            # Answer calls bypass the limiter. Otherwise they could deadlock.
            slot = _Slot(pending, None if self._is_answer(pending) else limiter)
            try:
                await self._run_one(pending, slot)
            finally:
                for event in (pending.entered, pending.gated, pending.started, pending.exited):
                    event.set()
            async with storing:
                while waiting and waiting[0].is_over:
                    await self._store_result(waiting[0])
                    waiting.popleft()

        ordered_steps(pending.step for pending in pending_calls)
        for number, pending in enumerate(pending_calls):
            pending.predecessors = pending_calls[:number]
        await run_together(partial(run_and_store, pending) for pending in pending_calls)

    def _is_answer(self, pending: PendingCall) -> bool:
        return pending.call.name == self._answer_tool

    def _step(self, call: ToolCall, iteration: int, *, is_resumed: bool) -> Step:
        current = CurrentCall(
            kind="tool",
            session_id=self._coordinator.session_id,
            turn_number=self._coordinator.turn_number,
            iteration=iteration,
            call_id=call.id,
            tool_name=call.name,
            is_answer=call.name == self._answer_tool,
        )
        return Step(call=current, arguments=call.arguments, is_resumed=is_resumed)

    async def known_result(self, call: ToolCall) -> ToolResult | None:
        """Return the result of an open call of an earlier turn, if a step wrapper has kept it.

        The tool isn't called.
        """
        unknown = refusal("not known", "Interrupted")

        async def refuse() -> ToolResult:
            return unknown

        result = await self._coordinator.run_step(
            self._step(call, 0, is_resumed=True), refuse, admit=refuse
        )
        return result if isinstance(result, ToolResult) and result is not unknown else None

    async def _run_one(self, pending: PendingCall, slot: _Slot | None) -> None:
        try:
            result = await self._coordinator.run_step(
                pending.step,
                partial(self._execute, pending),
                admit=partial(self._admit, pending),
                limiter=slot,
            )
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            # The call was cancelled in the tool, in a hook, or while the user was prompted.
            if pending.has_begun and pending.result is None:
                running = refusal("cancelled while it was running", "Cancelled")
                pending.result = running if pending.has_run else _not_started(pending.step)
                # This is a terminal event, so it is delivered despite the cancellation.
                await self._emit_error(pending, pending.result)
            raise
        if not isinstance(result, ToolResult):
            raise ContractError(
                f"a step wrapper returned {type(result).__name__} for a call of tool "
                f"{pending.call.name!r}; expected the ToolResult that run() returned, or a "
                "stored one"
            )
        pending.result, pending.is_over = result, True

    async def _admit(self, pending: PendingCall) -> ToolResult | None:
        """Return the result of a call that must not run, or None if it may."""
        pending.entered.set()
        for predecessor in pending.predecessors if self._is_answer(pending) else ():
            if self._is_answer(predecessor):
                await predecessor.exited.wait()
        pending.has_begun = True
        outcome: Reconciled = Unknown()
        if may_have_run(pending.step) and not self._cancellation.is_cancelled:
            outcome = await self._reconcile(pending)
        if isinstance(outcome, Done):
            pending.is_reconciled = True
            pending.result = _own(outcome.tool_result)
            return await self._after(pending, pending.result)
        refused = self._too_late(pending.step) or await self._pass_gates(
            pending, was_not_done=isinstance(outcome, NotDone)
        )
        # The turn may have been stopped while the hooks were deciding.
        refused = refused or self._too_late(pending.step)
        if refused is not None:
            pending.result = refused
            await self._emit_error(pending, refused)
        return refused

    def _too_late(self, step: Step) -> ToolResult | None:
        return _not_started(step) if self._cancellation.is_cancelled else None

    async def _reconcile(self, pending: PendingCall) -> Reconciled:
        """Ask the tool for the outcome of a call that may have run in an earlier process."""
        call, seconds = pending.call, self._options.tool_timeout
        tool = self._tools.get(call.name)
        reconcile = getattr(tool, "reconcile", None)
        if not callable(reconcile) or not isinstance(call.arguments, dict):
            return Unknown()
        current = current_call() or pending.step.call
        try:
            arguments = copy.deepcopy(call.arguments)
            outcome: object = await self._coordinator.call_within(
                seconds, f"reconcile of tool {call.name!r}", reconcile, arguments, current
            )
        except DeadlineExceeded:
            logger.warning("reconcile of tool %r did not return within %g s", call.name, seconds)
            return Unknown()
        # A tool is third-party code. If it fails, the outcome is unknown.
        except Exception as exc:  # noqa: BLE001
            logger.warning(
                "reconcile of tool %r (%s) failed with %s",
                call.name,
                _class_of(tool),
                _format_exception(exc),
            )
            return Unknown()
        if isinstance(outcome, Done | NotDone | Unknown):
            return outcome
        logger.warning(
            "reconcile of tool %r returned %s; expected Done(result), NotDone() or Unknown()",
            call.name,
            type(outcome).__name__,
        )
        return Unknown()

    async def _pass_gates(self, pending: PendingCall, *, was_not_done: bool) -> ToolResult | None:
        """Let hooks choose, forbid or change the call.

        Args:
            pending: The call. The tool and the input that the hooks chose are set on it.
            was_not_done: True if the call is known to have had no effect in an earlier process.

        Returns:
            The result of a call that must not run, or None if it may.
        """
        call, step = pending.call, pending.step
        if may_have_run(step) and not was_not_done:
            reason = await reason_not_to_repeat(call, self._tools, self._hook_results)
            if reason is not None:
                return refusal(reason, "Interrupted")
        if self._options.select_tools and (refused := await self._select(pending)) is not None:
            return refused
        name = pending.tool_name
        if name not in self._tools:
            known = ", ".join(self._tools) or "none"
            return refusal(f"there is no tool named {name!r}; available: {known}", "UnknownTool")
        tool = self._tools[name]
        emitted = await self._hooks.emit(
            TOOL_PRE, {**pending.event_fields(), "tool_input": pending.arguments}
        )
        if name == self._answer_tool:
            emitted = _without_questions(emitted)
        pending.prompts_user = emitted.action == "ask_user" or bool(emitted.approval_gates)
        for predecessor in pending.predecessors if pending.prompts_user else ():
            await predecessor.gated.wait()
        pending.gated.set()
        applied = await self._hook_results.apply(emitted, TOOL_PRE, defer=True)
        if applied.action == "deny":
            return _denial(applied)
        for predecessor in pending.predecessors if pending.prompts_user else ():
            if predecessor.prompts_user:
                await predecessor.started.wait()
        if applied.action == "modify" and applied.data is not None:
            pending.arguments = applied.data.get("tool_input", pending.arguments)
        # Hooks and users decided about the earlier tool.
        if self._tools.get(name) is not tool:
            return refusal(
                f"the tool {name!r} was replaced or removed while hooks decided about this call",
                "UnknownTool",
            )
        arguments = pending.arguments
        if not isinstance(arguments, dict):
            pending.arguments = {}
            return refusal(
                f"arguments must be a JSON object, got {type(arguments).__name__}", "BadArguments"
            )
        if (problem := await self.schemas.problem(name, arguments)) is not None:
            return refusal(f"arguments do not fit the tool's schema: {problem}", "BadArguments")
        return None

    async def _select(self, pending: PendingCall) -> ToolResult | None:
        """Let hooks choose the tool for a call, in the event-driven loop.

        Returns:
            The result of a call that a hook denies, or None.
        """
        call = pending.call
        payload = {
            "tool_name": call.name,
            "tool_call_id": call.id,
            "tool_input": call.arguments,
            "available_tools": list(self._tools),
        }
        chosen = await self._hook_results.apply(
            await self._hooks.emit(TOOL_SELECTING, payload), TOOL_SELECTING, defer=True
        )
        if chosen.action == "deny":
            return _denial(chosen)
        source = "model"
        if chosen.action == "modify" and chosen.data is not None:
            selected = chosen.data.get("selected_tool") or chosen.data.get("tool_name") or call.name
            if isinstance(selected, str) and selected != call.name:
                pending.tool_name, source = selected, "hook"
        await self._hooks.emit(
            TOOL_SELECTED,
            {"tool_name": pending.tool_name, "tool_call_id": call.id, "source": source},
        )
        return None

    async def _execute(self, pending: PendingCall) -> ToolResult:
        call_id, name = pending.call.id, pending.tool_name
        pending.has_run = True
        pending.started.set()
        self._cancellation.register_tool_start(call_id, name)
        try:
            result, failed = await self._call(name, pending.arguments)
        finally:
            self._cancellation.register_tool_complete(call_id)
        # Set this before the hooks are called, so that a cancelled hook doesn't lose the result.
        pending.result = result
        if failed:
            await self._emit_error(pending, result)
            return result
        return await self._after(pending, result)

    async def _call(self, name: str, arguments: dict[str, JSON]) -> tuple[ToolResult, bool]:
        """Call the tool. Return its result, and True if it raised or overran."""
        seconds = self._options.tool_timeout
        tool = self._tools.get(name)
        label = f"tool {name!r}"
        try:
            result: object = await self._coordinator.call_within(
                seconds, label, self._run_tool, name, arguments
            )
        # A session that the tool runs raised this. The turn of this session can be resumed as well.
        except NoOneToAskError:
            raise
        # The budget refused the call, so the tool didn't run.
        except BudgetError as exc:
            return refusal(text_of(exc), type(exc).__name__), True
        # A tool is third-party code. Its failure is a result for the model.
        except Exception as exc:  # noqa: BLE001
            if isinstance(exc, DeadlineExceeded) and exc.operation == label:
                return refusal(
                    f"the tool did not return within {seconds:g} s and was cancelled", "Timeout"
                ), True
            logger.warning(
                "tool %r (%s) failed with %s", name, _class_of(tool), _format_exception(exc)
            )
            return refusal(text_of(exc), type(exc).__name__), True
        if isinstance(result, ToolResult):
            return result, False
        problem = f"returned {type(result).__name__} instead of a ToolResult"
        logger.warning("tool %r (%s) %s", name, _class_of(tool), problem)
        return refusal(f"the tool {problem}", "ContractError"), True

    async def _run_tool(self, name: str, arguments: dict[str, JSON]) -> object:
        # The copy lets a tool keep or change its input without changing the transcript.
        is_flat = type(arguments) is dict and LEAVES.issuperset(map(type, arguments.values()))
        own_arguments = arguments.copy() if is_flat else copy.deepcopy(arguments)
        call: Any = self._tools[name].execute(own_arguments)
        result: object = await (
            named_if_blocking(call, name) if type(call) is CoroutineType else call
        )
        return _own(result) if isinstance(result, ToolResult) else result

    async def _after(self, pending: PendingCall, result: ToolResult) -> ToolResult:
        shown: Any = result.safe_hook_presentation() if self._has_handlers(TOOL_POST) else result
        details = {
            **pending.event_fields(),
            "tool_input": pending.arguments,
            "tool_result": shown,
            "result": shown,
        }
        applied = await self._hook_results.apply(
            await self._hooks.emit(TOOL_POST, details), TOOL_POST, defer=True
        )
        if applied.action == "deny":
            return refusal(
                f"the result was withheld: {applied.reason or 'no reason arguments'}", "Withheld"
            )
        return _modified_result(result, shown, applied)

    async def _emit_error(self, pending: PendingCall, result: ToolResult) -> None:
        await self._hooks.emit(
            TOOL_ERROR,
            {**pending.event_fields(), "tool_input": pending.arguments, "error": result.error},
        )


def _without_questions(emitted: HookResult) -> HookResult:
    """Return the hooks' result without prompts, for a tool of the loop that changes nothing."""
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
    return refusal(f"denied: {applied.reason or 'no reason arguments'}", "Denied")


def _class_of(tool: object) -> str:
    # A budget wraps each tool.
    tool = getattr(tool, "__wrapped__", tool)
    return f"{type(tool).__module__}.{type(tool).__qualname__}"


def _format_exception(exc: Exception) -> str:
    """Return an exception and its traceback as text without secrets, which some tools leak."""
    return redact_text(
        f"{type(exc).__name__}: {text_of(exc)}\n{''.join(traceback.format_exception(exc))}"
    )


def _own(result: ToolResult) -> ToolResult:
    """Copy a result, so that the tool can't change it while hooks run or it waits to be stored."""
    own = copy.copy(result)
    try:
        output, error = copy_json(result.output), copy_json(result.error)
    # The output contains itself.
    except ModelError:
        shown = result.safe_hook_presentation()
        output, error = shown["output"], shown["error"]
    # Ordinary assignment would decode images again.
    object.__setattr__(own, "output", output)
    object.__setattr__(own, "error", error)
    if result.content:
        object.__setattr__(own, "content", copy.deepcopy(result.content))
    return own


def _modified_result(result: ToolResult, shown: dict[str, Any], applied: HookResult) -> ToolResult:
    """Return the result as changed by hooks, which write under ``result`` or ``tool_result``."""
    if applied.action != "modify" or applied.data is None:
        return result
    for key in ("result", "tool_result"):
        new = applied.data.get(key, shown)
        if is_same_json(new, shown):
            continue
        if isinstance(new, ToolResult):
            return _own(new)
        if isinstance(new, dict) and new.keys() <= {"success", "output", "error", "content"}:
            is_same_content = new.get("content") == shown.get("content")
            return ToolResult(**{**new, "content": result.content if is_same_content else None})
        return ToolResult(success=result.success, output=new, error=result.error)
    return result


_ANYTHING: dict[str, Any] = {"type": "object", "properties": {}}

_MAX_BYTES_ON_LOOP = 16_384
"""The size of a schema above which its validator is built in a worker thread."""
_BUILD_TIMEOUT = 10.0


class ToolSchemas:
    """The schemas of the tools of one turn, read once."""

    def __init__(self, tools: dict[str, Tool]) -> None:
        self._tools = tools
        self._reported: set[str] = set()
        self._schemas: dict[str, dict[str, Any]] = {}

    def specs(self) -> list[ToolSpec]:
        """Return the tools for the request, with copies of their schemas.

        A tool that can't describe itself is left out and logged.
        """
        specs = []
        for name, tool in self._tools.items():
            try:
                parameters = copy_json(self._schema(name, tool))
                specs.append(
                    ToolSpec(name=name, description=tool.description, parameters=parameters)
                )
            # The properties of a tool are foreign code.
            except BaseException as exc:
                failure = contained_failure(exc)
                logger.error(
                    "tool %r cannot describe itself and is not offered to the model",
                    name,
                    exc_info=failure,
                )
        return specs

    async def problem(self, name: str, arguments: dict[str, JSON]) -> str | None:
        """Return the problems with an input as text for the model.

        None if the input is valid or can't be checked.
        """
        if name not in self._schemas:
            return None
        validator = await self._build_validator(name)
        try:
            return self._problem(name, validator, arguments)
        # A panic in the Rust extension is a BaseException.
        except BaseException as exc:  # noqa: BLE001
            failure = contained_failure(exc)
            logger.warning(
                "the input of tool %r cannot be checked against its schema: %s", name, failure
            )
            return None

    async def _build_validator(self, name: str) -> Validator | str | None:
        try:
            schema = orjson.dumps(self._schemas[name])
        # Orjson can't serialize the schema, for example because of a large number.
        except TypeError:
            return _validator_of(self._schemas[name])
        if len(schema) <= _MAX_BYTES_ON_LOOP:
            return _validator(schema)
        with anyio.move_on_after(_BUILD_TIMEOUT):
            return await anyio.to_thread.run_sync(_validator, schema, abandon_on_cancel=True)
        return f"it could not be read within {_BUILD_TIMEOUT:g} s"

    def _problem(
        self, name: str, validator: Validator | str | None, arguments: dict[str, JSON]
    ) -> str | None:
        if isinstance(validator, str):
            if name not in self._reported:
                self._reported.add(name)
                logger.warning(
                    "the schema of tool %r cannot be used, so its inputs are not checked: %s",
                    name,
                    validator,
                )
            return None
        problems = [] if validator is None else validator.problems(arguments, 5)
        return "; ".join(f"{_path(steps)}: {message}" for steps, message in problems) or None

    def _schema(self, name: str, tool: Tool) -> dict[str, Any]:
        if name not in self._schemas:
            try:
                self._schemas[name] = tool_schema(tool) or _ANYTHING
            except ContractError as exc:
                logger.warning("%s", exc)
                self._schemas[name] = _ANYTHING
        return self._schemas[name]


# Every turn reads the schemas again, but they rarely change.
@lru_cache(maxsize=1024)
def _validator(schema: bytes) -> Validator | str | None:
    """Return a validator, or the problem with the schema as text.

    None if the package for validation isn't installed.
    """
    return _validator_of(orjson.loads(schema))


def _validator_of(schema: JSON) -> Validator | str | None:
    try:
        return build_validator(schema)
    except SchemaRefused as exc:
        return str(exc)
    # Without the package, only the tool itself can check its input.
    except MissingExtraError:
        return None


def _path(steps: Iterable[object]) -> str:
    return "input" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in steps)
