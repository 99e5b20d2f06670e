"""Responses that take as long as a turn: server-sent events, and the end of the turn when the client leaves."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from amplifier.contracts.cancellation import loop_clock
from amplifier.shared_sessions import ClientLeft, EventLog, LiveRun
from amplifier.shared_sessions.runs import Reader

from .requests import Problem, problem_of

_PING_SECONDS = 15.0
"""Between two signs of life to a client while nothing happens."""

LAST_SECONDS = 1.0
"""For the clients of a run that is cancelled to take its last event."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # a proxy that collected the events would hold them back
]


def event(data: Any, *, name: str | None = None) -> bytes:
    """One server-sent event with JSON, which has no line breaks."""
    text = data.encode() if isinstance(data, str) else orjson.dumps(data, default=str)
    head = "" if name is None else f"event: {name}\n"
    return head.encode() + b"data: " + text + b"\n\n"


def event_number(given: str | None, where: str) -> int:
    """The number of the latest event that a client knows; 0 if it says nothing."""
    if given and not (given.isdecimal() and len(given) < 16):
        raise Problem(
            400,
            f"{where}: expected the number of an event, got {given!r:.80}",
            code="invalid_request",
        )
    return int(given or 0)


def check_cursor(after: int, log: EventLog) -> None:
    """Refuse a client that knows more events than there have been, such as those of another run."""
    if after > log.last_id:
        message = f"{after} events are known to the client, but only {log.last_id} have been sent; begin with 0"
        raise Problem(400, message, code="events_not_sent")


# A scope for each piece would cost more than sending it. So the deadline of sending is that of the
# scope around the whole response, which has one only while something is being sent.


class EventStream:
    """Sends events; the response begins with the first one, so that an error before it has a status of its own.

    Args:
        send: Of the server.
        scope: Around the whole response; it is cancelled if the client does not take what is sent in time.
        seconds: For the client to take what is sent.

    Attributes:
        has_begun: True once something was written, so that the response has its status.
        is_refused: True if the client did not take what was sent.
    """

    def __init__(self, send: Send, scope: anyio.CancelScope, seconds: float) -> None:
        self._send = send
        self._scope = scope
        self._seconds = seconds
        self._clock = loop_clock()
        self._held: list[bytes] = []
        self._is_head_sent = False
        self.has_begun: bool = False
        self.is_refused: bool = False

    async def begin(self) -> None:
        """Send the head of the response, once."""
        self.has_begun = True
        if not self._is_head_sent:
            self._is_head_sent = True
            await self._bounded(
                {"type": "http.response.start", "status": 200, "headers": list(_HEADERS)}
            )

    def hold(self, data: bytes) -> None:
        """Keep events for the next write."""
        self.has_begun = True
        self._held.append(data)

    async def write(self, data: bytes = b"") -> None:
        """Send events, after those that are held, in one piece; waits while the client is slow.

        Raises:
            ClientLeft: It has closed the connection.
        """
        if self._held:
            held, self._held = self._held, []
            data = b"".join((*held, data))
        if data:
            await self.begin()
            await self._bounded({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the response."""
        data, self._held = b"".join(self._held), []
        await self.begin()
        await self._bounded({"type": "http.response.body", "body": data, "more_body": False})

    async def _bounded(self, message: dict[str, Any]) -> None:
        self._scope.deadline = self._clock() + self._seconds
        try:
            await self._send(message)
        except OSError:
            self.is_refused = True
            raise ClientLeft from None
        except anyio.get_cancelled_exc_class():
            self.is_refused = self._clock() >= self._scope.deadline
            raise
        finally:
            self._scope.deadline = math.inf


class LongResponse(Response):
    """Runs work for as long as the client stays; a client that leaves cancels it.

    Args:
        work: Gets the stream to write to, or returns a response if it has written nothing.
        seconds: For the client to take what is sent.
    """

    def __init__(
        self, work: Callable[[EventStream], Awaitable[Response | None]], seconds: float
    ) -> None:
        super().__init__()
        self._work = work
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the work beside a task that waits for the client to leave."""
        answer: Response | None = None
        has_left = has_ended = False
        async with anyio.create_task_group() as group:
            stream = EventStream(send, group.cancel_scope, self._seconds)

            async def watch() -> None:
                nonlocal has_left
                while (await receive())["type"] != "http.disconnect":
                    pass
                has_left = True
                group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                answer = await self._work(stream)
            except ClientLeft:
                has_left = True
            except Exception as error:  # noqa: BLE001  # here, because the group would wrap it; a session runs third-party code
                answer = problem_of(error).response()
            if stream.has_begun and not has_left:
                with suppress(ClientLeft):
                    await stream.end()
            has_ended = True
            group.cancel_scope.cancel()
        if has_ended and not has_left and not stream.has_begun and answer is not None:
            await answer(scope, receive, send)


async def send_all(reader: Reader, stream: EventStream, form: bytes) -> None:
    """Send the events of a log until its end, each with its number in this form."""
    while True:
        news: list[tuple[int, bytes]] | None = None
        if (news := reader.next_nowait()) is None:
            with anyio.move_on_after(_PING_SECONDS if stream.has_begun else None):
                news = await reader.next()
        if news is not None and not news:
            return
        await stream.write(
            b": still here\n\n" if news is None else b"".join(form % each for each in news)
        )


async def follow_run(run: LiveRun[Any], after: int, stream: EventStream | None) -> None:
    """Send the events of a run until it is over; one that ends with its client is cancelled if the client leaves.

    Without a stream it only waits for the end.

    Raises:
        Problem: Events after this number are not kept any more, or it is none of them.
        Exception: What the run raised, unless its client has got something already.
    """
    check_cursor(after, run.log)
    if after < run.log.first_id - 1:
        message = (
            f"the events after {after} are not kept any more; the first one is {run.log.first_id}"
        )
        raise Problem(410, message, code="events_gone")
    try:
        if stream is None:
            await run.over.wait()
        else:
            with run.log.reading(after) as reader:
                await send_all(reader, stream, b"id: %d\n%s")
    finally:
        if stream is not None and stream.is_refused:
            run.is_refused = True
        if run.stays == 0 and not run.over.is_set():
            await run.cancel()
    if run.error is not None and (stream is None or not run.has_begun):
        raise run.error
    if stream is not None:
        await stream.begin()
