"""Run the turns of a loop in a real session with scripted model, tools, hooks, context and user.

The doubles suspend where the real ones would, and log everything. Every suspension of a double is
counted, and the turn can be cancelled at one of them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel
import attrs

from amplifier.conformance.target.mounted import MountedModule
from amplifier.conformance.target.turn_script import (
    RAISED,
    TOOLS,
    Answer,
    Call,
    LogEntry,
    RecordedTurn,
    ScriptedTurn,
    plain,
    read_turns,
    words_of,
)
from amplifier.kernel.session.turn import accepted_keywords
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ContextInjection,
    HookResult,
    TextBlock,
    ToolResult,
)
from amplifier.testing import MockApprovalSystem, MockProvider

PROVIDERS = ("one", "two", "three")
SECONDS = 4.0
"""Deadline of one turn in seconds. Doubles never wait, so any loop can keep it."""
MAX_MODEL_CALLS = 300
"""Model calls after which a turn of a few answers counts as endless."""
MAX_ENDLESS_MODEL_CALLS = 1_500
"""The same for a turn whose model never stops, where the loop's own limit has to apply first."""
_offers_tools: set[Path] = set()
"""Loops that have sent a request with tools."""
_NOTHING_MORE = Answer(number=0, blocks=[{"say": "There is nothing more to say."}], calls=[])


