"""The file of a cassette: JSON lines, made for reading a diff.

The first member of a line gives its kind. Messages and tools are written once, before the first request that has them, and
requests refer to them by the digest of their content: a changed prompt is one changed line, not one in each request after it.
The lines after a request, up to the next one, are what came back::

    {"cassette": 1}
    {"provider": "openai", "info": {…}}
    {"message": "5f2b…", "value": {"role": "user", "content": "…"}}
    {"tool": "9c01…", "value": {"name": "read_file", …}}
    {"request": "main", "provider": "openai", "messages": ["5f2b…"], "tools": ["9c01…"], "settings": {…}}
    {"chunk": "block_delta", "index": 0, "block_type": "text", "text": "…"}
    {"response": {…}}
    {"error": "RateLimitError", "message": "…", …}
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from amplifier.errors import ModelError, PlanError
from amplifier.models import ChatResponse, ProviderInfo, StreamChunk, from_dict

from ._cassette import Cassette, Exchange
from ._request import digest

_VERSION = 1
_PARTS = {"messages": "message", "tools": "tool"}


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


def write_cassette(cassette: Cassette) -> None:
    """Replace the file; only its owner may read it. Readers see the old content or all of the new one.

    Raises:
        OSError: The system refuses; an old file is unchanged.
    """
    with cassette.writing:  # or an older text could replace a newer one
        _replace(cassette, "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in _lines(cassette)))


def _replace(cassette: Cassette, text: str) -> None:
    cassette.path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=cassette.path.parent, prefix=f".{cassette.path.name}.")  # mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(cassette.path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _lines(cassette: Cassette) -> Iterator[dict[str, Any]]:
    yield {"cassette": _VERSION}
    for name, info in sorted(cassette.providers.items()):
        yield {"provider": name, "info": info}
    written: set[str] = set()
    for exchange in cassette.exchanges:
        line: dict[str, Any] = {"request": exchange.place, "provider": exchange.provider}
        for section, kind in _PARTS.items():
            names = []
            for value in exchange.request.get(section, ()):
                name = digest(value)
                names.append(name)
                if name not in written:
                    written.add(name)
                    yield {kind: name, "value": value}
            line[section] = names
        line["settings"] = {key: value for key, value in exchange.request.items() if key not in _PARTS}
        yield line
        yield from _answer_lines(exchange)


def _answer_lines(exchange: Exchange) -> Iterator[dict[str, Any]]:
    response = exchange.response
    for chunk in exchange.chunks or ():
        rest = {key: value for key, value in chunk.items() if key not in ("kind", "block")}
        if "block" in chunk and not _is_in_response(chunk, response):
            rest["block"] = chunk["block"]
        yield {"chunk": chunk["kind"], **rest}
    if exchange.error is not None:
        yield {"error": exchange.error["type"], **{k: v for k, v in exchange.error.items() if k != "type"}}
    else:
        yield {"response": response}


def _is_in_response(chunk: dict[str, Any], response: dict[str, Any] | None) -> bool:
    content = [] if response is None else response["content"]
    index = chunk.get("index", 0)
    return bool(index < len(content) and content[index] == chunk["block"])


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def read_cassette(path: Path, mode: str) -> Cassette:
    """Read a file, if there is one.

    Raises:
        PlanError: The file is needed and missing, or is no cassette.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if mode != "none":
            return Cassette(path, mode, None, {})
        problem = f"{path} does not exist; record it with mode 'once', or on the command line with --record"
        raise PlanError([("$.cassette", problem)]) from None
    except (OSError, UnicodeDecodeError) as error:
        raise PlanError([("$.cassette", f"{path} cannot be read: {error}")]) from error
    reader = _Reader()
    # Not splitlines(), which also splits at characters that JSON texts may contain.
    for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
        try:
            reader.read(number, line)
        except (KeyError, TypeError, ValueError, ModelError) as error:
            reason = f"no member {error}" if isinstance(error, KeyError) else str(error)
            problem = f"{path}, line {number}: {reason}; expected a file that this module recorded"
            raise PlanError([("$.cassette", problem)]) from error
    return Cassette(path, mode, [exchange for exchange in reader.exchanges if exchange.is_complete], reader.providers)


class _Reader:
    """Reads a file line by line."""

    def __init__(self) -> None:
        self.providers: dict[str, dict[str, Any]] = {}
        self.exchanges: list[Exchange] = []
        self._parts: dict[str, dict[str, Any]] = {"message": {}, "tool": {}}
        self._kinds: dict[str, Callable[[dict[str, Any]], None]] = {
            "provider": self._provider,
            "message": lambda line: self._parts["message"].update({line["message"]: line["value"]}),
            "tool": lambda line: self._parts["tool"].update({line["tool"]: line["value"]}),
            "request": self._request,
            "chunk": self._chunk,
            "response": self._response,
            "error": self._error,
        }

    def read(self, number: int, text: str) -> None:
        line = json.loads(text)
        kind = next(iter(line), "") if isinstance(line, dict) else ""
        if number == 1:
            if kind != "cassette" or line["cassette"] != _VERSION:
                raise ValueError(f'expected {{"cassette": {_VERSION}}}, found {text[:80]}')
        elif kind not in self._kinds:
            raise ValueError(f"expected one of {', '.join(self._kinds)} as the first member, found {kind!r:.80}")
        else:
            self._kinds[kind](line)

    def _provider(self, line: dict[str, Any]) -> None:
        from_dict(ProviderInfo, line["info"])
        self.providers[line["provider"]] = line["info"]

    def _request(self, line: dict[str, Any]) -> None:
        request: dict[str, Any] = dict(line["settings"])
        for section, kind in _PARTS.items():
            values = [self._parts[kind][name] for name in line[section]]
            if values or section == "messages":
                request[section] = values
        self.exchanges.append(Exchange(place=line["request"], provider=line["provider"], request=request))

    def _latest(self) -> Exchange:
        if not self.exchanges:
            raise ValueError("expected a request before the answer")
        return self.exchanges[-1]

    def _chunk(self, line: dict[str, Any]) -> None:
        chunk = {"kind": line["chunk"], **{key: value for key, value in line.items() if key != "chunk"}}
        from_dict(StreamChunk, chunk)
        latest = self._latest()
        latest.chunks = [*(latest.chunks or ()), chunk]

    def _response(self, line: dict[str, Any]) -> None:
        latest = self._latest()
        content = from_dict(ChatResponse, line["response"]).content
        latest.response = line["response"]
        for chunk in latest.chunks or ():
            if chunk["kind"] == "block_end" and "block" not in chunk and chunk.get("index", 0) < len(content):
                chunk["block"] = line["response"]["content"][chunk.get("index", 0)]

    def _error(self, line: dict[str, Any]) -> None:
        self._latest().error = {"type": line["error"], **{k: v for k, v in line.items() if k != "error"}}
