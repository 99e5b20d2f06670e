"""The methods of the Agent Client Protocol, version 1, and their parameters as classes."""

from __future__ import annotations

import importlib.metadata
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
import anyio.to_thread
import attrs

from amplifier._internal.json import JSON, redact_text
from amplifier._internal.reading import (
    Kind,
    any_text,
    list_each,
    list_of,
    mapping,
    option,
    optional,
    record,
    secret,
    whole_number,
)
from amplifier.contracts import Step
from amplifier.errors import ContentFilterError, PlanError, SessionBusyError, SessionStateError
from amplifier.models import TurnEvent
from amplifier.models import prompts as models
from amplifier.models.turns import Ended, TurnRecord
from amplifier.modules.hooks.approval import MODES
from amplifier.plan import validate_session_id
from amplifier.shared_sessions import LiveSession, LiveSessions, LiveTurn, SessionRefused
from amplifier.store import RUNNING, SessionIndex, SessionRecord

from ..sessions import (
    SessionCheck,
    SessionFactory,
    SessionRequest,
    describe_session,
    expanded,
    require_provider,
)
from ._connection import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    SESSION_NOT_FOUND,
    ByteStream,
    Call,
    Connection,
    RpcError,
    Work,
)
from ._updates import EditorFiles, Updates, editor_questions

logger: logging.Logger = logging.getLogger("amplifier.servers.acp")

PROTOCOL_VERSION: Final = 1

_SET_RULES: Final = "approval.set_rules"
_LISTING_SECONDS = 3.0
_PAGE = 50
"""Maximum number of sessions in one answer to ``session/list``."""


async def serve(
    stream: ByteStream,
    make_session: SessionFactory,
    *,
    storage: SessionIndex | None = None,
    check: SessionCheck = require_provider,
    commands: Callable[[Path], dict[str, str]] = lambda directory: {},
    has_mcp: bool = False,
) -> OSError | None:
    """Serve one client until it closes the connection.

    When this returns, every turn has unwound and every session is closed.

    Args:
        stream: The bytes from and to the client.
        make_session: Makes a session that isn't opened yet, in the directory of the request. If it
            raises an exception, the client gets the text.
        storage: The index of stored conversations, to list, load and delete them.
        check: Raises if a session that has just been opened can't be used. By default, a session
            without a provider is refused.
        commands: Reads the user's commands in a directory, as texts by name.
        has_mcp: True if sessions can use MCP servers of the client.

    Returns:
        The error from writing, if the client stopped reading before it closed the connection.
    """
    connection, sessions = Connection(stream), LiveSessions[_Shown]()
    # The tasks of the connection and of the sessions end after the requests.
    async with connection.writing(), sessions.running():
        agent = _Agent(connection, sessions, make_session, storage, check, commands, has_mcp)
        await connection.read(agent.begin)
    return connection.lost


