"""A session against a model of it: any operations in any order, compared after every step.

Hypothesis draws a *program*, a list of operations, and one async test interprets it, so that scopes stay lexical: the
second half of a program may run inside ``async with``. The model below knows nothing of tasks, scopes or deadlines; it is
the contract of a session in dictionaries and lists.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amplifier import AmplifierSession, CancellationToken
from amplifier.contracts import OnFailure
from amplifier.errors import ExecutionCancelled, ExecutionTimeout, SessionStateError
from tests._support.small_agent import Memory, Turn, agent, heard, mounting

pytestmark = pytest.mark.virtual_time

MODULE = "tool-plan"
EVENTS = ("world:one", "world:two")
COUNTED = ("session:start", "session:end", "cancel:requested", "cancel:completed")

Operation = tuple[Any, ...]


# ── programs ─────────────────────────────────────────────────────────────────────────────────────

names = st.sampled_from(("a", "b", "plan"))
levels = st.sampled_from(("graceful", "immediate"))
answers = st.sampled_from(("nothing", "deny", "modify", "fail", "fail closed"))
turns = st.sampled_from(
    (
        "answer",
        "raise",
        "graceful",
        "immediate",
        "immediate at once",
        "immediate and answer",
        "timeout",
    )
)

registrations = st.tuples(
    st.just("register"), st.sampled_from((*EVENTS, "*")), names, st.integers(-1, 1), answers
)
operations: st.SearchStrategy[Operation] = st.one_of(
    st.tuples(st.sampled_from(("open", "close", "collect", "reset"))),
    st.tuples(
        st.sampled_from(("mount", "unmount")), st.sampled_from(("tools", "providers")), names
    ),
    registrations,
    registrations,  # twice as often as the rest: their order is a matter of several
    st.tuples(st.just("unregister"), names),
    st.tuples(st.just("emit"), st.sampled_from(EVENTS)),
    st.tuples(st.sampled_from(("offer", "clean up")), names),
    st.tuples(st.just("contribute"), names, st.sampled_from(("value", "nothing", "fail"))),
    st.tuples(st.just("cancel"), levels),
    st.tuples(st.just("execute"), turns),
    st.tuples(st.just("fork"), st.sampled_from(("nobody", "parent", "child")), levels),
)
programs = st.lists(operations, max_size=25)


# ── the model ────────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Handler:
    event: str
    name: str
    priority: int
    place: int
    answer: str


@attrs.define
class Slots:
    """Named values of the application, and those of the module, which lie over them while the session is open."""

    theirs: dict[str, Any] = attrs.field(factory=dict)
    modules: dict[str, Any] = attrs.field(factory=dict)

    def put(self, name: str, value: Any) -> None:
        self.modules.pop(name, None)
        self.theirs[name] = value

    def seen(self) -> dict[str, Any]:
        return {**self.theirs, **self.modules}


@attrs.define
class Model:
    state: str = "new"
    in_block: bool = False
    status: str = "running"
    token: str = "none"
    handlers: list[Handler] = attrs.field(factory=list)
    points: dict[str, Slots] = attrs.field(factory=lambda: {"tools": Slots(), "providers": Slots()})
    capabilities: Slots = attrs.field(factory=Slots)
    contributors: list[tuple[str, str]] = attrs.field(factory=list)
    cleanups: list[str] = attrs.field(factory=list)
    cleaned: list[str] = attrs.field(factory=list)
    unannounced: int = 0
    emitted: dict[str, int] = attrs.field(factory=lambda: dict.fromkeys(COUNTED, 0))
    registrations: int = 0

    def open(self) -> None:
        if self.state == "open":
            return
        self.state, self.status = "open", "running"
        self.points["tools"].modules["plan"] = MODULE
        self.capabilities.modules["plan"] = MODULE
        self.contributors.append((MODULE, "value"))
        self.cleanups.append(MODULE)
        self.register("world:one", MODULE, 0, "nothing")

    def close(self) -> None:
        if self.state == "open":
            self.announce()
            self.emitted["session:end"] += 1
            self.state = "closed"
            if self.status == "running":
                self.status = "completed"
        self.cleaned += reversed(self.cleanups)
        self.cleanups.clear()
        self.handlers = [handler for handler in self.handlers if handler.name != MODULE]
        self.contributors = [(name, kind) for name, kind in self.contributors if name != MODULE]
        for slots in (self.capabilities, *self.points.values()):
            slots.modules.clear()

    def register(self, event: str, name: str, priority: int, answer: str) -> None:
        self.registrations += 1
        self.handlers.append(Handler(event, name, priority, self.registrations, answer))

    def unregister(self, name: str) -> None:
        named = [handler for handler in self.handlers if handler.name == name]
        if named:
            self.handlers.remove(max(named, key=lambda handler: handler.place))

    def emit(self, event: str) -> tuple[list[str], str]:
        """Who is called, and the merged action."""
        called, action = [], "continue"
        listening = [handler for handler in self.handlers if handler.event in (event, "*")]
        for handler in sorted(listening, key=lambda handler: (handler.priority, handler.place)):
            called.append(handler.name)
            if handler.answer in ("deny", "fail closed"):
                return called, "deny"
            if handler.answer == "modify":
                action = "modify"
        return called, action

    def cancel(self, level: str) -> bool:
        changed = self.token == "none" or (self.token == "graceful" and level == "immediate")
        if changed:
            self.token = level
            self.unannounced += 1
        return changed

    def settle(self) -> None:
        """Requests are announced by a task of the session's group, which exists only in an ``async with``."""
        if self.state == "open" and self.in_block:
            self.announce()

    def announce(self) -> None:
        self.emitted["cancel:requested"] += self.unannounced
        self.unannounced = 0

    def execute(self, kind: str) -> type[Exception] | None:
        """What it raises."""
        if self.state != "open":
            return SessionStateError
        if self.token == "immediate":
            self.status = "cancelled"
            return ExecutionCancelled
        self.emitted["session:start"] = 1
        if kind.startswith(("graceful", "immediate")):
            self.cancel(kind.partition(" ")[0])
        if self.token != "none" or kind == "timeout":
            self.announce()
            self.emitted["cancel:completed"] += 1
            self.status = "cancelled"
        else:
            self.status = "failed" if kind == "raise" else "completed"
        if self.token == "immediate":
            return ExecutionCancelled
        return {"raise": KeyError, "timeout": ExecutionTimeout}.get(kind)


