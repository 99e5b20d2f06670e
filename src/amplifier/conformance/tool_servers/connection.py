"""One connection to a server: its list of tools, its answers, and the end of its process."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, Self

import anyio
import attrs
import httpx2
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolResult,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCResponse,
    Tool,
    ToolListChangedNotification,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from amplifier._internal.message_lines import LineSplitter, LineTooLong, read_chunk, write_all
from amplifier._internal.processes import HAS_PROC, descendants, read_proc
from amplifier.modules.tools.mcp import ProcessTree, ServiceProcess

from .subject import Subject, SubjectProblem

OPENING_SECONDS = 120.0
"""Seconds for the opening. A package runner may have to download the server first."""
ENDING_SECONDS = 10.0
MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_MAX_PAGES = 100
_MAX_WAITING = 1024
_MAX_STDERR = 4096
_MAX_429_SECONDS = 60.0
_DYING_SECONDS = 5.0
_MAX_429_TRIES = 10

# Folders in which package runners and interpreters keep downloaded or compiled copies.
_CACHES = frozenset(
    {".npm", ".cache", "__pycache__", ".local", ".config", ".node-gyp", ".bun", ".deno"}
)

ReplyKind = Literal["result", "error", "refused", "invalid", "late", "lost"]


@attrs.frozen(kw_only=True)
class Reply:
    """The outcome of one call.

    Attributes:
        kind: ``result`` for success, ``error`` for a result with isError, ``refused`` for an error
            of the protocol, ``invalid`` for an answer that breaks the protocol, ``late`` for none
            in time, ``lost`` for a connection that ended.
        text: The texts of the answer, or the message of the error.
        value: The content and the structured content, as JSON.
        structured: The structured content, or None.
        raised: The exception that a Python object raised, and its line, or None.
        seconds: The time from the call to the answer.
    """

    kind: ReplyKind
    text: str = ""
    value: object = None
    structured: Any = None
    raised: dict[str, Any] | None = None
    seconds: float = 0.0

    @property
    def is_answer(self) -> bool:
        """True if the server answered as the protocol demands."""
        return self.kind in ("result", "error", "refused")

    @property
    def is_failure(self) -> bool:
        """True if the server reported a failure."""
        return self.kind in ("error", "refused")

    @property
    def key(self) -> str:
        """A text that is equal for equal answers."""
        return json.dumps(
            [self.kind, self.value if self.value is not None else self.text],
            sort_keys=True,
            default=repr,
        )

    def __str__(self) -> str:
        text = " ".join(self.text.split())[:150]
        if self.kind == "late":
            return f"gave no answer within {self.seconds:.0f} s"
        if self.kind == "lost":
            return f"ended the connection ({text})"
        if self.kind == "invalid":
            return f"sent an invalid answer: {text}"
        return f"{'succeeded with' if self.kind == 'result' else 'failed with'} {text!r}"


@attrs.frozen
class Usage:
    """Open files, threads, processes and kilobytes of memory of a server's processes."""

    files: int
    threads: int
    processes: int
    memory: int


@attrs.define
class Ending:
    """The end of a program after the last byte of its standard input.

    Attributes:
        seconds: The time until it ended, or None if it didn't end in time.
        left: The command lines of processes that were still running.
    """

    seconds: float | None = None
    left: list[str] = attrs.field(factory=list)


