"""Every call into a module fails, each time in another way, and the laws hold: nothing is left, the transcript is valid, errors are typed.

A run without a fault counts the calls at each boundary. Then each call goes wrong once with each fault, in a fresh session, in
virtual time.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import anyio
import anyio.lowlevel

from amplifier import AmplifierSession, ChatResponse, HookResult, ModuleLoader, ToolCall, ToolResult
from amplifier.errors import AmplifierError, ExecutionCancelled
from amplifier.models import ProviderInfo, StreamChunk, TextBlock, ToolCallBlock
from amplifier.modules.loop import basic as loop_basic
from amplifier.modules.loop import events as loop_events
from amplifier.modules.loop import streaming as loop_streaming
from amplifier.testing.virtual_time import virtual_backend
from tests._support.cancellations import some_cancellation
from tests._support.worlds import Ledger, what_is_left_in

from ..parts import BACKENDS, Chunk, Outcome

LOOPS = {"loop-basic": loop_basic, "loop-streaming": loop_streaming, "loop-events": loop_events}
FAULTS = (
    "Exception",
    "SystemExit",
    "KeyboardInterrupt",
    "cancellation",
    "hang",
    "wrong type",
    "group",
    "base group",
)
SYNC = {
    *(
        "provider.parse_tool_calls",
        "provider.get_info",
        "hook.sync",
        "display",
        "contributor.sync",
        "cleanup.sync",
    ),
    "cancel callback.sync",
}
CONTAINED = {
    *(
        "mount.provider",
        "mount.tool",
        "mount.hook",
        "ready",
        "hosted.enter",
        "hosted.exit",
        "background",
    ),
    *(
        "hook.observer",
        "hook.sync",
        "hook.gate",
        "hook.collected",
        "contributor",
        "contributor.sync",
    ),
    *("approval", "display", "cleanup", "cleanup.sync", "tool.execute", "capability"),
    *("cancel callback", "cancel callback.sync"),
}
"""Boundaries whose failures no caller of the session sees: not that of opening, of a turn or of closing (L4)."""
DEADLINES = {
    "mount": 2,
    "ready": 2,
    "hook": 3,
    "contribution": 2,
    "collection": 5,
    "cleanup": 2,
    "teardown": 20,
}
APPROVAL = 5.0
TURN = 60.0
LONGEST = 3 * TURN
"""Virtual seconds that a trial may take: two turns at their deadline, opening, closing and a turn that is stopped."""


class Broken(Exception):
    """What a module raises."""


class Fault:
    """Lets one call go wrong.

    Args:
        boundary: At which boundary; none if empty.
        number: Which call at that boundary, counted from 1.
        kind: How, one of `FAULTS`.
    """

    def __init__(self, boundary: str = "", number: int = 0, kind: str = "") -> None:
        self.boundary, self.number, self.kind = boundary, number, kind
        self.calls: Counter[str] = Counter()
        self.raised: BaseException | None = None
        self.has_fired = False

    async def at(self, boundary: str) -> bool:
        """A call has begun; returns whether it has to return something of a wrong type."""
        await anyio.lowlevel.checkpoint()
        if self._is_now(boundary):
            if self.kind == "hang":
                await anyio.sleep_forever()
            if self.kind == "cancellation":
                self.raised = await some_cancellation()
                raise self.raised
        return self._fire(boundary)

    def at_once(self, boundary: str) -> bool:
        """The same for a call that cannot wait."""
        self._is_now(boundary)
        return self._fire(boundary)

    def _is_now(self, boundary: str) -> bool:
        self.calls[boundary] += 1
        now = boundary == self.boundary and self.calls[boundary] == self.number
        self.has_fired |= now
        return now

    def _fire(self, boundary: str) -> bool:
        if not (boundary == self.boundary and self.calls[boundary] == self.number):
            return False
        match self.kind:
            case "Exception":
                self.raised = Broken("broken on purpose")
            case "SystemExit":
                self.raised = SystemExit(3)
            case "KeyboardInterrupt":
                self.raised = KeyboardInterrupt()
            case "group":
                self.raised = ExceptionGroup("several", [Broken("one"), ValueError("two")])
            case "base group":
                self.raised = BaseExceptionGroup("several", [Broken("one"), SystemExit(3)])
            case _:
                return True
        raise self.raised


class Records(logging.Handler):
    """Keeps the texts of log records."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


