"""Every message between an editor and the agent, checked against the published schema of the protocol."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema_rs

from tests._support import node_parts

_AGENT, _EDITOR = "agent", "client"
"""The two sides, as the schema names them: a request is kept under the side that answers it."""


_SCHEMA = (
    node_parts.FOLDER
    / "node_modules"
    / "@agentclientprotocol"
    / "sdk"
    / "schema"
    / "v1"
    / "schema.json"
)
"""It comes with a package for Node. `make test` may run without it: then messages are read but not checked."""


@cache
def _definitions() -> dict[tuple[str, str, str], Any]:
    """Return validators by the side that handles a method, the method, and the kind of message."""
    schema = json.loads(_SCHEMA.read_text(encoding="utf-8"))
    found: dict[tuple[str, str, str], Any] = {}
    for name, definition in schema["$defs"].items():
        kind = next(
            (kind for kind in ("Request", "Response", "Notification") if name.endswith(kind)), None
        )
        if kind is None or "x-method" not in definition:
            continue
        whole = {"$schema": schema["$schema"], "$ref": f"#/$defs/{name}", "$defs": schema["$defs"]}
        sides = (_AGENT, _EDITOR) if definition["x-side"] == "protocol" else (definition["x-side"],)
        for side in sides:
            found[side, definition["x-method"], kind] = jsonschema_rs.Draft202012Validator(whole)
    whole = {"$schema": schema["$schema"], "$ref": "#/$defs/Error", "$defs": schema["$defs"]}
    found[_AGENT, "", "Error"] = jsonschema_rs.Draft202012Validator(whole)
    return found


class Wire:
    """The bytes of both directions, and what is wrong with the messages in them.

    Attributes:
        checked: The kinds of messages that were checked, as ``agent session/prompt Request``.
        problems: What does not fit the schema.
    """

    def __init__(self) -> None:
        self.checked: set[str] = set()
        self.problems: list[str] = []
        self._rest = {_AGENT: b"", _EDITOR: b""}
        self._waiting: dict[tuple[str, Any], str] = {}

    def note(self, data: bytes, *, to_agent: bool) -> None:
        """Take bytes of one direction; each line is a message."""
        handler = _AGENT if to_agent else _EDITOR
        *lines, self._rest[handler] = (self._rest[handler] + data).split(b"\n")
        for line in filter(None, lines):
            self._check(json.loads(line), handler)

    def _check(self, message: dict[str, Any], handler: str) -> None:
        if message.get("jsonrpc") != "2.0":
            self.problems.append(f"jsonrpc: expected '2.0', got {message}")
        if "method" in message:
            kind = "Request" if "id" in message else "Notification"
            if kind == "Request":
                self._waiting[handler, message["id"]] = message["method"]
            self._validate((handler, message["method"], kind), message.get("params"))
            return
        asked = _EDITOR if handler == _AGENT else _AGENT
        method = self._waiting.pop((asked, message["id"]), None)
        if "error" in message:
            self._validate((_AGENT, "", "Error"), message["error"])
        elif method is None:
            self.problems.append(f"an answer to no request: {message}")
        else:
            self._validate((asked, method, "Response"), message["result"])

    def _validate(self, key: tuple[str, str, str], value: Any) -> None:
        # A name of this form is an extension, which the protocol allows.
        if key[1].startswith("_") or not _SCHEMA.exists():
            return
        self.checked.add(" ".join(filter(None, key)))
        validator = _definitions().get(key)
        if validator is None:
            self.problems.append(f"{' '.join(key)} is not in the schema: {value}")
            return
        for error in validator.iter_errors(value):
            self.problems.append(f"{' '.join(key)}: {error.message} at {error.instance_path}")
