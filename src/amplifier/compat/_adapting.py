"""Published modules in our sessions: what they mount is adapted in place, in native sessions and in those of the alias.

A published loop is cancelled the published way, and the processes of published tools are ended with their calls (`_processes`). In a session
of the alias a module gets the published coordinator. Published modules are asyncio code, so on trio they run on an asyncio island, where
the same holds. A native loader passes every module that it has loaded to `adapted`.
"""

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

from ._processes import guard_tools, put_around

logger = logging.getLogger("amplifier_core.session")

IMMEDIATE_GRACE: Final = 1.0
"""Seconds in which a published loop may answer an immediate request by itself, in a session of the alias."""


def adapted(module: LoadedModule) -> LoadedModule:
    """A module that a native loader loaded, so that it fits our sessions if it was written for the published kernel."""
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
    except RuntimeError:  # no event loop is running: the module may be meant for a later one
        return False


def _mounting(
    mount: Callable[..., Awaitable[Any]], point: str | None
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(mount)
    async def mounting(coordinator: Any, config: Any) -> Any:
        answer = await mount(published_view(coordinator), config)
        guard_tools(coordinator.get("tools"))
        adapt_mounted("orchestrator", coordinator.get("orchestrator"))
        adapt_mounted(point, answer)
        return answer

    return mounting


def _getting_ready(
    on_session_ready: Callable[..., Awaitable[Any]],
) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(on_session_ready)
    async def getting_ready(coordinator: Any) -> Any:
        return await on_session_ready(published_view(coordinator))

    return getting_ready


def published_view(coordinator: Any) -> Any:
    """A module's coordinator in its published form, in a session of the alias; in a native one as it is."""
    published = getattr(coordinator, "published_session", None)
    session = None if published is None else published()
    if session is None or isinstance(coordinator, type(session.coordinator)):
        return coordinator
    return type(session.coordinator).over(coordinator)


def adapt_mounted(point: str | None, thing: Any, name: str | None = None) -> None:
    """Adapt what is mounted at a point, unless it is one of ours; repeating it does nothing."""
    if point == "tools":
        guard_tools({name or str(getattr(thing, "name", "tool")): thing})
    elif point == "orchestrator" and not is_built_in(type(thing).__module__):
        put_around(thing, partial(_run_turn, thing))


async def _run_turn(
    loop: Any, call: Callable[..., Awaitable[Any]], /, *args: Any, **kwargs: Any
) -> Any:
    guard_tools(kwargs.get("tools"))
    if "providers" in kwargs:
        kwargs["providers"] = _providers_for(loop, kwargs["providers"])
    coordinator = kwargs.get("coordinator")
    seen = None if coordinator is None else published_view(coordinator)
    if seen is None or seen is coordinator:
        return await run_published(lambda: call(*args, **kwargs))
    kwargs["coordinator"] = seen
    if "hooks" in kwargs:
        kwargs["hooks"] = seen.hooks

    async def answer() -> Any:
        # For the session: the native one raises after an immediate stop, whatever the loop answers.
        seen.published_answer = await call(*args, **kwargs)
        return seen.published_answer

    return await run_published(
        answer, lambda: IMMEDIATE_GRACE if seen.cancellation.is_immediate else 0.0
    )


async def run_published(
    fn: Callable[[], Awaitable[Any]], grace: Callable[[], float] = lambda: 0.0
) -> Any:
    """Run a published turn so that a cancellation reaches it once and does not interrupt its unwinding.

    Published loops are written for asyncio's edge cancellation: the exception arrives once, they catch it, and then *await*: they store
    the results of cancelled tools, emit ``cancel:*``, add a closing message, and raise it again. Inside a cancelled AnyIO scope each of
    these awaits would be cancelled again. So the turn runs in a task of its own, which is cancelled by exactly one ``Task.cancel()``,
    whatever the source of the cancellation, and the caller waits until the task has ended.

    Args:
        fn: The turn.
        grace: Asked when a scope around it is cancelled: for how many seconds the turn may end by itself. A native cancel ends that time.
    """
    event_loop = running_asyncio_loop()
    if event_loop is None:  # a loop that a program on trio has mounted by itself
        return await fn()
    failures: list[BaseException] = []

    async def run() -> Any:
        try:
            return await fn()
        except asyncio.CancelledError:
            raise
        except BaseException as exc:  # noqa: BLE001 — raised by the caller: in a task of its own, an exit would end the loop
            failures.append(exc)

    task: asyncio.Task[Any] = event_loop.create_task(run(), name="amplifier published turn")
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


def _providers_for(loop: Any, providers: Any) -> Any:
    """The providers to call a loop with: a published one gets ours without ``stream``, which no published provider has.

    It asks for whole answers, as it does of published ones; their text is live in the ``llm:stream_*`` events all the same.
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
    if not ours:
        return providers  # the same dict, which a loop may look at again
    return {
        name: _WholeAnswers(provider) if name in ours else provider
        for name, provider in providers.items()
    }


class _WholeAnswers:
    """A provider without its ``stream``."""

    def __init__(self, provider: Any) -> None:
        object.__setattr__(self, "_provider", provider)

    def __getattr__(self, name: str) -> Any:
        if name == "stream":
            raise AttributeError(
                f"{self._provider!r} is used without stream() by this loop", name=name, obj=self
            )
        return getattr(self._provider, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._provider, name, value)

    def __repr__(self) -> str:
        return repr(self._provider)