@attrs.define
class _Shown:
    """The state of a session on this connection.

    Attributes:
        updates: Shows the session to the client.
        notes: Notes for the user, shown with the first turn.
        commands: The texts of the user's commands by name.
        mode: The chosen mode.
        models: The models to choose from. The first is the plan's.
        model: The chosen model, or None for the plan's.
    """

    updates: Updates
    notes: list[str]
    commands: dict[str, str]
    mode: str = "ask"
    models: list[str] = attrs.field(factory=list)
    model: str | None = None

    async def choose_model(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """Run a step with the chosen model. This method is a step wrapper."""
        if step.kind == "model" and self.model is not None:
            step.arguments.model = self.model
        return await run()


@attrs.define(eq=False)
class _Agent:
    """The agent's side of a connection."""

    _connection: Connection
    _sessions: LiveSessions[_Shown]
    _make: SessionFactory
    _storage: SessionIndex | None
    _check: SessionCheck
    _commands: Callable[[Path], dict[str, str]]
    _has_mcp: bool
    _is_initialized: bool = attrs.field(default=False, init=False)
    _files: frozenset[str] = attrs.field(default=frozenset(), init=False)

    @property
    def _methods(self) -> dict[str, Callable[[dict[str, JSON]], Work]]:
        return {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._new,
            "session/load": lambda params: self._reopen(params, replay=True),
            "session/resume": lambda params: self._reopen(params, replay=False),
            "session/list": self._list,
            "session/set_mode": lambda params: self._choose(params, "mode", "modeId"),
            "session/set_config_option": lambda params: self._choose(
                params, params.get("configId"), "value"
            ),
            "session/prompt": self._prompt,
            "session/close": self._close,
            "session/delete": self._delete,
            # The protocol has no such method. Names of vendors' methods begin like this.
            "_amplifier/steer": self._steer,
        }

    def begin(self, call: Call) -> Work | None:
        """Start a request, or handle a notification."""
        if not call.is_request:
            if call.method == "session/cancel":
                self._cancel(call.params)
            # JSON-RPC ignores unknown notifications.
            return None
        method = self._methods.get(call.method)
        if method is None:
            known = ", ".join(self._methods)
            raise RpcError(
                METHOD_NOT_FOUND, f"unknown method {call.method!r:.80}; there are: {known}"
            )
        if not self._is_initialized and call.method != "initialize":
            raise RpcError(
                INVALID_REQUEST,
                f"{call.method} came before initialize, which has to be the first request",
            )
        return method(call.params)

    # ── the connection ──

    def _initialize(self, params: dict[str, JSON]) -> Work:
        self._files = read_params(Greeting, params).files
        self._is_initialized = True
        return _answer(
            {
                # A client that doesn't support this version closes the connection.
                "protocolVersion": PROTOCOL_VERSION,
                "agentInfo": {
                    "name": "amplifier",
                    "version": importlib.metadata.version("amplifier"),
                },
                "agentCapabilities": {
                    "loadSession": True,
                    "promptCapabilities": {"image": True, "audio": False, "embeddedContext": True},
                    "mcpCapabilities": {"http": self._has_mcp, "sse": False},
                    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
                },
                "authMethods": [],
            }
        )

    def _authenticate(self, params: dict[str, JSON]) -> Work:
        raise RpcError(
            INVALID_PARAMS,
            "methodId: this agent has no methods to authenticate with; the keys of providers come "
            "from the environment; `amplifier doctor` shows which are missing",
        )

    # ── sessions ──

    def _new(self, params: dict[str, JSON]) -> Work:
        opening = read_params(Opening, params)

        async def work() -> dict[str, JSON]:
            session_id = secrets.token_hex(8) if self._storage is None else self._storage.new_id()
            with self._sessions.reserved(session_id):
                live = await self._open(session_id, opening, is_resumed=False)
            return {"sessionId": session_id, **_choices(live)}

        return work

    def _reopen(self, params: dict[str, JSON], *, replay: bool) -> Work:
        session_id = read_params(OfSession, params).session_id
        opening = read_params(Opening, params)
        reservation = ExitStack()
        try:
            reservation.enter_context(self._sessions.reserved(session_id))
        except SessionRefused as error:
            raise RpcError(INVALID_REQUEST, f"{error}; prompt it, or close it first") from error

        async def work() -> dict[str, JSON]:
            with reservation:
                if session_id not in {stored.session_id for stored in await self._stored()}:
                    raise RpcError(
                        SESSION_NOT_FOUND,
                        f"no session {session_id!r} is stored; session/list names those that are",
                    )
                live = await self._open(session_id, opening, is_resumed=True)
            if replay:
                await live.about.updates.replay(await live.session.messages())
            return _choices(live)

        return work

    async def _open(
        self, session_id: str, opening: Opening, *, is_resumed: bool
    ) -> LiveSession[_Shown]:
        directory, servers, notes = opening.cwd, opening.servers, list[str]()
        if servers and not self._has_mcp:
            names = ", ".join(servers)
            notes.append(
                f"The editor's MCP servers ({names}) are not available here: the module tool-mcp "
                "is not installed. Install it with: pip install 'amplifier[mcp]'"
            )
            logger.warning("%s", notes[0])
            servers = {}
        updates = Updates(self._connection, session_id, directory)
        questions = editor_questions(self._connection, updates, session_id)
        try:
            request = SessionRequest(
                session_id=session_id,
                approvals=questions,
                is_resumed=is_resumed,
                directory=directory,
                servers=servers,
            )
            session = self._make(request)
            if self._files:
                editor = EditorFiles(self._connection, session_id, self._files)
                session.coordinator.register_capability("session.editor_files", editor)
            commands = await anyio.to_thread.run_sync(self._commands, directory)
            live = await self._sessions.add(
                LiveSession(session, _Shown(updates, notes, commands), questions=questions),
                self._check,
            )
        # Third-party modules may raise any exception. The user of the editor gets the reason.
        except Exception as error:
            logger.debug("session %r cannot be opened", session_id, exc_info=True)
            raise RpcError(
                INTERNAL_ERROR, f"the session cannot be opened: {_reason(error)}"
            ) from error
        status = session.coordinator.get_capability("mcp.status")
        for server in status() if callable(status) else ():
            if server["error"] is not None:
                notes.append(f"The tools of an MCP server are missing: {server['error']}")
        await _find_models(live)
        session.coordinator.register_step_wrapper(live.about.choose_model)
        session.coordinator.hooks.register("tool:pre", updates.edits, name="servers.diffs")
        # The update follows the answer, which contains the session's id.
        self._sessions.start_soon(updates.commands, commands)
        return live

    async def _stored(self) -> list[SessionRecord]:
        return (
            [] if self._storage is None else await anyio.to_thread.run_sync(self._storage.records)
        )

    def _list(self, params: dict[str, JSON]) -> Work:
        page = read_params(Page, params)
        start = page.cursor or 0

        async def work() -> dict[str, JSON]:
            records = [
                (stored, stored.directory or str(Path.home())) for stored in await self._stored()
            ]
            matches = [(stored, cwd) for stored, cwd in records if page.cwd in (None, cwd)]
            sessions = [
                {
                    "sessionId": stored.session_id,
                    "cwd": cwd,
                    "title": stored.title,
                    "updatedAt": stored.updated,
                }
                for stored, cwd in matches[start : start + _PAGE]
            ]
            more = {"nextCursor": str(start + _PAGE)} if len(matches) > start + _PAGE else {}
            return {"sessions": sessions, **more}

        return work

    def _close(self, params: dict[str, JSON]) -> Work:
        closing = self._sessions.without(self._find(params).session_id)

        async def work() -> dict[str, JSON]:
            async with closing:
                return {}

        return work

    def _delete(self, params: dict[str, JSON]) -> Work:
        session_id = read_params(OfSession, params).session_id

        async def work() -> dict[str, JSON]:
            async with self._sessions.without(session_id):
                if self._storage is not None:
                    await anyio.to_thread.run_sync(self._storage.delete, session_id)
            return {}

        return work

    def _find(self, params: dict[str, JSON]) -> LiveSession[_Shown]:
        session_id = read_params(OfSession, params).session_id
        live = self._sessions.find(session_id)
        if live is None:
            advice = "begin one with session/new, or open a stored one with session/load"
            raise RpcError(
                SESSION_NOT_FOUND, f"no session {session_id!r} is open on this connection; {advice}"
            )
        return live

    # ── turns ──

    def _prompt(self, params: dict[str, JSON]) -> Work:
        live, parts = self._find(params), read_params(Prompt, params).parts
        text = "\n".join(part for part in parts if isinstance(part, str))
        name, _, argument = text.removeprefix("/").partition(" ")
        command = live.about.commands.get(name) if text.startswith("/") else None
        if command is not None:
            text = expanded(command, argument)
            parts = [text, *(part for part in parts if not isinstance(part, str))]
        # The turn starts now, so that a later cancel finds it.
        try:
            turn = live.begin_turn(text if parts == [text] else parts)
        except SessionBusyError as error:
            raise RpcError(INVALID_REQUEST, f"{error}; session/cancel stops it") from error

        async def work() -> dict[str, JSON]:
            try:
                return await self._run_turn(live, turn, text)
            finally:
                live.end_turn(turn)

        return work

    async def _run_turn(
        self, live: LiveSession[_Shown], turn: LiveTurn, text: str
    ) -> dict[str, JSON]:
        updates, notes = live.about.updates, live.about.notes
        while notes:
            await updates.text(f"{notes.pop(0)}\n\n")
        updates.begin_turn()
        await describe_session(self._storage, live.session_id, status=RUNNING, prompt=text)

        async def show(event: TurnEvent, text: str) -> None:
            await updates.show(event, text, turn.record)

        try:
            ended = await live.run_turn(turn, show)
            await updates.text(turn.record.rest(ended.result))
        finally:
            with anyio.CancelScope(shield=True):
                await describe_session(self._storage, live.session_id, status=turn.ended.status)
        if isinstance(ended.error, ContentFilterError):
            await updates.text(_reason(ended.error))
        elif ended.status == "error" and ended.error is not None:
            logger.debug("a turn of session %r failed", live.session_id, exc_info=ended.error)
            raise RpcError(INTERNAL_ERROR, _reason(ended.error)) from ended.error
        read, written = turn.record.input_tokens, turn.record.output_tokens
        usage = {"inputTokens": read, "outputTokens": written, "totalTokens": read + written}
        return {"stopReason": _stop_reason(ended, turn.record), "usage": usage}

    def _choose(self, params: dict[str, JSON], option: Any, member: str) -> Work:
        live, value = self._find(params), params.get(member)
        known = {choice["id"]: choice["options"] for choice in _choices(live)["configOptions"]}
        if option not in known:
            reason = "; modes need hooks-approval in the plan, models one provider that lists some"
            raise RpcError(
                INVALID_PARAMS,
                f"expected one of {', '.join(known) or 'none'}, got {option!r:.80}{reason}",
            )
        values = [choice["value"] for choice in known[option]]
        if value not in values:
            raise RpcError(
                INVALID_PARAMS, f"{member}: expected one of {', '.join(values)}, got {value!r:.80}"
            )
        if option == "mode":
            live.session.coordinator.get_capability(_SET_RULES)(MODES[str(value)][1])
        setattr(live.about, option, value)
        return _answer(
            {} if member == "modeId" else {"configOptions": _choices(live)["configOptions"]}
        )

    def _steer(self, params: dict[str, JSON]) -> Work:
        try:
            # `steer` refuses everything except text.
            self._find(params).session.steer(params.get("message"))  # type: ignore[arg-type]
        except (SessionStateError, ValueError) as error:
            raise RpcError(INVALID_REQUEST, str(error)) from error
        return _answer({})

    def _cancel(self, params: dict[str, JSON]) -> None:
        self._find(params).stop("the client cancelled the turn")


def _answer(result: dict[str, JSON]) -> Work:
    """Return completed work with this result."""

    async def work() -> dict[str, JSON]:
        return result

    return work


async def _find_models(live: LiveSession[_Shown]) -> None:
    """List the models whose window is at least as large as the context assumes."""
    providers = list(live.session.coordinator.get("providers").values())
    if len(providers) != 1:
        return
    with anyio.move_on_after(_LISTING_SECONDS):
        try:
            defaults = providers[0].get_info().defaults
            loop = live.session.config["session"]["orchestrator"]
            options = loop.get("config") if isinstance(loop, dict) else None
            planned, window = (
                (options or {}).get("model") or defaults.get("model"),
                defaults.get("context_window") or 0,
            )
            fitting = [
                model.id
                for model in await providers[0].list_models()
                if model.context_window >= window
            ]
            if isinstance(planned, str) and fitting:
                live.about.models = list(dict.fromkeys([planned, *fitting]))
        except Exception:  # third-party code
            logger.warning(
                "the models of session %r cannot be listed", live.session_id, exc_info=True
            )


def _choices(live: LiveSession[_Shown]) -> dict[str, JSON]:
    """Return the client's choices: the mode, if the plan has hooks-approval, and the model."""
    about, modes, options = live.about, {}, []

    def add(name: str, current: str | None, listed: dict[str, str]) -> None:
        values = [{"value": value, "name": label} for value, label in listed.items()]
        heading = {"id": name, "name": name.capitalize(), "category": name, "type": "select"}
        options.append({**heading, "currentValue": current, "options": values})

    if live.session.coordinator.get_capability(_SET_RULES) is not None:
        listed = [
            {"id": name, "name": name.capitalize(), "description": description}
            for name, (description, _) in MODES.items()
        ]
        modes = {"modes": {"currentModeId": about.mode, "availableModes": listed}}
        add("mode", about.mode, {name: name.capitalize() for name in MODES})
    if about.models:
        add("model", about.model or about.models[0], {name: name for name in about.models})
    return {**modes, "configOptions": options}


def _stop_reason(ended: Ended, record: TurnRecord) -> str:
    if isinstance(ended.error, ContentFilterError):
        return "refusal"
    if ended.status != "success":
        return "cancelled"
    if record.is_cut_off:
        return "max_turn_requests"
    return {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}[record.finish]


def _reason(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_reason(inner) for inner in error.exceptions))
    return redact_text(str(error) or type(error).__name__)


