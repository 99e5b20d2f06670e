"""Sessions around the snippets of the contract documents: modules given in process, a loop and a context of no interest.

A snippet that opens a session by itself, from a plan alone, finds the same two modules on disk: the fixture
``seed_plan`` of `tests/seeds/conftest.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from amplifier import AmplifierSession, ModuleLoader
from amplifier.testing import MockContextManager

LOOP_ON_DISK = """
class Loop:
    async def execute(self, prompt, context, providers, tools, hooks, coordinator):
        await context.add_message({"role": "user", "content": prompt})
        return f"{prompt}, by {coordinator.session_id} under {coordinator.parent_id}"


async def mount(coordinator, config):
    await coordinator.mount("session", Loop(), name="orchestrator")
"""

CONTEXT_ON_DISK = """
from amplifier.testing import MockContextManager


async def mount(coordinator, config):
    return MockContextManager()
"""


class Loop:
    """Answers every prompt with itself."""

    async def execute(
        self, prompt: str, context: Any, providers: Any, tools: Any, hooks: Any
    ) -> str:
        """Answer."""
        return f"answer to {prompt}"


async def mount_loop(coordinator: Any, config: dict[str, Any]) -> None:
    """Mount a `Loop`."""
    await coordinator.mount("orchestrator", Loop())


async def mount_context(coordinator: Any, config: dict[str, Any]) -> MockContextManager:
    """Mount a context."""
    return MockContextManager()


def mounting(thing: Any) -> Any:
    """A mount function that returns a thing to be mounted."""

    async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> Any:
        return thing

    return mount


def module(mount: Any, on_session_ready: Any = None) -> SimpleNamespace:
    """A module with both of its lifecycle functions."""
    return SimpleNamespace(mount=mount, on_session_ready=on_session_ready)


def seed_session(
    *,
    loop: Any = mount_loop,
    context: Any = mount_context,
    providers: Mapping[str, Any] | None = None,
    tools: Mapping[str, Any] | None = None,
    hooks: Mapping[str, Any] | None = None,
    configs: Mapping[str, dict[str, Any]] | None = None,
    **session_arguments: Any,
) -> AmplifierSession:
    """A session, not opened yet, that mounts exactly these modules.

    Args:
        loop: The orchestrator's mount function, or a `module`.
        context: The same for the context.
        providers: Mount functions by module id; likewise ``tools`` and ``hooks``.
        configs: The configuration of a module in the plan, by id.
        session_arguments: Passed on to `AmplifierSession`.
    """
    sections = {"providers": providers or {}, "tools": tools or {}, "hooks": hooks or {}}
    modules = {"loop-seed": loop, "context-seed": context}
    plan: dict[str, Any] = {"session": {"orchestrator": "loop-seed", "context": "context-seed"}}
    for section, mounts in sections.items():
        modules |= mounts
        plan[section] = [
            {"module": module_id, "config": (configs or {}).get(module_id, {})}
            for module_id in mounts
        ]
    return AmplifierSession(plan, loader=ModuleLoader(modules=modules), **session_arguments)