class ScriptedSession:
    """One case in the session of a mounted loop. Gives out the answers and logs the doubles.

    Args:
        mounted: The mounted loop and its session.
        case: The turns, as in `turn_script`.
        endless: True to let the model call a tool in every answer, regardless of the script.

    Attributes:
        scripts: The turns of the case.
        turn: The turn that runs, or ran last.
        turns: All turns so far.
        running: The tool calls in progress.
        suspensions: Number of suspensions of doubles.
        model_calls: Number of model calls in this turn.
        last_answer: The model's last answer.
        cancel_at: The suspension at which to call `cancel`. 0 for never.
        cancel: Cancels the turn.
        cancelled_where: The double that was suspended at that point.
        cancelled_line: The line of the loop that awaited it, ``file:line``.
        was_delivered: True if the cancellation was raised at that suspension, unshielded.
        gave_up: The clause that an endless loop violates. None if the turn was not ended for that.
    """

    def __init__(
        self, mounted: MountedModule, case: dict[str, Any], *, endless: bool = False
    ) -> None:
        self.mounted = mounted
        self.case = case
        self.is_endless = endless
        self.scripts: list[ScriptedTurn] = read_turns(case)
        self._left: list[Answer] = []
        self._calls = {call.key: call for script in self.scripts for call in reversed(script.calls)}
        self._calls |= {call.new_key: call for call in self._calls.values()}
        self.turn: RecordedTurn = RecordedTurn(script=self.scripts[0])
        self.turns: list[RecordedTurn] = []
        self.running: set[int] = set()
        self.suspensions: int = 0
        self.model_calls: int = 0
        self.last_answer: Answer | None = None
        self.cancel_at: int = 0
        self.cancel: Callable[[], Any] = lambda: None
        self.cancelled_where: str = ""
        self.cancelled_line: str | None = None
        self.was_delivered: bool = False
        self.gave_up: str | None = None
        core: Any = mounted.session.coordinator
        self.context: ScriptedContext = ScriptedContext(self, case, keeps=6 if endless else 0)
        core.mount("context", self.context)
        core.approval_system = scripted_approvals(self)
        for name in PROVIDERS[: case.get("providers", 1)]:
            core.mount(
                "providers",
                scripted_provider(self, name, streams=bool(case.get("streams"))),
                name=name,
            )
        for name in TOOLS:
            core.mount("tools", ScriptedTool(self, name), name=name)
        self._hooks = ScriptedHooks(self, core.hooks)

    def reset(self) -> None:
        """Forget all turns and messages, to run the same case again."""
        self.turns.clear()
        self.context.messages.clear()

    def detach(self) -> None:
        """Unregister the hooks, so that another scripted session can use the same mounted loop."""
        self._hooks.unregister()

    async def run_turns(self) -> list[RecordedTurn]:
        """Run all turns of the case, one after another."""
        for script in self.scripts:
            await self.run_turn(script)
            # An application that continues after a stop does the same.
            self.mounted.session.coordinator.cancellation.reset()
        return self.turns

    async def run_turn(
        self,
        script: ScriptedTurn | None = None,
        *,
        seconds: float = SECONDS,
        with_coordinator: bool = True,
    ) -> RecordedTurn:
        """Run one turn. Its error is part of its outcome.

        Args:
            script: The turn. By default the first one of the case.
            seconds: The deadline.
            with_coordinator: True to pass the coordinator, which is optional for loops.
        """
        self._begin(script)
        execute, arguments = (
            self.mounted.instance.execute,
            self.arguments(with_coordinator=with_coordinator),
        )
        with anyio.CancelScope() as scope:
            self.cancel = scope.cancel
            self.turn.outcome = await self.mounted.call(execute, **arguments, seconds=seconds)
        return self.turn

    async def run_and_cancel(self, suspension: int) -> RecordedTurn:
        """Run the first turn and cancel it at a suspension of a double."""
        self.cancel_from_now(suspension)
        turn = await self.run_turn()
        self.cancel_from_now(None)
        turn.is_cancelled = bool(self.cancelled_where)
        return turn

    async def execute_unguarded(self) -> Any:
        """Call execute for the first turn without a deadline or watchdog."""
        self._begin(None)
        self.turn.is_cancelled = True
        return await self.mounted.instance.execute(**self.arguments())

    def _begin(self, script: ScriptedTurn | None) -> None:
        self._hooks.reset()
        self.turn = RecordedTurn(script=self.scripts[0] if script is None else script)
        self.turns.append(self.turn)
        self._left = list(self.turn.script.answers)
        self.model_calls, self.last_answer = 0, None
        self.cancelled_where = ""

    def arguments(self, *, with_coordinator: bool = True) -> dict[str, Any]:
        """Return the arguments of execute: those of the kernel that it accepts."""
        core = self.mounted.session.coordinator
        offered = {
            "prompt": self.turn.script.prompt,
            "context": self.context,
            "providers": core.get("providers"),
            "tools": core.get("tools"),
            "hooks": core.hooks,
            "coordinator": core,
        }
        execute = self.mounted.instance.execute
        if not with_coordinator and not needs_coordinator(execute):
            del offered["coordinator"]
        accepted = accepted_keywords(execute)
        return (
            offered
            if accepted is None
            else {key: offered[key] for key in offered if key in accepted}
        )

    def cancel_from_now(self, suspension: int | None) -> None:
        """Cancel the turn at the n-th suspension from now, or never if it is None."""
        if suspension is None:
            self.cancel_at = 0
        else:
            self.cancel_at, self.was_delivered = self.suspensions + suspension, False

    def note(self, kind: str, name: str, data: Any = None) -> None:
        """Add an entry to the log of the turn."""
        ctx = self.mounted.ctx
        line = ctx.line_of(inspect.currentframe()) if ctx.locates else None
        self.turn.log.append(LogEntry(kind, name, data, line))

    async def suspend(self, where: str) -> None:
        """Suspend once, and cancel the turn first if this is the chosen suspension."""
        self.suspensions += 1
        if self.suspensions == self.cancel_at:
            self.cancelled_where = where
            self.cancelled_line = self.mounted.ctx.line_of(inspect.currentframe())
            self.cancel()
            try:
                await anyio.lowlevel.checkpoint()
            except anyio.get_cancelled_exc_class():
                self.was_delivered = True
                raise
            return
        await anyio.lowlevel.checkpoint()

    def stop(self) -> None:
        """Request a graceful stop, as a user does."""
        self.note("stop", "graceful")
        self.mounted.session.coordinator.cancellation.request_graceful()

    def give_up(self, clause: str) -> None:
        """End an endless loop that violates a clause."""
        self.gave_up = clause
        self.turn.is_cancelled = True
        self.cancel()

    def peek_answer(self) -> Answer | None:
        """Return the model's next answer."""
        return self._left[0] if self._left else None

    def next_answer(self, has_tools: bool = False) -> Answer:
        """Take the model's next answer.

        A loop that usually offers tools may leave them out once, for a plan or a summary. Then the
        model calls none.
        """
        loop = self.mounted.loaded.target.file
        if has_tools:
            _offers_tools.add(loop)
        elif loop in _offers_tools:
            return _NOTHING_MORE
        self.model_calls += 1
        number = self.model_calls
        if number > (MAX_ENDLESS_MODEL_CALLS if self.is_endless else MAX_MODEL_CALLS):
            self.give_up("O23")
        if self.is_endless:
            call = Call(number=number, tool="alpha", id=f"again{number}", key=f"again{number}")
            self._calls[call.key] = call
            return Answer(number=number, blocks=[{"call": "alpha", "number": number}], calls=[call])
        if not self._left:
            return _NOTHING_MORE
        answer = self._left[0]
        # A provider that fails continues to fail, so that a retry gets the same error.
        if answer.error is None or answer.times == 1:
            return self._left.pop(0)
        if answer.times:
            self._left[0] = attrs.evolve(answer, times=answer.times - 1)
        return answer

    def call_with(self, key: Any, tool: Any) -> Call | None:
        """Return the call with a key in its arguments, or without a key the tool's last call."""
        if isinstance(key, str) and key in self._calls:
            return self._calls[key]
        if key is None and isinstance(tool, str):
            calls = [] if self.last_answer is None else self.last_answer.calls
            return next((call for call in calls if call.tool == tool), None)
        return None


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"key": {"type": "string", "description": "Any text."}},
    "required": ["key"],
}