# ── parameters ──
# The server ignores unknown members.

T = TypeVar("T", bound=attrs.AttrsInstance)


def read_params(cls: type[T], params: Mapping[str, JSON]) -> T:
    """Read the parameters of a request. The error names every invalid one."""
    try:
        result: T = record(cls, is_open=True).read(params)
    except PlanError as error:
        problems = "; ".join(
            f"{path.removeprefix('$').removeprefix('.')}: {problem}"
            for path, problem in error.problems
        )
        raise RpcError(INVALID_PARAMS, problems) from None
    return result


@attrs.frozen(kw_only=True)
class Greeting:
    """The parameters of ``initialize``. The version may be any number."""

    version: int = option(whole_number(), key="protocolVersion")
    capabilities: dict[str, JSON] | None = option(optional(mapping), None, key="clientCapabilities")

    @property
    def files(self) -> frozenset[str]:
        """The client's capabilities under ``fs``, by name."""
        declared = (self.capabilities or {}).get("fs")
        items = declared.items() if isinstance(declared, dict) else ()
        return frozenset(name for name, is_supported in items if is_supported is True)


_text = attrs.evolve(any_text, expected="a text")


@attrs.frozen(kw_only=True)
class OfSession:
    """A request about a session."""

    session_id: str = option(attrs.evolve(_text, convert=validate_session_id), key="sessionId")


