"""One trial of a proof: a session with a scripted model, the faults of a case, and the laws.

A case is a dict of JSON values::

    {"turns": [[["text", {"tool": "read_file", "input": {…}}], {"error": "RateLimitError"}], …],
     "hooks": [{"event": "tool:pre", "does": "raise"}],
     "approval": "silent",
     "cancel": {"mode": "trio", "at": 17, "second": None}}

A turn is a list of answers. An answer is a list of texts and calls, or an error. The session also
has the tool `FAULTY`, which raises, hangs or fails as its input demands.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

import anyio
import anyio.lowlevel

from amplifier._internal.json import JSON
from amplifier.conformance.inputs.conversations import call_ids
from amplifier.conformance.target.turn_script import results_in
from amplifier.errors import (
    AmplifierError,
    ContextLengthError,
    ExecutionCancelled,
    ExecutionDenied,
    ExecutionTimeout,
    NetworkError,
    RateLimitError,
    StreamError,
)
from amplifier.kernel import AmplifierSession
from amplifier.models import HookResult, to_dict
from amplifier.models.turns import StopReport
from amplifier.plan import merge_plans
from amplifier.testing import MockApprovalSystem, MockProvider, MockTool

Case = dict[str, Any]
Event = tuple[str, dict[str, JSON]]

FAULTY: Final = "faulty_tool"
LAWS: Final = {
    "ends": "every turn, and the session, ends in bounded time",
    "cancellation": "a cancellation reaches whoever asked for it",
    "errors": "a turn raises only injected errors",
    "events": "events come in order and in pairs",
    "calls": (
        "every tool call has one result, directly after the message that made it, in the context "
        "and in every request"
    ),
    "gates": "a call that a hook denies, or that no one allows, is not run",
    "goes on": "after a fault or a stop the next turn is answered",
    "cleanup": "every module is mounted, and its cleanups run and do not fail",
    "nothing left": "no task, thread, process or coroutine is left",
    "stop report": "session.last_stop names everything that was stopped, and everything stops",
}
KINDS: Final = {
    "HANG": "ends",
    "LIVELOCK": "ends",
    "SWALLOWED": "cancellation",
    "ERROR": "errors",
    "ORPHAN": "nothing left",
    "THREAD": "nothing left",
    "NOISE": "nothing left",
}
"""The law of each oracle of the cancellation sweep."""
_ERRORS = {
    error.__name__: error
    for error in (NetworkError, RateLimitError, ContextLengthError, StreamError)
}
CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "provider": (*_ERRORS, "hang"),
    "tool": ("nothing", "raise", "hang", "much"),
    "hook": ("raise", "hang", "deny", "ask", "stop", "stop at once"),
    "event": ("prompt:submit", "provider:request", "provider:response", "tool:pre", "tool:post"),
    "approval": ("allow", "deny", "silent", "raise"),
}
"""The possible faults, by the place at which they happen."""
_TURN_SECONDS = 600.0
_LAST = "This is the last answer."
_FIRST_HANDLER = -1_000_000
_ENDS = ("tool:post", "tool:error")


class PlanWorld:
    """One session that plays a case.

    Args:
        plan: The plan under proof. Its provider is replaced, and it gets the faulty tool and a
            deadline for each turn.
        case: The case to play.

    Attributes:
        provider: The scripted model, with the requests that it received.
    """

    def __init__(self, plan: Mapping[str, Any], case: Case) -> None:
        self._case = case
        self._answers: list[Any] = []
        self._left_faults = [dict(fault) for fault in case.get("hooks", ())]
        self._hangs = '"hang"' in json.dumps(case) or case.get("approval") == "silent"
        self._stops = self._runs = self._calls = 0
        self._refused: dict[Any, str] = {None: "it was called without its input"}
        self._events: list[Event] = []
        self._problems: list[tuple[str, str]] = []
        self._messages: list[dict[str, JSON]] | None = None
        loop = (plan.get("session") or {}).get("orchestrator")
        wanted = (
            (loop.get("config") or {}).get("default_provider")
            if isinstance(loop, Mapping)
            else None
        )
        self.provider: MockProvider = MockProvider(self._answer, name=wanted or "mock")
        tools = [*(plan.get("tools") or ()), MockTool(FAULTY, respond=self._use)]
        agents = {
            name: {**agent, "providers": []} for name, agent in (plan.get("agents") or {}).items()
        }
        self._plan = merge_plans(
            {"session": {"deadlines": {"turn": _TURN_SECONDS}}},
            {**plan, "providers": [self.provider], "tools": tools, "agents": agents},
        )

    async def scenario(self) -> None:
        """Open the session, run the turns and one more, and close it."""
        session = AmplifierSession(self._plan, approval_system=MockApprovalSystem(self._approve))
        hooks, misbehave = (
            session.coordinator.hooks,
            partial(self._hook, session.coordinator.cancellation),
        )
        hooks.register("*", self._record, priority=_FIRST_HANDLER, name="proof-record")
        for event in CHOICES["event"]:
            hooks.register(event, misbehave, name="proof-faults")
        try:
            async with session:
                for failed in session.failures:
                    self._note(
                        "cleanup", f"{failed.module_id} could not be mounted: {failed.error}"
                    )
                try:
                    for turn in self._case["turns"]:
                        await self._run_turn(session, turn)
                    await self._go_on(session)
                finally:
                    with anyio.CancelScope(shield=True):
                        self._messages = await session.messages()
        finally:
            self._look_at_closed(session)

    async def _run_turn(self, session: AmplifierSession, turn: list[Any]) -> None:
        self._answers = list(turn)
        injected = [answer["error"] for answer in turn if isinstance(answer, dict)]
        stops, began = self._stops, len(self._events)
        try:
            await session.execute("Do it.")
        except ExecutionCancelled as error:
            if self._stops == stops:
                self._note("errors", f"a turn ended with {error!r}, and no one had asked for it")
            self._look_at_stop(session, began)
        except ExecutionTimeout:
            if not self._hangs:
                self._note("ends", "a turn ran out of time although nothing had hung")
        except ExecutionDenied:
            # A hook may deny at prompt:submit and at provider:request.
            pass
        except AmplifierError as error:
            if type(error).__name__ not in injected:
                self._note(
                    "errors",
                    f"a turn raised {type(error).__name__}: {error}; injected was "
                    f"{injected or None}",
                )
        # An application that continues after a stop does the same.
        session.coordinator.cancellation.reset()

    async def _go_on(self, session: AmplifierSession) -> None:
        self._answers, self._left_faults = [[_LAST]], []
        answer = await session.execute("Are you there?")
        if _LAST not in answer:
            self._note(
                "goes on",
                f"after the turns of the case, a turn whose model says {_LAST!r} returned "
                f"{answer!r}",
            )

    def _look_at_stop(self, session: AmplifierSession, began: int) -> None:
        report = session.last_stop
        named = set() if report is None else {part.what for part in report.parts}
        self._refuse_unstopped(report)
        for name in _unfinished(self._events[began:]):
            if f"tool call {name}" not in named:
                self._note(
                    "stop report",
                    f"the call of {name} was stopped, and last_stop names only {sorted(named)}",
                )

    def _look_at_closed(self, session: AmplifierSession) -> None:
        for failure in session.cleanup_failures:
            self._note("cleanup", f"a step of the closing failed: {failure}")
        now = session.statistics()
        if now.state == "closed":
            self._refuse_unstopped(session.last_stop)
        if now.state not in ("closed", "new") or now.cleanups:
            self._note(
                "cleanup", f"the session is {now.state} and has {now.cleanups} cleanups left"
            )

    def _refuse_unstopped(self, report: StopReport | None) -> None:
        if report is None:
            self._note("stop report", "something was stopped, and session.last_stop is None")
        for part in () if report is None else report.would_not_stop:
            self._note(
                "stop report",
                f"{part.what} of {part.module or 'the session'} would not stop: {part.error}",
            )

    def _note(self, law: str, what: str) -> None:
        self._problems.append((law, what))

    # ── the application's side ──

    async def _answer(self, _request: Any) -> Any:
        answer = self._answers.pop(0) if self._answers else ["There is nothing more to say."]
        if isinstance(answer, list):
            return [
                (part["tool"], self._numbered(part)) if isinstance(part, dict) else part
                for part in answer
            ]
        await _misbehave(answer["error"])
        # A retry gets the same answer.
        self._answers.insert(0, answer)
        return _ERRORS[answer["error"]]("injected by the proof")

    def _numbered(self, call: dict[str, JSON]) -> dict[str, Any]:
        """Return the input of a call. A call to the faulty tool gets a number."""
        self._calls += 1
        return (
            {**call["input"], "number": self._calls}
            if call["tool"] == FAULTY
            else dict(call["input"])
        )

    async def _use(self, arguments: dict[str, JSON]) -> str:
        self._runs += 1
        if arguments.get("number") in self._refused:
            self._note("gates", f"a tool was run although {self._refused[arguments['number']]}")
        await _misbehave(arguments.get("does"))
        return "word " * (20_000 if arguments.get("does") == "much" else 1)

    async def _approve(self, _prompt: str) -> str:
        await _misbehave(self._case.get("approval"))
        return "Deny" if self._case.get("approval") == "deny" else "Allow"

    async def _hook(self, token: Any, event: str, data: dict[str, JSON]) -> HookResult | None:
        fault = next((fault for fault in self._left_faults if fault["event"] == event), None)
        if fault is None:
            return None
        self._left_faults.remove(fault)
        await _misbehave(fault["does"])
        refusals = {
            "deny": "a hook denied it",
            "ask": f"the user, who was asked, did: {self._case.get('approval')}",
        }
        is_allowed = fault["does"] == "ask" and self._case.get("approval") == "allow"
        if event == "tool:pre" and fault["does"] in refusals and not is_allowed:
            self._refused[(data.get("tool_input") or {}).get("number")] = refusals[fault["does"]]
        match fault["does"]:
            case "deny":
                return HookResult(action="deny", reason="injected by the proof")
            case "ask":
                return HookResult(action="ask_user", approval_prompt="May it?")
            case "stop" | "stop at once":
                self._stops += 1
                (token.request_graceful if fault["does"] == "stop" else token.request_immediate)()
        return None

    async def _record(self, event: str, data: dict[str, JSON]) -> None:
        self._events.append((event, data))

    # ── the laws ──

    def check(self) -> list[str]:
        """Return the broken laws, with details. The sweep's own oracles report the others."""
        return [f"{law}: {what}" for law, what in self._broken()]

    def _broken(self) -> Iterator[tuple[str, str]]:
        yield from self._problems
        yield from (("events", problem) for problem in _event_problems(self._events))
        ended = sum(
            name in _ENDS and data.get("tool_name") == FAULTY for name, data in self._events
        )
        if ended < self._runs and not (
            self._stops or self._hangs or self._case.get("cancel", {}).get("at")
        ):
            runs = f"a tool was run {self._runs} times"
            yield "events", f"{runs}, and tool:post or tool:error came {ended} times"
        for number, request in enumerate(self.provider.requests, start=1):
            messages = [to_dict(message) for message in request.messages]
            yield from (
                ("calls", f"in request {number} {problem}") for problem in pair_problems(messages)
            )
        yield from (
            ("calls", f"in the context {problem}")
            for problem in pair_problems(self._messages or [])
        )


