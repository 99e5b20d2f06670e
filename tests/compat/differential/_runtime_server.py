"""A process that runs small programs against a kernel and reports the results; the same file runs on the published one.

Reads one JSON value per line, ``[kind, program]``, and answers with one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from typing import Any

if os.environ.get("AMPLIFIER_COMPAT"):
    import amplifier.compat

    amplifier.compat.install()

import amplifier_core as core  # type: ignore[import-not-found]  # whichever this interpreter has
from amplifier_core.testing import MockContextManager  # type: ignore[import-not-found]  # as above

logging.disable(logging.CRITICAL)


def failed(error: BaseException) -> str:
    """The kind of an error; its words are each kernel's own."""
    for kind in (ValueError, TypeError, RuntimeError, AttributeError, OverflowError):
        if isinstance(error, kind):
            return f"raised {kind.__name__}"
    return f"raised {type(error).__name__}"


# What those who get a merged result act on. Results of several hooks are merged as in native sessions, which keep what the published
# kernel drops: the reason and the message of a hook that lets an event pass, whose message it is, the payload that was denied.
_MEANT = {
    "continue": ("action", "data"),
    "deny": ("action", "reason"),
    "modify": ("action", "data"),
    "inject_context": (
        "action",
        "context_injection",
        "context_injections",
        "context_injection_role",
        "ephemeral",
    ),
    "ask_user": (
        "action",
        "approval_prompt",
        "approval_options",
        "approval_timeout",
        "approval_default",
    ),
}


