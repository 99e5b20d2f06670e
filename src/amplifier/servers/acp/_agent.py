"""The methods of the Agent Client Protocol, version 1, and their parameters as classes: a wrong one is an error that names it."""

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

from amplifier._internal.json import redact_text
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
"""Sessions in one answer to ``session/list``."""


async def serve(
    stream: ByteStream,
    make_session: SessionFactory,
    *,
    storage: SessionIndex | None = None,
    check: SessionCheck = require_provider,
    commands: Callable[[Path], dict[str, str]] = lambda directory: {},
    has_mcp: bool = False,
) -> OSError | None:
    """Serve one client until it closes the connection; every turn has unwound and every session is closed at the return.

    Args:
        stream: The bytes from and to the client.
        make_session: Makes a session that is not opened yet, with the directory of the request as its own; the text of what it
            raises is the client's answer.
        storage: Where conversations are kept, to list, load and delete them.
        check: Raises if a session that has just been opened cannot be used; by default, one without a provider is refused.
        commands: Reads the commands of the user's own in a directory: the texts that they stand for, by name.
        has_mcp: Whether sessions can use MCP servers that the client names.

    Returns:
        What went wrong with writing, if the client stopped reading before it closed the connection.
    """
    connection, sessions = Connection(stream), LiveSessions[_Shown]()
    async with (
        connection.writing(),
        sessions.running(),
    ):  # whose tasks end after those of the requests
        agent = _Agent(connection, sessions, make_session, storage, check, commands, has_mcp)
        await connection.read(agent.begin)
    return connection.lost