# ── modules ──────────────────────────────────────────────────────────────────────────────────────


class Context:
    """Stores what it is given; a call that goes wrong stores nothing."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self.messages: list[Any] = []

    async def add_message(self, message: Any) -> Any:
        wrong = await self._fault.at("context.add_message")
        self.messages.append(message)
        return 42 if wrong else None

    async def get_messages(self) -> Any:
        return 42 if await self._fault.at("context.get_messages") else list(self.messages)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any = None
    ) -> Any:
        return (
            42 if await self._fault.at("context.get_messages_for_request") else list(self.messages)
        )

    async def set_messages(self, messages: list[Any]) -> None:
        self.messages[:] = messages

    async def clear(self) -> None:
        self.messages.clear()


class Provider:
    """Asks for both tools, then answers."""

    name = "faulty"

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._answers = 0

    def get_info(self) -> Any:
        return (
            42
            if self._fault.at_once("provider.get_info")
            else ProviderInfo(id="faulty", display_name="Faulty")
        )

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **options: Any) -> Any:
        if await self._fault.at("provider.complete"):
            return 42
        return self._answer(request)

    @asynccontextmanager
    async def stream(self, request: Any, **options: Any) -> AsyncIterator[Any]:
        if await self._fault.at("provider.stream"):
            yield 42
            return
        async with aclosing(self._pieces(request)) as pieces:
            yield pieces

    async def _pieces(self, request: Any) -> AsyncGenerator[Any, None]:
        wrong = await self._fault.at("provider.stream, first piece")
        yield (
            42 if wrong else StreamChunk(kind="block_delta", index=0, block_type="text", text="a ")
        )
        wrong = await self._fault.at("provider.stream, second piece")
        yield 42 if wrong else StreamChunk(kind="response", response=self._answer(request))

    def _answer(self, request: Any) -> ChatResponse:
        if request.messages and request.messages[-1].role == "tool":
            return ChatResponse(content=[TextBlock(text="done")])
        self._answers += 1
        calls = [
            ToolCall(id=f"{self._answers}.{name}", name=name, arguments={})
            for name in ("one", "two")
        ]
        blocks = [ToolCallBlock(id=call.id, name=call.name, input={}) for call in calls]
        return ChatResponse(content=[TextBlock(text="a "), *blocks], tool_calls=calls)

    def parse_tool_calls(self, response: Any) -> Any:
        return (
            42
            if self._fault.at_once("provider.parse_tool_calls")
            else list(response.tool_calls or ())
        )


class Loop:
    """A loop whose turns may go wrong before they begin."""

    def __init__(self, fault: Fault, loop: Any) -> None:
        self._fault = fault
        self._loop = loop

    async def execute(self, *arguments: Any, **options: Any) -> Any:
        return (
            42
            if await self._fault.at("orchestrator.execute")
            else await self._loop.execute(*arguments, **options)
        )


class Tool:
    """Counts its calls and asks another module's capability."""

    description = "Does nothing."
    input_schema: dict[str, Any] = {"type": "object"}  # noqa: RUF012  # part of the contract

    def __init__(self, trial: Trial, name: str) -> None:
        self._trial = trial
        self.name = name

    async def execute(self, input: Any) -> Any:  # noqa: A002  # the contract's name
        self._trial.executed[self.name] += 1
        if await self._trial.fault.at("tool.execute"):
            return object()
        return ToolResult(
            output=str(await self._trial.session.coordinator.get_capability("faulty.answer")())
        )


class Approvals:
    """Allows, unless it goes wrong."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> Any:
        return 42 if await self._fault.at("approval") else "Allow"


class Display:
    """Shows nothing."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def show_message(self, message: str, level: str, source: str = "hook") -> Any:
        return 42 if self._fault.at_once("display") else None


# ── a trial ──────────────────────────────────────────────────────────────────────────────────────