def _is_cursor(value: object) -> bool:
    return isinstance(value, str) and value.isdecimal() and len(value) < 10


@attrs.frozen(kw_only=True)
class Page:
    """A page of the list of sessions, optionally of one directory."""

    cursor: int | None = option(
        optional(Kind("the nextCursor of an earlier answer", _is_cursor, int)), None
    )
    cwd: str | None = option(optional(_text), None)


@attrs.frozen(kw_only=True)
class _Pair:
    # Messages repeat neither name nor value, since a client may have put the secret in the wrong
    # one.
    name: str = option(secret)
    value: str = option(secret)


def _secret_list(plural: str, cls: type[attrs.AttrsInstance]) -> Kind:
    """Return the kind of a list of objects. Messages don't repeat the values in it."""
    item = attrs.evolve(record(cls, is_open=True), is_secret=True)
    return attrs.evolve(list_each(plural, item), is_secret=True)


@attrs.frozen(kw_only=True)
class _Server:
    name: str = option(_text)
    type: str = option(Kind("stdio or http", lambda value: value in ("stdio", "http")), "stdio")
    command: str = option(_text, "")
    args: tuple[str, ...] = option(list_of("texts", lambda item: isinstance(item, str)), ())
    env: tuple[_Pair, ...] = option(_secret_list("pairs", _Pair), ())
    url: str = option(_text, "")
    headers: tuple[_Pair, ...] = option(_secret_list("pairs", _Pair), ())

    def entry(self) -> dict[str, JSON]:
        """Return the server in the form of a plan. Its address may be empty."""
        pairs = {
            pair.name: pair.value for pair in (self.env if self.type == "stdio" else self.headers)
        }
        if self.type == "http":
            return {"url": self.url, **({"headers": pairs} if pairs else {})}
        args = {"args": list(self.args)} if self.args else {}
        return {"command": self.command, **args, **({"env": pairs} if pairs else {})}


