"""The same seed gives the same event log: random agents, each run twice in virtual time with seeded scheduling."""

from __future__ import annotations

import random
from typing import Any

import anyio

from amplifier import AmplifierSession, ChatResponse, HookResult, ModuleLoader
from amplifier.models import ProviderInfo, TextBlock, ToolCall
from amplifier.modules.loop import basic as loop_basic
from amplifier.modules.loop import events as loop_events
from amplifier.testing import MockContextManager, MockTool
from amplifier.testing.cancel_sweep.asyncio_trial import run_asyncio_trial
from amplifier.testing.cancel_sweep.injection import TrialSettings
from amplifier.testing.cancel_sweep.trio_trial import run_trio_trial
from tests._support.small_agent import mounting

from ..parts import BACKENDS, Chunk, Outcome, part_of, ranges

SEEDS = 1_000
SEEDS_PER_CHUNK = 125
DELAYS = (
    0,
    0,
    0.1,
    0.1,
    0.2,
    1,
)  # equal delays end at the same moment, so that the scheduler decides

LogLine = tuple[Any, ...]


class Provider:
    """Asks for a random number of tools at once, a few times."""

    name = "random"

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._calls = 0

    def get_info(self) -> ProviderInfo:
        return ProviderInfo(id=self.name, display_name="Random")

    async def list_models(self) -> list[Any]:
        return []

    async def complete(self, request: Any, **options: Any) -> ChatResponse:
        await anyio.sleep(self._chance.choice(DELAYS))
        if self._calls > 12 or self._chance.random() < 0.3:
            return ChatResponse(content=[TextBlock(text="done")])
        calls = []
        for _ in range(self._chance.randint(1, 5)):
            self._calls += 1
            name = f"tool-{self._chance.randrange(3)}"
            calls.append(ToolCall(id=str(self._calls), name=name, arguments={"n": self._calls}))
        return ChatResponse(content=[], tool_calls=calls)

    def parse_tool_calls(self, response: ChatResponse) -> list[ToolCall]:
        return list(response.tool_calls or ())


def _tool(name: str, chance: random.Random) -> MockTool:
    async def respond(given: dict[str, Any]) -> Any:
        await anyio.sleep(chance.choice(DELAYS))
        if chance.random() < 0.2:
            raise ValueError(f"{name} fails")
        return given

    return MockTool(name, respond=respond)


def _random_session(seed: int, chance: random.Random) -> AmplifierSession:
    async def slow(event: str, data: dict[str, Any]) -> HookResult:
        await anyio.sleep(chance.choice(DELAYS))
        is_denied = event == "tool:pre" and chance.random() < 0.1
        return HookResult(action="deny", reason="no") if is_denied else HookResult()

    async def mount_hooks(coordinator: Any, config: dict[str, Any]) -> None:
        coordinator.hooks.register("*", slow, name="slow")

    modules: dict[str, Any] = {
        "loop-basic": loop_basic,
        "loop-events": loop_events,
        "context-random": mounting(MockContextManager()),
        "provider-random": mounting(Provider(chance)),
        **{f"tool-{number}": mounting(_tool(f"tool-{number}", chance)) for number in range(3)},
        "hooks-random": mount_hooks,
    }
    plan: dict[str, Any] = {
        "session": {
            "orchestrator": chance.choice(["loop-basic", "loop-events"]),
            "context": "context-random",
        },
        "providers": [{"module": "provider-random"}],
        "tools": [{"module": f"tool-{number}"} for number in range(3)],
        "hooks": [{"module": "hooks-random"}],
    }
    return AmplifierSession(plan, loader=ModuleLoader(modules=modules), session_id=f"seed-{seed}")


def event_log(backend: str, seed: int) -> list[LogLine]:
    """Run the agent of a seed and return all it emitted, with the virtual time of each event."""
    chance = random.Random(seed)
    log: list[LogLine] = []

    def note(event: str, data: dict[str, Any]) -> None:
        known = {key: data.get(key) for key in ("tool_call_id", "tool_name", "status", "iteration")}
        log.append((round(anyio.current_time(), 6), event, str(known)))

    async def stop_at_random(session: AmplifierSession) -> None:
        await anyio.sleep(chance.uniform(0, 4))
        session.coordinator.request_cancel(immediate=chance.random() < 0.5)

    async def scenario() -> None:
        session = _random_session(seed, chance)
        session.coordinator.hooks.register("*", note, priority=-1000)
        async with session, anyio.create_task_group() as group:
            if chance.random() < 0.5:
                group.start_soon(stop_at_random, session)
            for number in range(2):
                try:
                    log.append(("answer", await session.execute(f"prompt {number}")))
                except Exception as exc:
                    log.append(("raised", type(exc).__name__, str(exc)))
            group.cancel_scope.cancel()

    run_one = run_asyncio_trial if backend == "asyncio" else run_trio_trial
    settings = TrialSettings(seed=seed, budget=10_000, max_steps=1_000_000, virtual=True, grace=0)
    random.seed(seed)  # the pauses between retries
    _, result = run_one(scenario, settings)
    log.extend(("left the session", repr(error)) for error in result.errors)
    return log


def run(backend: str, first: int, count: int) -> Outcome:
    """Compare two runs of every seed from ``first``."""
    outcome = Outcome()
    different = set()
    for seed in range(first, first + count):
        one, other = event_log(backend, seed), event_log(backend, seed)
        outcome.cases += 1
        outcome.count("events", len(one))
        outcome.count("tool calls", sum(line[1] == "tool:pre" for line in one))
        different.add(str(one))
        if one != other:
            place = next(
                (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
                min(len(one), len(other)),
            )
            outcome.fail(
                f"{backend}, seed {seed}: the logs differ at event {place}: {one[place : place + 1]} and {other[place : place + 1]}"
            )
        for line in one:
            if line[0] == "left the session":
                outcome.fail(f"{backend}, seed {seed}: {line}")
    if len(different) < count / 2 or outcome.figures["tool calls"] < count:
        outcome.fail(
            f"{backend}: {count} seeds gave {len(different)} different logs; the agents are not random enough"
        )
    return outcome


def chunks(share: float) -> list[Chunk]:
    """The same seeds on both backends."""
    seeds = part_of(SEEDS, share)
    return [
        chunk
        for backend in BACKENDS
        for chunk in ranges(f"on {backend}", seeds, SEEDS_PER_CHUNK, backend=backend)
    ]