class Trial:
    """One session with one fault."""

    def __init__(self, loop: str, fault: Fault) -> None:
        self.fault = fault
        self.ledger = Ledger()
        self.executed: Counter[str] = Counter()
        self.allowed: Counter[str] = Counter()
        self.raised: list[BaseException] = []
        self.problems: list[str] = []
        self.context = Context(fault)
        self.log = Records()
        self.events: list[str] = []
        self.hung_in_a_stop = False
        modules: dict[str, Any] = {
            loop: self._module(
                "orchestrator", lambda coordinator: self._mount_loop(coordinator, LOOPS[loop])
            ),
            "context-faulty": self._module("context", self._mount_context),
            "provider-faulty": self._module("provider", lambda coordinator: Provider(fault)),
            "tool-faulty": self._module("tool", self._mount_tools),
            "hooks-faulty": SimpleNamespace(
                mount=self._module("hook", self._mount_hooks), on_session_ready=self._ready
            ),
            "hooks-hosted": self._hosted,
        }
        plan: dict[str, Any] = {
            "session": {"orchestrator": loop, "context": "context-faulty", "deadlines": DEADLINES},
            "providers": [{"module": "provider-faulty"}],
            "tools": [{"module": "tool-faulty"}],
            "hooks": [{"module": "hooks-faulty"}, {"module": "hooks-hosted"}],
        }
        self.session = AmplifierSession(
            plan,
            loader=ModuleLoader(modules=modules),
            approval_system=Approvals(fault),
            display_system=Display(fault),
        )

    def _module(self, name: str, make: Any) -> Any:
        """A module that opens something, may go wrong, makes something and gives it back when it is cleaned up."""

        async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
            self.ledger.open(name)

            async def close() -> None:
                self.ledger.close(name)
                await self.fault.at("cleanup")

            coordinator.register_cleanup(close)
            if await self.fault.at(f"mount.{name}"):
                return object()
            made = make(coordinator)
            return await made if hasattr(made, "__await__") else made

        return mount

    async def _mount_loop(self, coordinator: Any, loop: Any) -> None:
        await loop.mount(coordinator, {})
        inner = coordinator.get("orchestrator")
        await coordinator.unmount("orchestrator")
        await coordinator.mount("orchestrator", Loop(self.fault, inner))

    def _mount_context(self, coordinator: Any) -> Context:
        def close() -> None:
            self.fault.at_once("cleanup.sync")

        coordinator.register_cleanup(close)
        return self.context

    async def _mount_tools(self, coordinator: Any) -> None:
        async def answer() -> Any:
            return 42 if await self.fault.at("capability") else "answer"

        coordinator.register_capability("faulty.answer", answer)
        for name in ("one", "two"):
            await coordinator.mount("tools", Tool(self, name), name=name)

    async def _mount_hooks(self, coordinator: Any) -> None:
        async def observe(event: str, data: dict[str, Any]) -> Any:
            return 42 if await self.fault.at("hook.observer") else None

        def observe_at_once(event: str, data: dict[str, Any]) -> Any:
            return 42 if self.fault.at_once("hook.sync") else None

        async def gate(event: str, data: dict[str, Any]) -> Any:
            if await self.fault.at("hook.gate"):
                return 42
            self.allowed[data["tool_name"]] += 1
            if data["tool_name"] == "one":
                return HookResult()
            return HookResult(
                action="ask_user",
                approval_prompt="May it?",
                approval_options=["Allow", "Deny"],
                approval_timeout=APPROVAL,
            )

        async def collected(event: str, data: dict[str, Any]) -> Any:
            return 42 if await self.fault.at("hook.collected") else HookResult(data={"answer": 1})

        async def contribute() -> Any:
            return object() if await self.fault.at("contributor") else "name"

        def contribute_at_once() -> Any:
            return object() if self.fault.at_once("contributor.sync") else "name"

        async def stopped() -> Any:
            return 42 if await self.fault.at("cancel callback") else None

        def stopped_at_once() -> Any:
            return 42 if self.fault.at_once("cancel callback.sync") else None

        coordinator.cancellation.on_cancel(stopped)
        coordinator.cancellation.on_cancel(stopped_at_once)
        hooks = coordinator.hooks
        hooks.register("*", observe, 10, name="faulty-observer")
        hooks.register("tool:post", observe_at_once, 20, name="faulty-sync")
        hooks.register(
            "tool:post",
            lambda event, data: HookResult(user_message="done"),
            30,
            name="faulty-message",
        )
        hooks.register("tool:pre", gate, 0, name="faulty-gate", on_failure="deny")
        hooks.register("faulty:collect", collected, name="faulty-collected")
        coordinator.register_contributor("names", "faulty", contribute)
        coordinator.register_contributor("names", "faulty-sync", contribute_at_once)

    async def _ready(self, coordinator: Any) -> Any:
        return 42 if await self.fault.at("ready") else None

    @asynccontextmanager
    async def _hosted(self, coordinator: Any, config: dict[str, Any]) -> AsyncIterator[Any]:
        """A module in the structured form, with a task in the background."""
        self.ledger.open("hosted")
        try:
            wrong = await self.fault.at("hosted.enter")
            coordinator.start_soon(self._background, name="faulty-background")
            yield object() if wrong else None
            await self.fault.at("hosted.exit")
        finally:
            self.ledger.close("hosted")

    async def _background(self) -> None:
        await self.fault.at("background")

    # ── what an application does ──

    async def run(self) -> None:
        """Open, work, close; then compare with what was there before."""
        before = {task.id for task in anyio.get_running_tasks()}
        began = anyio.current_time()
        self.session.coordinator.hooks.register(
            "*", lambda event, data: self.events.append(event), -1000
        )
        try:
            async with self.session:
                coordinator = self.session.coordinator
                await coordinator.collect_contributions("names")
                await coordinator.hooks.emit_and_collect("faulty:collect", {})
                for _ in range(2):
                    try:
                        await self.session.execute("go", timeout=TURN)
                    except Exception as exc:  # what an application does with a failed turn
                        self.raised.append(exc)
                await self._stop_a_turn()
        except (Exception, KeyboardInterrupt, SystemExit) as exc:
            self.raised.append(exc)
        took = anyio.current_time() - began
        if took > LONGEST:
            self.problems.append(f"took {took:g} virtual seconds, at most {LONGEST:g} expected")
        for _ in range(5):  # turns of the loop that a finished task may take to disappear
            await anyio.lowlevel.checkpoint()
        left = [task.name for task in anyio.get_running_tasks() if task.id not in before]
        if left:
            self.problems.append(f"left tasks behind: {left}")

    async def _stop_a_turn(self) -> None:
        coordinator = self.session.coordinator
        had_fired = self.fault.has_fired

        def stop(event: str, data: dict[str, Any]) -> None:
            coordinator.cancellation.request_graceful(grace=1)

        coordinator.hooks.register("execution:start", stop, name="application-stop")
        try:
            await self.session.execute("go", timeout=TURN)
        except ExecutionCancelled:
            pass
        except Exception as exc:
            self.raised.append(exc)
        self.hung_in_a_stop = self.fault.kind == "hang" and self.fault.has_fired and not had_fired

    # ── what must hold ──

    def check(self) -> Iterator[str]:
        yield from self.problems
        yield from self.ledger.problems()
        yield from (what for what in what_is_left_in(self.session) if "handlers" not in what)
        yield from self._untyped_errors()
        yield from self._uncontained_errors()
        yield from self._broken_transcript()
        if self.executed["one"] > self.allowed["one"] and self.fault.boundary != "mount.hook":
            yield f"tool 'one' ran {self.executed['one']} times and was allowed {self.allowed['one']} times"
        if self.fault.boundary == "approval" and self.executed["two"] > 1:
            yield "tool 'two' ran although its approval failed"
        callbacks = [self.fault.calls["cancel callback"], self.fault.calls["cancel callback.sync"]]
        ends_all = self.fault.kind == "KeyboardInterrupt"
        if (
            self.fault.boundary.startswith("cancel callback")
            and callbacks != [1, 1]
            and not ends_all
        ):
            yield f"one stop has called the cancel callbacks {callbacks} times"
        if self.events.count("execution:start") != self.events.count("execution:end"):
            yield f"events of turns do not match: {self.events}"
        # Nobody listens to what a display or a closing callback returns. A task in the background may wait for ever, and so
        # may a module in a turn that is stopped: the end of the grace period cancels it.
        silent = self.fault.kind in ("wrong type", "KeyboardInterrupt")
        silent |= self.fault.boundary == "background" and self.fault.kind == "hang"
        silent |= self.hung_in_a_stop and not self.fault.boundary.startswith("cancel callback")
        if self.fault.has_fired and not silent and not self.raised and not self._is_reported():
            yield "the fault was neither raised nor reported"

    def _is_reported(self) -> bool:
        names = (
            "faulty",
            "hosted",
            "tool 'o",
            "of loop-",
            f"cancel callback {__name__}.Trial._mount_hooks.<locals>.stopped",
        )
        return any(name in line for name in names for line in self.log.lines) or bool(
            {"tool:error", "module:load_failed"} & set(self.events)
        )

    def _untyped_errors(self) -> Iterator[str]:
        for error in self.raised:
            if isinstance(error, AmplifierError) or error is self.fault.raised:
                continue
            if isinstance(error, ExceptionGroup) and self.fault.kind == "group":
                continue  # a task group has derived it from the one that was raised
            if self.fault.kind == "KeyboardInterrupt" and isinstance(error, KeyboardInterrupt):
                continue
            yield f"{error!r} is no AmplifierError and not what the module raised"

    def _uncontained_errors(self) -> Iterator[str]:
        boundary, kind = self.fault.boundary, self.fault.kind
        if boundary not in CONTAINED or kind == "KeyboardInterrupt":
            return
        if boundary in ("tool.execute", "capability") and kind == "hang":
            return  # a tool may take as long as its turn
        if boundary in ("hook.observer", "hook.sync") and kind == "wrong type":
            return  # an answer that cannot be understood denies the event, whatever it is
        if boundary == "mount.provider":
            return  # a turn without a provider fails
        for error in self.raised:
            yield f"{error!r} was not contained"

    def _broken_transcript(self) -> Iterator[str]:
        """Every call has exactly one result, in order, before the next answer (L5)."""
        waiting: list[str] = []
        for message in self.context.messages:
            if message["role"] == "tool":
                if not waiting or message["tool_call_id"] != waiting.pop(0):
                    yield f"a result out of order: {self.context.messages}"
                    return
            elif waiting:
                break
            waiting += [call["id"] for call in message.get("tool_calls") or ()]
        # A context that refuses to store a result cannot have it.
        if waiting and self.fault.boundary != "context.add_message":
            yield f"calls without a result: {waiting} in {self.context.messages}"


