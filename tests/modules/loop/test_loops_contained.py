"""What tools, providers and contexts raise ends at most their own call, whatever it is and however many calls run (L4, L9)."""

from __future__ import annotations

import itertools
import logging
import signal as signals
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier import ChatResponse, ExecutionCancelled, HookResult, TextBlock, ToolResult
from amplifier.errors import ContainedError, ContractError, LLMTimeoutError
from amplifier.models import StreamChunk
from amplifier.modules.loop import read_options
from amplifier.modules.loop._containment import run_together
from amplifier.modules.loop.basic import BasicLoop
from amplifier.testing import MockContextManager, MockProvider, MockTool
from tests._support.child_process import run_child
from tests.modules.loop.escapes import ESCAPES, cancel_spuriously
from tests.modules.loop.test_loops import Agent


@pytest.fixture(params=ESCAPES)
def words(request: pytest.FixtureRequest) -> str:
    key: str = request.param
    return key


def tools_of(agent: Agent) -> list[Any]:
    return [message["content"] for message in agent.context.messages if message["role"] == "tool"]


class Neighbour:
    """A pair of tools: ``bad`` does what it is given while ``good`` is running, and ``good`` ends last."""

    def __init__(self, fail: Any) -> None:
        self._running = anyio.Event()
        self._failing = anyio.Event()
        self._fail = fail
        self.alone = False

    def tools(self) -> tuple[MockTool, MockTool]:
        return MockTool("bad", respond=self._bad), MockTool("good", respond=self._good)

    async def _bad(self, given: dict[str, Any]) -> Any:
        if not self.alone:
            await self._running.wait()
        self._failing.set()
        return await self._fail()

    async def _good(self, given: dict[str, Any]) -> str:
        self._running.set()
        await self._failing.wait()
        await anyio.wait_all_tasks_blocked()
        return "finished"


# ── tools ──


@pytest.mark.parametrize("calls", [1, 2])
async def test_tool_exception_becomes_error_for_model(loop, words, calls):
    """A neighbour finishes."""
    pair = Neighbour(ESCAPES[words])
    pair.alone = calls == 1
    agent = Agent(loop, [[("bad", {}), ("good", {})][:calls], "I see"], *pair.tools())
    with anyio.fail_after(60):
        assert await agent.run() == "I see"
    bad, *good = tools_of(agent)
    assert "tool 'bad' raised" in bad
    assert words in bad
    [announced] = agent.data("tool:error")
    assert (announced["tool_name"], announced["error"]["message"]) == ("bad", bad)
    assert announced["error"]["type"] in ("ContainedError", "SpuriousCancellation")
    assert [data["tool_name"] for data in agent.data("tool:post")] == ["good"][: calls - 1]
    assert good == ["finished"][: calls - 1]
    assert agent.data("execution:end")[0]["status"] == "completed"
    assert agent.broken_pairs() == []


async def test_tool_with_exiting_description_is_not_offered(loop, caplog):
    class Odd:
        name = "odd"

        @property
        def description(self) -> str:
            raise SystemExit("no description")

        async def execute(self, given: dict[str, Any]) -> ToolResult:
            return ToolResult()

    agent = Agent(loop, ["done"], Odd(), MockTool("a"))
    assert await agent.run() == "done"
    assert [spec.name for spec in agent.provider.last_request.tools] == ["a"]
    assert "tool 'odd' cannot describe itself" in caplog.text


async def test_uncheckable_input_reaches_tool(loop, caplog):
    """The checker refuses values without a JSON form; a hook may put one there."""

    async def rewrite(event: str, data: dict[str, Any]) -> HookResult:
        return HookResult(action="modify", data={**data, "tool_input": {"names": {"a", "b"}}})

    tool = MockTool("a", schema={"type": "object", "properties": {"names": {"type": "array"}}})
    agent = Agent(loop, [("a", {}), "done"], tool, hooks={"tool:pre": rewrite})
    assert await agent.run() == "done"
    assert tool.last_input == {"names": {"a", "b"}}
    assert "the input of tool 'a' cannot be checked" in caplog.text


