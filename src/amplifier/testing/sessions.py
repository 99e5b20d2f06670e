"""A stored session as a test: a recording without secrets, and a pytest that replays it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from amplifier._internal.json import redact_secrets
from amplifier.errors import ExecutionCancelled
from amplifier.kernel import AmplifierSession
from amplifier.models import ToolCall, ToolResult
from amplifier.plan import merge_plans
from amplifier.testing.doubles.recording import MockTool
from amplifier.testing.doubles.scripted import MockProvider

Message = dict[str, Any]

_TEST = '''"""Replay of session {session_id}, written by `amplifier session to-test`."""

from pathlib import Path

import pytest

from amplifier.testing import replay_session


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_session_replays_as_recorded(backend):
    replay_session(Path(__file__).with_suffix(".json"), backend=backend)
'''
_INTERRUPTED = re.compile(r"interrupt|cancelled|stopped", re.IGNORECASE)
_PLAN = {"session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True}}


def write_test(
    session_id: str, messages: Sequence[Message], folder: Path, log: Path | None = None
) -> Path:
    """Write the recording of a session and a test that replays it, and return the test.

    Args:
        session_id: Id of the session, which both files are named after.
        messages: The session's transcript. If its latest turn has no answer, the replay stops the
            turn at the same call.
        folder: Folder for the files, which is created if it is missing.
        log: The session's event log, which unlike a transcript shows the failed calls.

    Raises:
        FileExistsError: The test already exists.
        ValueError: The session has no prompt.
    """
    failed = _failed_calls(log)
    recorded = [redact_secrets(_essentials(message)) for message in messages if _is_spoken(message)]
    for message in recorded:
        if message.get("call") in failed:
            message["failed"] = True
    if not any(message["role"] == "user" for message in recorded):
        raise ValueError(f"session {session_id!r} has no prompt to replay")
    folder.mkdir(parents=True, exist_ok=True)
    test = folder / f"test_session_{re.sub(r'[^A-Za-z0-9]', '_', session_id)}.py"
    recording = {
        "format": 1,
        "session": session_id,
        "is_stopped": not _is_answer(recorded[-1]),
        "messages": recorded,
    }
    with test.open("x", encoding="utf-8") as file:
        file.write(_TEST.format(session_id=session_id))
    text = json.dumps(recording, ensure_ascii=False, indent=1)
    test.with_suffix(".json").write_text(f"{text}\n", encoding="utf-8")
    return test


def replay_session(
    path: Path | str, *, backend: str = "asyncio", plan: Mapping[str, Any] | None = None
) -> None:
    """Replay a recording and compare the conversation with it.

    Args:
        path: The recording, a JSON file that `amplifier session to-test` has written.
        backend: ``asyncio`` or ``trio``.
        plan: The loop, the context and the hooks to test. Provider and tools come from the
            recording.

    Raises:
        AssertionError: The conversation differs, or a call of a stopped turn doesn't have exactly
            one result.
    """
    recording = json.loads(Path(path).read_text(encoding="utf-8"))
    anyio.run(partial(_replay, recording, plan or _PLAN), backend=backend)


async def _replay(recording: dict[str, Any], plan: Mapping[str, Any]) -> None:
    messages: list[Message] = recording["messages"]
    stage = _Stage(messages, is_stopped=recording["is_stopped"])
    doubles = {"providers": [MockProvider(stage.answers())], "tools": stage.tools()}
    prompts = [message["text"] for message in messages if message["role"] == "user"]
    async with AmplifierSession(
        merge_plans({**plan, "providers": [], "tools": []}, doubles)
    ) as session:
        for number, prompt in enumerate(prompts, start=1):
            if stage.is_stopped and number == len(prompts):
                await _stop(session, prompt, stage)
            else:
                await session.execute(prompt)
        spoken = [message for message in await session.messages() if _is_spoken(message)]
    actual = [_essentials(message) for message in spoken]
    _require_results(actual)
    expected = messages[: stage.complete] if stage.is_stopped else messages
    for number, (recorded, message) in enumerate(zip(expected, actual, strict=False), start=1):
        recorded.pop("failed", None)
        assert message == recorded, (
            f"message {number} is {json.dumps(message)[:300]}, "
            f"but the recording has {json.dumps(recorded)[:300]}"
        )
    assert len(actual) >= len(expected), (
        f"there are {len(actual)} messages, but the recording has {len(expected)}"
    )


async def _stop(session: AmplifierSession, prompt: str, stage: _Stage) -> None:
    """Run the turn that was stopped, and stop it at the same point."""

    async def press_stop() -> None:
        await stage.reached.wait()
        session.coordinator.cancellation.request_immediate(reason="as in the recording")

    async with anyio.create_task_group() as group:
        group.start_soon(press_stop)
        try:
            await session.execute(prompt)
        except ExecutionCancelled:
            return
        raise AssertionError("the turn completed, but in the recording it was stopped")


class _Stage:
    """The model and the tools of a recording.

    Attributes:
        is_stopped: True if the latest turn was stopped.
        complete: Number of messages before the part that the stop interrupted.
        reached: Set when the call starts in which the turn was stopped.
    """

    def __init__(self, messages: list[Message], *, is_stopped: bool) -> None:
        self._messages = messages
        self._results: dict[str, list[Message]] = {}
        self.is_stopped = is_stopped
        self.reached = anyio.Event()
        self.complete = len(messages)
        results = {message["call"]: message for message in messages if message["role"] == "tool"}
        latest = max(index for index, message in enumerate(messages) if message["role"] == "user")
        for index, message in enumerate(messages):
            may_be_interrupted = is_stopped and index > latest
            for call in message.get("calls", ()):
                result = results.get(call["id"])
                is_interrupted = result is None or (
                    may_be_interrupted and bool(_INTERRUPTED.search(str(result["text"])[:80]))
                )
                if is_interrupted:
                    self.complete = min(self.complete, index + 1)
                key = _key(call["name"], call["arguments"])
                entry = {"interrupted": is_interrupted, "result": result}
                self._results.setdefault(key, []).append(entry)

    def answers(self) -> list[Any]:
        """Return the model's answers in order. A stopped turn ends with one that never comes."""
        answers: list[Any] = []
        for message in self._messages:
            if message["role"] == "assistant":
                calls = [
                    ToolCall(id=call["id"], name=call["name"], arguments=call["arguments"])
                    for call in message["calls"]
                ]
                answers.append([*([message["text"]] if message["text"] else []), *calls] or "")
        return [*answers, self._wait] if self.is_stopped else answers

    def tools(self) -> list[MockTool]:
        """Return a tool for each name that was called."""
        names = {call["name"] for message in self._messages for call in message.get("calls", ())}
        return [MockTool(name, respond=partial(self._respond, name)) for name in sorted(names)]

    async def _respond(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        remaining = self._results.get(_key(name, arguments))
        assert remaining, (
            f"{name} was called with {json.dumps(arguments)[:300]}, which is not in the recording"
        )
        recorded = remaining.pop(0)
        if recorded["interrupted"]:
            await self._wait(None)
        text, failed = recorded["result"]["text"], recorded["result"].get("failed", False)
        error = {"message": text} if failed else None
        return ToolResult(success=not failed, output=text, error=error)

    async def _wait(self, _request: object) -> Any:
        self.reached.set()
        await anyio.sleep_forever()


def _failed_calls(log: Path | None) -> set[str]:
    """Return the ids of the calls that failed or raised, from a session's event log."""
    if log is None or not log.exists():
        return set()
    failed = set()
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
            event, data = record["event"], record["data"]
            if event == "tool:error" or (
                event == "tool:post" and not data["tool_result"]["success"]
            ):
                failed.add(data["tool_call_id"])
        # The line is incomplete or has another event.
        except (ValueError, KeyError, TypeError):
            continue
    return failed


def _key(name: str, arguments: object) -> str:
    return json.dumps([name, arguments], sort_keys=True)


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not message["calls"]


def _is_spoken(message: Message) -> bool:
    """Return whether the user, the model or a tool wrote a message, as opposed to a hook."""
    is_injected = bool((message.get("metadata") or {}).get("source"))
    return message.get("role") in ("user", "assistant", "tool") and not is_injected


def _essentials(message: Message) -> Message:
    """Return the parts of a message that are replayed and compared."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    text = "".join(
        str(block.get("text", ""))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "text"
    )
    essentials: Message = {"role": message["role"], "text": text}
    if message["role"] == "tool":
        essentials |= {"call": message.get("tool_call_id"), "name": message.get("name")}
    elif message["role"] == "assistant":
        essentials["calls"] = [
            {"id": call["id"], "name": call["name"], "arguments": call["arguments"]}
            for call in message.get("tool_calls") or ()
        ]
    return essentials


def _require_results(messages: Sequence[Message]) -> None:
    calls = [call["id"] for message in messages for call in message.get("calls", ())]
    results = [message["call"] for message in messages if message["role"] == "tool"]
    assert sorted(calls) == sorted(results), (
        f"expected one result for each of the calls {calls}, got results for {results}"
    )
