"""The hooks of a scripted turn: one that writes down every event, and one that objects where the script says so.

Above stands `_session`; below stand the script and the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from amplifier.models import HookResult, ToolResult

from .record import words_of
from .script import Answer, Call

if TYPE_CHECKING:
    from .session import ScriptedSession

FIRST = -1_000_000
RESULT_KEYS = ("result", "tool_result")
_AWAITED = ("prompt", "provider", "tool")
"""At what this hook takes its time; not at execution:start, before which a turn has not begun."""
_ENDLESS = 300


class ScriptedHooks:
    """Both hooks; they are registered with the session's own registry."""

    def __init__(self, session: ScriptedSession) -> None:
        self._session = session
        self._given: set[tuple[str, int]] = set()
        self._is_denied = False
        self._repeats = 0
        self._registered: list[Callable[[], None]] = []

    def register(self, hooks: Any) -> None:
        """Listen to everything, before anybody else."""
        self._registered.append(hooks.register("*", self._record, priority=FIRST, name="everything"))
        for event in ("prompt:submit", "provider:request", "provider:response", "tool:pre", "tool:post"):
            self._registered.append(hooks.register(event, self._decide, name="scripted"))

    def unregister(self) -> None:
        """Listen no more."""
        for end in self._registered:
            end()

    def reset(self) -> None:
        """Object anew."""
        self._given.clear()
        self._is_denied = False
        self._repeats = 0

    async def _record(self, event: str, data: dict[str, Any]) -> None:
        self._session.note("event", event, data)
        if event.partition(":")[0] in _AWAITED:
            await self._session.suspend(event)

    async def _decide(self, event: str, data: dict[str, Any]) -> HookResult | None:
        session = self._session
        if event == "provider:response":
            if session.last_answer is not None and session.last_answer.stops == "told":
                session.stop()
            return None
        if event == "prompt:submit":
            return self._answer(event, session.turn.script.submit, 0, "prompt-submit-x", data)
        if event == "provider:request":
            return self._decide_request(data)
        call = self._call_of(data)
        if call is None:
            return None
        action = call.pre if event == "tool:pre" else call.post
        if action is None or (event, call.number) in self._given:
            return None
        return self._answer(event, action, call.number, call.word(event), data, call)

    def _decide_request(self, data: dict[str, Any]) -> HookResult | None:
        session = self._session
        if self._is_denied:
            self._repeats += 1
            if self._repeats > _ENDLESS:
                session.give_up("O20")
            return HookResult(action="deny", reason="denied before, and still denied")
        answer: Answer | None = session.peek_answer()
        if answer is None or answer.request is None or ("provider:request", answer.number) in self._given:
            return None
        return self._answer("provider:request", answer.request, answer.number, answer.word(), data)

    def _call_of(self, data: Mapping[str, Any]) -> Call | None:
        """The call that a payload is about: by what the tool is given, else by the tool's name."""
        given = data.get("tool_input")
        key = given.get("key") if isinstance(given, Mapping) else None
        return self._session.call_with(key, data.get("tool_name"))

    def _answer(
        self, event: str, action: str | None, number: int, word: str, data: dict[str, Any], call: Call | None = None
    ) -> HookResult | None:
        made = _result(event, action, word, data, call)
        if made is not None:
            self._given.add((event, number))
            self._is_denied |= made.action == "deny" and event == "provider:request"
            detail = {"action": made.action, "what": action, "word": word, "number": number}
            self._session.note("verdict", event, detail)
        return made


def _result(event: str, action: str | None, word: str, data: dict[str, Any], call: Call | None) -> HookResult | None:
    """What a hook answers; None for nothing, also where a modify would find nothing to change."""
    if action == "deny":
        return HookResult(action="deny", reason=f"because {word}")
    if action == "deny silently":
        return HookResult(action="deny")
    if action in ("inject", "inject as user"):
        role: Any = "user" if action == "inject as user" else "system"
        return HookResult(action="inject_context", context_injection=f"mind {word}", context_injection_role=role)
    if action in ("whisper", "whisper to the result"):
        return HookResult(
            action="inject_context",
            context_injection=f"psst {word}",
            context_injection_role="user",
            ephemeral=True,
            append_to_last_tool_result=action == "whisper to the result",
        )
    if action in ("ask yes", "ask no"):
        answer = "yes" if action == "ask yes" else "no"
        return HookResult(action="ask_user", approval_prompt=f"{answer}: may it {word}?")
    if action == "modify" and call is not None:
        return _modified(event, data, call)
    if action == "modify" and event == "prompt:submit":
        return HookResult(action="modify", data={**data, "prompt": f"{data.get('prompt')} {word}"})
    return None


def _modified(event: str, data: dict[str, Any], call: Call) -> HookResult | None:
    if event == "tool:pre":
        return HookResult(action="modify", data={**data, "tool_input": {"key": call.new_key}})
    found = {key: data[key] for key in RESULT_KEYS if key in data and call.mark in words_of(shown(data[key]))}
    if not found:
        return None
    changed = {key: _replaced(value, call.mark, call.new_mark) for key, value in found.items()}
    return HookResult(action="modify", data={**data, **changed})


def shown(value: Any) -> Any:
    """A tool's result in a payload as JSON values, whatever the loop puts there."""
    return [value.output, value.error] if isinstance(value, ToolResult) else value


def _replaced(value: Any, old: str, new: str) -> Any:
    """A value with one word replaced wherever it stands: what every redaction does."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, ToolResult):
        content: Any = None
        error = None if value.error is None else _replaced(value.error, old, new)
        return ToolResult(success=value.success, output=_replaced(value.output, old, new), error=error, content=content)
    if isinstance(value, Mapping):
        return {_replaced(key, old, new): _replaced(member, old, new) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(member, old, new) for member in value]
    return value