async def test_unprintable_error_reaches_model(loop):
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    agent = Agent(loop, [("bad", {}), "I see"], MockTool("bad", raises=Mute()))
    assert await agent.run() == "I see"
    assert "cannot be shown" in tools_of(agent)[0]
    assert agent.data("tool:error")[0]["error"]["type"] == "Mute"


@pytest.mark.virtual_time
async def test_tool_cancelling_itself_at_deadline_overran(loop):
    async def respond(given: dict[str, Any]) -> None:
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep(100)
        await cancel_spuriously()

    agent = Agent(
        loop, [("slow", {}), "done"], MockTool("slow", respond=respond), config={"tool_timeout": 5}
    )
    assert await agent.run() == "done"
    assert "did not return within 5 s" in tools_of(agent)[0]
    assert agent.data("tool:error")[0]["error"]["type"] == "Timeout"


@pytest.mark.parametrize("calls", [1, 2])
async def test_failing_stopped_tool_does_not_hide_stop(loop, calls):
    """On trio its task group mixes the cancellation with the error."""

    async def respond(given: dict[str, Any]) -> None:
        async def child() -> None:
            try:
                await anyio.sleep_forever()
            finally:
                raise ValueError("cleaning up failed")

        async with anyio.create_task_group() as group:
            group.start_soon(child)
            await anyio.sleep_forever()

    agent = Agent(loop, [[("bad", {})] * calls], MockTool("bad", respond=respond))
    async with agent.session as session, anyio.create_task_group() as group:

        async def stop() -> None:
            await anyio.wait_all_tasks_blocked()
            session.coordinator.cancellation.request_immediate()

        group.start_soon(stop)
        with pytest.raises(ExecutionCancelled):
            await session.execute("go")
    assert agent.broken_pairs() == []
    assert len(tools_of(agent)) == calls
    assert len(agent.data("tool:error")) == calls


# ── Ctrl-C and the closing of generators ──


@pytest.mark.parametrize("calls", [1, 2])
async def test_ctrl_c_in_tool_propagates(loop, calls):
    interrupt = KeyboardInterrupt("Ctrl-C")

    async def fail() -> None:
        raise interrupt

    pair = Neighbour(fail)
    pair.alone = calls == 1
    agent = Agent(loop, [[("bad", {}), ("good", {})][:calls], "later"], *pair.tools())
    with anyio.fail_after(60):
        async with agent.session as session:
            with pytest.raises(KeyboardInterrupt) as caught:
                await session.execute("go")
            assert caught.value is interrupt
            assert agent.broken_pairs() == []
            assert len(tools_of(agent)) == calls
            assert [data["tool_name"] for data in agent.data("tool:error")] == ["bad", "good"][
                :calls
            ]
            assert agent.data("execution:end")[0]["status"] == "cancelled"
            assert await session.execute("again") == "later"


_INTERRUPTED = """
from amplifier.testing import MockContextManager, MockProvider, MockTool

def session_of(turns, *tools):
    context = MockContextManager()
    session = {"orchestrator": "loop-basic", "context": context}
    return AmplifierSession({"session": session, "providers": [MockProvider(turns)], "tools": [*tools]}), context

async def main():
    waiting = []

    async def wait(given):
        waiting.append(given)
        if len(waiting) == int(sys.argv[2]):
            print_line("ready")
        await wait_awake()

    calls = [("wait", {}), ("wait", {})][: int(sys.argv[2])]
    session, context = session_of([calls], MockTool("wait", respond=wait))
    try:
        async with session:
            await session.execute("go")
    except BaseException as exc:
        print_line(type(exc).__name__)
        raise
    finally:
        print_line(*(message["role"] for message in context.messages))

run_natively(main)
"""


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize(
    ("backend", "kind"), [("asyncio", "CancelledError"), ("trio", "KeyboardInterrupt")]
)
def test_ctrl_c_at_terminal_propagates(backend, kind, calls):
    ended = run_child(_INTERRUPTED, backend, str(calls), signal=signals.SIGINT)
    assert ended.lines == ["ready", kind, " ".join(["user", "assistant", *["tool"] * calls])]
    assert ended.code == -signals.SIGINT