async def _misbehave(does: str | None) -> None:
    await anyio.lowlevel.checkpoint()
    if does == "raise":
        raise OSError("injected by the proof")
    if does in ("hang", "silent"):
        await anyio.sleep_forever()


def pair_problems(messages: list[dict[str, JSON]]) -> Iterator[str]:
    """Yield the problems with the calls and results of a conversation."""
    waiting: list[str] = []
    for message in [*messages, {"role": "user"}]:
        results = [call_id for call_id, _ in results_in(message)]
        for call_id in results:
            if call_id not in waiting:
                yield (
                    f"there is a result of {call_id!r}, which no message before it called, or "
                    "which had one"
                )
        waiting = [call_id for call_id in waiting if call_id not in results]
        if not results and message["role"] in ("assistant", "user"):
            if waiting:
                yield f"the calls {waiting} have no result before the next message"
            content = message.get("content")
            blocks = (
                [block for block in content if isinstance(block, Mapping)]
                if isinstance(content, list)
                else []
            )
            called = [str(block["id"]) for block in blocks if block.get("type") == "tool_call"]
            waiting = list(dict.fromkeys([*call_ids(message), *called]))


def _unfinished(events: list[Event]) -> list[str]:
    """Return the tools with an announced call that hasn't been reported as ended."""
    begun: dict[Any, str] = {}
    for event, data in events:
        if event == "tool:pre":
            begun[data.get("tool_call_id")] = str(data.get("tool_name"))
        elif event in _ENDS:
            begun.pop(data.get("tool_call_id"), None)
    return list(begun.values())


def _event_problems(events: list[Event]) -> Iterator[str]:
    names = [name for name, _ in events]
    for start, end in (("session:start", "session:end"), ("execution:start", "execution:end")):
        framed = [name for name in names if name in (start, end)]
        if framed != [start, end] * (len(framed) // 2):
            yield f"{start} and {end} came as {framed}"
    if (
        "execution:start"
        in names[: names.index("session:start") if "session:start" in names else None]
    ):
        yield "execution:start was emitted before session:start"
    for at, name in enumerate(names):
        if name == "provider:response" and names[: at + 1].count(name) > names[:at].count(
            "provider:request"
        ):
            yield "provider:response was emitted more often than provider:request"
            break
    state: dict[Any, str] = {}
    for name, data in events:
        call = data.get("tool_call_id")
        if name == "tool:pre":
            state[call] = "begun"
        elif name in _ENDS and call is not None:
            # A call to an unknown tool is an error that no start precedes.
            if state.get(call) == "ended" or (name == "tool:post" and call not in state):
                how = "twice" if call in state else "without a tool:pre"
                yield f"{name} of {data.get('tool_name')} came {how}"
            state[call] = "ended"
