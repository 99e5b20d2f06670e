"""Budgets over trees of child sessions: no limit is ever passed, whatever runs at the same time, fails or is cancelled."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from decimal import Decimal
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amplifier import AmplifierSession, BudgetExceeded, ModuleLoader
from amplifier.errors import BudgetError, LLMError
from amplifier.models import ChatRequest, ChatResponse, Usage, to_dict
from tests._support.small_agent import heard

from ._agents import Answer, Model, Work, agent, pairs_of

# ── random trees ─────────────────────────────────────────────────────────────────────────────────


@attrs.frozen
class Call:
    """One model call of a session: what it returns, and the children whose tasks it asks for."""

    tokens: int
    delay: float
    fails: bool
    children: tuple[Node, ...] = ()


@attrs.frozen
class Node:
    """A session: its calls, and the limits that it has in addition to those above."""

    calls: tuple[Call, ...]
    limits: dict[str, Any] | None = None


def limits(minimum: int) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            "tokens": st.integers(minimum, 6_000),
            "cost": st.integers(minimum, 6_000).map(lambda tokens: str(Decimal(tokens) / 1000)),
            "model_calls": st.integers(0, 8),
            "tool_calls": st.integers(0, 5),
            "seconds": st.integers(1, 20),
        },
    )


def calls(children: st.SearchStrategy[Node] | None) -> st.SearchStrategy[Call]:
    below = st.just(()) if children is None else st.lists(children, max_size=3).map(tuple)
    return st.builds(
        Call,
        st.integers(0, 1_500),
        st.sampled_from([0.0, 0.5, 1.0, 3.0]),
        st.sampled_from([False] * 7 + [True]),
        below,
    )


def nodes(children: st.SearchStrategy[Node] | None) -> st.SearchStrategy[Node]:
    return st.builds(
        Node, st.lists(calls(children), min_size=1, max_size=3).map(tuple), st.none() | limits(800)
    )


TREES = nodes(nodes(nodes(None)))


class Service:
    """What every session of a tree calls. It keeps books of its own, and knows nothing of budgets."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.above: dict[str, str | None] = {}
        self.spent: Counter[str] = Counter()
        self.at_most: Counter[str] = Counter()  # of the calls under way
        self.model_calls: Counter[str] = Counter()
        self.tool_calls: Counter[str] = Counter()
        self.passed: list[tuple[str, str, Any]] = []
        self.torn: list[str] = []
        self._positions: Counter[str] = Counter()
        self._ids = itertools.count(1)

    def add(self, node: Node, above: str | None) -> str:
        key = f"node-{next(self._ids)}"
        self.nodes[key] = node
        self.above[key] = above
        return key

    def chain(self, key: str) -> list[str]:
        above = self.above[key]
        return [key] if above is None else [key, *self.chain(above)]

    def check(self, key: str) -> None:
        """No limit of the session or of those above it is passed, nor would be if every call under way took all that it may."""
        for each in self.chain(key):
            given = self.nodes[each].limits or {}
            most = self.spent[each] + self.at_most[each]
            amounts: dict[str, Any] = {
                "tokens": most,
                "cost": Decimal(most) / 1000,
                "model_calls": self.model_calls[each],
                "tool_calls": self.tool_calls[each],
            }
            # Noted, not raised: to an agent an error here would be one of its model or its tool.
            self.passed += [
                (each, what, amount)
                for what, amount in amounts.items()
                if what in given and amount > Decimal(given[what])
            ]

    def note(self, key: str, counter: Counter[str], amount: int) -> None:
        for each in self.chain(key):
            counter[each] += amount
        self.check(key)

    def next_call(self, key: str) -> Call:
        position = self._positions[key]
        self._positions[key] += 1
        made = self.nodes[key].calls
        return made[position] if position < len(made) else Call(5, 0.0, False)


class ServiceModel(Model):
    """The model of one session."""

    def __init__(self, service: Service) -> None:
        super().__init__(usual=2_000)
        self._service = service

    async def complete(self, request: ChatRequest, **kwargs: Any) -> ChatResponse:
        key = next(str(message.content) for message in request.messages if message.role == "user")
        service, call = self._service, self._service.next_call(key)
        asked = len(json.dumps(to_dict(request)["messages"])) // 4
        most = asked + (
            call.tokens if request.max_output_tokens is None else request.max_output_tokens
        )
        service.note(key, service.model_calls, 1)
        service.note(key, service.at_most, most)
        try:
            await anyio.sleep(call.delay)
        finally:
            service.note(key, service.at_most, -most)
        if call.fails:
            raise LLMError("out of order", retryable=False)
        children = [("spawn", {"node": service.add(child, key)}) for child in call.children]
        response = self._response(request, Answer(calls=children, tokens=call.tokens))
        answered = response.usage.output_tokens
        cost = Decimal(asked + answered) / 1000
        response.usage = Usage(
            input_tokens=asked, output_tokens=answered, total_tokens=asked + answered, cost_usd=cost
        )
        service.note(key, service.spent, asked + answered)
        return response


