"""A stored session as a test: what the model answered and what tools returned is played again, without either, up to the point of a stop.

`write_test` makes two files of a transcript, a recording and a pytest that calls `replay_session`. Secrets are left out.
"""

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

_TEST = '''"""The session {session_id}, played again: its recording is beside this file. Written by `amplifier session to-test`."""

from pathlib import Path

import pytest

from amplifier.testing import replay_session


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_session_goes_as_it_went(backend):
    replay_session(Path(__file__).with_suffix(".json"), backend=backend)
'''
_CUT = re.compile(r"interrupt|cancelled|stopped", re.IGNORECASE)
_PLAN = {"session": {"orchestrator": "loop-basic", "context": "context-simple", "strict": True}}


def write_test(
    session_id: str, messages: Sequence[Message], folder: Path, log: Path | None = None
) -> Path:
    """Write the recording of a session and a test that plays it; return the test.

    Args:
        session_id: Names both files.
        messages: Its transcript; if its latest turn has no answer, it is stopped again, at the same call.
        folder: Where to write; made if it is missing.
        log: Its events, which show which calls failed; a transcript does not.

    Raises:
        FileExistsError: There is such a test.
        ValueError: Nothing was asked in the session.
    """
    failed = _failed_calls(log)
    kept = [redact_secrets(_plain(each)) for each in messages if _is_spoken(each)]
    for message in kept:
        if message.get("call") in failed:
            message["failed"] = True
    if not any(message["role"] == "user" for message in kept):
        raise ValueError(f"session {session_id!r} has no prompt that could be played again")
    folder.mkdir(parents=True, exist_ok=True)
    test = folder / f"test_session_{re.sub(r'[^A-Za-z0-9]', '_', session_id)}.py"
    recording = {
        "format": 1,
        "session": session_id,
        "is_stopped": not _is_answer(kept[-1]),
        "messages": kept,
    }
    with test.open("x", encoding="utf-8") as file:
        file.write(_TEST.format(session_id=session_id))
    text = json.dumps(recording, ensure_ascii=False, indent=1)
    test.with_suffix(".json").write_text(f"{text}\n", encoding="utf-8")
    return test


def replay_session(
    path: Path | str, *, backend: str = "asyncio", plan: Mapping[str, Any] | None = None
) -> None:
    """Play a recording and compare the conversation with it.

    Args:
        path: What `write_test` has written.
        backend: ``asyncio`` or ``trio``.
        plan: The loop, the context and the hooks to try; provider and tools are those of the recording.

    Raises:
        AssertionError: The conversation is another one, or a stopped turn left a call without exactly one result.
    """
    anyio.run(
        partial(_replay, json.loads(Path(path).read_text(encoding="utf-8")), plan or _PLAN),
        backend=backend,
    )


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
        found = [_plain(message) for message in await session.messages() if _is_spoken(message)]
    _require_results(found)
    expected = messages[: stage.whole] if stage.is_stopped else messages
    for number, (wanted, got) in enumerate(zip(expected, found, strict=False), start=1):
        wanted.pop("failed", None)
        assert got == wanted, (
            f"message {number} is {json.dumps(got)[:300]}; recorded is {json.dumps(wanted)[:300]}"
        )
    assert len(found) >= len(expected), (
        f"there are {len(found)} messages; recorded are {len(expected)}"
    )


async def _stop(session: AmplifierSession, prompt: str, stage: _Stage) -> None:
    """Run the turn that was stopped, and stop it where it was."""

    async def press_stop() -> None:
        await stage.reached.wait()
        session.coordinator.cancellation.request_immediate(reason="as in the recording")

    async with anyio.create_task_group() as group:
        group.start_soon(press_stop)
        try:
            await session.execute(prompt)
        except ExecutionCancelled:
            return
        raise AssertionError("the turn came to its end; in the recording it was stopped")


