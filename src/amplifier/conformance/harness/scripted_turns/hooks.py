"""The hooks of a scripted turn: one logs every event, the other one returns the hook results of the script."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from amplifier.models import HookResult, ToolResult

from .player import ScriptPlayer
from .record import words_of
from .script import Answer, Call

FIRST = -1_000_000
RESULT_KEYS = ("result", "tool_result")
_SUSPENDING = ("prompt", "provider", "tool")
"""Events at which the logging hook suspends; not at execution:start, before which a turn has not begun."""
_ENDLESS = 300


class ScriptedHooks:
    """Both hooks; they are registered with the session's own registry."""

    def __init__(self, player: ScriptPlayer) -> None:
        self._player = player
        self._answered: set[tuple[str, int]] = set()
        self._request_denied = False
        self._repeats = 0
        self._registered: list[Callable[[], None]] = []

    def register(self, hooks: Any) -> None:
        """Register both; the logging hook runs before every other."""
        self._registered.append(hooks.register("*", self._record, priority=FIRST, name="everything"))
        for event in ("prompt:submit", "provider:request", "provider:response", "tool:pre", "tool:post"):
            self._registered.append(hooks.register(event, self._decide, name="scripted"))

    def unregister(self) -> None:
        """Unregister both."""
        for end in self._registered:
            end()

    def reset(self) -> None:
        """Forget which results were returned already."""
        self._answered.clear()
        self._request_denied = False
        self._repeats = 0

    async def _record(self, event: str, data: dict[str, Any]) -> None:
        self._player.note("event", event, data)
        if event.partition(":")[0] in _SUSPENDING:
            await self._player.suspend(event)

    async def _decide(self, event: str, data: dict[str, Any]) -> HookResult | None:
        player = self._player
        if event == "provider:response":
            if player.last_answer is not None and player.last_answer.stops == "told":
                player.stop()
            return None
        if event == "prompt:submit":
            return self._answer(event, player.turn.script.submit, 0, "prompt-submit-x", data)
        if event == "provider:request":
            return self._decide_request(data)
        given = data.get("tool_input")
        key = given.get("key") if isinstance(given, Mapping) else None
        call = player.call_with(key, data.get("tool_name"))
        if call is None or (event, call.number) in self._answered:
            return None
        action = call.pre if event == "tool:pre" else call.post
        return self._answer(event, action, call.number, call.word(event), data, call)

    def _decide_request(self, data: dict[str, Any]) -> HookResult | None:
        player = self._player
        if self._request_denied:
            self._repeats += 1
            if self._repeats > _ENDLESS:
                player.give_up("O20")
            return HookResult(action="deny", reason="denied before, and still denied")
        answer: Answer | None = player.peek_answer()
        if answer is None or answer.request is None or ("provider:request", answer.number) in self._answered:
            return None
        return self._answer("provider:request", answer.request, answer.number, answer.word(), data)

    def _answer(
        self, event: str, action: str | None, number: int, word: str, data: dict[str, Any], call: Call | None = None
    ) -> HookResult | None:
        made = _result(event, action, word, data, call)
        if made is not None:
            self._answered.add((event, number))
            self._request_denied |= made.action == "deny" and event == "provider:request"
            detail = {"action": made.action, "what": action, "word": word, "number": number}
            self._player.note("verdict", event, detail)
        return made


def _result(event: str, action: str | None, word: str, data: dict[str, Any], call: Call | None) -> HookResult | None:
    """The hook's result; None for none, also where a modify would find nothing to change."""
    match action:
        case "deny":
            return HookResult(action="deny", reason=f"because {word}")
        case "deny silently":
            return HookResult(action="deny")
        case "inject" | "inject as user":
            role: Any = "user" if action == "inject as user" else "system"
            return HookResult(action="inject_context", context_injection=f"mind {word}", context_injection_role=role)
        case "whisper" | "whisper to the result":
            return HookResult(
                action="inject_context",
                context_injection=f"psst {word}",
                context_injection_role="user",
                ephemeral=True,
                append_to_last_tool_result=action == "whisper to the result",
            )
        case "ask yes" | "ask no":
            return HookResult(action="ask_user", approval_prompt=f"{action.removeprefix('ask ')}: may it {word}?")
        case "modify":
            changed = _modified(event, data, word, call)
            return HookResult(action="modify", data={**data, **changed}) if changed else None
    return None


def _modified(event: str, data: dict[str, Any], word: str, call: Call | None) -> dict[str, Any]:
    """The changed keys of a payload."""
    if event == "prompt:submit":
        return {"prompt": f"{data.get('prompt')} {word}"}
    if call is None:
        return {}
    if event == "tool:pre":
        return {"tool_input": {"key": call.new_key}}
    found = {key: data[key] for key in RESULT_KEYS if key in data and call.mark in words_of(shown(data[key]))}
    return {key: _replaced(value, call.mark, call.new_mark) for key, value in found.items()}


def shown(value: Any) -> Any:
    """A tool's result in a payload as JSON values, whatever type the loop puts there."""
    return [value.output, value.error] if isinstance(value, ToolResult) else value


def _replaced(value: Any, old: str, new: str) -> Any:
    """A value with one word replaced wherever it occurs, as redaction does."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, ToolResult):
        error = None if value.error is None else _replaced(value.error, old, new)
        return ToolResult(success=value.success, output=_replaced(value.output, old, new), error=error)
    if isinstance(value, Mapping):
        return {_replaced(key, old, new): _replaced(member, old, new) for key, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [_replaced(member, old, new) for member in value]
    return value
