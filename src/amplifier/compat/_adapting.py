"""Adapt published modules to our sessions, native ones and those of the alias."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import anyio
import attrs

from amplifier.contracts.cancellation import running_asyncio_loop
from amplifier.kernel.runtime.child import run_in_child
from amplifier.loading import LoadedModule
from amplifier.loading.importing import is_built_in, is_published, is_published_mount

from ._processes import guard_tools, wrap_execute

logger = logging.getLogger("amplifier_core.session")

IMMEDIATE_GRACE: Final = 1.0
"""Seconds in which a published loop may end itself after an immediate request, under the alias."""

# A published loop is cancelled in the published way, and the processes of published tools are ended
# with their calls (`_processes`). In a session of the alias a module gets the published
# coordinator. Published modules are asyncio code, so on trio they run on an asyncio island.


def adapted(module: LoadedModule) -> LoadedModule:
    """Return a module for our sessions, adapted if it was written for the published kernel.

    Native loaders call it for every module that they have loaded.
    """
    mount, ready = module.mount, module.on_session_ready
    if not is_published_mount(mount):
        return module
    adapting = attrs.evolve(
        module,
        mount=_mounting(mount, module.mount_point),
        on_session_ready=None if ready is None else _getting_ready(ready),
    )
    return adapting.on_island() if _is_on_trio() else adapting


def _is_on_trio() -> bool:
    try:
        return anyio.get_cancelled_exc_class().__module__.startswith("trio")
    # No event loop is running, and the module may be for a later one.
    except RuntimeError:
        return False


def _mounting(
    mount: Callable[..., Awaitable[object]], point: str | None
) -> Callable[..., Awaitable[object]]:
    @functools.wraps(mount)
    async def mounting(coordinator: Any, config: object) -> object:
        answer = await mount(published_view(coordinator), config)
        guard_tools(coordinator.get("tools"))
        adapt_mounted("orchestrator", coordinator.get("orchestrator"))
        adapt_mounted(point, answer)
        return answer

    return mounting


def _getting_ready(
    on_session_ready: Callable[..., Awaitable[object]],
) -> Callable[..., Awaitable[object]]:
    @functools.wraps(on_session_ready)
    async def getting_ready(coordinator: object) -> object:
        return await on_session_ready(published_view(coordinator))

    return getting_ready


def published_view(coordinator: Any) -> Any:
    """Return the published form of a module's coordinator, if the session is one of the alias."""
    published = getattr(coordinator, "published_session", None)
    session = None if published is None else published()
    if session is None or isinstance(coordinator, type(session.coordinator)):
        return coordinator
    return type(session.coordinator).over(coordinator)


def adapt_mounted(point: str | None, module: object, name: str | None = None) -> None:
    """Adapt a module mounted at a point, unless it is one of ours. A second call does nothing."""
    if point == "tools":
        guard_tools({name or str(getattr(module, "name", "tool")): module})
    elif point == "orchestrator" and not is_built_in(type(module).__module__):
        wrap_execute(module, partial(_run_turn, module))


async def _run_turn(
    loop: object, call: Callable[..., Awaitable[object]], /, *args: object, **kwargs: object
) -> object:
    guard_tools(kwargs.get("tools"))
    if "providers" in kwargs:
        kwargs["providers"] = _providers_for(loop, kwargs["providers"])
    coordinator = kwargs.get("coordinator")
    view = None if coordinator is None else published_view(coordinator)
    if view is None or view is coordinator:
        return await run_published(lambda: call(*args, **kwargs))
    kwargs["coordinator"] = view
    if "hooks" in kwargs:
        kwargs["hooks"] = view.hooks

    async def answer() -> object:
        # The native session raises after an immediate stop, whatever the loop returns. The
        # published session reads this attribute instead.
        view.published_answer = await call(*args, **kwargs)
        return view.published_answer

    return await run_published(
        answer, lambda: IMMEDIATE_GRACE if view.cancellation.is_immediate else 0.0
    )


# Published loops are written for asyncio's edge cancellation. The exception arrives once, they
# catch it, and then they await: they store the results of cancelled tools, emit ``cancel:*``, add a
# closing message, and raise it again. Inside a cancelled AnyIO scope each of these awaits would be
# cancelled again. So the turn runs in a separate task, which is cancelled with exactly one
# ``Task.cancel()``, whatever the source of the cancellation.


async def run_published(
    fn: Callable[[], Awaitable[object]], grace: Callable[[], float] = lambda: 0.0
) -> object:
    """Run a published turn in a task that receives a cancellation once, and wait for its end.

    Args:
        fn: The turn.
        grace: Called when a scope around the turn is cancelled. It returns the seconds in which the
            turn may end itself, unless a native cancel ends that time.
    """
    event_loop = running_asyncio_loop()
    # A program on trio has mounted the loop itself.
    if event_loop is None:
        return await fn()
    failures: list[BaseException] = []

    async def run() -> object:
        try:
            return await fn()
        except asyncio.CancelledError:
            raise
        # The caller raises it. If this task raised an exit, it would end the event loop.
        except BaseException as exc:  # noqa: BLE001
            failures.append(exc)
            return None

    task: asyncio.Task[object] = event_loop.create_task(run(), name="amplifier published turn")
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError as first:
        held = first
        try:
            if (seconds := grace()) > 0:
                with anyio.CancelScope(shield=True):
                    await asyncio.wait((task,), timeout=seconds)
        except asyncio.CancelledError as native:
            held = native
        task.cancel(*held.args)
        await run_in_child(asyncio.wait, (task,), name="amplifier published turn", shield=True)
        if not failures:
            raise held from None
    if failures:
        try:
            raise failures.pop()
        finally:
            failures.clear()
    return task.result()


def _providers_for(loop: object, providers: object) -> object:
    """Return the providers for a loop. A published loop gets ours without ``stream``.

    No published provider has that method, so the loop requests whole answers. The text is still
    live in the ``llm:stream_*`` events.
    """
    if not isinstance(providers, Mapping) or not is_published(type(loop).__module__):
        return providers
    # A budget wraps providers.
    ours = {
        name
        for name, provider in providers.items()
        if hasattr(provider, "stream")
        and not is_published(type(getattr(provider, "__wrapped__", provider)).__module__)
    }
    # Return the same dict, which a loop may read again.
    if not ours:
        return providers
    return {
        name: _WholeAnswers(provider) if name in ours else provider
        for name, provider in providers.items()
    }


class _WholeAnswers:
    """A provider without its ``stream``."""

    def __init__(self, provider: object) -> None:
        object.__setattr__(self, "_provider", provider)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":
            raise AttributeError(
                f"{self._provider!r} is used without stream() by this loop", name=name, obj=self
            )
        return getattr(self._provider, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._provider, name, value)

    def __repr__(self) -> str:
        return repr(self._provider)