# ── the interpreter ──────────────────────────────────────────────────────────────────────────────


class Interpreter:
    """Does every operation twice, to a session and to the model, and compares what came back."""

    def __init__(self) -> None:
        self.model = Model()
        self.called: list[tuple[str, str]] = []
        self.cleaned: list[str] = []
        self.values = 0
        self.session = agent(
            self.turn,
            context=mounting(Memory()),
            tools={MODULE: self.mount_module},
        )
        self.heard = heard(self.session, *COUNTED)

    async def run(self, program: list[Operation], block: list[Operation] | None) -> None:
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self.session.cleanup)
            for operation in program:
                await self.step(operation)
            if block is None:
                return
            await self.step(("close",))
            self.model.in_block = True
            async with self.session:
                self.model.open()
                await (
                    self.compare()
                )  # requests from before are announced meanwhile, or a step could overtake them
                for operation in block:
                    await self.step(operation)
            self.model.close()
            self.model.in_block = False
            await self.compare()

    async def step(self, operation: Operation) -> None:
        name, *arguments = operation
        do: Callable[..., Any] = getattr(self, f"do_{name.replace(' ', '_')}")
        await do(*arguments)
        await self.compare()

    async def compare(self) -> None:
        # Virtual time moves when nothing can run; wait_all_tasks_blocked() would not see callbacks on their way.
        await anyio.sleep(1)
        session, model = self.session, self.model
        model.settle()
        coordinator = session.coordinator
        listed = coordinator.hooks.list_handlers()
        assert session.statistics().state == model.state
        assert session.initialized == (model.state == "open")
        assert session.status.status == model.status
        assert coordinator.cancellation.state == model.token
        assert coordinator.get("tools") == model.points["tools"].seen()
        assert coordinator.get("providers") == model.points["providers"].seen()
        assert (coordinator.get("context") is None) == (model.state != "open")
        assert {name: coordinator.get_capability(name) for name in ("a", "b", "plan")} == {
            name: model.capabilities.seen().get(name) for name in ("a", "b", "plan")
        }
        assert [c["name"] for c in coordinator.channels.get("channel", ())] == [
            name for name, _ in model.contributors
        ]
        for event in (*EVENTS, "*"):
            expected = sorted(
                (h.priority, h.place, h.name) for h in model.handlers if h.event == event
            )
            assert [n for n in listed.get(event, []) if n != "listener of the test"] == [
                n for _, _, n in expected
            ]
        assert self.cleaned == model.cleaned
        assert {
            event: sum(name == event for name, _ in self.heard) for event in COUNTED
        } == model.emitted

    # ── what the modules do ──

    async def mount_module(self, coordinator: Any, config: dict[str, Any]) -> Callable[[], None]:
        await coordinator.mount("tools", MODULE, name="plan")
        coordinator.register_capability("plan", MODULE)
        coordinator.register_contributor("channel", MODULE, lambda: MODULE)
        coordinator.hooks.register("world:one", self.handler(MODULE, "nothing"), 0, MODULE)
        if coordinator.parent_id is not None:
            return lambda: None
        return lambda: self.cleaned.append(MODULE)

    def handler(self, name: str, answer: str) -> Callable[[str, dict[str, Any]], Any]:
        async def handle(event: str, data: dict[str, Any]) -> Any:
            self.called.append((event, name))
            await anyio.lowlevel.checkpoint()
            if answer.startswith("fail"):
                raise RuntimeError(answer)
            return {"action": answer, "data": {"by": name}} if answer != "nothing" else None

        return handle

    async def turn(self, turn: Turn) -> str:
        token: CancellationToken = turn.coordinator.cancellation
        await anyio.lowlevel.checkpoint()
        match turn.prompt:
            case "raise":
                raise KeyError("raise")
            case "graceful":
                token.request_graceful()
            case "immediate":
                token.request_immediate()
                await anyio.sleep_forever()
            case "immediate at once":
                token.request_immediate()
            case "immediate and answer":
                token.request_immediate()
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(1)
            case "timeout":
                await anyio.sleep_forever()
        return turn.prompt

    # ── operations ──

    async def do_open(self) -> None:
        await self.session.initialize()
        self.model.open()

    async def do_close(self) -> None:
        await self.session.cleanup()
        self.model.close()

    async def do_mount(self, point: str, name: str) -> None:
        self.values += 1
        coordinator: Any = self.session.coordinator  # what it mounts here is no module
        await coordinator.mount(point, self.values, name)
        self.model.points[point].put(name, self.values)

    async def do_unmount(self, point: str, name: str) -> None:
        await self.session.coordinator.unmount(point, name)
        slots = self.model.points[point]
        slots.modules.pop(name, None)
        slots.theirs.pop(name, None)

    async def do_register(self, event: str, name: str, priority: int, answer: str) -> None:
        gate: OnFailure = "deny" if answer == "fail closed" else "continue"
        self.session.coordinator.hooks.register(
            event, self.handler(name, answer), priority, name, on_failure=gate
        )
        self.model.register(event, name, priority, answer)

    async def do_unregister(self, name: str) -> None:
        self.session.coordinator.hooks.unregister(name)
        self.model.unregister(name)

    async def do_emit(self, event: str) -> None:
        self.called.clear()
        result = await self.session.coordinator.hooks.emit(event, {"by": "nobody"})
        called, action = self.model.emit(event)
        assert [name for heard_event, name in self.called if heard_event == event] == called
        assert result.action == action
        if action == "continue":
            assert result.data is not None
            assert result.data["by"] == "nobody"

    async def do_offer(self, name: str) -> None:
        self.values += 1
        self.session.coordinator.register_capability(name, self.values)
        self.model.capabilities.put(name, self.values)

    async def do_contribute(self, name: str, kind: str) -> None:
        def contribute() -> str | None:
            if kind == "fail":
                raise RuntimeError(kind)
            return name if kind == "value" else None

        self.session.coordinator.register_contributor("channel", name, contribute)
        self.model.contributors.append((name, kind))

    async def do_clean_up(self, name: str) -> None:
        def clean_up() -> None:
            self.cleaned.append(name)

        if self.model.state == "closed":
            with pytest.raises(SessionStateError, match="comes too late"):
                self.session.coordinator.register_cleanup(clean_up)
            return
        self.session.coordinator.register_cleanup(clean_up)
        self.model.cleanups.append(name)

    async def do_collect(self) -> None:
        collected = await self.session.coordinator.collect_contributions("channel")
        assert collected == [name for name, kind in self.model.contributors if kind == "value"]

    async def do_cancel(self, level: str) -> None:
        assert request(self.session, level) == self.model.cancel(level)

    async def do_reset(self) -> None:
        self.session.coordinator.cancellation.reset()
        self.model.token = "none"
        self.model.unannounced = 0

    async def do_execute(self, kind: str) -> None:
        error = self.model.execute(kind)
        assert await outcome(self.session, kind) == (error or kind)

    async def do_fork(self, whom: str, level: str) -> None:
        """A child lives and dies inside this step; requests reach it from its parent and never the other way."""
        child = self.session.fork()
        if self.model.state == "closed":
            with pytest.raises(SessionStateError):
                await child.initialize()
            return
        async with child:
            expected = Model(state="open", token=self.model.token)
            assert child.coordinator.cancellation.state == expected.token
            if whom == "parent":
                assert request(self.session, level) == self.model.cancel(level)
                expected.cancel(level)
            elif whom == "child":
                assert request(child, level) == expected.cancel(level)
            assert child.coordinator.cancellation.state == expected.token
            error = expected.execute("answer")
            assert await outcome(child, "answer") == (error or "answer")
            assert child.status.status == expected.status
        assert child.statistics().state == "closed"
        assert child.coordinator.get("tools") == {}
        assert "0 children" in repr(self.session.coordinator.cancellation)


