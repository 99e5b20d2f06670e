"""Responses that last as long as a turn, as server-sent events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio
import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from amplifier._internal.json import JSON
from amplifier.contracts.cancellation import loop_clock
from amplifier.shared_sessions import ClientLeft, EventLog, LiveRun
from amplifier.shared_sessions.runs import Reader

from .requests import Problem, problem_of

_PING_SECONDS = 15.0
"""Seconds between two signs of life for the client while nothing happens."""

_PING = b": still here\n\n"

_MAX_HELD = 64 * 1024
"""Maximum number of bytes of events that are held before they must be written."""

LAST_SECONDS = 1.0
"""Seconds in which the clients of a cancelled run have to accept its last event."""

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    # Without this header a proxy may collect the events and hold them back.
    (b"x-accel-buffering", b"no"),
]


def event(data: object, *, name: str | None = None) -> bytes:
    """Return a server-sent event with JSON, which has no line breaks."""
    text = data.encode() if isinstance(data, str) else orjson.dumps(data, default=str)
    head = "" if name is None else f"event: {name}\n"
    return head.encode() + b"data: " + text + b"\n\n"


def event_number(text: str | None, where: str) -> int:
    """Read the number of the latest event that a client has received. It is 0 if none is sent."""
    if text and not (text.isdecimal() and len(text) < 16):
        raise Problem(
            400,
            f"{where}: expected the number of an event, got {text!r:.80}",
            code="invalid_request",
        )
    return int(text or 0)


def check_cursor(after: int, log: EventLog) -> None:
    """Refuse a client that claims more events than were sent, perhaps by another run."""
    if after > log.last_id:
        message = (
            f"{after} events are known to the client, but only {log.last_id} have been sent; begin "
            "with 0"
        )
        raise Problem(400, message, code="events_not_sent")


# Arming a deadline for each piece would cost as much as handing the piece to the server. So a write
# only records its start. The task that waits for the client to disconnect checks whether the write
# has taken too long. So no write is interrupted early. The same task sends the signs of life, so a
# write may have to wait for one of these.


class EventStream:
    """Sends events. The response starts with the first event, so earlier errors can set the status.

    Args:
        send: The send function of the server.

    Attributes:
        has_begun: True once something has been written, so that the status is fixed.
        is_refused: True if the client didn't accept the events.
        sending_since: The start of the current write, on the event loop's clock. None while nothing
            is written.
    """

    def __init__(self, send: Send) -> None:
        self._send = send
        self._clock = loop_clock()
        self._held: list[bytes] = []
        self._is_head_sent = False
        self.has_begun: bool = False
        self.is_refused: bool = False
        self.sending_since: float | None = None
        self._sent_at = self._clock()
        self._sent: anyio.Event | None = None

    async def begin(self) -> None:
        """Send the head of the response, once."""
        await self._wait_sent()
        await self._send_head()

    async def _wait_sent(self) -> None:
        """Wait until the other task has written."""
        while self.sending_since is not None:
            self._sent = self._sent or anyio.Event()
            await self._sent.wait()

    async def _send_head(self) -> None:
        self.has_begun = True
        if not self._is_head_sent:
            self._is_head_sent = True
            await self._pass_on(
                {"type": "http.response.start", "status": 200, "headers": list(_HEADERS)}
            )

    def hold(self, data: bytes) -> None:
        """Keep events for the next write."""
        self.has_begun = True
        self._held.append(data)

    async def write(self, data: bytes = b"") -> None:
        """Send the held events and these events in one piece. Wait for a slow client.

        Raises:
            ClientLeft: The client has closed the connection.
        """
        if self.sending_since is not None:
            await self._wait_sent()
        if self._held:
            held, self._held = self._held, []
            data = b"".join((*held, data))
        if data:
            await self._send_head()
            await self._pass_on({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self) -> None:
        """End the response."""
        await self._wait_sent()
        data, self._held = b"".join(self._held), []
        await self._send_head()
        await self._pass_on({"type": "http.response.body", "body": data, "more_body": False})

    async def _pass_on(self, message: dict[str, JSON]) -> None:
        self.sending_since = self._clock()
        try:
            await self._send(message)
        except OSError:
            self.is_refused = True
            raise ClientLeft from None
        finally:
            self.sending_since, self._sent_at = None, self._clock()
            if self._sent is not None:
                sent, self._sent = self._sent, None
                sent.set()

    def next_look(self, seconds: float) -> float:
        """Return the time at which the write will have taken ``seconds``. It may be in the past."""
        return (self._clock() if self.sending_since is None else self.sending_since) + seconds

    def next_ping(self) -> float:
        """Return the time of the next sign of life, if nothing is written before."""
        if not self.has_begun or self.sending_since is not None:
            return self._clock() + _PING_SECONDS
        return self._sent_at + _PING_SECONDS


class NumberedEvents:
    """The events of a run that ends with its response, each with its number.

    This class has the members of `LiveRun` that serve to write a run. No client can return to the
    run, so no events are kept.

    Args:
        stream: The response.
    """

    def __init__(self, stream: EventStream) -> None:
        self._stream = stream
        self._count = self._held = 0

    @property
    def has_begun(self) -> bool:
        """True once anything has been written."""
        return self._count > 0

    @property
    def has_lost_client(self) -> bool:
        """True if the client did not accept the sent data."""
        return self._stream.is_refused

    @property
    def is_full(self) -> bool:
        """True if so much was added since the latest write that it must be written."""
        return self._held >= _MAX_HELD

    def add(self, data: bytes) -> None:
        """Add an event without waiting. `flush` must follow the last event that is ready."""
        self._count += 1
        self._held += len(data)
        self._stream.hold(b"id: %d\n%s" % (self._count, data))

    async def flush(self) -> None:
        """Write the added data.

        Raises:
            ClientLeft: The client has closed the connection.
        """
        self._held = 0
        await self._stream.write()

    wait_taken = flush

    async def write(self, data: bytes) -> None:
        """Add an event and write it."""
        self.add(data)
        await self.flush()


class LongResponse(Response):
    """Runs work for as long as the client stays. A client that disconnects cancels it.

    Args:
        work: Writes to a stream, or returns a response if it has written nothing.
        seconds: Seconds in which the client has to accept the events.
    """

    def __init__(
        self, work: Callable[[EventStream], Awaitable[Response | None]], seconds: float
    ) -> None:
        super().__init__()
        self._work = work
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the work, and a task that waits for the client to disconnect."""
        answer: Response | None = None
        has_left = has_ended = False
        stream = EventStream(send)
        async with anyio.create_task_group() as group:

            async def watch() -> None:
                nonlocal has_left
                has_left = await self._wait_left(receive, stream)
                group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                answer = await self._work(stream)
            except ClientLeft:
                has_left = True
            except Exception as error:  # noqa: BLE001 — a session runs third-party code
                # The error is handled here, since the task group would wrap it.
                answer = problem_of(error).response()
            if stream.has_begun and not has_left:
                with suppress(ClientLeft):
                    await stream.end()
            has_ended = True
            group.cancel_scope.cancel()
        if has_ended and not has_left and not stream.has_begun and answer is not None:
            await answer(scope, receive, send)

    async def _wait_left(self, receive: Receive, stream: EventStream) -> bool:
        """Wait until the client disconnects, or takes too long for a write.

        While nothing is written, the client gets signs of life.

        Returns:
            True if the client has disconnected.
        """
        while (until := stream.next_look(self._seconds)) > anyio.current_time():
            ping_at = stream.next_ping()
            with anyio.CancelScope(deadline=min(until, ping_at)):
                while (await receive())["type"] != "http.disconnect":
                    pass
                return True
            if stream.next_ping() <= anyio.current_time():
                with anyio.CancelScope(deadline=anyio.current_time() + self._seconds) as limit:
                    try:
                        await stream.write(_PING)
                    except ClientLeft:
                        return True
                if limit.cancelled_caught:
                    break
        stream.is_refused = True
        return False


async def send_all(reader: Reader, stream: EventStream, form: bytes) -> None:
    """Send the events of a log until its end, each with its number in this form."""
    while news := reader.next_nowait() or await reader.next():
        await stream.write(b"".join(form % entry for entry in news))


async def follow_run(run: LiveRun[Any], after: int, stream: EventStream | None) -> None:
    """Send the events of a run until it ends. Without a stream, only wait for the end.

    A run that ends with its client is cancelled if the client disconnects.

    Raises:
        Problem: The events after this number are no longer kept, or there is no event of this
            number.
        Exception: The run failed before its client received anything.
    """
    check_cursor(after, run.log)
    if after < run.log.first_id - 1:
        message = (
            f"the events after {after} are no longer kept; the first one is {run.log.first_id}"
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