class World:
    """A tree of sessions on one service."""

    def __init__(self, root: Node) -> None:
        self.service = Service()
        self.key = self.service.add(root, None)
        self.sessions: list[AmplifierSession] = []
        self.root = AmplifierSession(self._plan(root), loader=ModuleLoader(modules=self._modules()))

    def _plan(self, node: Node) -> dict[str, Any]:
        session: dict[str, Any] = {
            "orchestrator": {"module": "loop-basic", "config": {"max_retries": 0}},
            "context": "context-simple",
        }
        if node.limits is not None:
            session["budget"] = node.limits
        return {"session": session, "providers": ["provider-service"], "tools": ["tool-spawn"]}

    def _modules(self) -> dict[str, Any]:
        async def mount_provider(coordinator: Any, config: dict[str, Any]) -> Any:
            return ServiceModel(self.service)

        async def mount_tool(coordinator: Any, config: dict[str, Any]) -> Any:
            async def spawn(given: dict[str, Any]) -> str:
                key = given["node"]
                self.service.note(self.service.above[key] or "", self.service.tool_calls, 1)
                budget = self.service.nodes[key].limits
                child = coordinator.session.fork(
                    None if budget is None else {"session": {"budget": budget}}
                )
                async with child:
                    return await self.run(child, key)

            return Work("spawn", spawn)

        return {"provider-service": mount_provider, "tool-spawn": mount_tool}

    async def run(self, session: AmplifierSession, key: str) -> str:
        self.sessions.append(session)
        try:
            return await session.execute(key)
        finally:
            with anyio.CancelScope(shield=True):
                made, answered = pairs_of(await session.coordinator.get("context").get_messages())
                if made != answered:
                    self.service.torn.append(key)

    async def scenario(self) -> None:
        async with self.root:
            with contextlib.suppress(BudgetError, LLMError):
                await self.run(self.root, self.key)


def check_books(world: World, *, was_cancelled: bool) -> None:
    assert world.service.passed == []
    assert world.service.torn == []
    for session in world.sessions:
        budget = session.budget
        if budget is None:
            continue
        assert (budget._held_tokens, budget._held_cost) == (0, Decimal(0)), budget
        assert budget._running_turns == 0
    root = world.root.budget
    if root is not None:
        # Of a call that was cut off nothing is known, and nothing counts.
        assert root.used.tokens == world.service.spent[world.key]
        assert root.used.model_calls == world.service.model_calls[world.key] or was_cancelled


STOPS = st.none() | st.sampled_from([0.0, 0.5, 1.5, 2.0, 4.0])


async def run_tree(tree: Node, stop_after: float | None) -> None:
    world = World(tree)
    with anyio.fail_after(1_500), anyio.move_on_after(stop_after) as scope:
        await world.scenario()
    check_books(world, was_cancelled=scope.cancelled_caught)


@pytest.mark.virtual_time
@given(tree=TREES, stop_after=STOPS)
async def test_random_trees_pass_no_limit(tree, stop_after):
    await run_tree(tree, stop_after)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.virtual_time
@settings(max_examples=1_000)
@given(tree=TREES, stop_after=STOPS)
async def test_thousand_random_trees_pass_no_limit(tree, stop_after):
    await run_tree(tree, stop_after)


# ── single cases ─────────────────────────────────────────────────────────────────────────────────


def spawning(
    count: int, overlay: dict[str, Any] | None = None
) -> tuple[Model, Work, list[AmplifierSession], list[Any]]:
    """A model that runs so many children of the first session in the list at the same time, and their outcomes."""
    outcomes: list[Any] = []
    sessions: list[AmplifierSession] = []

    def script(request: ChatRequest) -> Answer:
        is_child = str(request.messages[0].content) == "child"
        if is_child:
            return Answer(tokens=100, delay=1)
        has_results = any(message.role == "tool" for message in request.messages)
        return Answer() if has_results else Answer(calls=[("spawn", {})] * count)

    async def spawn(given: dict[str, Any]) -> None:
        child = sessions[0].fork(overlay)
        async with child:
            try:
                outcomes.append(await child.execute("child"))
            except BudgetExceeded as error:
                outcomes.append(error)

    return Model(script), Work("spawn", spawn), sessions, outcomes