class _Stage:
    """The model and the tools of a recording.

    Attributes:
        whole: So many messages came before what the stop cut off.
        reached: Set when the call begins in which the turn was stopped.
    """

    def __init__(self, messages: list[Message], *, is_stopped: bool) -> None:
        self._messages = messages
        self._results: dict[str, list[Message]] = {}
        self.is_stopped = is_stopped
        self.reached = anyio.Event()
        self.whole = len(messages)
        answered = {message["call"]: message for message in messages if message["role"] == "tool"}
        latest = max(place for place, message in enumerate(messages) if message["role"] == "user")
        for place, message in enumerate(messages):
            for call in message.get("calls", ()):
                result = answered.get(call["id"])
                may_be_cut = is_stopped and place > latest
                is_cut = result is None or (
                    may_be_cut and bool(_CUT.search(str(result["text"])[:80]))
                )
                if is_cut:
                    self.whole = min(self.whole, place + 1)
                self._results.setdefault(_key(call["name"], call["arguments"]), []).append(
                    {"cut": is_cut, "result": result}
                )

    def answers(self) -> list[Any]:
        """What the model answers, one answer after the other; in a turn that was stopped while it answered, nothing more."""
        found: list[Any] = []
        for message in self._messages:
            if message["role"] == "assistant":
                calls = [
                    ToolCall(id=each["id"], name=each["name"], arguments=each["arguments"])
                    for each in message["calls"]
                ]
                found.append([*([message["text"]] if message["text"] else []), *calls] or "")
        return [*found, self._wait] if self.is_stopped else found

    def tools(self) -> list[MockTool]:
        """A tool for each name that was called."""
        names = {call["name"] for message in self._messages for call in message.get("calls", ())}
        return [MockTool(name, respond=partial(self._respond, name)) for name in sorted(names)]

    async def _respond(self, name: str, given: dict[str, Any]) -> Any:
        left = self._results.get(_key(name, given))
        assert left, (
            f"{name} was called with {json.dumps(given)[:300]}, which is not in the recording"
        )
        recorded = left.pop(0)
        if recorded["cut"]:
            await self._wait(None)
        text, failed = recorded["result"]["text"], recorded["result"].get("failed", False)
        return ToolResult(
            success=not failed, output=text, error={"message": text} if failed else None
        )

    async def _wait(self, _request: Any) -> Any:
        self.reached.set()
        await anyio.sleep_forever()


def _failed_calls(log: Path | None) -> set[str]:
    """The ids of the calls that failed or raised, by the events of a session."""
    found = set()
    for line in (
        () if log is None or not log.exists() else log.read_text(encoding="utf-8").splitlines()
    ):
        try:
            told = json.loads(line)
            data = told["data"]
            if told["event"] == "tool:error" or (
                told["event"] == "tool:post" and not data["tool_result"]["success"]
            ):
                found.add(data["tool_call_id"])
        except (ValueError, KeyError, TypeError):
            continue  # cut off, or of another event
    return found


def _key(name: str, arguments: Any) -> str:
    return json.dumps([name, arguments], sort_keys=True)


def _is_answer(message: Message) -> bool:
    return message["role"] == "assistant" and not message["calls"]


def _is_spoken(message: Message) -> bool:
    """Whether a message is of the user, the model or a tool, and not put there by the application or a hook."""
    is_injected = bool((message.get("metadata") or {}).get("source"))
    return message.get("role") in ("user", "assistant", "tool") and not is_injected


def _plain(message: Message) -> Message:
    """What is played and compared of a message."""
    content = message.get("content")
    blocks = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    text = "".join(
        str(block.get("text", ""))
        for block in blocks
        if isinstance(block, dict) and block.get("type") == "text"
    )
    found: Message = {"role": message["role"], "text": text}
    if message["role"] == "tool":
        found |= {"call": message.get("tool_call_id"), "name": message.get("name")}
    elif message["role"] == "assistant":
        calls = message.get("tool_calls") or ()
        found["calls"] = [
            {"id": each["id"], "name": each["name"], "arguments": each["arguments"]}
            for each in calls
        ]
    return found


def _require_results(messages: Sequence[Message]) -> None:
    made = [call["id"] for message in messages for call in message.get("calls", ())]
    results = [message["call"] for message in messages if message["role"] == "tool"]
    assert sorted(made) == sorted(results), (
        f"calls {made} have the results {results}; expected one each"
    )