@attrs.define
class _Shown:
    """How a session is shown."""

    updates: Updates
    notes: list[str]  # what the user should know, shown with the first turn
    commands: dict[str, str]  # what prompts stand for that begin with a slash and their name
    mode: str = "ask"
    models: list[str] = attrs.field(factory=list)  # that can be chosen; the first one is the plan's
    model: str | None = None

    async def choose_model(self, step: Step, run: Callable[[], Awaitable[Any]]) -> Any:
        """A wrapper of steps: every model call asks the chosen model."""
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
    def _methods(self) -> dict[str, Callable[[dict[str, Any]], Work]]:
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
            "_amplifier/steer": self._steer,  # the protocol has no such method; those of vendors begin like this
        }

    def begin(self, call: Call) -> Work | None:
        """Begin a request, or handle a notification."""
        if not call.is_request:
            if call.method == "session/cancel":
                self._cancel(call.params)
            return None  # an unknown notification is ignored, as JSON-RPC has it
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

    def _initialize(self, params: dict[str, Any]) -> Work:
        self._files = read_params(Greeting, params).files
        self._is_initialized = True
        return _answer(
            {
                "protocolVersion": PROTOCOL_VERSION,  # a client that does not know it closes the connection
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

    def _authenticate(self, params: dict[str, Any]) -> Work:
        advice = "the keys of providers come from the environment; `amplifier doctor` shows which are missing"
        raise RpcError(
            INVALID_PARAMS, f"methodId: this agent has no methods to authenticate with; {advice}"
        )

    # ── sessions ──

    def _new(self, params: dict[str, Any]) -> Work:
        asked = read_params(Opening, params)

        async def work() -> dict[str, Any]:
            wanted = secrets.token_hex(8) if self._storage is None else self._storage.new_id()
            with self._sessions.reserved(wanted):
                live = await self._open(wanted, asked, is_resumed=False)
            return {"sessionId": wanted, **_choices(live)}

        return work

    def _reopen(self, params: dict[str, Any], *, replay: bool) -> Work:
        wanted, asked = read_params(OfSession, params).session_id, read_params(Opening, params)
        reservation = ExitStack()
        try:
            reservation.enter_context(self._sessions.reserved(wanted))
        except SessionRefused as error:
            raise RpcError(INVALID_REQUEST, f"{error}; prompt it, or close it first") from error

        async def work() -> dict[str, Any]:
            with reservation:
                if wanted not in {each.session_id for each in await self._stored()}:
                    raise RpcError(
                        SESSION_NOT_FOUND,
                        f"no session {wanted!r} is stored; session/list names those that are",
                    )
                live = await self._open(wanted, asked, is_resumed=True)
            if replay:
                await live.about.updates.replay(await live.session.messages())
            return _choices(live)

        return work

    async def _open(self, wanted: str, asked: Opening, *, is_resumed: bool) -> LiveSession[_Shown]:
        directory, servers, notes = asked.cwd, asked.servers, list[str]()
        if servers and not self._has_mcp:
            names = ", ".join(servers)
            notes.append(
                f"The editor's MCP servers ({names}) are not available here: the module tool-mcp is not installed. "
                "Install it with: pip install 'amplifier[mcp]'"
            )
            logger.warning("%s", notes[0])
            servers = {}
        updates = Updates(self._connection, wanted, directory)
        questions = editor_questions(self._connection, updates, wanted)
        try:
            request = SessionRequest(
                session_id=wanted,
                approvals=questions,
                is_resumed=is_resumed,
                directory=directory,
                servers=servers,
            )
            session = self._make(request)
            if self._files:
                editor = EditorFiles(self._connection, wanted, self._files)
                session.coordinator.register_capability("session.editor_files", editor)
            commands = await anyio.to_thread.run_sync(self._commands, directory)
            live = await self._sessions.add(
                LiveSession(session, _Shown(updates, notes, commands), questions=questions),
                self._check,
            )
        except (
            Exception
        ) as error:  # third-party modules; the reason is for the person at the editor
            logger.debug("session %r cannot be opened", wanted, exc_info=True)
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
        # It comes after the answer, which has the session's id.
        self._sessions.start_soon(updates.commands, commands)
        return live

    async def _stored(self) -> list[SessionRecord]:
        return (
            [] if self._storage is None else await anyio.to_thread.run_sync(self._storage.records)
        )

    def _list(self, params: dict[str, Any]) -> Work:
        page = read_params(Page, params)
        start = page.cursor or 0

        async def work() -> dict[str, Any]:
            placed = [(each, each.directory or str(Path.home())) for each in await self._stored()]
            found = [(each, cwd) for each, cwd in placed if page.cwd in (None, cwd)]
            sessions = [
                {
                    "sessionId": each.session_id,
                    "cwd": cwd,
                    "title": each.title,
                    "updatedAt": each.updated,
                }
                for each, cwd in found[start : start + _PAGE]
            ]
            more = {"nextCursor": str(start + _PAGE)} if len(found) > start + _PAGE else {}
            return {"sessions": sessions, **more}

        return work

    def _close(self, params: dict[str, Any]) -> Work:
        closing = self._sessions.without(self._find(params).session_id)

        async def work() -> dict[str, Any]:
            async with closing:
                return {}

        return work

    def _delete(self, params: dict[str, Any]) -> Work:
        wanted = read_params(OfSession, params).session_id

        async def work() -> dict[str, Any]:
            async with self._sessions.without(wanted):
                if self._storage is not None:
                    await anyio.to_thread.run_sync(self._storage.delete, wanted)
            return {}

        return work

    def _find(self, params: dict[str, Any]) -> LiveSession[_Shown]:
        wanted = read_params(OfSession, params).session_id
        live = self._sessions.find(wanted)
        if live is None:
            advice = "begin one with session/new, or open a stored one with session/load"
            raise RpcError(
                SESSION_NOT_FOUND, f"no session {wanted!r} is open on this connection; {advice}"
            )
        return live

    # ── turns ──

    def _prompt(self, params: dict[str, Any]) -> Work:
        live, parts = self._find(params), read_params(Prompt, params).parts
        text = "\n".join(part for part in parts if isinstance(part, str))
        name, _, argument = text.removeprefix("/").partition(" ")
        command = live.about.commands.get(name) if text.startswith("/") else None
        if command is not None:
            text = expanded(command, argument)
            parts = [text, *(part for part in parts if not isinstance(part, str))]
        try:  # now, so that a cancel that follows finds the turn
            turn = live.begin_turn(text if parts == [text] else parts)
        except SessionBusyError as error:
            raise RpcError(INVALID_REQUEST, f"{error}; session/cancel stops it") from error

        async def work() -> dict[str, Any]:
            try:
                return await self._run_turn(live, turn, text)
            finally:
                live.end_turn(turn)

        return work

    async def _run_turn(
        self, live: LiveSession[_Shown], turn: LiveTurn, text: str
    ) -> dict[str, Any]:
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
        given, made = turn.record.input_tokens, turn.record.output_tokens
        usage = {"inputTokens": given, "outputTokens": made, "totalTokens": given + made}
        return {"stopReason": _stop_reason(ended, turn.record), "usage": usage}

    def _choose(self, params: dict[str, Any], option: Any, member: str) -> Work:
        live, value = self._find(params), params.get(member)
        known = {each["id"]: each["options"] for each in _choices(live)["configOptions"]}
        if option not in known:
            reason = "; modes need hooks-approval in the plan, models one provider that lists some"
            raise RpcError(
                INVALID_PARAMS,
                f"expected one of {', '.join(known) or 'none'}, got {option!r:.80}{reason}",
            )
        values = [each["value"] for each in known[option]]
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

    def _steer(self, params: dict[str, Any]) -> Work:
        try:
            self._find(params).session.steer(params.get("message"))  # type: ignore[arg-type]  # it refuses what is no text
        except (SessionStateError, ValueError) as error:
            raise RpcError(INVALID_REQUEST, str(error)) from error
        return _answer({})

    def _cancel(self, params: dict[str, Any]) -> None:
        self._find(params).stop("the client cancelled the turn")


def _answer(result: dict[str, Any]) -> Work:
    """Nothing is left to do."""

    async def work() -> dict[str, Any]:
        return result

    return work


async def _find_models(live: LiveSession[_Shown]) -> None:
    """Find the models that can be chosen: those whose window is not smaller than the one that the context counts with."""
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
                each.id
                for each in await providers[0].list_models()
                if each.context_window >= window
            ]
            if isinstance(planned, str) and fitting:
                live.about.models = list(dict.fromkeys([planned, *fitting]))
        except Exception:  # third-party code; there is no choice then
            logger.warning(
                "the models of session %r cannot be listed", live.session_id, exc_info=True
            )


def _choices(live: LiveSession[_Shown]) -> dict[str, Any]:
    """What a client can choose: the mode, if the plan has the module that keeps modes, and the model."""
    about, modes, options = live.about, {}, []

    def add(name: str, current: str | None, listed: dict[str, str]) -> None:
        values = [{"value": each, "name": shown} for each, shown in listed.items()]
        about_it = {"id": name, "name": name.capitalize(), "category": name, "type": "select"}
        options.append({**about_it, "currentValue": current, "options": values})

    if live.session.coordinator.get_capability(_SET_RULES) is not None:
        listed = [
            {"id": name, "name": name.capitalize(), "description": words}
            for name, (words, _) in MODES.items()
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
# Members that are not known are ignored.

T = TypeVar("T", bound=attrs.AttrsInstance)


def read_params(cls: type[T], params: Mapping[str, Any]) -> T:
    """The parameters of a request; every one that does not fit is named."""
    try:
        read: T = record(cls, is_open=True).read(params)
    except PlanError as error:
        problems = "; ".join(
            f"{path.removeprefix('$').removeprefix('.')}: {problem}"
            for path, problem in error.problems
        )
        raise RpcError(INVALID_PARAMS, problems) from None
    return read


@attrs.frozen(kw_only=True)
class Greeting:
    """Of ``initialize``; the version only has to be one."""

    version: int = option(whole_number(), key="protocolVersion")
    capabilities: dict[str, Any] | None = option(optional(mapping), None, key="clientCapabilities")

    @property
    def files(self) -> frozenset[str]:
        """What of ``fs`` the client can do, by the names of its capabilities."""
        said = (self.capabilities or {}).get("fs")
        return frozenset(
            name for name, can in (said.items() if isinstance(said, dict) else ()) if can is True
        )


_text = attrs.evolve(any_text, expected="a text")


@attrs.frozen(kw_only=True)
class OfSession:
    """A request about a session."""

    session_id: str = option(attrs.evolve(_text, convert=validate_session_id), key="sessionId")


def _is_cursor(value: Any) -> bool:
    return isinstance(value, str) and value.isdecimal() and len(value) < 10


@attrs.frozen(kw_only=True)
class Page:
    """A part of the list of sessions: from the cursor on, those that were begun in this directory."""

    cursor: int | None = option(
        optional(Kind("the nextCursor of an earlier answer", _is_cursor, int)), None
    )
    cwd: str | None = option(optional(_text), None)


@attrs.frozen(kw_only=True)
class _Pair:
    name: str = option(
        secret
    )  # a message repeats neither: a client may have put the secret in the wrong place
    value: str = option(secret)


def _secret_list(plural: str, cls: type[attrs.AttrsInstance]) -> Kind:
    """A list of objects; a message repeats nothing of what was given in its place."""
    each = attrs.evolve(record(cls, is_open=True), is_secret=True)
    return attrs.evolve(list_each(plural, each), is_secret=True)


@attrs.frozen(kw_only=True)
class _Server:
    name: str = option(_text)
    type: str = option(Kind("stdio or http", lambda value: value in ("stdio", "http")), "stdio")
    command: str = option(_text, "")
    args: tuple[str, ...] = option(list_of("texts", lambda item: isinstance(item, str)), ())
    env: tuple[_Pair, ...] = option(_secret_list("pairs", _Pair), ())
    url: str = option(_text, "")
    headers: tuple[_Pair, ...] = option(_secret_list("pairs", _Pair), ())

    def entry(self) -> dict[str, Any]:
        """The server as a plan has it; its address may be empty."""
        pairs = {
            pair.name: pair.value for pair in (self.env if self.type == "stdio" else self.headers)
        }
        if self.type == "http":
            return {"url": self.url, **({"headers": pairs} if pairs else {})}
        args = {"args": list(self.args)} if self.args else {}
        return {"command": self.command, **args, **({"env": pairs} if pairs else {})}


_server_list = _secret_list("servers", _Server)


def _servers(given: Any) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for index, server in enumerate(_server_list.convert(given)):
        if not server.name or server.name in found:
            problem = f"expected a name that no other server has, got {server.name!r:.80}"
            raise PlanError([(f"$[{index}].name", problem)])
        found[server.name] = server.entry()
        address = next(iter(found[server.name]))
        if not found[server.name][address]:
            raise PlanError([(f"$[{index}].{address}", "expected a text")])
    return found


def _directory(value: str) -> Path:
    if not Path(value).is_dir():
        raise PlanError([("$", f"{value!r:.200} is not a directory")])
    return Path(value)


@attrs.frozen(kw_only=True)
class Opening:
    """Where a session works, and MCP servers for it, by name, in the form in which a plan has them."""

    cwd: Path = option(
        Kind(
            "the absolute path of a directory",
            lambda value: (
                isinstance(value, str) and "\0" not in value and Path(value).is_absolute()
            ),
            _directory,
        )
    )
    servers: dict[str, dict[str, Any]] = option(
        attrs.evolve(_server_list, convert=_servers), attrs.Factory(dict), key="mcpServers"
    )


def _parts(blocks: Any) -> list[str | dict[str, Any]]:
    parts: list[str | dict[str, Any]] = []
    for part in _blocks.convert(blocks):
        is_more = isinstance(part, str) and parts and isinstance(parts[-1], str)
        parts.append(f"{parts.pop()}\n{part}" if is_more else part)
    if not any(isinstance(part, str) and part.strip() for part in parts):
        raise PlanError([("$", "expected some text, got none")])
    return parts


def _part(block: dict[str, Any]) -> str | dict[str, Any]:
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
    expected = "a block of type text with text, resource_link with uri, image with data, or resource with text or blob"
    advice = "audio is not among the capabilities of this agent"
    raise PlanError([("$", f"expected {expected}, got {kind!r:.80}; {advice}")])


def _media(kind: str, media_type: Any, data: Any) -> dict[str, Any]:
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
    """What the user says, in order: text, with the files that the editor embeds, and images."""

    parts: list[str | dict[str, Any]] = option(attrs.evolve(_blocks, convert=_parts), key="prompt")
