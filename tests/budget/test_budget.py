"""Budgets of a session: what is refused, with which error, and what is counted."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import BudgetExceeded, ExecutionTimeout, PlanError
from amplifier.compat._sessions import AmplifierSession as PublishedSession
from amplifier.errors import BudgetError, LLMError
from amplifier.models import ChatRequest, Message, StreamChunk, Usage
from tests._support.small_agent import agent as small_agent
from tests._support.small_agent import heard, mounting, takes

from ._agents import INPUT, Answer, Model, StreamingModel, Work, agent, pairs_of


def again(times):
    """A model that calls the tool ``work`` so many times."""
    left = [times]

    def script(request):
        left[0] -= 1
        return Answer(calls=[("work", {})]) if left[0] >= 0 else Answer()

    return script


async def used_up(session):
    """Ask until the budget is used up; the error."""
    for _ in range(1_000):
        try:
            await session.execute("hello " * 20)
        except BudgetExceeded as error:
            return error
    raise AssertionError("it never is")


async def test_session_without_a_budget_has_none():
    model = Model()
    async with agent(model, budget=None) as session:
        assert await session.execute("hello") == "done"
        assert session.budget is None
        assert session.coordinator.get("providers")["model"] is model


async def test_use_is_counted():
    async with agent(Model(again(2)), Work("work"), budget={"tokens": 100_000}) as session:
        assert await session.execute("hello") == "done"
        used = session.budget.used
        assert (used.model_calls, used.tool_calls) == (3, 2)
        assert (used.input_tokens, used.output_tokens, used.tokens) == (
            3 * INPUT,
            60,
            3 * INPUT + 60,
        )
        assert used.cost == Decimal("0.09")
        assert "90 of 100,000 tokens used" in repr(session.budget)


@pytest.mark.parametrize(
    ("budget", "what", "limit", "used", "requested"),
    [
        ({"model_calls": 2}, "model_calls", 2, 2, 1),
        ({"tool_calls": 1}, "tool_calls", 1, 1, 1),
    ],
)
async def test_call_past_a_limit_ends_the_turn_with_an_error(budget, what, limit, used, requested):
    async with agent(Model(again(9)), Work("work"), budget=budget) as session:
        events = heard(session, "budget:exceeded", "provider:error")
        with pytest.raises(BudgetExceeded) as caught:
            await session.execute("hello")
        error = caught.value
        assert (error.what, error.limit, error.used, error.requested) == (
            what,
            limit,
            used,
            requested,
        )
        assert error.session_id == session.session_id
        assert f"set_limits({what}=" in str(error)
        assert session.status.status == "failed"
        assert (session.status.last_error or {})["type"] == "BudgetExceeded"
        [(name, data)] = events
        assert name == "budget:exceeded"
        assert (data["what"], data["limit"], data["used"], data["requested"]) == (
            what,
            limit,
            used,
            requested,
        )
        assert data["refused_session_id"] == session.session_id


@pytest.mark.parametrize("what", ["tokens", "cost"])
async def test_model_is_not_called_when_its_worst_case_does_not_fit(what):
    model = Model()
    limit = {"tokens": 200, "cost": "0.200"}[what]
    async with agent(model, budget={what: limit}) as session:
        assert (await used_up(session)).what == what
        assert 1 <= len(model.requests) < 9
        assert model.spent <= 200
        used = session.budget.used
        assert used.tokens == model.spent
        assert used.cost == Decimal(model.spent) / 1000


async def test_output_is_limited_to_what_is_left():
    model = Model(lambda request: Answer(tokens=5_000), usual=10_000)
    async with agent(model, budget={"tokens": 2_000}) as session:
        await session.execute("hello")
        [request] = model.requests
        assert 1_000 < (request.max_output_tokens or 0) < 2_000
        assert session.budget.used.tokens <= 2_000


@pytest.mark.parametrize(
    ("usual", "budget", "sent"),
    [
        (500, {"tokens": 100_000}, 500),
        (1_000, {"model_calls": 5, "tool_calls": 5, "seconds": 60}, None),
        (None, {"tokens": 10_000_000}, None),
    ],
    ids=[
        "kept where it fits",
        "not sent where its size does not matter",
        "unknown, and not sent where there is room",
    ],
)
async def test_limit_of_the_request(usual, budget, sent):
    model = Model(usual=usual)
    async with agent(model, budget=budget) as session:
        await session.execute("hello")
        assert model.requests[0].max_output_tokens == sent


async def test_session_goes_on_after_the_limit_was_raised():
    work = Work("work")
    async with agent(Model(again(2)), work, budget={"model_calls": 1}) as session:
        with pytest.raises(BudgetExceeded):
            await session.execute("hello")
        messages = await session.coordinator.get("context").get_messages()
        calls, results = pairs_of(messages)
        assert calls == results
        assert len(calls) == 1
        session.budget.set_limits(model_calls=10)
        assert await session.resume_turn() == "done"
        assert await session.execute("again") == "done"
        assert session.budget.used.model_calls == 4


async def test_new_turn_after_a_refused_one_finds_a_valid_transcript():
    async with agent(Model(again(1)), Work("work"), budget={"model_calls": 1}) as session:
        with pytest.raises(BudgetExceeded):
            await session.execute("hello")
        session.budget.set_limits(model_calls=None)
        assert await session.execute("again") == "done"
        calls, results = pairs_of(await session.coordinator.get("context").get_messages())
        assert calls == results


async def test_refused_tool_call_has_a_result_and_its_neighbours_finish():
    slow = Work("slow", lambda given: anyio.sleep(0.01))
    model = Model(lambda request: Answer(calls=[("slow", {}), ("slow", {}), ("slow", {})]))
    async with agent(model, slow, budget={"tool_calls": 2}) as session:
        with pytest.raises(BudgetExceeded):
            await session.execute("hello")
        assert slow.runs == 2
        assert len(model.requests) == 1
        messages = await session.coordinator.get("context").get_messages()
        calls, results = pairs_of(messages)
        assert calls == results
        assert (
            len([message for message in messages if "tool calls is used up" in str(message)]) == 1
        )


@pytest.mark.parametrize("given", [{"tokns": 5}, {"tokens": -1}, {"cost": "much"}, {"seconds": 0}])
async def test_wrong_limits_are_rejected_and_nothing_changes(given):
    async with agent(Model(), budget={"tokens": 5_000}) as session:
        before = session.budget.limits
        with pytest.raises(PlanError, match="invalid budget"):
            session.budget.set_limits(**given)
        assert session.budget.limits is before


async def test_estimates_follow_what_the_provider_reports():
    class Dense(Model):
        """Reports ten tokens for every byte, as no service does."""

        async def complete(self, request, **kwargs):
            response = await super().complete(request, **kwargs)
            asked = 10 * len(str(request.messages))
            response.usage = Usage(input_tokens=asked, output_tokens=1, total_tokens=asked + 1)
            self.spent += asked + 1
            return response

    model = Dense()
    async with agent(model, budget={"tokens": 50_000}) as session:
        await used_up(session)
        assert len(model.requests) > 3
        assert session.budget.used.tokens <= 50_000


# ── failures and cancellation ──


async def test_failed_call_gives_back_what_was_held():
    model = Model(lambda request: Answer(error=LLMError("no", retryable=False)))
    async with agent(model, budget={"tokens": 5_000}) as session:
        for _ in range(20):
            with pytest.raises(LLMError):
                await session.execute("hello")
        assert session.budget.used.tokens == 0
        assert session.budget.used.model_calls == 20


@pytest.mark.virtual_time
async def test_what_was_streamed_before_a_cancellation_counts():
    model = StreamingModel(lambda request: Answer(delay=1))
    async with agent(model, loop="loop-streaming", budget={"tokens": 5_000}) as session:
        with anyio.move_on_after(2.5):
            await session.execute("hello")
        used = session.budget.used
        assert used.output_tokens == 20
        assert used.input_tokens > 0
        assert used.cost == Decimal(used.tokens) / 1000


@pytest.mark.virtual_time
async def test_call_that_is_cancelled_before_its_answer_begins_gives_back_what_was_held():
    model = StreamingModel(lambda request: Answer(delay=1))
    async with agent(model, loop="loop-streaming", budget={"tokens": 5_000}) as session:
        with anyio.move_on_after(0.5):
            await session.execute("hello")
        assert session.budget.used.tokens == 0


async def test_answer_without_a_report_of_usage_is_estimated():
    class Silent(Model):
        async def complete(self, request, **kwargs):
            response = await super().complete(request, **kwargs)
            response.usage = Usage(input_tokens=0, output_tokens=0, total_tokens=0)
            return response

    async with agent(Silent(), budget={"tokens": 5_000}) as session:
        await session.execute("hello")
        assert session.budget.used.input_tokens > 20
        assert session.budget.used.output_tokens > 5


async def test_stream_without_a_block_around_it_is_counted_and_may_be_left():
    class Streaming(Model):
        stream = _BareStream

    async def body(turn):
        [provider] = turn.providers.values()
        for _ in range(30):  # more than fit if what is held for those that are left stayed held
            async for _chunk in provider.stream(_request()):
                break
        return "done"

    session = small_agent(
        body,
        providers={"provider-model": mounting(Streaming())},
        session={"budget": {"tokens": 5_000}},
    )
    async with session:
        assert await session.execute("hello") == "done"
        assert session.budget.used.model_calls == 30
        assert session.budget.used.output_tokens == 300


def _request():
    return ChatRequest(messages=[Message(role="user", content="hi")])


class _BareStream:
    """A stream to be read with a bare ``async for``, as some published providers have it."""

    def __init__(self, request, **kwargs):
        pass

    def __aiter__(self):
        return self

    async def __anext__(self):
        await anyio.lowlevel.checkpoint()
        return StreamChunk(kind="block_delta", index=0, block_type="text", text="x" * 30)


# ── time ──


@pytest.mark.virtual_time
async def test_turn_that_runs_out_of_time_is_stopped():
    async with agent(Model(lambda request: Answer(delay=3)), budget={"seconds": 5}) as session:
        events = heard(session, "budget:exceeded", "cancel:completed")
        await session.execute("hello")
        await anyio.sleep(100)  # between turns no time is used
        with takes(2), pytest.raises(BudgetExceeded) as caught:
            await session.execute("hello")
        assert caught.value.what == "seconds"
        assert caught.value.used == pytest.approx(5)
        assert [name for name, _ in events] == ["cancel:completed", "budget:exceeded"]
        with pytest.raises(BudgetExceeded, match="seconds"):
            await session.execute("hello")
        session.budget.set_limits(seconds=60)
        assert await session.execute("hello") == "done"


@pytest.mark.virtual_time
async def test_timeout_of_the_turn_is_told_from_the_budget():
    async with agent(Model(lambda request: Answer(delay=3)), budget={"seconds": 5}) as session:
        with pytest.raises(ExecutionTimeout):
            await session.execute("hello", timeout=1)


# ── warnings ──


@pytest.mark.parametrize(
    ("limit", "warn_at", "warned"),
    [(10, 0.5, [("model_calls", 10, 5, 0.5)]), (7, None, [])],
    ids=["wanted", "none"],
)
async def test_warning_at_the_share_once_per_limit(limit, warn_at, warned):
    async with agent(
        Model(again(6)), Work("work"), budget={"model_calls": limit, "warn_at": warn_at}
    ) as session:
        events = heard(session, "budget:warning")
        await session.execute("hello")
        assert [
            (data["what"], data["limit"], data["used"], data["share"]) for _, data in events
        ] == warned


# ── prices ──


class Priceless(Model):
    """Reports no cost and knows no price."""

    def estimate_cost(self, request, **kwargs):
        return None

    async def complete(self, request, **kwargs):
        response = await super().complete(request, **kwargs)
        response.usage.cost_usd = None
        return response


async def test_unknown_price_is_refused_before_the_first_call():
    model = Priceless()
    async with agent(model, budget={"cost": 1}) as session:
        with pytest.raises(
            BudgetError,
            match=r"price of model 'small' of provider 'model'.*session\.budget\.prices",
        ) as caught:
            await session.execute("hello")
        assert not isinstance(caught.value, BudgetExceeded)
        assert model.requests == []


async def test_unknown_price_can_be_allowed():
    async with agent(Priceless(), budget={"cost": 1, "unknown_price": "allow"}) as session:
        assert await session.execute("hello") == "done"
        assert session.budget.used.cost == 0


@pytest.mark.parametrize("name", ["small", "*"])
async def test_price_of_the_plan_is_used(name):
    prices = {name: {"input_per_million": 1_000, "output_per_million": "2000.0"}}
    async with agent(
        Priceless(), budget={"cost": 100, "currency": "EUR", "prices": prices}
    ) as session:
        assert await session.execute("hello") == "done"
        assert session.budget.used.cost == Decimal("0.05")


async def test_dollars_of_the_provider_are_not_taken_for_another_currency():
    async with agent(Model(), budget={"cost": 1, "currency": "EUR"}) as session:
        with pytest.raises(BudgetError, match="in EUR is not known"):
            await session.execute("hello")


# ── loops of third parties ──


async def test_loop_that_turns_errors_into_answers_does_not_hide_the_refusal():
    async def body(turn):
        [provider] = turn.providers.values()
        try:
            while True:
                await provider.complete(_request())
        except Exception as error:
            return f"sorry: {error}"

    model = Model()
    session = small_agent(
        body, providers={"provider-model": mounting(model)}, session={"budget": {"model_calls": 3}}
    )
    async with session:
        with pytest.raises(BudgetExceeded):
            await session.execute("hello")
        assert len(model.requests) == 3


async def test_loop_that_wraps_the_error_does_not_hide_it():
    async def body(turn):
        [provider] = turn.providers.values()
        try:
            await provider.complete(_request())
        except Exception as error:
            raise RuntimeError("failed") from error

    session = small_agent(
        body,
        providers={"provider-model": mounting(Model())},
        session={"budget": {"model_calls": 0}},
    )
    async with session:
        with pytest.raises(BudgetExceeded) as caught:
            await session.execute("hello")
        assert isinstance(caught.value.__cause__, RuntimeError)


@pytest.mark.parametrize("event", ["llm:response", "provider:response"])
async def test_loop_that_calls_models_past_the_budget_is_reported(event):
    async def body(turn):
        await turn.hooks.emit(event, {"usage": {"input_tokens": 1}})
        await anyio.sleep(3600)
        return "done"

    async with small_agent(body, session={"budget": {"tokens": 5_000}}) as session:
        with pytest.raises(BudgetError, match="cannot be enforced: orchestrator Loop"):
            await session.execute("hello")


async def test_loop_that_calls_no_model_is_fine():
    async with small_agent(session={"budget": {"tokens": 5_000}}) as session:
        assert await session.execute("hello") == "hello"


async def test_provider_that_is_put_at_its_mount_point_by_hand_is_metered():
    async with agent(Model(), budget={"model_calls": 1}) as session:
        session.coordinator.mount_points["providers"]["model"] = Model()
        await session.execute("hello")
        with pytest.raises(BudgetExceeded):
            await session.execute("hello")


async def test_provider_that_asks_another_one_counts_once():
    class Router(Model):
        name = "router"

        def __init__(self, coordinator):
            super().__init__()
            self._coordinator = coordinator

        async def complete(self, request, **kwargs):
            return await self._coordinator.get("providers")["model"].complete(request, **kwargs)

    async with agent(Model(), budget={"tokens": 5_000, "model_calls": 2}) as session:
        await session.coordinator.mount("providers", Router(session.coordinator))
        provider = session.coordinator.get("providers")["router"]
        for _ in range(2):
            await provider.complete(_request())
        assert session.budget.used.model_calls == 2
        assert session.budget.used.tokens == 2 * (INPUT + 20)
        with pytest.raises(BudgetExceeded):
            await provider.complete(_request())


async def test_metered_module_looks_like_the_one_inside():
    work = Work("work")
    async with agent(Model(), work, budget={"model_calls": 1}) as session:
        tool: Any = session.coordinator.get("tools")["work"]
        assert tool.input_schema is work.input_schema
        tool.runs = 7
        assert work.runs == 7
        assert not hasattr(session.coordinator.get("providers")["model"], "stream")
        assert "Work object" in repr(tool)


async def test_session_of_the_alias_keeps_its_budget():
    section = {"orchestrator": "loop-basic", "context": "context-simple", "budget": {"tokens": 1}}
    session = PublishedSession({"session": section, "providers": [{"module": "provider-offline"}]})
    await session.initialize()
    with pytest.raises(RuntimeError, match="Execution failed: Budget") as caught:
        await session.execute("hello")
    await session.cleanup()
    assert isinstance(caught.value.__cause__, BudgetError)