class ScriptedContext:
    """Stores every message. Each view for a request starts with a marker message.

    Args:
        player: The state of the turn.
        case: The case. ``history`` is the number of messages of an earlier turn at the start,
            ``compacts`` leaves that turn out of the view, and ``fails`` is ``add`` or ``view`` with
            the number of the call that fails.
        keeps: Maximum number of newest messages in a view, for endless turns. 0 for all.
    """

    def __init__(self, player: ScriptedSession, case: dict[str, Any], *, keeps: int = 0) -> None:
        self._player = player
        roles, history = ("user", "assistant"), case.get("history", 0)
        self.messages: list[dict[str, Any]] = [
            {"role": roles[number % 2], "content": f"earlier{number}x"} for number in range(history)
        ]
        self._earlier = history if case.get("compacts") else 0
        self._keeps = keeps
        self._fails = case.get("fails")
        self._counts = {"add": 0, "view": 0}

    async def add_message(self, message: dict[str, Any]) -> None:
        """Store a message."""
        if not isinstance(message, Mapping):
            raise TypeError(f"add_message takes a dict, got {type(message).__name__}")
        if not message.get("role"):
            raise ValueError(f"a message needs a role; got the keys {sorted(message)!r}")
        copied = plain(message)
        self._player.note("storing", str(copied["role"]), copied)
        await self._player.suspend("context.add_message")
        self._maybe_fail("add")
        self._store(copied)
        # A context that writes a file may be cancelled when the message is there already. Of a
        # result a loop could not tell whether to store it again.
        if copied["role"] == "assistant":
            await self._player.suspend("context.add_message")

    def _store(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._player.note("stored", str(message.get("role")), message)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any | None = None
    ) -> list[dict[str, Any]]:
        """Return a view that starts with a marker message."""
        await self._player.suspend("context.get_messages_for_request")
        self._maybe_fail("view")
        name = f"view{self._counts['view']}x"
        view = [
            {"role": "user", "content": name},
            *plain(self.messages[self._earlier :][-self._keeps :]),
        ]
        self._player.note("view", name, plain(view))
        return view

    async def get_messages(self) -> list[dict[str, Any]]:
        """Return all messages."""
        await self._player.suspend("context.get_messages")
        return list(plain(self.messages))

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        """Replace everything, and log messages that are added at the end as stored."""
        await self._player.suspend("context.set_messages")
        new = [plain(message) for message in messages]
        known = len(self.messages) if new[: len(self.messages)] == self.messages else 0
        self.messages[:] = new[:known]
        for message in new[known:]:
            self._store(message)

    async def clear(self) -> None:
        """Remove all messages."""
        await self._player.suspend("context.clear")
        self.messages.clear()

    def _maybe_fail(self, operation: str) -> None:
        self._counts[operation] += 1
        if self._fails == [operation, self._counts[operation]]:
            self._player.turn.context_failed = True
            raise OSError(28, "No space left on device")


def scripted_provider(player: ScriptedSession, name: str, *, streams: bool) -> Any:
    """Make a provider with the answers of the script, and with `stream` only if it ``streams``."""

    async def respond(request: Any) -> ChatResponse:
        if not isinstance(request, ChatRequest):
            player.note("asked", name, None)
            raise TypeError(f"complete takes a ChatRequest, got {type(request).__name__}")
        player.note("asked", name, plain(request))
        answer = player.next_answer(bool(request.tools))
        for _ in range(answer.steps):
            await player.suspend("provider.complete")
        if answer.stops == "asked":
            player.stop()
        error = answer.exception()
        if error is not None:
            player.note("failed", name, error)
            raise error
        player.note("answered", name, answer)
        player.last_answer = answer
        return answer.response()

    double = MockProvider(respond, name=name)
    offered = ("name", "get_info", "list_models", "complete", "parse_tool_calls")
    return (
        double if streams else SimpleNamespace(**{name: getattr(double, name) for name in offered})
    )