def seen_result(result: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = result.model_dump()
    if isinstance(dumped.get("data"), dict):
        dumped["data"].pop("timestamp", None)
    return (
        {name: dumped[name] for name in _MEANT["continue"]}
        if dumped["action"] == "continue"
        else dumped
    )


# ── hooks ──


class Hooks:
    """A registry and handlers that do what a program specifies."""

    def __init__(self) -> None:
        self.registry = core.HookRegistry()
        self.removers: list[Any] = []
        self.calls: list[Any] = []

    def handler(self, label: str, does: dict[str, Any]) -> Any:
        async def run(event: str, data: Any) -> Any:
            shown = dict(data) if isinstance(data, dict) else data
            if isinstance(shown, dict):
                shown.pop("timestamp", None)
            self.calls.append([label, event, shown])
            if "raises" in does:
                raise {"ValueError": ValueError, "CancelledError": asyncio.CancelledError}[
                    does["raises"]
                ]("planned")
            if does.get("spoils") and isinstance(data, dict):
                data["spoiled"] = True
            if "returns" in does:
                return does["returns"]
            return core.HookResult(**does.get("result", {}))

        if does.get("sync"):
            return lambda event, data: _drive(run(event, data))
        return run

    async def step(self, step: list[Any]) -> Any:
        kind, *rest = step
        if kind == "register":
            event, priority, name, does = rest
            self.removers.append(
                self.registry.register(event, self.handler(name or "?", does), priority, name)
            )
            return None
        if kind == "remove":
            if self.removers:
                self.removers[rest[0] % len(self.removers)]()
            return None
        if kind == "unregister":
            self.registry.unregister(rest[0])
            return None
        if kind == "defaults":
            self.registry.set_default_fields(**rest[0])
            return None
        if kind == "list":
            return {
                event: [n for n in names if not n.startswith("_auto_")]
                for event, names in self.registry.list_handlers().items()
                if names  # the published kernel goes on listing events whose handlers were removed
            }
        if kind == "collect":
            self.registry.set_default_fields()  # which the published kernel adds to what `emit` is given only
            return await self.registry.emit_and_collect(rest[0], rest[1])
        seen = seen_result(await self.registry.emit(rest[0], rest[1]))
        return {name: seen[name] for name in _MEANT[seen["action"]]}


def _drive(coroutine: Any) -> Any:
    """A coroutine that waits for nothing, run to its end in place."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the handler waits")


async def hooks(program: list[Any]) -> Any:
    world = Hooks()
    return [await attempt(world.step, step) for step in program] + [world.calls]


async def attempt(step: Any, argument: Any) -> Any:
    try:
        return await step(argument)
    except Exception as error:
        return failed(error)


# ── coordinator ──


class Approving:
    def __init__(self, answers: list[Any]) -> None:
        self.answers = answers
        self.asked: list[Any] = []

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> Any:
        self.asked.append([prompt, options, timeout, default])
        answer = self.answers.pop(0) if self.answers else "Deny"
        if answer == "timeout":
            from amplifier_core.approval import ApprovalTimeoutError  # type: ignore[import-not-found]  # as above

            raise ApprovalTimeoutError("too late")
        return answer


class Thing:
    def __init__(self, label: str, name: Any = None) -> None:
        self.label = label
        if name is not None:
            self.name = name


class Coordinator:
    def __init__(self, limits: dict[str, Any], answers: list[Any]) -> None:
        from types import SimpleNamespace

        plan = {"session": {"orchestrator": "o", "context": "c", **limits}}
        session = SimpleNamespace(session_id="s", parent_id=None, config=plan)
        self.approving = Approving(answers)
        self.shown: list[Any] = []
        self.coordinator = core.ModuleCoordinator(session, self.approving, self)
        self.ran: list[str] = []

    def show_message(self, message: str, level: str, source: str) -> None:
        self.shown.append([message, level, source])

    async def step(self, step: list[Any]) -> Any:
        kind, *rest = step
        c = self.coordinator
        if kind == "mount":
            point, label, own_name, name = rest
            await c.mount(point, Thing(label, own_name), name)
            return None
        if kind == "unmount":
            await c.unmount(*rest)
            return None
        if kind == "get":
            found = c.get(*rest)
            if isinstance(found, dict):
                return {name: thing.label for name, thing in found.items()}
            return getattr(
                found, "label", None if found is None else type(found).__name__ != "dict"
            )
        if kind == "capability":
            before = c.get_capability(rest[0])
            c.register_capability(rest[0], rest[1])
            return [before, c.get_capability(rest[0])]
        if kind == "contribute":
            channel, name, does = rest
            c.register_contributor(channel, name, self.contributor(does))
            return None
        if kind == "collect":
            return await c.collect_contributions(rest[0])
        if kind == "context":
            c.mount_points["context"] = MockContextManager()
            return None
        if kind == "process":
            result = await c.process_hook_result(core.HookResult(**rest[0]), rest[1], rest[2])
            return [seen_result(result), c._current_turn_injections]
        if kind == "cleanup":
            c.register_cleanup(self.cleanup(rest[0], rest[1]))
            return None
        if kind == "clean up":
            await c.cleanup()
            return list(
                dict.fromkeys(self.ran)
            )  # a second call of the published kernel runs them again
        if kind == "reset":
            c.reset_turn()
            return c._current_turn_injections
        raise LookupError(kind)

    def contributor(self, does: dict[str, Any]) -> Any:
        async def later() -> Any:
            if does.get("raises"):
                raise ValueError("planned")
            return does.get("value")

        return later if does.get("async") else (lambda: _drive(later()))

    def cleanup(self, label: str, does: dict[str, Any]) -> Any:
        async def later() -> None:
            self.ran.append(label)
            if does.get("raises"):
                raise ValueError("planned")

        return later if does.get("async") else (lambda: _drive(later()))

    async def finish(self) -> Any:
        context = self.coordinator.get("context")
        messages = (
            [dict(m) for m in context.messages] if isinstance(context, MockContextManager) else []
        )
        for message in messages:
            message["metadata"] = {k: v for k, v in message["metadata"].items() if k != "timestamp"}
        return [messages, self.shown, self.approving.asked]


async def coordinator(program: list[Any]) -> Any:
    limits, answers, steps = program
    world = Coordinator(limits, list(answers))
    return [await attempt(world.step, step) for step in steps] + [await world.finish()]


# ── cancellation, sessions ──


async def cancellation(program: list[Any]) -> Any:
    tokens = [core.CancellationToken() for _ in range(3)]
    fired: list[int] = []
    seen = []
    for which, action, other in program:
        token = tokens[which]
        if action == "child":
            seen.append(token.register_child(tokens[other]))
        elif action == "orphan":
            seen.append(token.unregister_child(tokens[other]))
        elif action == "start":
            seen.append(token.register_tool_start(f"id{other}", f"tool{other}"))
        elif action == "complete":
            seen.append(token.register_tool_complete(f"id{other}"))
        elif action == "callback":
            seen.append(token.on_cancel(lambda other=other: fired.append(other)))
        elif action == "trigger":
            await token.trigger_callbacks()
            seen.append(list(fired))
        else:
            seen.append(getattr(token, action)())
        seen.append(
            [
                [t.state, t.is_cancelled, t.is_graceful, t.is_immediate, sorted(t.running_tools)]
                for t in tokens
            ]
        )
    return seen


class Loader:
    """Modules that do what a program specifies."""

    def __init__(self, does: dict[str, Any], ran: list[Any]) -> None:
        self.does, self.ran = does, ran
        self.queue: list[Any] = []

    async def load(
        self, module_id: str, config: Any = None, source_hint: Any = None, coordinator: Any = None
    ) -> Any:
        does = self.does.get(module_id, {})
        if does.get("load") == "fails":
            raise ValueError("planned")

        async def mount(coordinator: Any) -> Any:
            kind = module_id.partition("-")[0]
            if does.get("mount") == "fails":
                raise ValueError("planned")
            if kind == "loop":
                await coordinator.mount("orchestrator", Loop(does, self.ran))
            elif kind == "context":
                await coordinator.mount("context", MockContextManager())
            elif does.get("mount") != "nothing":
                await coordinator.mount(f"{kind}s", Thing(module_id, module_id.partition("-")[2]))
            return lambda: self.ran.append(["cleanup", module_id])

        return mount

    def enqueue_on_session_ready(self, module_id: str, function: Any) -> None:
        self.queue.append((module_id, function))

    def get_on_session_ready_queue(self) -> list[Any]:
        return list(self.queue)

    def clear_on_session_ready_queue(self) -> None:
        self.queue.clear()


class Loop:
    def __init__(self, does: dict[str, Any], ran: list[Any]) -> None:
        self.does, self.ran = does, ran

    async def execute(
        self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any, coordinator: Any
    ) -> Any:
        self.ran.append(["execute", prompt, list(providers), list(tools)])
        act = self.does.get("acts", "answers")
        if act in ("graceful", "immediate"):
            await coordinator.request_cancel(immediate=act == "immediate")
        if act == "raises":
            raise LookupError("planned")
        await context.add_message({"role": "user", "content": prompt})
        return f"answer to {prompt}"


EVENTS = [
    "session:start",
    "session:resume",
    "session:fork",
    "session:end",
    "session:config",
    "cancel:completed",
]


DIFFERENT = ("timestamp", "status", "error", "reason_code", "stopped")
"""Fields that differ on purpose, or from run to run."""


async def session(program: list[Any]) -> Any:
    settings, plan, does, steps = program
    ran: list[Any] = []
    try:
        made = core.AmplifierSession(plan, **settings)
    except Exception as error:
        return failed(error)
    made.coordinator.loader = Loader(does, ran)

    async def record(event: str, data: dict[str, Any]) -> None:
        ran.append([event, {k: v for k, v in data.items() if k not in DIFFERENT}])

    for event in [*EVENTS, "module:load_failed"]:
        made.coordinator.hooks.register(event, record)

    async def step(name: Any) -> Any:
        if name == "initialize":
            await made.initialize()
        elif name == "cleanup":
            await made.cleanup()
        else:
            return await made.execute(name)
        return made.initialized

    return [await attempt(step, name) for name in steps] + [ran, made.initialized, made.is_resumed]


KINDS = {
    "hooks": hooks,
    "coordinator": coordinator,
    "cancellation": cancellation,
    "session": session,
}


async def main() -> None:
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        kind, program = json.loads(line)
        answer = await KINDS[kind](program)
        print(json.dumps(answer, sort_keys=True, default=repr), flush=True)


asyncio.run(main())