@pytest.mark.parametrize("calls", [1, 2])
async def test_generator_exit_propagates(calls):
    async def close(given: dict[str, Any]) -> None:
        raise GeneratorExit

    agent = Agent("loop-basic", [])
    with pytest.raises(GeneratorExit):
        await BasicLoop(read_options("loop-basic", {})).execute(
            prompt="go",
            context=agent.context,
            providers={"mock": MockProvider([[("bad", {}), ("good", {})][:calls]])},
            tools={"bad": MockTool("bad", respond=close), "good": MockTool("good")},
            hooks=agent.session.coordinator.hooks,
            coordinator=agent.session.coordinator,
        )


# ── the same error however many siblings run ──


def too_long(tool: str | None = None):
    async def handler(event: str, data: dict[str, Any]) -> HookResult:
        if tool not in (None, data["tool_name"]):
            return HookResult()
        return HookResult(
            action="inject_context", context_injection="much too long", ephemeral=True
        )

    return handler


@pytest.mark.parametrize("event", ["tool:pre", "tool:post"])
@pytest.mark.parametrize("calls", [1, 2, 3])
async def test_impossible_verdict_raises_same_error(loop, event, calls):
    turns: list[Any] = [[("a", {}), ("b", {}), ("c", {})][:calls]]
    tools = MockTool("a"), MockTool("b"), MockTool("c")
    agent = Agent(
        loop, turns, *tools, hooks={event: too_long("a")}, settings={"injection_size_limit": 5}
    )
    with pytest.raises(ValueError, match="Context injection exceeds 5 characters"):
        await agent.run()
    assert agent.broken_pairs() == []
    assert agent.data("execution:end")[0]["status"] == "error"


async def test_ctrl_c_precedes_and_keeps_sibling_errors():
    async def interrupted() -> None:
        await anyio.lowlevel.checkpoint()
        raise KeyboardInterrupt

    async def failing() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("cleaning up failed")

    with pytest.raises(KeyboardInterrupt) as caught:
        await run_together([failing, interrupted])
    assert isinstance(caught.value.__cause__, OSError)


async def test_task_group_errors_omit_sibling_cancellation():
    """On trio such a task group mixes them."""

    async def first() -> None:
        await anyio.wait_all_tasks_blocked()
        raise ValueError("first")

    async def child() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            raise OSError("second")

    async def second() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(child)
            await anyio.sleep_forever()

    with pytest.raises(ExceptionGroup) as caught:
        await run_together([first, second])
    one, two = caught.value.exceptions
    assert str(one) == "first"
    assert isinstance(two, ExceptionGroup)
    assert [str(error) for error in two.exceptions] == ["second"]


# ── providers ──


def provider(**methods: Any) -> Any:
    """A mock provider with some methods replaced."""
    inner = MockProvider(["fine"])

    class Replaced:
        name = "mock"

        def __getattr__(self, name: str) -> Any:
            if name in methods:
                return methods[name]
            if name == "stream":
                raise AttributeError(name)
            return getattr(inner, name)

    return Replaced()


def once(fail: Any, after: Any) -> Any:
    """Fail at the first call."""
    calls = []

    async def call(*args: Any) -> Any:
        calls.append(args)
        return await fail() if len(calls) == 1 else await after(*args)

    return call


