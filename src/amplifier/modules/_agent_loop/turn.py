"""One turn: call the model, run its tools, repeat until the model answers without tool calls, a limit is reached or the turn is stopped."""

from __future__ import annotations

from typing import Any

import anyio

from amplifier.contracts import ContextManager, Coordinator, CurrentCall, Hooks, Provider, Tool, call_scope
from amplifier.events import (
    EXECUTION_END,
    EXECUTION_START,
    ORCHESTRATOR_COMPLETE,
    PROMPT_COMPLETE,
    PROMPT_SUBMIT,
    PROVIDER_REQUEST,
    PROVIDER_RESPONSE,
)
from amplifier.models import ChatRequest, to_dict

from .hook_results import HookResults
from .options import TurnOptions
from .provider_caller import ProviderCaller, choose_provider
from .tool_runner import ToolRunner
from .tool_schemas import ToolSchemas
from .transcript import Transcript, as_request_messages, text_of

_PREVIEW = 200


class Turn:
    """One turn of a loop; created for every prompt.

    Attributes:
        is_answered: The conversation is known to end with an answer of the model, or with what others added to one.
    """

    def __init__(
        self,
        options: TurnOptions,
        *,
        context: ContextManager,
        providers: dict[str, Provider],
        tools: dict[str, Tool],
        hooks: Hooks,
        coordinator: Coordinator | None = None,
        is_answered: bool = False,
    ) -> None:
        self.is_answered = is_answered
        self._options = options
        self._providers = providers
        self._hooks = hooks
        self._coordinator = coordinator
        self._cancellation = None if coordinator is None else coordinator.cancellation
        self._transcript = Transcript(context, coordinator)
        self._hook_results = HookResults(coordinator, self._transcript)
        self._schemas = ToolSchemas(tools)
        self._runner = ToolRunner(tools, self._schemas, hooks, self._hook_results, coordinator, options)
        self._text = ""
        self._iterations = 0
        self._finished = False

    async def run(self, prompt: str) -> str:
        """Run the turn and return the text of the model's last answer.

        Raises:
            LLMError: What the provider raised, unchanged.
            ContainedError: Provider or context raised something that is no ``Exception``.
        """
        status = "error"
        try:
            await self._hooks.emit(EXECUTION_START, {"prompt": prompt})
            await self._converse(prompt)
            status = "cancelled" if self._is_stopping() else "completed"
            return self._text
        except (anyio.get_cancelled_exc_class(), KeyboardInterrupt):
            status = "cancelled"
            raise
        finally:
            await self._leave(status)

    async def _leave(self, status: str) -> None:
        """Every way out: no call without a result, and the closing events."""
        try:
            await self._transcript.settle(self._runner.results)
        finally:
            outcome = {"completed": "success" if self._finished else "incomplete"}.get(status, status)
            details = {"orchestrator": self._options.orchestrator, "turn_count": self._iterations, "status": outcome}
            try:
                await self._hooks.emit(EXECUTION_END, {"response": self._text, "status": status})
            finally:  # on asyncio a native cancel that waited for the handlers of the first is raised out of it
                await self._hooks.emit(ORCHESTRATOR_COMPLETE, details)

    def _is_stopping(self) -> bool:
        return self._cancellation is not None and self._cancellation.is_cancelled

    async def _converse(self, prompt: str) -> None:
        emitted = await self._hooks.emit(PROMPT_SUBMIT, {"prompt": prompt})
        # Before anything of this turn is stored, which injections are; but not for a prompt that is denied.
        is_empty = emitted.action != "deny" and await self._open()
        applied = await self._hook_results.apply(emitted, PROMPT_SUBMIT)
        if applied.action == "deny":
            self._text = f"Operation denied: {applied.reason or 'no reason given'}"
            return
        if applied.action == "modify" and applied.data is not None:
            prompt = str(applied.data.get("prompt", prompt))
        name, provider = choose_provider(self._providers, self._options.default_provider)
        caller = ProviderCaller(name, provider, self._hooks, self._options)
        self.is_answered = False
        if is_empty and self._options.system_prompt:
            await self._transcript.add({"role": "system", "content": self._options.system_prompt})
        await self._transcript.add({"role": "user", "content": prompt})
        while not self._is_stopping():
            if self._iterations >= self._options.max_iterations:
                limit = f"stopped after {self._iterations} model calls, the loop's max_iterations"
                self._text = f"{self._text}\n\n[{limit}]" if self._text else f"[{limit}]"
                return
            self._iterations += 1
            if not await self._step(caller):
                return

    async def _open(self) -> bool:
        """Close what an earlier turn left without an answer; True if the conversation is seen to be empty.

        Reading a long conversation takes time, so after a turn of this loop that ended with an answer nothing is read.
        """
        if self.is_answered and not self._options.system_prompt:
            return False
        stored = await self._transcript.stored()
        if not self.is_answered:
            await self._transcript.close_unanswered(stored)
            self.is_answered = True
        return not stored

    async def _step(self, caller: ProviderCaller) -> bool:
        """One model call and the tools it asks for; False when the turn is over."""
        messages = await self._request_messages(caller)
        if messages is None:
            return False
        request = ChatRequest(
            messages=as_request_messages(messages),
            tools=self._schemas.specs() or None,
            model=self._options.model,
            stream=self._options.streaming,
        )
        with call_scope(self._model_call()):
            response = await caller.ask(request)
            calls = await caller.calls_of(response)
        self._text = text_of(response)
        await self._transcript.add_answer(response, calls)
        await self._hooks.emit(
            PROVIDER_RESPONSE,
            {
                "provider": caller.name,
                "model": request.model,
                "response": to_dict(response),
                "usage": None if response.usage is None else to_dict(response.usage),
                "tool_calls": bool(calls),
                "iteration": self._iterations,
            },
        )
        if not calls:
            self._finished = self.is_answered = True
            preview = {"response_preview": self._text[:_PREVIEW], "length": len(self._text)}
            await self._hooks.emit(PROMPT_COMPLETE, preview)
            return False
        results = await self._runner.run(calls, self._iterations)
        await self._transcript.add_results(calls, results)
        await self._hook_results.store_deferred()
        return True

    def _model_call(self) -> CurrentCall:
        turn = 0 if self._coordinator is None else self._coordinator.turn_number
        return CurrentCall(
            kind="model",
            session_id="" if self._coordinator is None else self._coordinator.session_id,
            turn_number=turn,
            iteration=self._iterations,
            call_id=f"model-{turn}-{self._iterations}",
        )

    async def _request_messages(self, caller: ProviderCaller) -> list[dict[str, Any]] | None:
        """The messages of the next request, or None when a hook forbids it or the turn is being stopped."""
        messages = await self._transcript.for_request(caller.provider)
        emitted = await self._hooks.emit(
            PROVIDER_REQUEST,
            {
                "provider": caller.name,
                "model": self._options.model,
                "messages": messages,
                "iteration": self._iterations,
            },
        )
        injects = bool(emitted.context_injections or emitted.context_injection)
        applied = await self._hook_results.apply(emitted, PROVIDER_REQUEST)
        if applied.action == "deny":
            self._text = f"Operation denied: {applied.reason or 'no reason given'}"
            return None
        if self._is_stopping():
            return None  # stopped while the hooks were deciding
        if injects:
            messages = await self._transcript.for_request(caller.provider)
        return self._hook_results.add_ephemeral(messages)