_server_list = _secret_list("servers", _Server)


def _servers(value: object) -> dict[str, dict[str, JSON]]:
    entries: dict[str, dict[str, JSON]] = {}
    for index, server in enumerate(_server_list.convert(value)):
        if not server.name or server.name in entries:
            problem = f"expected a name that no other server has, got {server.name!r:.80}"
            raise PlanError([(f"$[{index}].name", problem)])
        entries[server.name] = server.entry()
        address = next(iter(entries[server.name]))
        if not entries[server.name][address]:
            raise PlanError([(f"$[{index}].{address}", "expected a text")])
    return entries


def _directory(value: str) -> Path:
    if not Path(value).is_dir():
        raise PlanError([("$", f"{value!r:.200} is not a directory")])
    return Path(value)


@attrs.frozen(kw_only=True)
class Opening:
    """The directory of a session, and its MCP servers by name, in the form of a plan."""

    cwd: Path = option(
        Kind(
            "the absolute path of a directory",
            lambda value: (
                isinstance(value, str) and "\0" not in value and Path(value).is_absolute()
            ),
            _directory,
        )
    )
    servers: dict[str, dict[str, JSON]] = option(
        attrs.evolve(_server_list, convert=_servers), attrs.Factory(dict), key="mcpServers"
    )


def _parts(blocks: object) -> list[str | dict[str, JSON]]:
    parts: list[str | dict[str, JSON]] = []
    for part in _blocks.convert(blocks):
        is_more = isinstance(part, str) and parts and isinstance(parts[-1], str)
        parts.append(f"{parts.pop()}\n{part}" if is_more else part)
    if not any(isinstance(part, str) and part.strip() for part in parts):
        raise PlanError([("$", "expected some text, got none")])
    return parts