class ScriptedTool:
    """Acts according to the script of the call whose key is in the input."""

    def __init__(self, player: ScriptedSession, name: str) -> None:
        self._player = player
        self.name = name
        self.description: str = f"The tool {name}."
        self.input_schema = SCHEMA

    def get_schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the input."""
        return SCHEMA

    # The contract has named the parameter.
    async def execute(self, input: dict[str, Any]) -> Any:  # noqa: A002
        """Run the call. The script may make it return something other than a ToolResult."""
        player = self._player
        given = plain(input)
        key = given.get("key") if isinstance(given, dict) else None
        call = player.call_with(key, self.name)
        player.note("started", self.name, {"input": given, "call": call})
        player.running.add(id(given))
        try:
            await player.suspend(f"tool {self.name}")
            return await self._work(call)
        except Exception as error:
            player.note("raised", self.name, {"call": call, "error": error})
            raise
        except BaseException:
            player.note("interrupted", self.name, {"call": call})
            raise
        finally:
            player.running.discard(id(given))

    async def _work(self, call: Call | None) -> Any:
        player = self._player
        if call is None:
            player.note("returned", self.name, {"call": None})
            return ToolResult(
                success=True, output="called with an input that the model did not give"
            )
        for step in range(call.steps):
            if call.stops and step == call.steps // 2:
                player.stop()
            await player.suspend(f"tool {self.name}")
        for _ in range(call.idle):
            await anyio.lowlevel.checkpoint()
        if call.does.startswith("raises"):
            kind, _, message = call.does.removeprefix("raises ").partition(" ")
            raise (
                RAISED[kind](message)
                if message or kind != "OSError"
                else OSError(2, "No such file")
            )
        player.note("returned", self.name, {"call": call})
        return result_of(call)


def result_of(call: Call) -> Any:
    """Return the result of a tool for a call."""
    mark = call.mark
    results: dict[str, Any] = {
        "fails": ToolResult(success=False, error={"message": f"{mark}: it did not work"}),
        "fails silently": ToolResult(success=False),
        "nothing": ToolResult(success=True, output=None),
        "empty": ToolResult(success=True, output=""),
        "zero": ToolResult(success=True, output=0),
        "returns object": ToolResult(
            success=True, output={mark: mark, "list": [1, None, {"deep": "ä"}]}
        ),
        "returns list": ToolResult(success=True, output=[mark, 2.5, {"a": None}]),
        "returns much": ToolResult(success=True, output=f"{mark} " + "word " * 2_000),
        "returns blocks": ToolResult(
            success=True, output=mark, content=[TextBlock(text=f"{mark} as a block")]
        ),
        "returns None": None,
        "returns str": mark,
    }
    return results.get(call.does, ToolResult(success=True, output=f"{mark} „{call.tool}“ ✓"))


def scripted_approvals(player: ScriptedSession) -> MockApprovalSystem:
    """Make a user who allows prompts that start with ``yes:`` and denies all others."""

    async def answer(prompt: str) -> str:
        await player.suspend("approval")
        chosen = "Allow" if prompt.startswith("yes:") else "Deny"
        player.note("approval", prompt, chosen)
        return chosen

    return MockApprovalSystem(answer)


FIRST = -1_000_000
RESULT_KEYS = ("result", "tool_result")
_SUSPENDING = ("prompt", "provider", "tool")
"""Events at which the logging hook suspends. A turn has not begun before execution:start."""
_ENDLESS = 300


class ScriptedHooks:
    """Two hooks in the session's registry: one logs every event, one decides by the script."""

    def __init__(self, player: ScriptedSession, hooks: Any) -> None:
        self._player = player
        self.reset()
        # The logging hook runs before every other.
        self._registered = [hooks.register("*", self._record, priority=FIRST, name="everything")]
        for event in (
            "prompt:submit",
            "provider:request",
            "provider:response",
            "tool:pre",
            "tool:post",
        ):
            self._registered.append(hooks.register(event, self._decide, name="scripted"))

    def unregister(self) -> None:
        """Unregister both hooks."""
        for end in self._registered:
            end()

    def reset(self) -> None:
        """Forget the results that were returned."""
        self._answered: set[tuple[str, int]] = set()
        self._request_denied = False
        self._repeats = 0

    async def _record(self, event: str, data: dict[str, Any]) -> None:
        self._player.note("event", event, data)
        if event.partition(":")[0] in _SUSPENDING:
            await self._player.suspend(event)

    async def _decide(self, event: str, data: dict[str, Any]) -> HookResult | None:
        player = self._player
        match event:
            case "provider:response":
                if player.last_answer is not None and player.last_answer.stops == "told":
                    player.stop()
                return None
            case "prompt:submit":
                return self._answer(event, player.turn.script.submit, 0, "prompt-submit-x", data)
            case "provider:request" if self._request_denied:
                self._repeats += 1
                if self._repeats > _ENDLESS:
                    player.give_up("O20")
                return HookResult(action="deny", reason="denied before, and still denied")
            case "provider:request":
                answer = player.peek_answer()
                if answer is None:
                    return None
                return self._answer(event, answer.request, answer.number, answer.word(), data)
        given = data.get("tool_input")
        key = given.get("key") if isinstance(given, Mapping) else None
        call = player.call_with(key, data.get("tool_name"))
        if call is None:
            return None
        action = call.pre if event == "tool:pre" else call.post
        return self._answer(event, action, call.number, call.word(event), data, call)

    def _answer(
        self,
        event: str,
        action: str | None,
        number: int,
        word: str,
        data: dict[str, Any],
        call: Call | None = None,
    ) -> HookResult | None:
        if event != "prompt:submit" and (event, number) in self._answered:
            return None
        result = _hook_result(event, action, word, data, call)
        if result is not None:
            self._answered.add((event, number))
            self._request_denied |= result.action == "deny" and event == "provider:request"
            detail = {"action": result.action, "what": action, "word": word, "number": number}
            self._player.note("decision", event, detail)
        return result


