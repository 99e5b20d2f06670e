"""Reads the parameters of requests: a wrong one is an error that names it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amplifier.errors import PlanError
from amplifier.plan import validate_session_id

from ._messages import INVALID_PARAMS, RpcError

__all__ = ["mcp_servers", "prompt_text", "session_id", "working_directory"]


def session_id(params: Mapping[str, Any]) -> str:
    """The ``sessionId``."""
    value = params.get("sessionId")
    try:
        return validate_session_id(value if isinstance(value, str) else "")
    except PlanError as error:
        raise RpcError(INVALID_PARAMS, f"sessionId: {error}") from None


def working_directory(params: Mapping[str, Any]) -> Path:
    """The ``cwd``: an absolute path of a directory that exists."""
    value = params.get("cwd")
    if not isinstance(value, str) or "\0" in value or not Path(value).is_absolute():
        raise RpcError(INVALID_PARAMS, f"cwd: expected the absolute path of a directory, got {value!r:.200}")
    if not Path(value).is_dir():
        raise RpcError(INVALID_PARAMS, f"cwd: {value!r:.200} is not a directory")
    return Path(value)


# ── prompts ──────────────────────────────────────────────────────────────────────────────────────


def prompt_text(params: Mapping[str, Any]) -> str:
    """The ``prompt`` as text; files that the editor embeds are part of it."""
    blocks = params.get("prompt")
    if not isinstance(blocks, list):
        raise RpcError(INVALID_PARAMS, f"prompt: expected a list of content blocks, got {blocks!r:.80}")
    text = "\n".join(_block_text(block, f"prompt[{index}]") for index, block in enumerate(blocks))
    if not text.strip():
        raise RpcError(INVALID_PARAMS, "prompt: expected some text, got none")
    return text


def _block_text(block: Any, where: str) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind == "text":
        return _text(block, "text", where)
    if kind == "resource_link":
        return f"[{block.get('name') or 'resource'}]({_text(block, 'uri', where)})"
    if kind == "resource" and isinstance(resource := block.get("resource"), dict) and "text" in resource:
        uri = resource.get("uri") or "unknown"
        return f'<resource uri="{uri}">\n{_text(resource, "text", f"{where}.resource")}\n</resource>'
    raise RpcError(
        INVALID_PARAMS,
        f"{where}: expected a block of type text, resource_link or resource with text, got {kind!r:.80}; images and audio are "
        "not among the capabilities of this agent",
    )


def _text(block: Mapping[str, Any], key: str, where: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"{where}.{key}: expected a text, got {value!r:.80}")
    return value


# ── MCP servers ──────────────────────────────────────────────────────────────────────────────────


def mcp_servers(params: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The ``mcpServers`` by name, in the form in which a plan has them."""
    servers = params.get("mcpServers", [])
    if not isinstance(servers, list):
        raise RpcError(INVALID_PARAMS, f"mcpServers: expected a list, got {servers!r:.80}")
    found: dict[str, dict[str, Any]] = {}
    for index, server in enumerate(servers):
        where = f"mcpServers[{index}]"
        if not isinstance(server, dict):
            raise RpcError(INVALID_PARAMS, f"{where}: expected an object, got {type(server).__name__}")
        name = _text(server, "name", where)
        if not name or name in found:
            raise RpcError(INVALID_PARAMS, f"{where}.name: expected a name that no other server has, got {name!r:.80}")
        found[name] = _server(server, where)
    return found


def _server(server: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = server.get("type", "stdio")
    if kind == "stdio":
        entry: dict[str, Any] = {"command": _text(server, "command", where)}
        arguments = server.get("args", [])
        if not isinstance(arguments, list) or not all(isinstance(each, str) for each in arguments):
            raise RpcError(INVALID_PARAMS, f"{where}.args: expected a list of texts")
        if arguments:
            entry["args"] = arguments
        if variables := _pairs(server.get("env", []), f"{where}.env"):
            entry["env"] = variables
        return entry
    if kind == "http":
        entry = {"url": _text(server, "url", where)}
        if headers := _pairs(server.get("headers", []), f"{where}.headers"):
            entry["headers"] = headers
        return entry
    raise RpcError(INVALID_PARAMS, f"{where}.type: expected stdio or http, got {kind!r:.80}")


def _pairs(value: Any, where: str) -> dict[str, str]:
    """A list of objects with ``name`` and ``value``, as an object; no message repeats a value, which may be a secret."""
    if not isinstance(value, list):
        raise RpcError(INVALID_PARAMS, f"{where}: expected a list of objects with name and value")
    pairs: dict[str, str] = {}
    for index, pair in enumerate(value):
        name, text = (pair.get("name"), pair.get("value")) if isinstance(pair, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(text, str):
            raise RpcError(INVALID_PARAMS, f"{where}[{index}]: expected an object with the texts name and value")
        pairs[name] = text
    return pairs
