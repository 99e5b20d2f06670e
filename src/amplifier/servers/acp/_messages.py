"""JSON-RPC 2.0 messages, one per line: reading, writing, and the errors that the protocol knows."""

from __future__ import annotations

from typing import Any, Final

import attrs
import orjson

__all__ = [
    "INTERNAL_ERROR",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "PARSE_ERROR",
    "SESSION_NOT_FOUND",
    "Call",
    "Reply",
    "RpcError",
    "encode",
    "read_message",
]

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
SESSION_NOT_FOUND: Final = -32002
"""The protocol's own code for a resource that does not exist."""


class RpcError(Exception):
    """An error that the other side gets as the answer to its request.

    Attributes:
        code: One of the codes of this file.
        message: What was found, what was expected, what to do.
        message_id: The id of the request, if it could be read.
    """

    def __init__(self, code: int, message: str, *, message_id: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.message_id = message_id


@attrs.frozen(kw_only=True)
class Call:
    """A request, or a notification, which has no id and gets no answer."""

    method: str
    params: dict[str, Any]
    id: str | int | None
    is_request: bool


@attrs.frozen(kw_only=True)
class Reply:
    """The answer to a request of ours; ``error`` is None if it succeeded."""

    id: Any
    result: Any = None
    error: dict[str, Any] | None = None


def encode(**message: Any) -> bytes:
    """One message as a line."""
    return orjson.dumps({"jsonrpc": "2.0", **message}, default=str) + b"\n"


def read_message(line: bytes) -> Call | Reply:
    """Read one line.

    Raises:
        RpcError: It is not a message; the answer to send.
    """
    try:
        value = orjson.loads(line)
    except ValueError as error:
        raise RpcError(PARSE_ERROR, f"not valid JSON: {error}; expected one JSON-RPC 2.0 message per line") from None
    if not isinstance(value, dict):
        what = "a batch, which this protocol does not have" if isinstance(value, list) else type(value).__name__
        raise RpcError(INVALID_REQUEST, f"expected one JSON object per line, got {what}")
    message_id = value.get("id")
    if isinstance(message_id, bool) or not isinstance(message_id, str | int | None):
        raise RpcError(INVALID_REQUEST, f"id: expected a text or a whole number, got {message_id!r:.80}")
    if value.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'jsonrpc: expected "2.0"', message_id=message_id)
    if "method" not in value and ("result" in value or "error" in value):
        failure = value.get("error")
        if failure is not None and not isinstance(failure, dict):
            failure = {"code": INTERNAL_ERROR, "message": str(failure)}
        return Reply(id=message_id, result=value.get("result"), error=failure)
    method, params = value.get("method"), value.get("params")
    if not isinstance(method, str):
        raise RpcError(INVALID_REQUEST, f"method: expected a text, got {method!r:.80}", message_id=message_id)
    if params is not None and not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, f"params: expected an object, got {params!r:.80}", message_id=message_id)
    return Call(method=method, params=params or {}, id=message_id, is_request="id" in value)
