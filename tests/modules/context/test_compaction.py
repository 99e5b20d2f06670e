"""Compactions of both built-in contexts: what stays, what falls back, what can be undone, and when the beginning of a view may change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Any

import anyio
import attrs
import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from amplifier import AmplifierSession
from amplifier.errors import BudgetError, ContentFilterError
from amplifier.models import ChatResponse, TextBlock
from amplifier.modules.context import SOURCE, ContextOptions, SharedContext
from amplifier.modules.context._shared_context import Calibration
from amplifier.modules.context.persistent import PersistentContext
from amplifier.modules.context.simple import SimpleContext
from amplifier.store import SessionIndex
from amplifier.testing import EventRecorder, MockProvider
from tests.modules.context.test_context_persistent import opened as opened_again
from tests.modules.context.test_context_simple_message_selection import options, said, transcripts

WINDOW = {"context_window": 9000, "max_output_tokens": 0}
Opened = Callable[..., AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def simple(root: Any, hooks: Any = None, **config: Any) -> AsyncIterator[SharedContext]:
    yield SimpleContext(ContextOptions(**config), hooks)


def persistent(
    root: Any, hooks: Any = None, **config: Any
) -> AbstractAsyncContextManager[PersistentContext]:
    return opened_again(root, hooks=hooks, **config)


@pytest.fixture(params=[simple, persistent], ids=["simple", "persistent"])
def opened(request, tmp_path) -> Opened:
    return partial(request.param, tmp_path)


def prompt(number: int, words: int = 60) -> dict[str, Any]:
    return {"role": "user", "content": f"request {number} " + "word " * words}


def call(number: int, tool: str = "look", size: int = 1200) -> list[dict[str, Any]]:
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"{tool} {number}", "name": tool}],
        },
        {
            "role": "tool",
            "tool_call_id": f"{tool} {number}",
            "content": f"{number:05} " + "x" * size,
        },
    ]


async def talk(context: Any, turns: range, size: int = 1200) -> None:
    for number in turns:
        for message in [
            prompt(number),
            *call(number, size=size),
            {"role": "assistant", "content": f"answer {number}"},
        ]:
            await context.add_message(message)


# ── the tiers ────────────────────────────────────────────────────────────────────────────────────


async def test_old_tool_outputs_are_shortened_first(opened):
    async with opened() as context:
        await talk(context, range(12), size=4000)
        view = await context.get_messages_for_request(12_000)
        stored = await context.get_messages()
    assert [message["role"] for message in view] == [message["role"] for message in stored], (
        "nothing is left out"
    )
    assert "\n[message 3: 3606 characters left out]\n" in view[2]["content"]
    assert view[-2:] == stored[-2:], "the newest are whole"
    assert [made.tier for made in context.compactions()] == ["results"]


async def test_old_turns_become_summary(opened):
    provider = MockProvider(["They looked at the first things.", "And at more."], defaults=WINDOW)
    recorder = EventRecorder()
    async with opened(recorder) as context:
        await context.add_message({"role": "system", "content": "be brief"})
        await talk(context, range(25))
        view = await context.get_messages_for_request(provider=provider)
        stored = await context.get_messages()
        assert view[:2] == stored[:2], "the instructions and the first request"
        assert view[2]["content"].endswith(":]\nThey looked at the first things.")
        assert view[-1] == stored[-1]
        asked = provider.last_request.messages[-1].content
        assert "4. tool: " in asked
        assert "request 1 word" in asked
        await talk(context, range(25, 60))
        view = await context.get_messages_for_request(provider=provider)
        assert view[2]["content"].endswith(":]\nAnd at more.")
        assert (
            "Summary so far: They looked at the first things."
            in provider.last_request.messages[-1].content
        )
        assert [made.tier for made in context.compactions()] == ["summary", "summary"]
    [first, _] = recorder.get_events("context:compaction")
    assert first[1]["tier"] == "summary"
    assert first[1]["summary"] == "They looked at the first things."
    assert first[1]["usage"]["input_tokens"] > 0


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (ContentFilterError("no"), "ContentFilterError: no"),
        (BudgetError("spent"), "BudgetError: spent"),
        (SystemExit(1), "ContainedError: the provider raised SystemExit: 1"),
        ("word " * 4000, "the summary is too long: 19999 characters"),
        (ChatResponse(content=[TextBlock(text=" ")]), "the model returned an empty summary"),
    ],
    ids=["refused", "budget", "exit", "too long", "empty"],
)
async def test_failed_summary_falls_back_to_next_tier(opened, answer, failure):
    """The event gives the reason."""
    recorder = EventRecorder()
    async with opened(recorder) as context:
        await talk(context, range(25))
        view = await context.get_messages_for_request(
            provider=MockProvider([answer], defaults=WINDOW)
        )
        assert view[1]["content"].endswith("left out]")
        assert view[-1]["content"] == "answer 24"
        assert [made.tier for made in context.compactions()] == ["left_out"]
    [(_, told)] = recorder.get_events("context:compaction")
    assert (told["tier"], told["failure"]) == ("left_out", failure)


async def test_silent_provider_ends_at_deadline(opened):
    recorder = EventRecorder()
    async with opened(recorder, summary_seconds=0.01) as context:
        await talk(context, range(25))
        provider = MockProvider(["late"], defaults=WINDOW, delay=3600)
        with anyio.fail_after(120):
            view = await context.get_messages_for_request(provider=provider)
    assert view[-1]["content"] == "answer 24"
    assert recorder.get_events("context:compaction")[0][1]["failure"].startswith("DeadlineExceeded")


async def test_summary_can_be_disabled(opened):
    provider = MockProvider([], defaults=WINDOW)
    async with opened(summary_seconds=None) as context:
        await talk(context, range(25))
        assert len(await context.get_messages_for_request(provider=provider)) < 60
    assert provider.requests == []


async def test_pinned_plan_and_newest_request_stay(opened):
    pinned = {"role": "user", "content": "never touch main " * 20, "metadata": {"pinned": True}}
    async with opened() as context:
        await talk(context, range(3))
        await context.add_message(pinned)
        for message in [*call(1, "todo", 2000), *call(2, "todo", 2000)]:
            await context.add_message(message)
        await talk(context, range(3, 30))
        newest = prompt(30, 300)
        await context.add_message(newest)
        view: list[Any] = []
        for number in range(40, 60):
            for message in call(number):
                await context.add_message(message)
            view = await context.get_messages_for_request(9000)
            assert [message for message in (pinned, newest) if message not in view] == []
            assert [message for message in call(2, "todo", 2000) if message not in view] == []
    assert call(1, "todo", 2000)[0] not in view, "only the latest plan"


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────


@given(
    transcript=transcripts(),
    budgets=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    options=options(),
)
async def test_view_only_grows_between_compactions(transcript, budgets, options):
    recorder = EventRecorder()
    context = SimpleContext(options, recorder)  # type: ignore[arg-type]
    before: list[dict[str, Any]] | None = None
    for at, message in enumerate(transcript.messages):
        await context.add_message(message)
        is_late = any(
            at in group and group[0] < (context._conversation.latest or _NONE).start
            for group in transcript.together
        )
        budget = budgets[0]
        view = await context.get_messages_for_request(budget)
        told = recorder.get_events("context:compaction")
        if before is not None and not told and not is_late:
            assert view[: len(before)] == before
            event("grown")
        elif told:
            event(told[-1][1]["tier"])
        recorder.clear()
        before = view
    # Whatever was compacted, a request with room for everything shows everything.
    whole = [
        message for at, message in enumerate(transcript.messages) if at not in transcript.orphans
    ]
    assert await context.get_messages_for_request(10_000_000) == whole


_NONE = attrs.make_class("Nothing", {"start": attrs.field(default=0)})()


@given(
    transcript=transcripts(),
    budget=st.integers(200, 3000),
    options=options(),
    pins=st.sets(st.integers(0, 30)),
)
async def test_protected_messages_stay_within_budget(transcript, budget, options, pins):
    messages = transcript.messages
    for at in pins & set(range(len(messages))) - set(transcript.orphans):
        messages[at]["metadata"] = {"pinned": True}
    recorder = EventRecorder()
    context = SimpleContext(options, recorder)  # type: ignore[arg-type]
    await context.set_messages(messages)
    view = await context.get_messages_for_request(budget)
    if sum(entry.tokens for entry in context._conversation.view) > budget:
        return  # there is no room for what must stay, and everything is cut
    must = [at for at in pins if at < len(messages) and at not in transcript.orphans]
    must += [
        at for at, message in enumerate(messages) if message["role"] in ("system", "developer")
    ]
    asked = [
        m
        for at, m in enumerate(messages)
        if m["role"] == "user" and not any(at in g for g in transcript.together)
    ]
    assert [messages[at] for at in must if messages[at] not in view] == []
    assert [message for message in asked[-1:] if message not in view] == []
    event("compacted" if len(said(view)) < len(messages) else "whole")


# ── a transaction ────────────────────────────────────────────────────────────────────────────────


async def test_undone_compaction_restores_view(opened):
    """It is repeated only when nothing else helps."""
    recorder = EventRecorder()
    async with opened(recorder) as context:
        assert not await context.uncompact()
        await talk(context, range(25))
        whole = await context.get_messages()
        tokens = context.statistics().tokens
        assert len(await context.get_messages_for_request(tokens + 10)) < len(whole), (
            "above the threshold"
        )
        assert await context.uncompact()
        assert await context.get_messages_for_request(tokens + 10) == whole, (
            "it fits, so it is shown"
        )
        assert [data["tier"] for _, data in recorder.get_events("context:compaction")][
            -1
        ] == "undone"
        assert len(await context.get_messages_for_request(tokens - 10)) < len(whole)
        assert [made.is_undone for made in context.compactions()] == [True, False]
        assert context.statistics().compactions == 1


async def test_requested_compaction_is_followed_and_undoable(
    opened,
):
    provider = MockProvider(
        ["They looked."], defaults={"context_window": 200_000, "max_output_tokens": 0}
    )
    recorder = EventRecorder()
    async with opened(recorder) as context:
        assert await context.compact(provider) is None, "there is nothing"
        await talk(context, range(25))
        whole, before = await context.get_messages(), context.statistics().tokens
        assert await context.get_messages_for_request(provider=provider) == whole
        told = await context.compact(provider)
        assert (told["tier"], told["summary"], told["before_tokens"]) == (
            "summary",
            "They looked.",
            before,
        )
        assert told["after_tokens"] <= before // 4
        assert recorder.get_events("context:compaction")[-1][1] == told
        view = await context.get_messages_for_request(provider=provider)
        assert view[1]["content"].endswith("They looked.")
        assert view[-1] == whole[-1]
        assert await context.get_messages() == whole
        await context.add_message(prompt(99))
        assert await context.get_messages_for_request(provider=provider) == [*view, prompt(99)]
        assert await context.uncompact()
        assert await context.get_messages_for_request(provider=provider) == [*whole, prompt(99)]
    assert provider.call_count == 1


async def test_session_finds_provider_for_requested_compaction():
    provider = MockProvider(["They looked."], defaults=WINDOW)
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [provider],
    }
    async with AmplifierSession(plan) as session:
        context: Any = session.coordinator.get("context")
        await talk(context, range(25))
        assert (await context.compact())["summary"] == "They looked."


async def test_summary_is_step_seen_by_wrappers():
    steps: list[tuple[str, int, str]] = []

    async def note(step: Any, run: Any) -> Any:
        steps.append((step.kind, step.call.iteration, step.call.call_id))
        return await run()

    provider = MockProvider(["They looked.", "Done."], defaults=WINDOW)
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [provider],
    }
    async with AmplifierSession(plan) as session:
        context: Any = session.coordinator.get("context")
        await talk(context, range(25))
        session.coordinator.register_step_wrapper(note)
        assert await session.execute("go on") == "Done."
        [made] = context.compactions()
        assert steps == [("model", 0, f"summary-1-{made.start - 1}"), ("model", 1, "model-1-1")]


async def test_compactions_survive_reopening(tmp_path):
    provider = MockProvider(["They looked."], defaults=WINDOW)
    async with persistent(tmp_path) as context:
        await talk(context, range(25))
        view = await context.get_messages_for_request(provider=provider)
    async with persistent(tmp_path) as context:
        assert await context.get_messages_for_request(provider=provider) == view
        assert provider.call_count == 1
        assert await context.uncompact()
    async with persistent(tmp_path) as context:
        assert [made.is_undone for made in context.compactions()] == [True]
        await context.clear()
    async with persistent(tmp_path) as context:
        assert context.compactions() == []


async def test_compactions_are_deleted_with_their_session(tmp_path):
    async with persistent(tmp_path) as context:
        await talk(context, range(25))
        await context.get_messages_for_request(3000)
    SessionIndex(tmp_path).delete("s")
    async with persistent(tmp_path) as context:  # it may get the same number in the store
        assert context.compactions() == []


async def test_cancelled_summary_changes_nothing(opened):
    async def never(request: Any) -> str:
        scope.cancel()
        await anyio.sleep_forever()
        return ""

    async with opened() as context:
        await talk(context, range(25))
        before, statistics = await context.get_messages(), context.statistics()
        with anyio.CancelScope() as scope:
            await context.get_messages_for_request(provider=MockProvider(never, defaults=WINDOW))
        assert scope.cancelled_caught
        assert context.compactions() == []
        assert (await context.get_messages(), context.statistics()) == (before, statistics)
        assert (
            len(
                await context.get_messages_for_request(
                    provider=MockProvider(["so"], defaults=WINDOW)
                )
            )
            < 60
        )


async def test_concurrent_requests_make_one_compaction(opened):
    async def slow(request: Any) -> str:
        await anyio.wait_all_tasks_blocked()
        return "They looked."

    views: list[Any] = []

    async def ask() -> None:
        views.append(
            await context.get_messages_for_request(provider=MockProvider(slow, defaults=WINDOW))
        )

    async with opened() as context:
        await talk(context, range(25))
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
        assert len(context.compactions()) == 1
        assert views[0] == views[1] == views[2]
        assert (views[0][1].get("metadata") or {})["source"] == SOURCE


async def test_replaced_conversation_discards_summary(opened):
    async def replacing(request: Any) -> str:
        await context.set_messages([prompt(99)])
        return "They looked."

    async with opened() as context:
        await talk(context, range(25))
        view = await context.get_messages_for_request(
            provider=MockProvider(replacing, defaults=WINDOW)
        )
        assert view == [prompt(99)]
        assert context.compactions() == []


# ── counting ─────────────────────────────────────────────────────────────────────────────────────


@given(
    fixed=st.integers(0, 5000),
    rate=st.floats(0.75, 2.5),
    sizes=st.lists(st.integers(10, 40_000), min_size=2, max_size=8),
)
def test_count_is_corrected_by_reported_usage(fixed, rate, sizes):
    calibration = Calibration()
    assert calibration.estimated(10_000) == 10_000
    for size in [*sizes, sizes[-1]]:
        calibration.expect(size)
        calibration.update(int(fixed + rate * size) + 1)
    assert calibration.error is not None
    assert abs(calibration.error) < 0.01, "the same request again is no surprise"
    if max(sizes) - min(sizes) >= 2000 and sizes[-1] == max(sizes):
        budget = int(fixed + rate * 50_000)
        assert calibration.estimated(budget) == pytest.approx(50_000, rel=0.05)
        event("two requests tell the rate")


class Counting:
    """Counts half of what we estimate, and 500 for everything else; or fails."""

    failure: BaseException | None = None
    counts = 0

    def __init__(self) -> None:
        self._inner = MockProvider(
            ["They looked."] * 3, defaults={"context_window": 21_000, "max_output_tokens": 0}
        )
        self.get_info = self._inner.get_info
        self.complete = self._inner.complete

    async def count_tokens(self, request: Any) -> int:
        self.counts += 1
        if self.failure is not None:
            raise self.failure
        return 500 + sum(len(str(message.content)) for message in request.messages) // 8


async def test_provider_counts_only_when_decisive(opened):
    provider = Counting()
    async with opened() as context:
        await talk(context, range(10))
        await context.get_messages_for_request(provider=provider)
        assert provider.counts == 0, "far from the budget"
        await talk(context, range(10, 40))
        whole = await context.get_messages()
        assert context.statistics().tokens > 0.8 * 20_000, "by the estimate it is too much"
        for _ in range(3):
            assert await context.get_messages_for_request(provider=provider) == whole
        assert provider.counts == 1, "nothing is new since"
        await context.add_message({"role": "user", "content": [PICTURE] * 4})
        await context.get_messages_for_request(provider=provider)
        assert provider.counts == 2
        assert context.statistics().error > 0.2, "four pictures were expected to take more"


PICTURE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aaaa"}}


@pytest.mark.parametrize("failure", [ContentFilterError("no"), SystemExit(1), TimeoutError()])
async def test_estimate_replaces_failed_count(opened, failure):
    provider = Counting()
    provider.failure = failure
    async with opened() as context:
        await talk(context, range(40))
        whole = await context.get_messages()
        for _ in range(3):
            assert await context.get_messages_for_request(provider=provider) != whole
        assert provider.counts == 1, "it is not asked again"


async def test_cancelled_count_changes_nothing(opened):
    class Hanging(Counting):
        async def count_tokens(self, request: Any) -> int:
            scope.cancel()
            await anyio.sleep_forever()
            return 0

    provider = Hanging()
    async with opened() as context:
        await talk(context, range(40))
        with anyio.CancelScope() as scope:
            await context.get_messages_for_request(provider=provider)
        assert scope.cancelled_caught
        assert context.compactions() == []


async def test_impossible_count_changes_nothing():
    calibration = Calibration()
    for size in (1000, 5000, 9000):
        calibration.expect(size)
        calibration.update(10)
    assert calibration.estimated(4000) == 4000
    assert calibration.error is None