async def test_provider_base_exception_is_attributed(loop, words):
    inner = MockProvider(["fine"])
    agent = Agent(loop, [])
    agent.provider = provider(complete=once(ESCAPES[words], inner.complete))
    async with agent.session as session:
        with pytest.raises(ContainedError, match=f"provider 'mock' raised.*{words}") as caught:
            await session.execute("go")
        assert not isinstance(caught.value.__cause__, Exception)
        [announced] = agent.data("provider:error")
        assert announced["error"] == {
            "type": type(caught.value).__name__,
            "message": str(caught.value),
        }
        assert agent.data("execution:end")[0]["status"] == "error"
        assert await session.execute("again") == "fine"


@pytest.mark.parametrize("place", ["entering", "iterating", "leaving"])
async def test_stream_base_exception_is_attributed(words, place):
    @asynccontextmanager
    async def stream(request: Any, **_: Any):
        if place == "entering":
            await ESCAPES[words]()

        async def chunks():
            if place == "iterating":
                await ESCAPES[words]()
            yield StreamChunk(
                kind="response", response=ChatResponse(content=[TextBlock(text="fine")])
            )

        yield chunks()
        if place == "leaving":
            await ESCAPES[words]()

    agent = Agent("loop-streaming", [])
    agent.provider = provider(stream=stream)
    with pytest.raises(ContainedError, match=f"provider 'mock' raised.*{words}"):
        await agent.run()
    assert len(agent.data("provider:error")) == 1


async def old_cancellation() -> BaseException:
    try:
        await cancel_spuriously()
    except BaseException as exc:
        return exc
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    "parsed", [ValueError("no JSON"), SystemExit("no JSON"), old_cancellation, "not a list"]
)
async def test_parse_failure_is_announced_and_attributed(loop, parsed):
    failure = await parsed() if parsed is old_cancellation else parsed

    def parse(response: Any) -> Any:
        if isinstance(failure, BaseException):
            raise failure
        return failure

    agent = Agent(loop, [])
    agent.provider = provider(parse_tool_calls=parse)
    with pytest.raises(
        Exception, match=r"no JSON|expected a list of ToolCall|provider 'mock'"
    ) as caught:
        await agent.run()
    assert agent.data("provider:error")[0]["error"]["type"] == type(caught.value).__name__
    assert agent.names().index("provider:error") < agent.names().index("execution:end")


async def test_ctrl_c_in_provider_propagates(loop):
    agent = Agent(loop, [KeyboardInterrupt("Ctrl-C")])
    with pytest.raises(KeyboardInterrupt):
        await agent.run()
    assert agent.data("execution:end")[0]["status"] == "cancelled"


@pytest.mark.virtual_time
async def test_provider_cancelling_itself_at_deadline_overran(
    loop,
):
    async def complete(request: Any) -> Any:
        with suppress(anyio.get_cancelled_exc_class()):
            await anyio.sleep(100)
        await cancel_spuriously()

    agent = Agent(loop, [], config={"provider_timeout": 5, "max_retries": 0})
    agent.provider = provider(complete=complete)
    with pytest.raises(LLMTimeoutError, match="'mock' gave no answer within 5 s"):
        await agent.run()


# ── contexts ──


class Fragile:
    """A context that fails at one of its methods, if the condition holds."""

    def __init__(self, method: str, fail: Any, when: Any = lambda message: True) -> None:
        self._inner = MockContextManager()
        self._method, self._fail, self._when = method, fail, when
        self.messages = self._inner.messages

    def __getattr__(self, name: str) -> Any:
        if name != self._method:
            return getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self._when(*args):
                await self._fail()
            return await getattr(self._inner, name)(*args, **kwargs)

        return call


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
async def test_context_base_exception_is_attributed(loop, words, role):
    context = Fragile("add_message", ESCAPES[words], lambda message: message["role"] == role)
    agent = Agent(loop, [("a", {}), "done"], MockTool("a"), context=context)
    with pytest.raises(ContainedError, match=f"context Fragile raised.*{words}"):
        await agent.run()
    assert agent.data("execution:end")[0]["status"] == "error"


