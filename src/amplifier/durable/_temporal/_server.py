"""Calls of a Temporal server: made in the asyncio thread, each with a deadline, and again while the server is away."""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, TypeVar

import anyio
from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.service import RPCError, RPCStatusCode

from .._errors import DurableError, EngineUnavailableError
from ._asyncio_thread import AsyncioThread

T = TypeVar("T")

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
