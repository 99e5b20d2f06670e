"""Calls of a Temporal server: made in a thread with an asyncio event loop, which the SDK needs, each with a deadline, and again while the server is away.

The same on asyncio and trio.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from threading import Thread
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
from anyio.from_thread import BlockingPortal, start_blocking_portal
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from amplifier.kernel.runtime.loop import Loop

from ._errors import DurableError, EngineUnavailableError, closed_error

T = TypeVar("T")

logger = logging.getLogger("amplifier.durable")

_ENDING_SECONDS = 10.0
_NAME = "Temporal"
_DEADLINE: Final = timedelta(seconds=10)
_AWAY: Final = frozenset(
    {
        RPCStatusCode.ABORTED,
        RPCStatusCode.CANCELLED,
        RPCStatusCode.DEADLINE_EXCEEDED,
        RPCStatusCode.RESOURCE_EXHAUSTED,
        RPCStatusCode.UNAVAILABLE,
        RPCStatusCode.UNKNOWN,
    }
)
"""The server cannot do it now."""
_LOST_TASK: Final = "UnprocessedUpdate"
"""The server refuses an update itself, because the workflow's task that had it was lost, for example when the server was restarted."""

# ── the thread ────────────────────────────────────────────────────────────────────────────────────


class AsyncioThread:
    """The way into the thread, and back to the event loop it was made on, here called the host."""

    def __init__(self, portal: BlockingPortal) -> None:
        self._portal = portal
        self._host = Loop()
        self._is_closed = False

    async def call(self, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Await an async function in the thread; from the host. A cancellation is passed on and not waited for.

        Raises:
            EngineClosedError: The thread was ended, before the call or meanwhile.
        """
        ended = anyio.Event()
        future = self.start(partial(fn, *args), ended.set)
        try:
            await ended.wait()
        except BaseException:
            future.cancel()
            raise
        try:
            return future.result()
        except CancelledError:
            raise closed_error(_NAME) from None

    def start(self, fn: Callable[[], Awaitable[T]], on_end: Callable[[], None]) -> Future[T]:
        """Start an async function in the thread; ``on_end`` is called on the host when it has ended.

        Raises:
            EngineClosedError: The thread was ended.
        """
        if self._is_closed:
            raise closed_error(_NAME)
        future: Future[T] = self._portal.start_task_soon(fn)
        future.add_done_callback(lambda _: self._host.soon(on_end))
        return future

    def post(self, fn: Callable[[], object]) -> None:
        """Call a function in the thread soon; from the host. Does nothing once the thread was ended."""
        if not self._is_closed:
            self._portal.start_task_soon(fn)

    def post_to_host(self, fn: Callable[[], object]) -> None:
        """Call a function on the host soon; from the thread."""
        self._host.soon(fn)

    def close(self) -> None:
        """Take no more calls; from the host."""
        self._is_closed = True


@asynccontextmanager
async def open_asyncio_thread() -> AsyncIterator[AsyncioThread]:
    """Start a thread; on leaving, what still runs there is cancelled and the thread waited for, but not for ever."""
    manager = start_blocking_portal("asyncio")
    portal = await anyio.to_thread.run_sync(manager.__enter__)
    thread = AsyncioThread(portal)
    has_ended = anyio.Event()

    def end() -> None:
        try:
            portal.call(portal.stop, True)
            manager.__exit__(None, None, None)
        finally:
            thread.post_to_host(has_ended.set)

    try:
        yield thread
    finally:
        thread.close()
        # No thread of AnyIO's: one that does not end would keep the process from ending.
        Thread(target=end, daemon=True).start()
        with anyio.move_on_after(_ENDING_SECONDS, shield=True) as scope:
            await has_ended.wait()
        if scope.cancelled_caught:
            logger.warning("the thread of the Temporal SDK did not end in time and is left behind")


# ── the server ────────────────────────────────────────────────────────────────────────────────────


class WorkflowGone(Exception):
    """There is no such workflow, or it has ended. Stays inside the package."""


class Refused(Exception):
    """A workflow has refused an update. Stays inside the package.

    Attributes:
        kind: The type of its error.
    """

    def __init__(self, kind: str | None, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class Server:
    """A Temporal server.

    Args:
        thread: Where the SDK runs.
        client: The SDK's client.
        name: For messages.
        patience: Seconds for which a server that does not answer is asked again.
    """

    def __init__(self, thread: AsyncioThread, client: Client, name: str, patience: float) -> None:
        self.thread = thread
        self.client = client
        self._name = name
        self._patience = patience

    async def query(self, workflow_id: str, query: Any, *args: Any) -> Any:
        """Ask a workflow, which may have ended.

        Raises:
            WorkflowGone: There is none.
        """
        handle = self.client.get_workflow_handle(workflow_id)
        return await self.call(lambda: handle.query(query, args=args, rpc_timeout=_DEADLINE))

    async def signal(self, workflow_id: str, signal: Any, *args: Any) -> None:
        """Send a signal; on return it is stored.

        Raises:
            WorkflowGone: There is no such workflow any more.
        """
        handle = self.client.get_workflow_handle(workflow_id)
        await self.call(lambda: handle.signal(signal, args=args, rpc_timeout=_DEADLINE))

    async def update(self, workflow_id: str, update: Any, *args: Any) -> Any:
        """Send an update and wait for its answer; on return it is stored.

        Raises:
            Refused: By the workflow.
            WorkflowGone: There is no such workflow any more.
        """
        handle = self.client.get_workflow_handle(workflow_id)
        name = uuid.uuid4().hex  # the same when it is sent again, so that it is done once
        return await self.call(lambda: handle.execute_update(update, args=args, id=name, rpc_timeout=_DEADLINE))

    async def update_with_start(self, operation: Callable[[], Any], update: Any, args: Sequence[Any]) -> Any:
        """Send an update to a workflow that is started if it does not run.

        Raises:
            Refused: By the workflow.
        """
        name = uuid.uuid4().hex
        return await self.call(lambda: self.send_update_with_start(operation(), update, args, name))

    async def send_update_with_start(self, started: Any, update: Any, args: Sequence[Any], name: str) -> Any:
        """The same once, in the asyncio thread."""
        try:
            return await self.client.execute_update_with_start_workflow(
                update, args=args, id=name, start_workflow_operation=started, rpc_timeout=_DEADLINE
            )
        except (RPCError, WorkflowUpdateRPCTimeoutOrCancelledError):
            # The operation has the error, too, and asyncio logs one that is never taken from it.
            with suppress(RPCError, anyio.get_cancelled_exc_class()):
                await started.workflow_handle()
            raise

    async def check(self) -> None:
        """See whether the server is there."""
        await self.call(lambda: self.client.service_client.check_health(timeout=_DEADLINE))

    async def call(self, fn: Callable[[], Awaitable[T]], *, patience: float | None = None) -> T:
        """Make a call, again while the server is away.

        Raises:
            EngineUnavailableError: It did not answer for as long as patience lasts.
            WorkflowGone: What was called is not there.
            Refused: By a workflow.
            DurableError: The server refused it.
        """
        until = time.monotonic() + (self._patience if patience is None else patience)
        pause = 0.05
        while True:
            try:
                return await self.thread.call(fn)
            except WorkflowUpdateRPCTimeoutOrCancelledError as error:
                problem: Exception = error
            except WorkflowUpdateFailedError as error:
                cause = error.cause
                kind = getattr(cause, "type", None)
                if kind != _LOST_TASK:
                    raise Refused(kind, getattr(cause, "message", str(cause))) from error
                problem = error
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    raise WorkflowGone(error.message) from error
                if error.status not in _AWAY:
                    raise DurableError(f"the Temporal server {self._name} refused a call: {error.message}") from error
                problem = error
            if time.monotonic() + pause > until:
                raise unavailable(self._name, problem) from problem
            await anyio.sleep(pause)
            pause = min(pause * 2, 2.0)


def unavailable(name: str, error: BaseException) -> EngineUnavailableError:
    """The error about a server that does not answer."""
    return EngineUnavailableError(
        f"the Temporal server {name} does not answer ({str(error).strip() or type(error).__name__}); what was stored before is "
        "kept: check that it runs and can be reached from here, then try again",
        engine=name,
    )
