"""The configuration of tool-mcp: servers by name, in the form of the plan or of other hosts."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import attrs

from amplifier._internal.json import redact_text
from amplifier.errors import PlanError, Problem

from ..._shared.configuration import (
    Kind,
    any_text,
    choice,
    directory_name,
    flag,
    list_of,
    mapping_of_secrets,
    no_limit_or_seconds,
    option,
    optional,
    read_options,
    record,
    seconds,
    text,
    texts,
    url,
    whole_number,
)

logger = logging.getLogger("amplifier.modules.tool-mcp")

MODULE = "tool-mcp"

Gate: TypeAlias = Literal["ask", "allow", "deny"]

_FOREIGN_KEYS = frozenset(
    {
        *("type", "transport", "autoApprove", "alwaysAllow", "alwaysLoad"),
        *("description", "displayName", "icon", "trust", "version", "note"),
    }
)
"""Keys of other hosts that have no meaning here. A server with ``command`` is a process."""

_FORMER = {
    "resources": 'to hide the tool for resources, use deny: ["read_resource"]',
    "prompts": 'to hide the tool for prompts, use deny: ["get_prompt"]',
}


def _is_environment_name(name: str) -> bool:
    return bool(name) and "=" not in name and "\0" not in name


def _is_header_name(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) is not None


def _is_header_value(value: str) -> bool:
    return value.isprintable() and value.isascii()


_arguments = list_of("texts", lambda item: isinstance(item, str) and "\0" not in item)
_environment = mapping_of_secrets(
    "an object of texts by the names of environment variables",
    _is_environment_name,
    lambda value: "\0" not in value,
)
_headers = mapping_of_secrets(
    "an object of printable ASCII texts by the names of headers", _is_header_name, _is_header_value
)
_patterns = texts()


@attrs.frozen(kw_only=True)
class OAuthOptions:
    """The login to a remote server.

    Attributes:
        scopes: The scopes to request. Empty for those that the server names.
        client_id: The id of a client that is registered with the authorization server. None
            registers one.
        client_secret: The secret of that client.
        client_metadata_url: The address of a document that describes the client. Servers that read
            such documents use it as the client's id. At other servers a client is registered.
        redirect_port: The port on this machine to which the browser is sent back. None takes any
            free port.
        token_directory: The directory for tokens. None for the default.
    """

    scopes: tuple[str, ...] = option(texts(), default=())
    client_id: str | None = option(text, default=None)
    client_secret: str | None = option(attrs.evolve(text, is_secret=True), default=None)
    client_metadata_url: str | None = option(url, default=None)
    redirect_port: int | None = option(whole_number(1), default=None)
    token_directory: Path | None = option(directory_name, default=None)

    def __attrs_post_init__(self) -> None:
        if self.client_metadata_url is None:
            return
        parts = urlsplit(self.client_metadata_url)
        if parts.scheme != "https" or parts.path in ("", "/"):
            raise PlanError([("$.client_metadata_url", "expected an https URL with a path")])
        if self.client_id is not None:
            raise PlanError([("$", "expected client_id or client_metadata_url, got both")])


_oauth_object = record(OAuthOptions)
_oauth = Kind(
    f"true, false or {_oauth_object.expected}",
    lambda value: isinstance(value, bool) or _oauth_object.accepts(value),
    lambda value: (
        _oauth_object.read({} if value is True else value) if value is not False else None
    ),
)


@attrs.frozen(kw_only=True)
class ServerOptions:
    """One server.

    Attributes:
        name: Its name in the plan.
        is_disabled: True to leave it out.
        command: The program to start. None for a remote server.
        args: The arguments of the program.
        env: Environment variables of the program, in addition to a few inherited ones.
        cwd: The working directory of the program. None for that of the session.
        url: The address of a server with streamable HTTP. None for a program.
        headers: HTTP headers of every request.
        oauth: The login. None for no login.
        prefix: The text before the names of its tools. None for the server's name and ``_``.
        allow_unprefixed_names: True to accept an empty `prefix`, with which the server alone
            chooses the names of its tools.
        allow: Patterns of the tools to mount. None for all.
        deny: Patterns of tools that are never mounted.
        is_required: True if the session can't be opened without this server.
        open_timeout: Seconds for starting it and reading its list of tools.
        call_timeout: Seconds for one call. None for no limit.
        stop_grace: Seconds between asking the process to end and killing it.
        protocol: ``auto`` for the newest version that both support, ``legacy`` for servers that
            exit at an unknown first message.
        sampling: Whether the server may call the session's model: ask the user, allow or deny.
        elicitation: True if the server may ask the user.
        roots: Directories for the server to work in. By default there are none, because with roots
            some servers ignore the directories in their arguments.
    """

    name: str
    is_disabled: bool = option(flag, key="disabled", default=False, restricts=True)
    command: str | None = option(text, default=None)
    args: tuple[str, ...] = option(_arguments, default=())
    env: Mapping[str, str] = option(_environment, default=attrs.Factory(dict))
    cwd: Path | None = option(directory_name, default=None)
    url: str | None = option(url, aliases=("serverUrl", "httpUrl"), default=None)
    headers: Mapping[str, str] = option(_headers, default=attrs.Factory(dict))
    oauth: OAuthOptions | None = option(_oauth, default=None)
    prefix: str | None = option(any_text, default=None)
    allow_unprefixed_names: bool = option(flag, default=False)
    allow: tuple[str, ...] | None = option(
        _patterns, aliases=("includeTools", "enabled_tools"), default=None, restricts=True
    )
    deny: tuple[str, ...] = option(
        _patterns, aliases=("excludeTools", "disabled_tools"), default=(), restricts=True
    )
    is_required: bool = option(flag, key="required", default=False, restricts=True)
    open_timeout: float = option(seconds, default=30.0)
    call_timeout: float | None = option(no_limit_or_seconds, default=600.0)
    stop_grace: float = option(seconds, default=1.0)
    protocol: str = option(choice("auto", "legacy"), default="auto")
    sampling: Gate = option(choice("ask", "allow", "deny"), default="ask", restricts=True)
    elicitation: bool = option(flag, default=True, restricts=True)
    roots: tuple[str, ...] | None = option(optional(texts()), default=None, restricts=True)

    def __attrs_post_init__(self) -> None:
        problems: list[Problem] = []
        if (self.command is None) == (self.url is None):
            keys = "neither" if self.command is None else "both"
            problems.append(
                (
                    "$",
                    f"expected command (a program to start) or url (a remote server), got {keys}",
                )
            )
        if self.command is None and (self.args or self.env or self.cwd):
            problems.append(
                ("$", "args, env and cwd are for a command; a remote server has url and headers")
            )
        if self.url is None and (self.headers or self.oauth):
            problems.append(("$", "headers and oauth are for a url; a command has args and env"))
        if self.prefix is not None and not self.prefix.strip() and not self.allow_unprefixed_names:
            problem = (
                "is empty, so that the server alone chooses the names of its tools, and rules and "
                "people may take them for other tools; give it a prefix, or accept that with "
                "allow_unprefixed_names: true"
            )
            problems.append(("$.prefix", problem))
        if problems:
            raise PlanError(problems)

    @property
    def kind(self) -> str:
        """``stdio`` or ``http``."""
        return "http" if self.command is None else "stdio"

    @property
    def tool_prefix(self) -> str:
        """The text before the names of its tools."""
        return f"{self.name}_" if self.prefix is None else self.prefix

    @property
    def address(self) -> str:
        """The url without its query, which may contain secrets."""
        return (self.url or "").partition("?")[0]

    @property
    def secrets(self) -> tuple[str, ...]:
        """Texts that must not appear in messages, longest first."""
        values = [*self.env.values(), *self.headers.values()]
        values += [word for value in self.headers.values() for word in value.split()[1:]]
        if self.oauth is not None and self.oauth.client_secret:
            values.append(self.oauth.client_secret)
        secrets = {value for value in values if len(value) >= _MIN_SECRET_LENGTH}
        return tuple(sorted(secrets, key=len, reverse=True))

    def without_secrets(self, message: str) -> str:
        """Redact the plan's secrets in a message."""
        for value in self.secrets:
            message = message.replace(value, "[REDACTED]")
        return redact_text(message)