class Link:
    """An open connection.

    Attributes:
        name: The server's name and version as it states them.
        tools: Its list of tools as it was sent.
        printed: Lines on standard output that weren't messages.
        has_changed: True if the server announced that its list has changed.
        late_results: For each result that came after its call was cancelled, the seconds since
            then, and how many lists of tools were read in between.
        gave_up: The reason why the server gets no further calls, or an empty text.
        ending: The end of the program, or None.
    """

    def __init__(self, subject: Subject, folder: Path, rate: float | None) -> None:
        self.subject = subject
        self.folder = folder
        self.name: str = ""
        self.tools: list[dict[str, Any]] = []
        self.printed: list[str] = []
        self.has_changed: bool = False
        self.late_results: list[tuple[float, int]] = []
        self.gave_up = ""
        self.ending: Ending | None = None
        self.is_lost: bool = False
        self.process: ServiceProcess | None = None
        self.stderr = b""
        self._rate = rate
        self._calls_at: deque[float] = deque()
        self._deadlines: set[anyio.CancelScope] = set()
        self._raw: list[object] = []
        self._cancelled: dict[object, tuple[float, int]] = {}
        self._lists = 0
        self._client: Client | None = None

    # ── messages ──

    def _note_received(self, item: object) -> object:
        message = item.message if isinstance(item, SessionMessage) else None
        if isinstance(message, JSONRPCResponse | JSONRPCError) and message.id in self._cancelled:
            cancelled, lists = self._cancelled.pop(message.id)
            if isinstance(message, JSONRPCResponse):
                self.late_results.append((time.monotonic() - cancelled, self._lists - lists))
        if isinstance(message, JSONRPCResponse) and isinstance(
            tools := message.result.get("tools"), list
        ):
            self._raw += json.loads(json.dumps(tools))
            # The SDK refuses a list with one invalid tool as a whole, and checks results itself.
            message.result["tools"] = [
                {key: member for key, member in tool.items() if key != "outputSchema"}
                for tool in tools
                if _can_be_read(tool)
            ]
        return item

    def _note_sent(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._cancelled[(message.params or {}).get("requestId")] = time.monotonic(), self._lists

    async def _take_notice(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.has_changed = True

    async def read_tools(self) -> list[dict[str, Any]]:
        """Read the current list of tools."""
        assert self._client is not None
        self._raw = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await self._client.list_tools(cursor=cursor, cache_mode="refresh")
            cursor = page.next_cursor
            if cursor is None:
                break
        self._lists += 1
        return [
            tool if isinstance(tool, dict) else {"name": "", "invalid": tool} for tool in self._raw
        ]

    async def start(self, client: Client) -> None:
        """Start using a client that was entered."""
        self._client = client
        info = client.server_info
        self.name = "unnamed server" if info is None else f"{info.name} {info.version}".strip()
        has_tools = client.server_capabilities.tools is not None
        self.tools = await self.read_tools() if has_tools else []

    # ── calls ──

    async def call(self, tool: str, arguments: dict[str, Any], seconds: float) -> Reply:
        """Call a tool and return its reply."""
        assert self._client is not None
        await self._pace()
        started = time.monotonic()
        kind: ReplyKind = "lost"
        text = ""
        try:
            with self._deadline(seconds):
                result = await self._client.session.call_tool(
                    tool, arguments, allow_input_required=True
                )
            taken = time.monotonic() - started
            if isinstance(result, CallToolResult):
                return self._reply_of(result, taken)
            # The server asks for input, which is declined, so the call ends here.
            return Reply(
                kind="refused", text="it asked for input, which was declined", seconds=taken
            )
        except TimeoutError:
            kind, text = "late", "no answer"
        except MCPError as error:
            kind, text = ("lost" if error.code == CONNECTION_CLOSED else "refused"), error.message
        except (ValidationError, RuntimeError, ValueError) as error:
            kind, text = "invalid", str(error)
        except (
            httpx2.HTTPError,
            OSError,
            anyio.ClosedResourceError,
            anyio.BrokenResourceError,
        ) as error:
            text = f"{type(error).__name__}: {error}"
        self.is_lost = self.is_lost or kind == "lost"
        if kind == "lost" and self.process is not None:
            # The output ends a moment before the program does.
            with anyio.move_on_after(_DYING_SECONDS):
                await self.process.wait_for_death()
            text = self.how_it_ended() or text
        return Reply(
            kind=kind, text=self.subject.without_secrets(text), seconds=time.monotonic() - started
        )

    def _reply_of(self, result: CallToolResult, seconds: float) -> Reply:
        content = [
            block.model_dump(mode="json", by_alias=True, exclude_none=True)
            for block in result.content
        ]
        texts = [block["text"] for block in content if isinstance(block.get("text"), str)]
        meta = result.meta if isinstance(result.meta, dict) else {}
        raised = meta.get("amplifier/raised")
        return Reply(
            kind="error" if result.is_error else "result",
            text=self.subject.without_secrets("\n".join(texts)),
            value=[content, result.structured_content],
            structured=result.structured_content,
            raised=raised if isinstance(raised, dict) else None,
            seconds=seconds,
        )

    async def call_cancelled(
        self, tool: str, arguments: dict[str, Any], after: float, seconds: float
    ) -> Reply | None:
        """Call a tool and cancel the call. Return its reply if that came first."""
        with anyio.move_on_after(after):
            return await self.call(tool, arguments, seconds)
        return None

    async def _pace(self) -> None:
        """Wait until another call is due, so that the rate isn't exceeded."""
        if self._rate is None:
            return
        count = max(1, int(self._rate))
        now = anyio.current_time()
        due = (
            now if len(self._calls_at) < count else max(now, self._calls_at[0] + count / self._rate)
        )
        self._calls_at.append(due)
        if len(self._calls_at) > count:
            self._calls_at.popleft()
        await anyio.sleep(due - now)

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        with anyio.fail_after(seconds) as scope:
            self._deadlines.add(scope)
            try:
                yield
            finally:
                self._deadlines.discard(scope)

    def postpone(self, seconds: float) -> None:
        """Give the running calls more time, because the server asked for a pause."""
        for scope in self._deadlines:
            scope.deadline += seconds

    # ── the program ──

    def files(self) -> dict[str, bytes | None]:
        """Return the contents of the files below the fresh folder by name."""
        contents: dict[str, bytes | None] = {}
        for directory, names, files in os.walk(self.folder):
            names[:] = [name for name in names if name not in _CACHES]
            for name in files:
                path = Path(directory, name)
                if path.suffix != ".log":
                    with suppress(OSError):
                        contents[str(path.relative_to(self.folder))] = path.read_bytes()
        return contents

    def usage(self) -> Usage | None:
        """Measure the processes of the program. Return None where that isn't possible."""
        if self.process is None or not HAS_PROC:
            return None
        # The program runs below a supervisor, which doesn't count.
        below = [child for child in descendants(self.process.process.pid) if child.is_alive]
        pids = [child.pid for child in below] or [self.process.process.pid]
        status = [read_proc(f"/proc/{pid}/status", 4096).decode("ascii", "replace") for pid in pids]
        return Usage(
            files=sum(map(_count_files, pids)),
            threads=sum(_number(text, "Threads") for text in status),
            processes=len(pids),
            memory=sum(_number(text, "VmRSS") for text in status),
        )

    def how_it_ended(self) -> str:
        """Describe the end of the program. Return an empty text for a URL or while it runs."""
        if self.process is None or not self.process.has_ended():
            return ""
        lines = self.stderr.decode("utf-8", "backslashreplace").strip().splitlines()[-3:]
        tail = f"; its last lines on standard error: {' | '.join(lines)}" if lines else ""
        return self.subject.without_secrets(f"it {self.process.how_it_ended()}{tail}")


def _can_be_read(tool: object) -> bool:
    try:
        parsed = Tool.model_validate(tool, by_name=False)
    except ValidationError:
        return False
    return parsed.input_schema.get("type") == "object"


def _count_files(pid: int) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return 0


def _number(text: str, name: str) -> int:
    match = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0


# ── opening ──


@asynccontextmanager
async def open_link(
    subject: Subject, folder: Path, *, rate: float | None = None
) -> AsyncIterator[Link]:
    """Open a connection and read the list of tools.

    Args:
        subject: The server.
        folder: A fresh folder, with ``work`` and ``home`` in it.
        rate: The maximum number of calls in a second, or None for no limit.

    Raises:
        SubjectProblem: The server can't be used. The text gives the reason.
    """
    # Some older servers end at a first message that is unknown to them.
    # Some older servers end at a first message that they do not know.
    modes = (
        ("auto", "legacy")
        if subject.kind == "command"
        else ("legacy",)
        if subject.kind == "python"
        else ("auto",)
    )
    for mode in modes:
        link = Link(subject, folder, rate)
        opened = False
        try:
            async with _transport(link) as streams, _entered(link, streams, mode):
                opened = True
                yield link
        except Exception as error:
            if opened:
                raise
            if mode == modes[-1]:
                raise _problem(link, error) from error
        else:
            return


@asynccontextmanager
async def _entered(link: Link, streams: tuple[Any, Any], mode: Any) -> AsyncIterator[None]:
    client = Client(
        _Streams(link, streams), mode=mode, message_handler=link._take_notice, cache=None
    )
    with anyio.CancelScope(deadline=anyio.current_time() + OPENING_SECONDS) as scope:
        async with client:
            await link.start(client)
            scope.deadline = float("inf")
            yield
    if scope.cancelled_caught:
        raise TimeoutError(f"it did not answer within {OPENING_SECONDS:.0f} s")


def _problem(link: Link, error: BaseException) -> SubjectProblem:
    while isinstance(error, BaseExceptionGroup) and error.exceptions:
        error = error.exceptions[0]
    if isinstance(error, SubjectProblem):
        return error
    ended = link.how_it_ended()
    reason = ended or link.subject.without_secrets(
        f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    )
    printed = f"; it printed {link.printed[0]!r}, which is not a message" if link.printed else ""
    noun = "Python object" if link.subject.kind == "python" else "MCP server"
    return SubjectProblem(
        f"{link.subject.shown} cannot be used as an {noun}: {reason}{printed}".replace(
            "an Py", "a Py"
        )
    )


class _Streams:
    """The streams of a transport for the SDK's client, which record what they pass on."""

    def __init__(self, link: Link, streams: tuple[Any, Any]) -> None:
        self._pair = (
            _Tapped(streams[0], received=link._note_received),
            _Tapped(streams[1], sent=link._note_sent),
        )

    async def __aenter__(self) -> tuple[Any, Any]:
        return self._pair

    async def __aexit__(self, *error: object) -> None:
        return None


class _Tapped:
    """A stream of messages. Its other members are those of the stream below."""

    def __init__(
        self,
        stream: Any,
        *,
        received: Callable[[object], object] = lambda item: item,
        sent: Callable[[Any], None] = lambda item: None,
    ) -> None:
        self._stream, self._received, self._sent = stream, received, sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> object:
        return self._received(await self._stream.__anext__())

    async def send(self, item: Any) -> None:
        self._sent(item)
        await self._stream.send(item)


def _transport(link: Link) -> Any:
    return _remote(link) if link.subject.kind == "url" else _program(link)


# ── a program ──


@asynccontextmanager
async def _program(link: Link) -> AsyncIterator[tuple[Any, Any]]:
    """Start the program. On exit, close its input, wait for its end, and end the rest."""
    process = link.process = _start(link)
    try:
        try:
            await process.wait_until_running()
        except OSError as error:
            raise SubjectProblem(
                f"{link.subject.shown} cannot be started: {error.strerror or error}"
            ) from None
        inbox, received = anyio.create_memory_object_stream[Any](_MAX_WAITING)
        outbox, to_send = anyio.create_memory_object_stream[Any](_MAX_WAITING)
        with inbox, received, outbox, to_send:
            async with anyio.create_task_group() as group:
                group.start_soon(_read, link, process, inbox)
                group.start_soon(_write, process, to_send)
                group.start_soon(_read_errors, link, process)
                yield received, outbox
                link.ending = await _see_end(process)
                group.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await process.end(0.0)


def _start(link: Link) -> ServiceProcess:
    program, *arguments = link.subject.words()
    environment = link.subject.environment(link.folder / "home")
    work = link.folder / "work"
    if os.sep in program:
        path: str | None = str(link.subject.folder / program)
    else:
        path = shutil.which(program, path=environment["PATH"])
    if path is None or not os.access(path, os.X_OK):
        raise SubjectProblem(
            f"the program {program!r} was not found; install it, or name it with its path"
        )
    # The program runs in a fresh folder, but its files are relative to the user's.
    absolute = [_from_here(word, link.subject.folder) for word in arguments]
    words = [word.replace("{directory}", str(work)) for word in absolute]
    try:
        return ServiceProcess([path, *words], directory=str(work), environment=environment)
    except OSError as error:
        raise SubjectProblem(
            f"{link.subject.shown} cannot be started: {error.strerror or error}"
        ) from None


def _from_here(word: str, folder: Path) -> str:
    """Return an argument. The name of an existing file becomes its absolute path."""
    if word.startswith(("-", "/", "@", "{")) or word in (".", ".."):
        return word
    return str(folder / word) if (folder / word).is_file() else word


async def _see_end(process: ServiceProcess) -> Ending:
    ending = Ending()
    tree = ProcessTree(process.process, process.group)
    with suppress(OSError):
        if process.process.stdin is not None:
            process.process.stdin.close()
    started = time.monotonic()
    with anyio.move_on_after(ENDING_SECONDS):
        await process.wait_for_death()
        ending.seconds = time.monotonic() - started
    if ending.seconds is not None:
        for _ in range(30):
            if not tree.members():
                return ending
            await anyio.sleep(0.1)
        ending.left = [_command_line(pid) for pid in tree.members()]
    return ending


def _command_line(pid: int) -> str:
    words = read_proc(f"/proc/{pid}/cmdline", 4096).split(b"\0")
    return (
        " ".join(word.decode("utf-8", "backslashreplace") for word in words if word)[:120]
        or f"process {pid}"
    )


async def _read(link: Link, process: ServiceProcess, inbox: Any) -> None:
    lines = LineSplitter(MAX_MESSAGE_BYTES)
    with inbox, suppress(anyio.ClosedResourceError, LineTooLong):
        while chunk := await read_chunk(process.stdout):
            for message in _messages(link, lines.feed(chunk)):
                # After the client has left, the rest is read and discarded.
                with suppress(anyio.BrokenResourceError):
                    await inbox.send(message)


def _messages(link: Link, lines: list[bytes]) -> Iterator[SessionMessage]:
    for line in lines:
        if not line.strip():
            continue
        try:
            yield SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
        except ValueError:
            text = line[:200].decode("utf-8", "backslashreplace").strip()
            link.printed.append(link.subject.without_secrets(text))


async def _write(process: ServiceProcess, to_send: Any) -> None:
    async for message in to_send:
        text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
        with suppress(OSError, ValueError):
            await write_all(process.stdin, text.encode("utf-8", "surrogatepass") + b"\n")


async def _read_errors(link: Link, process: ServiceProcess) -> None:
    while data := await read_chunk(process.stderr):
        link.stderr = (link.stderr + data)[-_MAX_STDERR:]


# ── a URL ──


@asynccontextmanager
async def _remote(link: Link) -> AsyncIterator[tuple[Any, Any]]:
    timeout = httpx2.Timeout(30.0, read=None)
    async with (
        httpx2.AsyncClient(
            headers=link.subject.sent_headers(),
            timeout=timeout,
            auth=link.subject.auth() if link.subject.auth is not None else None,
            transport=_PatientTransport(httpx2.AsyncHTTPTransport(), link),
        ) as client,
        streamable_http_client(
            link.subject.target, http_client=client, max_sse_event_size=MAX_MESSAGE_BYTES
        ) as streams,
    ):
        yield streams


class _PatientTransport(httpx2.AsyncBaseTransport):
    """Sends a request again after an answer that there were too many.

    A server that never stops answering so is left alone after some tries, and the examination ends.
    """

    def __init__(self, inner: httpx2.AsyncBaseTransport, link: Link) -> None:
        self._inner, self._link = inner, link

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        delay = 1.0
        tries = 0
        while True:
            response = await self._inner.handle_async_request(request)
            # Only calls are worth the wait, unlike the SDK's other requests.
            if response.status_code != 429 or request.method != "POST":
                return response
            tries += 1
            if tries == _MAX_429_TRIES:
                self._link.gave_up = (
                    f"the server answered HTTP 429 to {tries} tries; lower --rate or --max-calls"
                )
                self._link.is_lost = True
                return response
            wanted = response.headers.get("Retry-After", "")
            seconds = min(float(wanted) if wanted.isdecimal() else delay, _MAX_429_SECONDS)
            await response.aclose()
            self._link.postpone(seconds)
            await anyio.sleep(seconds)
            delay = min(delay * 2, _MAX_429_SECONDS)

    async def aclose(self) -> None:
        await self._inner.aclose()