@pytest.mark.virtual_time
async def test_children_share_root_budget():
    model, work, sessions, outcomes = spawning(5)
    async with agent(model, work, budget={"model_calls": 3}) as session:
        sessions.append(session)
        with pytest.raises(BudgetExceeded):
            await session.execute("hello")
        refused = [outcome for outcome in outcomes if isinstance(outcome, BudgetExceeded)]
        assert len(refused) == 3
        assert {error.session_id for error in refused} == {session.session_id}
        assert session.budget.used.model_calls == 3


@pytest.mark.virtual_time
async def test_oversized_concurrent_calls_wait():
    model, work, sessions, outcomes = spawning(3)
    async with agent(
        model, work, budget={"tokens": 4_000}
    ) as session:  # one worst case of 1,000 fits, and no three of them
        sessions.append(session)
        began = anyio.current_time()
        assert await session.execute("hello") == "done"
        assert outcomes == ["done"] * 3
        assert anyio.current_time() - began > 1
        assert all(request.max_output_tokens == 1_000 for request in model.requests)


@pytest.mark.virtual_time
async def test_tighter_child_budget_wins():
    model, work, sessions, outcomes = spawning(1, {"session": {"budget": {"model_calls": 0}}})
    async with agent(model, work, budget={"model_calls": 10}) as session:
        events = heard(session, "budget:exceeded")
        sessions.append(session)
        assert await session.execute("hello") == "done"
        [error] = outcomes
        assert error.session_id != session.session_id
        assert events == []  # it is the child's limit
        assert session.budget.used.model_calls == 2


async def test_child_drops_former_parent_limits():
    async with agent(Model(), budget={"model_calls": 1}) as session:
        session.budget.set_limits(model_calls=5)
        async with session.fork() as child:
            assert "budget" not in child.config["session"]
            for _ in range(5):
                await child.execute("hello")
            with pytest.raises(BudgetExceeded) as caught:
                await child.execute("hello")
        assert caught.value.session_id == session.session_id
        assert session.budget.used.model_calls == 5
        assert child.budget.used.model_calls == 5


async def test_child_forked_before_opening_keeps_limits():
    session = agent(Model(), budget={"model_calls": 1})
    async with session.fork() as child:
        await child.execute("hello")
        with pytest.raises(BudgetExceeded):
            await child.execute("hello")


async def test_session_made_by_tool_shares_budget():
    inner = Model()

    async def create(given: dict[str, Any]) -> str:
        async with agent(inner, budget={"model_calls": 100}) as created:
            return await created.execute("hello")

    model = Model(lambda request: Answer(calls=[("create", {})]))
    async with agent(model, Work("create", create), budget={"model_calls": 5}) as session:
        with pytest.raises(BudgetExceeded):
            await session.execute("hello")
        assert len(model.requests) + len(inner.requests) == 5


@pytest.mark.virtual_time
async def test_time_of_outside_children_counts_once():
    async with agent(Model(lambda request: Answer(delay=3)), budget={"seconds": 5}) as session:
        outcomes: list[Any] = []

        async def run() -> None:
            async with session.fork() as child:
                try:
                    outcomes.append(await child.execute("hello"))
                except BudgetExceeded as error:
                    outcomes.append(error.what)

        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(run)
        assert outcomes == ["done"] * 4
        assert session.budget.used.seconds == pytest.approx(3)
        await run()
        assert outcomes[-1] == "seconds"
        assert session.budget.used.seconds == pytest.approx(5)


async def test_task_agent_reports_refused_call():
    def script(request: ChatRequest) -> Answer:
        has_results = any(message.role == "tool" for message in request.messages)
        return (
            Answer()
            if has_results
            else Answer(calls=[("task", {"agent": "helper", "instruction": "help"})])
        )

    session = agent(Model(script), budget={"model_calls": 10})
    session.config["tools"] = ["tool-task"]
    session.config["agents"] = {
        "helper": {"description": "Helps.", "session": {"budget": {"model_calls": 0}}},
    }
    async with session:
        assert await session.execute("hello") == "done"
        [result] = [
            message
            for message in await session.coordinator.get("context").get_messages()
            if message["role"] == "tool"
        ]
        assert "for model calls" in str(result["content"])
        assert session.budget.used.model_calls == 2