def request(session: AmplifierSession, level: str) -> bool:
    token = session.coordinator.cancellation
    return token.request_immediate() if level == "immediate" else token.request_graceful()


async def outcome(session: AmplifierSession, kind: str) -> str | type[Exception]:
    try:
        return await session.execute(kind, timeout=5)
    except (ExecutionCancelled, ExecutionTimeout, SessionStateError, KeyError) as exc:
        return type(exc)


# ── the tests ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _silence() -> Iterator[None]:
    """Failing handlers are part of the programs; what is logged about them is tested elsewhere."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@given(program=programs)
@example(
    program=[
        ("register", "world:one", "a", 0, "nothing"),
        ("register", "world:two", "a", 0, "nothing"),
        ("unregister", "a"),
    ]
)
@example(program=[("clean up", "a"), ("close",), ("close",)])
@example(
    program=[
        ("open",),
        ("clean up", "a"),
        ("close",),
        ("clean up", "b"),
        ("open",),
        ("clean up", "b"),
        ("close",),
    ]
)
@example(
    program=[
        ("mount", "tools", "plan"),
        ("offer", "plan"),
        ("register", "world:one", "a", 0, "nothing"),
        ("contribute", "a", "value"),
        *[("open",), ("emit", "world:one"), ("collect",), ("close",), ("collect",)] * 2,
    ]
)
async def test_manual_session_matches_model(program: list[Operation]) -> None:
    await Interpreter().run(program, None)


@given(program=st.lists(operations, max_size=8), block=programs)
@example(program=[("cancel", "graceful"), ("cancel", "immediate")], block=[("emit", "world:one")])
@example(program=[], block=[("execute", "immediate at once")])
@example(program=[], block=[("cancel", "graceful"), ("cancel", "immediate")])
@example(program=[], block=[("cancel", "graceful"), ("execute", "answer")])
async def test_block_session_matches_model(
    program: list[Operation], block: list[Operation]
) -> None:
    await Interpreter().run(program, block)