async def test_context_exit_during_results_is_contained(loop, words):
    reads = itertools.count(1)
    context = Fragile("get_messages", ESCAPES[words], lambda: next(reads) > 1)
    hooks = {"tool:post": too_long()}
    agent = Agent(
        loop,
        [("a", {})],
        MockTool("a"),
        hooks=hooks,
        context=context,
        settings={"injection_size_limit": 5},
    )
    with pytest.raises(ContainedError, match=f"context Fragile raised.*{words}") as caught:
        await agent.run()
    assert isinstance(caught.value.__context__, BaseException)
    assert "execution:end" in agent.names()


# ── the log ──


async def test_raising_tool_is_logged_without_secrets(loop, caplog):
    secret = "sk-ant-api03-R2D2c3POq7Xy9ZaBcDeFgHiJkLmNoPqRsTuVwXyZ0123456789-AA"

    def explode(given: dict[str, Any]) -> None:
        raise ValueError(f"refused the key {secret}")

    agent = Agent(loop, [("bad", {}), "done"], MockTool("bad", respond=explode))
    with caplog.at_level(logging.WARNING):
        await agent.run()
    [record] = [record for record in caplog.records if "tool 'bad'" in record.getMessage()]
    assert record.levelno == logging.WARNING
    text = record.getMessage()
    assert text.splitlines()[0].startswith(
        "tool 'bad' (amplifier.testing.doubles.recording.MockTool) failed with ValueError: "
    )
    assert "in explode" in text
    assert secret not in text


async def test_tool_returning_dict_is_logged_with_class(loop, caplog):
    class Odd:
        name, description = "odd", "returns a dict"

        async def execute(self, given: dict[str, Any]) -> Any:
            return {"output": "not a ToolResult"}

    agent = Agent(loop, [("odd", {}), "done"], Odd())
    await agent.run()
    [record] = [record for record in caplog.records if "tool 'odd'" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert "Odd)" in record.getMessage()
    assert "returned dict instead of a ToolResult" in record.getMessage()
    assert "instead of a ToolResult" in tools_of(agent)[0]


# ── values of a wrong type ──


@pytest.mark.parametrize("method", ["get_messages", "get_messages_for_request"])
async def test_context_without_message_list_is_named(loop, method, monkeypatch):
    async def number(*args: Any, **kwargs: Any) -> Any:
        return 42

    monkeypatch.setattr(MockContextManager, method, number)
    agent = Agent(loop, ["never asked"])
    with pytest.raises(
        ContractError,
        match=f"context MockContextManager returned int from {method}.*expected a list",
    ):
        await agent.run()


@asynccontextmanager
async def _entering(pieces: Any) -> AsyncIterator[Any]:
    try:
        yield pieces
    finally:
        if hasattr(pieces, "aclose"):
            await pieces.aclose()


async def _pieces(*pieces: Any) -> AsyncIterator[Any]:
    for piece in pieces:
        yield piece


STREAMS: dict[str, tuple[Any, str]] = {
    "no context manager": (lambda: 42, "an async context manager"),
    "no iterator": (lambda: _entering(42), "an async iterator"),
    "no chunk": (lambda: _entering(_pieces(42)), "a StreamChunk"),
    "no response": (lambda: _entering(_pieces(StreamChunk(kind="response"))), "a ChatResponse"),
}


@pytest.mark.parametrize("kind", STREAMS)
async def test_stream_of_wrong_type_names_provider(kind):
    make, expected = STREAMS[kind]
    agent = Agent("loop-streaming", [])
    agent.provider.stream = lambda request, **options: make()  # type: ignore[method-assign]
    with pytest.raises(ContractError, match=f"provider 'mock'.*expected {expected}"):
        await agent.run()
    [announced] = agent.data("provider:error")
    assert announced["error"]["type"] == "ContractError"