_MIN_SECRET_LENGTH = 6
"""Environment variables with shorter values, such as ``1`` or ``true``, aren't secrets."""


def _read_servers(members: Mapping[str, object]) -> tuple[ServerOptions, ...]:
    servers: list[ServerOptions] = []
    problems: list[Problem] = []
    for name, value in members.items():
        try:
            servers.append(_read_server(name, value))
        except PlanError as error:
            problems += [
                (f"$.{name}{path.removeprefix('$')}", problem) for path, problem in error.problems
            ]
    if problems:
        raise PlanError(problems)
    return tuple(server for server in servers if not server.is_disabled)


def _read_server(name: str, value: object) -> ServerOptions:
    if not name.strip() or not name.isprintable():
        raise PlanError([("$", "expected a printable name of a server")])
    if not isinstance(value, Mapping):
        raise PlanError(
            [("$", f"expected an object with command or url, got {type(value).__name__}")]
        )
    if value.get("type", value.get("transport")) == "sse":
        raise PlanError(
            [
                (
                    "$.type",
                    "the transport 'sse' was replaced by streamable HTTP; use the url for that",
                )
            ]
        )
    members = {key: member for key, member in value.items() if key not in _FOREIGN_KEYS}
    server = read_options(
        ServerOptions, f"{MODULE} server {name!r}", members, former=_FORMER, name=name
    )
    for index, argument in enumerate(server.args):
        if redact_text(argument) != argument or _is_value_of_secret_option(server.args, index):
            logger.warning(
                "%s: $.servers.%s.args[%d] looks like a secret, and every user of this machine can "
                "read the arguments of a process; put it in env, as ${NAME} in the plan",
                MODULE,
                name,
                index,
            )
    if server.url is not None and redact_text(server.url) != server.url:
        logger.warning(
            "%s: $.servers.%s.url looks as if it contains a secret, which logs of HTTP requests "
            "would keep; put it in headers",
            MODULE,
            name,
        )
    return server


