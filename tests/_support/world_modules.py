"""Modules for the worlds of cancellation sweeps: slow on purpose, honest in the ledger, correct under one cancellation.

Each is made by a function that takes the world and returns what `World.agent` takes: a mount function in the seed form or
in the structured form. Everything they open they write into the world's ledger under session and module.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio

from amplifier import ToolResult

if TYPE_CHECKING:
    from amplifier import AmplifierSession

    from .worlds import World

MOMENT = 0.01

Body = Callable[..., Awaitable[Any]]


async def a_moment() -> None:
    """Wait a little, as I/O does."""
    await anyio.sleep(MOMENT)


async def nothing() -> None:
    """Not even wait."""


def loop_has_ended() -> bool:
    """Return whether the task of a closing was cancelled natively, which only the end of the loop does."""
    task = asyncio.current_task()
    assert task is not None
    return bool(task.cancelling()) and anyio.current_effective_deadline() > -math.inf


async def hold(world: World, what: str) -> None:
    """Have something open for ever."""
    world.ledger.open(what)
    try:
        await anyio.sleep_forever()
    finally:
        world.ledger.close(what)


# ── modules of no particular kind ────────────────────────────────────────────────────────────────


def offer(coordinator: Any, name: str) -> None:
    """Register one of everything a module can register."""

    async def contribute() -> str:
        await a_moment()
        return name

    coordinator.register_capability(f"{name}.offer", name)
    coordinator.register_contributor("names", name, contribute)
    coordinator.hooks.register("world:asked", lambda event, data: None, name=name)


def seed(
    world: World,
    name: str,
    *,
    instance: Callable[[Any], Any] | None = None,
    closing: Body = nothing,
    after: Body | None = None,
) -> Any:
    """A module in the seed form: it opens something, registers, waits and gives back its cleanup or its instance.

    Args:
        world: Whose ledger.
        name: In the ledger.
        instance: Makes what is mounted, given the coordinator; without one the module mounts nothing.
        closing: What its cleanup does after it has closed.
        after: What mount does after everything is registered; given the coordinator.
    """

    async def mount(coordinator: Any, config: dict[str, Any]) -> Any:
        await a_moment()
        key = f"{coordinator.session_id}/{name}"
        world.ledger.open(key)

        async def close() -> None:
            try:
                await a_moment()
            except asyncio.CancelledError:
                if loop_has_ended():
                    world.ledger.close(key)
                raise
            world.ledger.close(key)
            await closing()

        if instance is None and after is None:
            offer(coordinator, name)
            return close
        coordinator.register_cleanup(close)
        offer(coordinator, name)
        await a_moment()
        if after is not None:
            await after(coordinator)
        return None if instance is None else instance(coordinator)

    return mount


def hosted(
    world: World,
    name: str,
    *,
    instance: Callable[[Any], Any] | None = None,
    entering: Body = a_moment,
    leaving: Body = nothing,
) -> Any:
    """A module in the structured form, with a task group that stays open and a task in it.

    Once it was entered it must be left in peace: what it awaits on its way out is never cut off, except what ``leaving``
    does at last.
    """

    @asynccontextmanager
    async def mount(coordinator: Any, config: dict[str, Any]) -> AsyncIterator[Any]:
        key = f"{coordinator.session_id}/{name}"

        async def pulse() -> None:
            world.ledger.open(f"{key} pulse")
            try:
                await anyio.sleep_forever()
            finally:
                world.ledger.close(f"{key} pulse")

        world.ledger.open(key)
        entered = is_closed = False
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(pulse)
                await entering()
                offer(coordinator, name)
                entered = True
                yield None if instance is None else instance(coordinator)
                group.cancel_scope.cancel()
            await a_moment()
            world.ledger.close(key)
            is_closed = True
            await leaving()
        except asyncio.CancelledError:
            # Its session shields it once it was entered, so the loop has ended.
            if entered and not is_closed:
                world.ledger.close(key)
            raise
        finally:
            if not entered:
                world.ledger.close(key)

    return mount


def failing(world: World, name: str, error: Exception) -> Any:
    """A module whose mount raises after it has registered and mounted things."""

    async def fail(coordinator: Any) -> None:
        await coordinator.mount("tools", Tool(world, coordinator, f"{name}-tool"))
        await a_moment()
        raise error

    return seed(world, name, after=fail)


def ready(mount: Any, on_session_ready: Body) -> Any:
    """A module with both lifecycle functions."""
    return SimpleNamespace(mount=mount, on_session_ready=on_session_ready)


# ── context, provider, tools, approvals ──────────────────────────────────────────────────────────


class Context:
    """What was acknowledged is stored, what was cancelled is not: the append comes after the last await."""

    def __init__(self, world: World) -> None:
        self.messages: list[dict[str, Any]] = []
        world.transcripts.append(self.messages)

    async def add_message(self, message: dict[str, Any]) -> None:
        await a_moment()
        self.messages.append(message)

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self.messages)

    async def get_messages_for_request(
        self, token_budget: int | None = None, provider: Any = None
    ) -> list[Any]:
        return list(self.messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self.messages[:] = messages

    async def clear(self) -> None:
        self.messages.clear()


def context(world: World) -> Any:
    """A context of `Context` in the seed form."""
    return seed(world, "context", instance=lambda coordinator: Context(world))


class Tool:
    """A tool that holds something open while it works."""

    description = "Works for a while."

    def __init__(self, world: World, coordinator: Any, name: str, work: Body = a_moment) -> None:
        self.name = name
        self._world = world
        self._key = f"{coordinator.session_id}/{name} at work"
        self._work = work

    async def execute(self, input: Any) -> ToolResult:  # noqa: A002  # the contract's name
        self._world.ledger.open(self._key)
        try:
            await self._work()
        finally:
            self._world.ledger.close(self._key)
        return ToolResult(output=input)


def tool(world: World, name: str, work: Body = a_moment) -> Any:
    """A tool module in the seed form."""
    return seed(
        world, f"tool-{name}", instance=lambda coordinator: Tool(world, coordinator, name, work)
    )


class SlowApprovals:
    """Allows after a while."""

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> str:
        await a_moment()
        return "Allow"


def hooks_on_everything(world: World) -> Any:
    """A hook module whose handler waits on every event."""

    async def attend(event: str, data: dict[str, Any]) -> None:
        await a_moment()

    async def register(coordinator: Any) -> None:
        coordinator.hooks.register("*", attend, name="attentive")

    return seed(world, "hooks-everything", after=register)


def hook(world: World, event: str, answer: Callable[[], Any]) -> Any:
    """A hook module that answers one event with a result."""

    async def handle(event: str, data: dict[str, Any]) -> Any:
        await a_moment()
        return answer()

    async def register(coordinator: Any) -> None:
        coordinator.hooks.register(event, handle, name="answering")

    return seed(world, "hooks-answer", after=register)


# ── orchestrators ────────────────────────────────────────────────────────────────────────────────


class Agent:
    """A correct orchestrator over a fixed answer of the model: some tool calls side by side, then a text.

    Correct means: ``execution:end`` and ``orchestrator:complete`` on every way out, one result per stored call, nothing new
    after a graceful stop.
    """

    def __init__(self, calls: Sequence[str] = (), ending: Body = a_moment) -> None:
        self._calls = calls
        self._ending = ending

    async def execute(
        self,
        prompt: str,
        context: Any,
        providers: Any,
        tools: dict[str, Any],
        hooks: Any,
        coordinator: Any,
    ) -> str:
        status = "error"
        try:
            await hooks.emit("execution:start", {"prompt": prompt})
            await context.add_message({"role": "user", "content": prompt})
            if self._calls and not coordinator.cancellation.is_cancelled:
                await self._call_tools(context, tools, hooks, coordinator)
            await self._ending()
            await context.add_message({"role": "assistant", "content": "done"})
            status = "cancelled" if coordinator.cancellation.is_cancelled else "completed"
        except anyio.get_cancelled_exc_class():
            status = "cancelled"
            raise
        finally:
            try:
                await hooks.emit("execution:end", {"status": status})
            finally:
                await hooks.emit("orchestrator:complete", {"status": status})
        return "done"

    async def _call_tools(
        self, context: Any, tools: dict[str, Any], hooks: Any, coordinator: Any
    ) -> None:
        await context.add_message(
            {"role": "assistant", "content": "", "tool_calls": list(self._calls)}
        )
        outputs: dict[str, str] = {}
        try:
            async with anyio.create_task_group() as group:
                for name in self._calls:
                    group.start_soon(self._call, name, outputs, tools, hooks, coordinator)
        finally:
            await _store_results(context, self._calls, outputs)

    async def _call(
        self,
        name: str,
        outputs: dict[str, str],
        tools: dict[str, Any],
        hooks: Any,
        coordinator: Any,
    ) -> None:
        token = coordinator.cancellation
        details = {"tool_name": name, "tool_call_id": name, "tool_input": {}}
        verdict = await coordinator.process_hook_result(
            await hooks.emit("tool:pre", details), "tool:pre"
        )
        if verdict.action == "deny" or token.is_cancelled:
            outputs[name] = "refused"
            return
        token.register_tool_start(name, name)
        try:
            result = await tools[name].execute({"call": name})
        except Exception as exc:
            outputs[name] = f"failed: {exc}"
            await hooks.emit("tool:error", {**details, "error": str(exc)})
            return
        finally:
            token.register_tool_complete(name)
        outputs[name] = str(result.output)
        await coordinator.process_hook_result(
            await hooks.emit("tool:post", {**details, "result": {"success": True}}), "tool:post"
        )


async def _store_results(context: Any, calls: Sequence[str], outputs: dict[str, str]) -> None:
    """Store one result for every call, whatever happens meanwhile.

    On asyncio a native cancel goes through a shield, and the kernel passes the first one on as it is; hence the loop.
    """
    left = list(calls)
    interrupted: BaseException | None = None
    while left:
        output = outputs.get(left[0], "interrupted")
        try:
            with anyio.CancelScope(shield=True):
                await context.add_message(
                    {"role": "tool", "tool_call_id": left[0], "content": output}
                )
            left.pop(0)
        except anyio.get_cancelled_exc_class() as exc:
            interrupted = exc
    if interrupted is not None:
        raise interrupted


def loop(world: World, calls: Sequence[str] = (), ending: Body = a_moment) -> Any:
    """An `Agent` in the seed form."""
    return seed(world, "loop", instance=lambda coordinator: Agent(calls, ending))


def at_work(world: World, *calls: str, attentive: bool = True, **work: Body) -> AmplifierSession:
    """A session whose agent calls these tools side by side; each does what is given under its name.

    Args:
        world: The world.
        calls: The names of the tools.
        attentive: Whether a hook waits on every event.
        work: What a tool does, if it is more than a moment's wait.
    """
    return world.agent(
        loop=loop(world, calls),
        tools={f"tool-{name}": tool(world, name, work.get(name, a_moment)) for name in calls},
        hooks={"hooks-all": hooks_on_everything(world)} if attentive else None,
    )
