"""One turn, and the orchestrator that runs one for every prompt."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any

import anyio
import attrs

from amplifier._internal.json import JSON
from amplifier.contracts import (
    ContextManager,
    Coordinator,
    CurrentCall,
    Hooks,
    Provider,
    Step,
    Tool,
)
from amplifier.errors import (
    ContentFilterError,
    ContextLengthError,
    ContractError,
    ExecutionDenied,
    InvalidRequestError,
    NoOneToAskError,
    NoUnfinishedTurnError,
)
from amplifier.events import (
    CONTEXT_CACHE_BREAK,
    EXECUTION_END,
    EXECUTION_START,
    ORCHESTRATOR_COMPLETE,
    ORCHESTRATOR_STEERING_INJECTED,
    PROMPT_COMPLETE,
    PROMPT_SUBMIT,
    PROVIDER_REFUSAL,
    PROVIDER_REQUEST,
    PROVIDER_RESPONSE,
    TURN_RESUMED,
)
from amplifier.models import ChatRequest, ChatResponse, ToolCall, to_dict
from amplifier.models.answers import AnswerFormat
from amplifier.models.prompts import attachments_of, changed_blocks
from amplifier.models.turns import REFUSALS, text_of

from ..context import CORRECTION, STEERING
from ._hook_results import HookResults
from ._messages import (
    INSTRUCTIONS,
    RequestMessages,
    RequestPrefix,
    Steering,
    Transcript,
    UnfinishedTurn,
    lacks_instructions,
    unfinished_turn,
)
from ._options import TurnOptions
from ._provider_caller import NotRepeated, ProviderCaller, choose_provider
from ._tool_runner import PendingCall, ToolRunner
from ._typed_answer import TypedAnswer

_PREVIEW_CHARS = 200


def _prompt_payload(prompt: str, attachments: list[dict[str, Any]]) -> dict[str, Any]:
    return {"prompt": prompt, "attachments": attachments} if attachments else {"prompt": prompt}


class Turn:
    """One turn of a loop.

    It calls the model and runs its tools until the model answers without tool calls, a limit is
    reached, or the turn is stopped.

    Args:
        options: The options of the loop.
        prefix: The beginning of the latest request of the loop.
        steering: Messages that arrive while the turn runs.
        context: The context with the conversation.
        providers: The providers by name.
        tools: The tools by name.
        hooks: Emits events.
        coordinator: The coordinator of the session.
        answer_format: The format of a typed answer, or None for text.

    Attributes:
        is_answered: True if the conversation is known to end with an answer from the model, or with
            messages that were added after such an answer.
    """

    def __init__(
        self,
        options: TurnOptions,
        prefix: RequestPrefix,
        steering: Steering,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        coordinator: Coordinator,
        answer_format: AnswerFormat[Any] | None,
    ) -> None:
        self._steering = steering
        self.is_answered: bool = False
        self._options = options
        self._hooks = hooks
        self._has_handlers = hooks.has_handlers
        self._coordinator = coordinator
        # The number of the latest model call, starting at 1.
        self._iteration = 0
        self._transcript = Transcript(context, coordinator, prefix)
        self._hook_results = HookResults(coordinator)
        self._providers = providers
        self._answer: TypedAnswer | None = None
        if answer_format is not None:
            # If there is no provider, the turn reports that after its first events.
            provider = providers.get(options.default_provider or next(iter(providers), ""))
            self._answer = TypedAnswer(
                answer_format, provider, tools, options.answer_mode, options.answer_attempts
            )
            if self._answer.tool is not None:
                tools = {**tools, self._answer.tool.name: self._answer.tool}
        self._runner = ToolRunner(
            tools,
            hooks,
            self._hook_results,
            coordinator,
            options,
            self._transcript.add_result,
            None if self._answer is None or self._answer.tool is None else self._answer.tool.name,
        )
        self._text = ""
        self._instructions = options.system_prompt
        # The fields of events about the latest model call.
        self._about: dict[str, JSON] = {}
        self._lacks_instructions = self._finished = self._is_refused = False

    async def run(self, prompt: str, blocks: list[dict[str, Any]]) -> str:
        """Run the turn and return the text of the model's last answer.

        Args:
            prompt: The user's text.
            blocks: The prompt as blocks, if it contains more than text.

        Raises:
            LLMError: The error of the provider, unchanged.
            ExecutionDenied: A hook denied the prompt or a model call.
            ResultError: The answer doesn't fit the requested type.
            ContainedError: The provider or context raised a BaseException such as SystemExit.
        """
        return await self._run(
            prompt, attachments_of(blocks), partial(self._converse, prompt, blocks)
        )

    async def resume(self) -> str:
        """Continue the interrupted turn at the end of the conversation.

        Raises:
            NoUnfinishedTurnError: There is no interrupted turn. No event was emitted.
            LLMError: The error of the provider, as in `run`.
        """
        await self._collect_instructions()
        stored = await self._transcript.stored()
        self._lacks_instructions = lacks_instructions(stored, self._instructions)
        unfinished = unfinished_turn(stored)
        if unfinished is None:
            raise NoUnfinishedTurnError(
                "there is no turn to resume: the conversation is empty or ends with an answer of "
                "the model; begin a turn with execute(prompt)"
            )
        return await self._run(
            unfinished.prompt, unfinished.attachments, partial(self._continue, unfinished)
        )

    async def _run(
        self, prompt: str, attachments: list[dict[str, Any]], work: Callable[[], Awaitable[None]]
    ) -> str:
        status, keeps_calls = "error", False
        self._steering.open()
        try:
            await self._hooks.emit(EXECUTION_START, _prompt_payload(prompt, attachments))
            await work()
            status = "cancelled" if self._is_stopping() else "completed"
            return self._text
        except ContentFilterError as error:
            await self._refused(type(error).__name__, str(error))
            raise
        # A denial isn't a failure of the turn.
        except ExecutionDenied:
            status = "completed"
            raise
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            status = "cancelled"
            raise
        except NoOneToAskError:
            status, keeps_calls = "cancelled", True
            raise
        finally:
            self._steering.open(False)
            await self._leave(status, keeps_calls=keeps_calls)

    async def _leave(self, status: str, *, keeps_calls: bool) -> None:
        """End the turn: settle its calls, unless it will be resumed, and emit the last events."""
        try:
            if not keeps_calls:
                await self._transcript.settle(self._runner.results)
        finally:
            # On asyncio, the first of the two emits may raise a native cancel that was held back
            # while its handlers ran.
            try:
                await self._hooks.emit(EXECUTION_END, {"response": self._text, "status": status})
            finally:
                outcome = status
                if status == "completed":
                    outcome = "success" if self._finished else "incomplete"
                if self._is_refused and outcome in ("success", "error"):
                    outcome = "refused"
                details = {
                    "orchestrator": self._options.orchestrator,
                    "turn_count": self._iteration,
                    "status": outcome,
                }
                await self._hooks.emit(ORCHESTRATOR_COMPLETE, details)

    async def _refused(self, reason: str, message: str) -> None:
        self._is_refused = True
        await self._hooks.emit(
            PROVIDER_REFUSAL, {**self._about, "reason": reason, "message": message}
        )

    def _is_stopping(self) -> bool:
        return self._coordinator.cancellation.is_cancelled

    async def _converse(self, prompt: str, blocks: list[dict[str, Any]]) -> None:
        prompt, blocks = await self._submit(prompt, blocks)
        caller = self._caller()
        caller.require_readable(attachments_of(blocks))
        self.is_answered = False
        await self._instruct()
        await self._transcript.add({"role": "user", "content": blocks or prompt})
        try:
            await self._iterate(caller)
        except (InvalidRequestError, ContextLengthError) as error:
            if self._iteration == 1 and attachments_of(blocks):
                await self._transcript.withdraw_attachments(blocks)
                error.add_note(
                    "The conversation keeps notes in place of the images and files of this prompt."
                )
            raise

    async def _submit(
        self, prompt: str, blocks: list[dict[str, Any]]
    ) -> tuple[str, list[dict[str, Any]]]:
        """Let hooks forbid or change the prompt."""
        emitted = await self._hooks.emit(
            PROMPT_SUBMIT, _prompt_payload(prompt, attachments_of(blocks))
        )
        # This comes before `apply`, which may store an injection. A denied prompt stores nothing.
        if emitted.action != "deny":
            await self._open()
        applied = await self._hook_results.apply(emitted, PROMPT_SUBMIT)
        if applied.action == "deny":
            raise self._denied(PROMPT_SUBMIT, applied.reason)
        if applied.action == "modify" and applied.data is not None:
            prompt = str(applied.data.get("prompt", prompt))
            blocks = changed_blocks(blocks, applied.data)
        return prompt, blocks

    async def _continue(self, unfinished: UnfinishedTurn) -> None:
        """Add the missing results of the latest answer, and then continue like any turn."""
        caller = self._caller()
        self._iteration = unfinished.iterations
        self._transcript.reopen(unfinished.calls)
        resumed: list[PendingCall] = []
        if unfinished.calls:
            # Input validation needs the schemas, which this call reads.
            self._runner.schemas.specs()
            resumed = await self._runner.run(unfinished.calls, self._iteration, are_resumed=True)
            await self._hook_results.store_deferred()
        await self._hooks.emit(
            TURN_RESUMED,
            {
                "iteration": unfinished.iterations,
                "calls": [attempt.as_resumed() for attempt in resumed],
            },
        )
        if self._answer is None or not await self._take_final_result(self._answer, resumed):
            await self._instruct()
            await self._iterate(caller)

    def _caller(self) -> ProviderCaller:
        name, provider = choose_provider(self._providers, self._options.default_provider)
        tool = None if self._answer is None else self._answer.tool
        answer_tool = None if tool is None else tool.name
        return ProviderCaller(
            name,
            provider,
            self._hooks,
            self._coordinator,
            self._options,
            self._is_stopping,
            answer_tool,
        )

    async def _iterate(self, caller: ProviderCaller) -> None:
        """Call the model and run its tools until it answers without tool calls."""
        while not self._is_stopping():
            if self._iteration >= self._options.max_iterations:
                limit = f"stopped after {self._iteration} model calls, the loop's max_iterations"
                self._text = f"{self._text}\n\n[{limit}]" if self._text else f"[{limit}]"
                return
            self._iteration += 1
            await self._take_steering()
            if not await self._step(caller):
                return

    async def _take_steering(self) -> None:
        """Store the messages that have arrived since the latest request."""
        while waiting := self._steering.waiting:
            message = waiting.popleft()
            await self._transcript.add(
                {"role": "user", "content": message, "metadata": {"source": STEERING}}
            )
            details = {
                "orchestrator": self._options.orchestrator,
                "content": message,
                "iteration": self._iteration,
                "queued_remaining": len(waiting),
                "metadata": None,
            }
            await self._hooks.emit(ORCHESTRATOR_STEERING_INJECTED, details)

    async def _open(self) -> None:
        """Close an earlier turn without an answer, and compare the instructions.

        If the previous turn of this loop ended with an answer, nothing is read, because reading a
        long conversation takes time.
        """
        await self._collect_instructions()
        if self.is_answered and not self._instructions:
            return
        stored = await self._transcript.stored()
        self._lacks_instructions = lacks_instructions(stored, self._instructions)
        if not self.is_answered:
            await self._transcript.close_unanswered(stored, self._runner.known_result)
            self.is_answered = True

    async def _collect_instructions(self) -> None:
        """Join the instructions of the plan and the contributions to ``instructions``."""
        texts = [
            self._options.system_prompt,
            *await self._coordinator.collect_contributions("instructions"),
        ]
        self._instructions = (
            "\n\n".join(text for text in texts if isinstance(text, str) and text) or None
        )

    async def _instruct(self) -> None:
        """Store the instructions if they differ. A request contains only the latest ones."""
        if self._lacks_instructions:
            metadata = {"source": INSTRUCTIONS}
            await self._transcript.add(
                {"role": "system", "content": self._instructions, "metadata": metadata}
            )

    async def _step(self, caller: ProviderCaller) -> bool:
        """Call the model and run its tools. Return False if the turn is over."""
        self._about = {"provider": caller.name, "model": self._options.model}
        messages = await self._request_messages(caller)
        if messages is None:
            return False
        request = ChatRequest(
            messages=[],
            response_format=None if self._answer is None else self._answer.response_format,
            model=self._options.model,
            stream=self._options.streaming,
        )
        # The constructor would check and copy both lists member by member.
        request.messages = messages.for_provider()
        request.tools = self._runner.schemas.specs() or None
        if self._has_handlers(CONTEXT_CACHE_BREAK):
            await self._emit_cache_break(messages, request, caller)
        turn_number, iteration = self._coordinator.turn_number, self._iteration
        call = CurrentCall(
            kind="model",
            session_id=self._coordinator.session_id,
            turn_number=turn_number,
            iteration=iteration,
            call_id=f"model-{turn_number}-{iteration}",
        )
        caller.expect(messages, f"call_{turn_number}_{iteration}")
        try:
            response = await self._coordinator.run_step(
                Step(call=call, arguments=request), partial(caller.ask, request)
            )
        except NotRepeated:
            return False
        if not isinstance(response, ChatResponse):
            raise ContractError(
                f"a step wrapper returned {type(response).__name__} for a model call; expected "
                "the ChatResponse that run() returned, or a stored one"
            )
        response, calls = await caller.calls_of(response)
        self._text = text_of(response)
        await self._transcript.add_answer(response, calls)
        await self._emit_response(response, calls)
        self._is_refused = False
        if response.finish_reason in REFUSALS:
            await self._refused(response.finish_reason, self._text)
        if not calls:
            correction = None if self._answer is None else self._answer.correction(self._text)
            # Steering messages arrived after the request was sent.
            if correction is None and self._steering.waiting and not self._is_stopping():
                return True
            if correction is None:
                await self._complete()
                return False
            await self._transcript.add(
                {"role": "user", "content": correction, "metadata": {"source": CORRECTION}}
            )
            return True
        pending_calls = await self._runner.run(calls, self._iteration)
        await self._hook_results.store_deferred()
        return self._answer is None or not await self._take_final_result(
            self._answer, pending_calls
        )

    async def _emit_response(self, response: ChatResponse, calls: list[ToolCall]) -> None:
        has_handlers = self._has_handlers(PROVIDER_RESPONSE)
        shown: object = response
        usage: object = response.usage
        # Without handlers, only `session.last_turn` receives these, and it keeps the objects as
        # they are.
        if has_handlers:
            is_read = self._has_handlers(PROVIDER_RESPONSE, "response")
            shown = to_dict(response) if is_read else None
            usage = None if response.usage is None else to_dict(response.usage)
        await self._hooks.emit(
            PROVIDER_RESPONSE,
            {
                **self._about,
                "response": shown,
                "usage": usage,
                "tool_calls": bool(calls),
                "iteration": self._iteration,
            },
        )

    async def _emit_cache_break(
        self, messages: RequestMessages, request: ChatRequest, caller: ProviderCaller
    ) -> None:
        broken = messages.cache_break(request.tools)
        if broken is not None:
            cost = caller.price_of_input(request, broken.tokens)
            await self._hooks.emit(
                CONTEXT_CACHE_BREAK, {**attrs.asdict(broken), "cost_usd": cost and str(cost)}
            )

    async def _take_final_result(
        self, answer: TypedAnswer, pending_calls: list[PendingCall]
    ) -> bool:
        """Return whether the model answered by calling the answer tool, and store that answer."""
        answer_calls = [
            pending
            for pending in pending_calls
            if answer.tool is not None and pending.call.name == answer.tool.name
        ]
        for pending in answer_calls:
            # The tool accepted the call in an earlier process, and a step wrapper kept the result.
            if not pending.has_begun and pending.result is not None and pending.result.success:
                answer.accept_kept(pending.call.arguments)
        accepted = answer.accepted()
        if accepted is not None:
            self._text = accepted
            # A conversation that ends with the result of a tool would look interrupted.
            await self._transcript.add({"role": "assistant", "content": accepted})
            await self._complete()
            return True
        for pending in answer_calls:
            if not self._is_stopping():
                answer.check_rejected(pending.call.arguments)
        return False

    async def _complete(self) -> None:
        self._steering.open(False)
        self._finished = self.is_answered = True
        preview = {"response_preview": self._text[:_PREVIEW_CHARS], "length": len(self._text)}
        await self._hooks.emit(PROMPT_COMPLETE, preview)

    def _denied(self, event: str, reason: str | None) -> ExecutionDenied:
        self._text = f"Operation denied: {reason or 'no reason given'}"
        return ExecutionDenied(self._text, event=event, reason=reason)

    async def _request_messages(self, caller: ProviderCaller) -> RequestMessages | None:
        """Return the messages of the next request, or None if the turn is being stopped.

        Raises:
            ExecutionDenied: A hook forbids the request.
        """
        messages = await self._transcript.for_request(caller.provider)
        injects = await self._pass_gates(caller, messages)
        # The turn may have been stopped while the hooks were deciding.
        if self._is_stopping():
            return None
        if injects:
            messages = await self._transcript.for_request(caller.provider)
        messages.add_ephemeral(self._hook_results.take_ephemeral())
        return messages

    async def _pass_gates(self, caller: ProviderCaller, messages: RequestMessages) -> bool:
        """Let hooks forbid the request. Return True if they have added to the conversation."""
        is_read = self._has_handlers(PROVIDER_REQUEST, "messages")
        emitted = await self._hooks.emit(
            PROVIDER_REQUEST,
            {
                "provider": caller.name,
                "model": self._options.model,
                "messages": messages.for_event() if is_read else None,
                "iteration": self._iteration,
            },
        )
        injects = bool(emitted.context_injections or emitted.context_injection)
        applied = await self._hook_results.apply(emitted, PROVIDER_REQUEST)
        if applied.action == "deny":
            raise self._denied(PROVIDER_REQUEST, applied.reason)
        return injects


class TurnOrchestrator:
    """The orchestrator of all loops, which differ only in their options.

    Attributes:
        reports_pieces: True, because the loop reports the pieces of answers itself. An observer of
            a turn doesn't need the pieces that providers report.
    """

    reports_pieces: bool = True

    def __init__(self, options: TurnOptions) -> None:
        self._options = options
        # The context of the latest turn, if that ended with an answer. The next turn needn't read
        # this context again.
        self._answered: ContextManager | None = None
        self._prefix = RequestPrefix()
        self._steering = Steering()

    def steer(self, message: str) -> None:
        """Add a user message to the running turn. The next request contains it.

        Raises:
            SessionStateError: No running turn would read the message.
            ValueError: The message isn't text, or it is empty.
        """
        self._steering.add(message)

    async def execute(
        self,
        prompt: str,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        coordinator: Coordinator,
        answer_format: AnswerFormat[Any] | None = None,
        prompt_blocks: list[dict[str, Any]] | None = None,
        **_: object,
    ) -> str:
        """Run one turn and return the text of the model's last answer.

        With a format, return the answer as JSON text that fits it.
        """
        turn = self._turn(context, providers, tools, hooks, coordinator, answer_format)
        turn.is_answered, self._answered = self._answered is context, None
        return await self._run(turn, context, turn.run(prompt, prompt_blocks or []))

    async def resume(
        self,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        coordinator: Coordinator,
        answer_format: AnswerFormat[Any] | None = None,
        **_: object,
    ) -> str:
        """Continue the interrupted turn. Return the same as `execute`."""
        turn = self._turn(context, providers, tools, hooks, coordinator, answer_format)
        self._answered = None
        return await self._run(turn, context, turn.resume())

    def _turn(self, context: ContextManager, *rest: Any) -> Turn:
        return Turn(self._options, self._prefix, self._steering, context, *rest)

    async def _run(
        self, turn: Turn, context: ContextManager, work: Coroutine[Any, Any, str]
    ) -> str:
        try:
            return await work
        finally:
            if turn.is_answered:
                self._answered = context


async def mount_loop(coordinator: Coordinator, loop: TurnOrchestrator) -> None:
    """Mount a loop, and offer its `steer` under the published name."""
    # The loop's methods require a coordinator argument, which sessions always pass.
    await coordinator.mount("orchestrator", loop)  # type: ignore[call-overload]
    coordinator.register_capability("session.steer", loop.steer)