def _is_value_of_secret_option(arguments: tuple[str, ...], index: int) -> bool:
    """Return whether an argument is the VALUE of ``--api-key VALUE``.

    Such a value may look like any text.
    """
    if index == 0 or not arguments[index - 1].startswith("--"):
        return False
    pair = f"{arguments[index - 1]}={arguments[index]}"
    return redact_text(pair) != pair


_SERVERS = Kind(
    "an object of servers by name",
    lambda value: isinstance(value, Mapping) and all(isinstance(name, str) for name in value),
    _read_servers,
)


@attrs.frozen(kw_only=True)
class McpOptions:
    """The configuration of the module.

    Attributes:
        servers: The servers that aren't disabled.
        share: True to share servers with child sessions, and to use those of the parent.
        max_result_chars: Maximum number of characters in one result. The rest is cut with a note.
        max_message_bytes: Maximum size of one message from a server. A larger message ends the
            connection.
    """

    servers: tuple[ServerOptions, ...] = option(_SERVERS, aliases=("mcpServers",), default=())
    share: bool = option(flag, default=True, restricts=True)
    max_result_chars: int = option(whole_number(1), default=100_000)
    max_message_bytes: int = option(whole_number(1024), default=64 * 1024 * 1024)


def read_mcp_options(config: Mapping[str, Any] | None) -> McpOptions:
    """Read the module's configuration.

    Raises:
        PlanError: The configuration is invalid. The error lists all problems.
    """
    return read_options(McpOptions, MODULE, config)