def run_trial(backend: str, loop: str, fault: Fault) -> Trial:
    """One session with one fault, from its opening to its end."""
    name, options = virtual_backend(backend)
    logger = logging.getLogger("amplifier")
    trial = Trial(loop, fault)
    logger.addHandler(trial.log)
    logger.propagate = False
    try:
        anyio.run(trial.run, backend=name, backend_options=options)
    except KeyboardInterrupt as exc:
        if fault.kind != "KeyboardInterrupt":
            raise
        trial.raised.append(exc)  # one in a task of its own ends the loop, as Python has it
    finally:
        logger.removeHandler(trial.log)
        logger.propagate = True
    return trial


def run(backend: str, loop: str, step: int, boundary: str | None = None) -> Outcome:
    """Every ``step``-th combination of boundary, call and fault; at one boundary only, if it is given."""
    outcome = Outcome()
    undisturbed = run_trial(backend, loop, Fault())
    for problem in [*undisturbed.check(), *map(repr, undisturbed.raised), *undisturbed.log.lines]:
        outcome.fail(f"{backend}, {loop}, without a fault: {problem}")
    combinations = [
        (name, number, kind)
        for name, calls in sorted(undisturbed.fault.calls.items())
        if boundary in (None, name)
        for number in range(1, calls + 1)
        for kind in FAULTS
        if name not in SYNC or kind not in ("hang", "cancellation")
    ]
    for name, number, kind in combinations[::step]:
        where = f"{backend}, {loop}: {kind} at call {number} of {name}"
        outcome.cases += 1
        try:
            trial = run_trial(backend, loop, Fault(name, number, kind))
        except BaseException as exc:
            outcome.fail(f"{where}: {exc!r} left the event loop")
            continue
        if not trial.fault.has_fired:
            outcome.fail(f"{where}: the call was not reached")
        for problem in trial.check():
            outcome.fail(f"{where}: {problem}")
    return outcome


def chunks(share: float) -> list[Chunk]:
    """One chunk for each loop on each backend; a small share takes every n-th combination."""
    step = math.ceil(1 / share)
    return [
        Chunk(f"{loop} on {backend}", {"backend": backend, "loop": loop, "step": step})
        for loop in LOOPS
        for backend in BACKENDS
    ]