def _part(block: dict[str, JSON]) -> str | dict[str, JSON]:
    kind, resource = block.get("type"), block.get("resource")
    text, uri = block.get("text"), block.get("uri")
    if kind == "image":
        return _media("image", block.get("mimeType"), block.get("data"))
    if kind == "text" and isinstance(text, str):
        return text
    if kind == "resource_link" and isinstance(uri, str):
        return f"[{block.get('name') or 'resource'}]({uri})"
    if kind == "resource" and isinstance(resource, dict) and isinstance(resource.get("blob"), str):
        media_type = resource.get("mimeType")
        is_image = isinstance(media_type, str) and media_type.startswith("image/")
        return _media("image" if is_image else "document", media_type, resource["blob"])
    if kind == "resource" and isinstance(resource, dict) and isinstance(resource.get("text"), str):
        return (
            f'<resource uri="{resource.get("uri") or "unknown"}">\n{resource["text"]}\n</resource>'
        )
    expected = (
        "a block of type text with text, resource_link with uri, image with data, or resource with "
        "text or blob"
    )
    advice = "audio is not among the capabilities of this agent"
    raise PlanError([("$", f"expected {expected}, got {kind!r:.80}; {advice}")])


def _media(kind: str, media_type: object, data: object) -> dict[str, JSON]:
    block = {"type": kind, "source": {"type": "base64", "media_type": media_type, "data": data}}
    try:
        models.read_prompt([block])
    except (TypeError, ValueError) as error:
        raise PlanError([("$", str(error))]) from None
    return block


_blocks = list_each(
    "content blocks", Kind("a content block", lambda value: isinstance(value, dict), _part)
)


@attrs.frozen(kw_only=True)
class Prompt:
    """The user's prompt: text, embedded files and images, in order."""

    parts: list[str | dict[str, JSON]] = option(attrs.evolve(_blocks, convert=_parts), key="prompt")
