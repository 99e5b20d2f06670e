"""What becomes of exceptions that are no ``Exception``, at each place where a kernel calls a module; runs on both kernels.

Prints one JSON object: for each place, kind of exception and form of the raising function, what was left of it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

if os.environ.get("AMPLIFIER_COMPAT"):
    import amplifier.compat

    amplifier.compat.install()

import amplifier_core as core  # type: ignore[import-not-found]  # whichever this interpreter has
from amplifier_core.testing import MockContextManager  # type: ignore[import-not-found]  # as above

logging.disable(logging.CRITICAL)


class Odd(BaseException):
    """Neither an Exception nor one of Python's own, as a panic of an extension module is."""


KINDS: dict[str, type[BaseException]] = {
    "SystemExit": SystemExit,
    "KeyboardInterrupt": KeyboardInterrupt,
    "CancelledError": asyncio.CancelledError,
    "Odd": Odd,
}


def raising(kind: str, form: str) -> Callable[..., Any]:
    """A function that raises when it is called, or one whose coroutine does."""

    def at_once(*_: Any, **__: Any) -> Any:
        raise KINDS[kind]("planned")

    async def later(*_: Any, **__: Any) -> Any:
        raise KINDS[kind]("planned")

    return at_once if form == "sync" else later


def coordinator(**systems: Any) -> Any:
    session = SimpleNamespace(session_id="s", parent_id=None, config={})
    return core.ModuleCoordinator(session, systems.get("approval"), systems.get("display"))


# ── the places ──


async def handler(raises: Callable[..., Any]) -> Any:
    hooks, ran = core.HookRegistry(), []

    async def second(event: str, data: Any) -> None:
        ran.append(event)

    hooks.register("e", raises, 0, "first")
    hooks.register("e", second, 1, "second")
    return [(await hooks.emit("e", {})).action, ran]


async def collecting_handler(raises: Callable[..., Any]) -> Any:
    hooks = core.HookRegistry()

    async def second(event: str, data: Any) -> Any:
        return core.HookResult(action="continue", data={"answer": 1})

    hooks.register("e", raises, 0, "first")
    hooks.register("e", second, 1, "second")
    return await hooks.emit_and_collect("e", {})


async def contributor(raises: Callable[..., Any]) -> Any:
    made = coordinator()
    for name, callback in (("a", lambda: 1), ("bad", raises), ("b", lambda: 2)):
        made.register_contributor("channel", name, callback)
    return await made.collect_contributions("channel")


async def approval_system(raises: Callable[..., Any]) -> Any:
    made = coordinator(approval=SimpleNamespace(request_approval=raises))
    return (await made.process_hook_result(core.HookResult(action="ask_user"), "e", "h")).action


async def display_system(raises: Callable[..., Any]) -> Any:
    made = coordinator(display=SimpleNamespace(show_message=raises))
    return (await made.process_hook_result(core.HookResult(user_message="m"), "e", "h")).action


async def context(raises: Callable[..., Any]) -> Any:
    made = coordinator()
    made.mount_points["context"] = SimpleNamespace(add_message=raises)
    result = core.HookResult(action="inject_context", context_injection="text")
    return (await made.process_hook_result(result, "e", "h")).action


async def cleanup(raises: Callable[..., Any]) -> Any:
    made, ran = coordinator(), []
    for step in (lambda: ran.append("last"), raises, lambda: ran.append("first")):
        made.register_cleanup(step)
    try:
        await made.cleanup()
    except BaseException as error:
        return [ran, type(error).__name__]
    return ran


async def orchestrator(raises: Callable[..., Any]) -> Any:
    session = opened_later(execute=raises)
    await session.initialize()
    try:
        return await session.execute("prompt")
    finally:
        await session.cleanup()


async def mount(raises: Callable[..., Any]) -> Any:
    session = opened_later(tool=raises)
    try:
        await session.initialize()
    finally:
        await session.cleanup()
    return "opened"


async def on_session_ready(raises: Callable[..., Any]) -> Any:
    session = opened_later()
    session.coordinator.loader.queue.append(("tool-x", raises))
    try:
        await session.initialize()
    finally:
        await session.cleanup()
    return "opened"


async def handler_of_the_start(raises: Callable[..., Any]) -> Any:
    session = opened_later()
    await session.initialize()
    session.coordinator.hooks.register("session:start", raises)
    try:
        return await session.execute("prompt")
    finally:
        await session.cleanup()


async def handler_of_the_end(raises: Callable[..., Any]) -> Any:
    session, ran = opened_later(), []
    await session.initialize()
    session.coordinator.hooks.register("session:end", raises)
    session.coordinator.register_cleanup(lambda: ran.append("cleanup"))
    await session.cleanup()
    return [ran, session.initialized]


class Loader:
    """Gives the mount functions it was made with."""

    def __init__(self, **mounts: Any) -> None:
        self.mounts, self.queue = mounts, []

    async def load(self, module_id: str, config: Any = None, source_hint: Any = None, coordinator: Any = None) -> Any:
        return self.mounts[module_id.partition("-")[0]]

    def enqueue_on_session_ready(self, module_id: str, function: Any) -> None:
        self.queue.append((module_id, function))

    def get_on_session_ready_queue(self) -> list[Any]:
        return list(self.queue)

    def clear_on_session_ready_queue(self) -> None:
        self.queue.clear()


def opened_later(execute: Any = None, tool: Any = None) -> Any:
    async def answer(**_: Any) -> str:
        return "answer"

    async def mount_loop(coordinator: Any) -> None:
        await coordinator.mount("orchestrator", SimpleNamespace(execute=execute or answer))

    async def mount_context(coordinator: Any) -> None:
        await coordinator.mount("context", MockContextManager())

    plan: dict[str, Any] = {"session": {"orchestrator": "loop-x", "context": "context-x"}}
    if tool is not None:
        plan["tools"] = [{"module": "tool-x"}]
    session = core.AmplifierSession(plan)
    session.coordinator.loader = Loader(loop=mount_loop, context=mount_context, tool=tool)
    return session


EITHER_FORM = [handler, collecting_handler, contributor, approval_system, display_system, context, cleanup]
EITHER_FORM += [handler_of_the_start, handler_of_the_end]
ASYNC_ONLY = [orchestrator, mount, on_session_ready]


def outcome(place: Callable[..., Any], kind: str, form: str) -> Any:
    try:
        return asyncio.run(place(raising(kind, form)))
    except BaseException as error:
        return f"{type(error).__name__}: {error}"


found = {}
for kind in KINDS:
    for place in EITHER_FORM:
        for form in ("sync", "async"):
            found[f"{place.__name__} {kind} {form}"] = outcome(place, kind, form)
    for place in ASYNC_ONLY:
        found[f"{place.__name__} {kind} async"] = outcome(place, kind, "async")
print(json.dumps(found), flush=True)
os._exit(0)  # a loop that was torn down leaves threads of the published kernel behind