def _hook_result(
    event: str, action: str | None, word: str, data: dict[str, Any], call: Call | None
) -> HookResult | None:
    """Return the hook's result, or None if there is none or nothing to modify."""
    match action:
        case "deny":
            return HookResult(action="deny", reason=f"because {word}")
        case "deny silently":
            return HookResult(action="deny")
        case "inject" | "inject as user":
            role: Any = "user" if action == "inject as user" else "system"
            return HookResult(
                action="inject_context",
                context_injection=f"mind {word}",
                context_injection_role=role,
            )
        case "inject once" | "inject into the result":
            return HookResult(
                action="inject_context",
                context_injection=f"psst {word}",
                context_injection_role="user",
                ephemeral=True,
                append_to_last_tool_result=action == "inject into the result",
            )
        case "ask yes" | "ask no":
            return HookResult(
                action="ask_user", approval_prompt=f"{action.removeprefix('ask ')}: may it {word}?"
            )
        case "ask yes, inject" | "ask yes, inject once":
            injection = ContextInjection(content=f"mind {word}", ephemeral=action.endswith("once"))
            return HookResult(
                action="ask_user",
                approval_prompt=f"yes: may it {word}?",
                context_injections=[injection],
            )
        case "modify":
            changed = _modified(event, data, word, call)
            return HookResult(action="modify", data={**data, **changed}) if changed else None
    return None


def _modified(event: str, data: dict[str, Any], word: str, call: Call | None) -> dict[str, Any]:
    """Return the changed keys of a payload."""
    if event == "prompt:submit":
        return {"prompt": f"{data.get('prompt')} {word}"}
    if call is None:
        return {}
    if event == "tool:pre":
        return {"tool_input": {"key": call.new_key}}
    results = {
        key: data[key]
        for key in RESULT_KEYS
        if key in data and call.mark in words_of(shown(data[key]))
    }
    return {key: _replaced(value, call.mark, call.new_mark) for key, value in results.items()}


def shown(value: Any) -> Any:
    """Return a tool's result in a payload as JSON values, whatever its type there."""
    return [value.output, value.error] if isinstance(value, ToolResult) else value


def _replaced(value: Any, old: str, new: str) -> Any:
    """Replace a word wherever it occurs in a value, as redaction does."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, ToolResult):
        error = None if value.error is None else _replaced(value.error, old, new)
        return ToolResult(
            success=value.success, output=_replaced(value.output, old, new), error=error
        )
    if isinstance(value, Mapping):
        return {
            _replaced(key, old, new): _replaced(member, old, new) for key, member in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_replaced(member, old, new) for member in value]
    return value


def needs_coordinator(function: Callable[..., Any]) -> bool:
    """Return whether a function has a required parameter ``coordinator``."""
    try:
        parameter = inspect.signature(function).parameters.get("coordinator")
    except (TypeError, ValueError):
        return False
    return parameter is not None and parameter.default is inspect.Parameter.empty
