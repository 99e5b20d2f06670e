"""A cassette: its file, what it has recorded, and the sessions of this process that share it.

The file is made for reading a diff. The first member of a line gives its kind. Messages and tools are written once, before the first
request that has them, and requests refer to them by the digest of their content: a changed prompt is one changed line, not one in each
request after it. The lines after a request, up to the next one, are what came back::

    {"cassette": 1}
    {"provider": "openai", "info": {…}}
    {"message": "5f2b…", "value": {"role": "user", "content": "…"}}
    {"tool": "9c01…", "value": {"name": "read_file", …}}
    {"request": "main", "provider": "openai", "messages": ["5f2b…"], "tools": ["9c01…"], "settings": {…}}
    {"chunk": "block_delta", "index": 0, "block_type": "text", "text": "…"}
    {"response": {…}}
    {"error": "RateLimitError", "message": "…", …}

A recording is found by its place (the session, and for a child session the tool calls that led to it), the provider, the
request, and how often the same request was made there before. The place keeps parallel child sessions apart whose
requests are equal: which of them asks first is up to the scheduler.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import WeakSet

import attrs

import amplifier.errors as error_classes
from amplifier._internal.json import (
    REDACTED,
    Frame,
    canonical_dumps,
    copy_json,
    format_path,
    rebuild,
    redact_secrets,
)
from amplifier._internal.regular_files import make_folders, read_file, replace_file
from amplifier.errors import LLMError, ModelError, PlanError, ReplayMismatchError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    ProviderInfo,
    StreamChunk,
    from_dict,
    to_dict,
)

from ._local_answers import Answer

_NOT_COMPARED = ("stream", "timeout", "metadata", "conversation_id", "producer_model")
"""How the answer is delivered, and what is for the application: of a request, and of a message."""
_RANDOM_ID = re.compile(
    r"(?<![\w.:-])[\w.:-]{1,200}?-[0-9a-f]{16}_[\w.:-]{1,60}+"  # a child session of tool-task: PARENT-RANDOM_AGENT
    r"|(?<![0-9A-Za-z])(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{16})(?![0-9A-Za-z])",
    re.ASCII,
)
_SHORTEST_SECRET = 8
"""Shorter values of sensitive names, such as ``AUTH=none``, are ordinary words that occur in other texts, too."""
_NO_SECRETS = ("PWD", "OLDPWD")
"""Variables that have the name of a password and hold a directory."""
_SHOWN = 120
_CONTEXT = 40
_MISSING = object()


# ── what may be written ──────────────────────────────────────────────────────────────────────────


class Scrubber:
    """Removes secrets from JSON values and exchanges texts with placeholders.

    Secrets are what `redact_secrets` finds, and the values that the plan and the environment have under sensitive names,
    wherever they occur: a service may quote a key in an error.

    Args:
        placeholders: Names and the texts that they stand for.
        plan: The mount plan.
    """

    def __init__(self, placeholders: Mapping[str, str], plan: Mapping[str, Any]) -> None:
        variables = {name: value for name, value in os.environ.items() if name not in _NO_SECRETS}
        self._hide = _replacing(dict.fromkeys(_secret_values([dict(plan), variables]), REDACTED))
        self._name = _replacing({text: name for name, text in placeholders.items()})
        self._restore = _replacing(placeholders)

    def scrub(self, value: Any) -> Any:
        """A copy of a JSON value that may be written."""
        return _map_texts(redact_secrets(_map_texts(value, self._hide)), self._name)

    def restore(self, value: Any) -> Any:
        """A copy of a written JSON value with the texts in place of their placeholders."""
        return _map_texts(value, self._restore)


def _map_texts(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value whose texts, keys aside, went through a function."""

    def visit(leaf: Any, _frames: Sequence[Frame]) -> Any:
        return change(leaf) if isinstance(leaf, str) else leaf

    return rebuild(value, visit, subject="the request or answer cannot be recorded")


def _replacing(replacements: Mapping[str, str]) -> Callable[[str], str]:
    """A function that replaces texts in a text; of two that begin at one place, the longer."""
    longest_first = sorted(filter(None, replacements), key=lambda text: (-len(text), text))
    if not longest_first:
        return str
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: pattern.sub(lambda found: replacements[found[0]], text)


def _secret_values(value: Any) -> Iterator[str]:
    """The texts that redaction removes as a whole, because of the names they have."""
    waiting = [(value, redact_secrets(value))]
    while waiting:
        given, redacted = waiting.pop()
        if isinstance(given, dict) and isinstance(redacted, dict):
            waiting += [(member, redacted[key]) for key, member in given.items() if key in redacted]
        elif isinstance(given, list) and isinstance(redacted, list):
            waiting += zip(given, redacted, strict=False)
        elif redacted == REDACTED and isinstance(given, str) and len(given) >= _SHORTEST_SECRET:
            yield given


# ── what is compared ─────────────────────────────────────────────────────────────────────────────


def canonical_request(
    request: ChatRequest, scrubber: Scrubber, ignore: Iterable[str]
) -> dict[str, Any]:
    """The request as it is compared and written: plain JSON that shares nothing with the request."""
    given = _without_unseen(to_dict(request))
    given["messages"] = [_without_unseen(message) for message in copy_json(given["messages"])]
    _number_calls(given["messages"])
    numbers: dict[str, str] = {}

    def number(found: re.Match[str]) -> str:
        return numbers.setdefault(found[0], f"<id {len(numbers) + 1}>")

    def compared(text: str) -> str:
        for pattern in ignore:
            text = re.sub(pattern, "<ignored>", text)
        return _RANDOM_ID.sub(number, text)

    canonical: dict[str, Any] = _map_texts(scrubber.scrub(given), compared)
    return canonical


def _without_unseen(value: dict[str, Any]) -> dict[str, Any]:
    return {
        key: member
        for key, member in value.items()
        if key not in _NOT_COMPARED and member is not None
    }


def _number_calls(messages: list[dict[str, Any]]) -> None:
    """Number the ids of tool calls: those of messages, of their blocks and of their ``tool_calls``."""
    numbers: dict[str, str] = {}
    for message in messages:
        lists = [
            listed
            for key in ("content", "tool_calls")
            if isinstance(listed := message.get(key), list)
        ]
        for part in [
            message,
            *(part for listed in lists for part in listed if isinstance(part, dict)),
        ]:
            is_call = (
                part.get("type") in ("tool_call", "tool_use", "function") or "arguments" in part
            )
            for key in ("tool_call_id", "id") if is_call else ("tool_call_id",):
                if isinstance(part.get(key), str):
                    part[key] = numbers.setdefault(part[key], f"call-{len(numbers) + 1}")


def digest(value: Any) -> str:
    """A short name for a JSON value, equal for equal values."""
    return hashlib.sha256(canonical_dumps(value).encode()).hexdigest()[:12]


# ── differences ──────────────────────────────────────────────────────────────────────────────────


def first_difference(
    recorded: Any, asked: Any, path: tuple[str | int, ...] = ()
) -> tuple[str, str, str] | None:
    """The first difference in the order of the recorded value; None if the values are equal.

    Returns:
        The path, such as ``$.messages[2].content``, what is recorded there and what was asked, in words.
    """
    old, new = recorded, asked
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        members = ((key, old.get(key, _MISSING), new.get(key, _MISSING)) for key in {**old, **new})
        found = (first_difference(one, other, (*path, key)) for key, one, other in members)
        return next(filter(None, found), None)
    if type(old) is type(new) and old == new:
        return None
    start = 0
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > _SHOWN:
        start = max(0, _common_prefix(old, new) - _CONTEXT)
    return format_path(path, "$"), _shown(old, start), _shown(new, start)


def _common_prefix(one: str, other: str) -> int:
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071  # characters are meant


def _shown(value: Any, start: int) -> str:
    """A value in words; of a long text what follows a place in it."""
    if value is _MISSING:
        return "nothing"
    if isinstance(value, str):
        end = start + (2 * _CONTEXT if start else _SHOWN)
        return f"{'…' if start else ''}{value[start:end]!r}{'…' if end < len(value) else ''}"
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"


_VERSION = 1
_PARTS = {"messages": "message", "tools": "tool"}
_KINDS = ("provider", *_PARTS.values(), "request", "chunk", "response", "error")
_ERROR_FIELDS = (
    "provider",
    "model",
    "status_code",
    "retryable",
    "retry_after",
    "delay_multiplier",
    "tool_name",
    "raw_arguments",
)
_NO_WAIT = 1e-9
"""The factor on the delay before a retry; a loop ignores 0."""

Line = dict[str, Any]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


@attrs.define(kw_only=True)
class Exchange:
    """A request and what came back; the answer aside, equal ones are recordings of one request.

    Attributes:
        place: Where it was made, such as ``main`` or ``main/call_1``.
        answer: The lines of the file; none while the answer is not finished.
    """

    place: str
    provider: str
    request: dict[str, Any]
    answer: list[Line] = attrs.field(factory=list, eq=False)

    @property
    def is_complete(self) -> bool:
        """Whether there is something to replay; an answer that was cut off is none."""
        return bool(self.answer) and "chunk" not in self.answer[-1]

    def finish(
        self, end: ChatResponse | LLMError, chunks: Iterable[StreamChunk], scrubber: Scrubber
    ) -> None:
        """Note the answer and the pieces that came before it."""
        last = scrubber.scrub(
            _error_line(end) if isinstance(end, LLMError) else {"response": to_dict(end)}
        )
        self.answer = [*_chunk_lines(chunks, _content(last), scrubber), last]

    def replayed(self, scrubber: Scrubber) -> Answer:
        """The answer to give again.

        Raises:
            LLMError: The recorded error, if nothing came before it.
        """
        lines = scrubber.restore(self.answer)
        *chunks, end = (_decoded(line, _content(lines[-1])) for line in lines)
        if isinstance(end, ChatResponse):
            return Answer(response=end, chunks=chunks or None)
        if not chunks:
            raise end
        return Answer(response=ChatResponse(content=[]), chunks=chunks, error=end)


def _content(last: Line) -> list[Any]:
    return list(last["response"]["content"]) if "response" in last else []


def _chunk_lines(
    chunks: Iterable[StreamChunk], content: list[Any], scrubber: Scrubber
) -> Iterator[Line]:
    lines = [
        {key: value for key, value in to_dict(chunk).items() if value is not None}
        for chunk in chunks
    ]
    texts: dict[int, str] = {}
    for line in lines:
        texts[line.get("index", 0)] = texts.get(line.get("index", 0), "") + line.get("text", "")
    if any(scrubber.scrub(text) != text for text in texts.values()):
        return  # a secret may begin in one piece and end in another one: the answer is replayed in pieces of its own
    for line in lines:
        kind, index = line.pop("kind"), line.get("index", 0)
        written = scrubber.scrub(line)
        if index < len(content) and written.get("block") == content[index]:
            del written["block"]  # it is in the response
        yield {"chunk": kind, **written}


def _error_line(error: LLMError) -> Line:
    # A class that another package derived from ours is not known when the recording is replayed.
    kind = next(one for one in type(error).__mro__ if one.__module__ == LLMError.__module__)
    fields = {
        name: value for name in _ERROR_FIELDS if (value := getattr(error, name, None)) is not None
    }
    return {"error": kind.__name__, "message": str(error), **fields}


def _decoded(line: Line, content: list[Any]) -> Any:
    """The chunk, the response or the error of a line; after an error a loop retries at once.

    Raises:
        ModelError, TypeError, ValueError: The line is none of them.
    """
    if "chunk" in line:
        chunk = {
            "kind": line["chunk"],
            **{key: value for key, value in line.items() if key != "chunk"},
        }
        if (
            chunk["kind"] == "block_end"
            and "block" not in chunk
            and chunk.get("index", 0) < len(content)
        ):
            chunk["block"] = content[chunk.get("index", 0)]
        return from_dict(StreamChunk, chunk)
    if "response" in line:
        return from_dict(ChatResponse, line["response"])
    kind = getattr(error_classes, line["error"], None)
    if not (isinstance(kind, type) and issubclass(kind, LLMError)):
        raise ValueError(f"expected an error of amplifier.errors, found {line['error']!r:.80}")
    fields = {
        key: value for key, value in line.items() if key not in ("error", "message", "retry_after")
    }
    if "delay_multiplier" in fields:
        fields["delay_multiplier"] = _NO_WAIT
    return kind(line.get("message", ""), **fields)


# ── the cassette ─────────────────────────────────────────────────────────────────────────────────


class Cassette:
    """The recordings of one session and its children, or of several that share the file.

    Sessions share it while they are open at the same time, and those whose plans have the same `run` also one after the other. They are
    numbered in the order in which they are opened: the first is ``main``, the second ``main-2``. None of them overwrites what another
    has recorded.

    Args:
        path: The file.
        mode: ``none``, ``once`` or ``new``.
        run: The option of this name.

    Attributes:
        sessions: The open ones. A session that is dropped without being closed disappears from it.
        records: Whether they record; decided when the file is read for the first session.
        providers: The descriptions of the recorded providers, by the names they were mounted under.
        recorded: What was in the file when it was read for the first session; None before.
        new: What was asked since, complete or not.
    """

    def __init__(self, path: Path, mode: str, run: str | None) -> None:
        self.path = path
        self.mode = mode
        self.run = run
        self.opened = 0
        self.sessions: WeakSet[Any] = WeakSet()
        self.records: bool = False
        self.providers: dict[str, dict[str, Any]] = {}
        self.recorded: list[Exchange] | None = None
        self.new: list[Exchange] = []
        self._lock = Lock()  # sessions that share it read and write it in threads

    @property
    def exchanges(self) -> list[Exchange]:
        """What belongs into the file, ordered by place, so that two recordings of one run have the same order."""
        complete = [
            exchange for exchange in (*(self.recorded or ()), *self.new) if exchange.is_complete
        ]
        return sorted(complete, key=lambda exchange: exchange.place)

    def takes(self, mode: str, run: str | None) -> bool:
        """Whether a new session belongs to it."""
        if mode != self.mode:
            return False
        return (run is not None and run == self.run) or (
            bool(self.sessions) and (run == self.run or self.records)
        )

    def place(self, number: int) -> str:
        """The place of a session; a file with one session is replayed in each of several."""
        if number == 1 or not (
            self.records or any(one.place.startswith("main-") for one in self.recorded or ())
        ):
            return "main"
        return f"main-{number}"

    def mismatch(self, asked: Exchange, uses: int) -> ReplayMismatchError:
        """Explain why there is no recording for a request that was made some times."""
        recorded = self.exchanges
        candidates = [exchange for exchange in recorded if exchange.provider == asked.provider]
        difference: tuple[str | None, str | None, str | None] | None = None
        if uses > 1:
            why = f": it was made {uses} times, and recorded {'once' if uses == 2 else f'{uses - 1} times'}"
        elif not candidates:
            why = f"; recorded providers: {', '.join(map(repr, self.providers)) or 'none'}"
        else:
            messages = canonical_dumps(asked.request["messages"])

            def similarity(one: Exchange) -> tuple[bool, int]:
                return one.place == asked.place, _common_prefix(
                    canonical_dumps(one.request["messages"]), messages
                )

            nearest = max(candidates, key=similarity)
            difference = first_difference(nearest.request, asked.request)
            number = recorded.index(nearest) + 1
            why = f"; the same request is recorded for {nearest.place} (request {number})"
            if difference is not None:
                why = f"; the nearest is request {number} (of {nearest.place}), which differs at "
                why += "{}: expected {}, found {}".format(*difference)
        error = ReplayMismatchError(
            f"{self.path.name} has no recording for this request of {asked.place} to provider {asked.provider!r}{why}; "
            "correct what changed, or record again: remove the file and use mode 'once' (`--record` on the command line)",
            provider=asked.provider,
        )
        error.path, error.expected, error.found = difference or (None, None, None)
        return error

    # ── the file ─────────────────────────────────────────────────────────────────────────────────

    def load(self) -> None:
        """Read the file for the first of the sessions that are open.

        Raises:
            PlanError: The file is needed and missing, or is no cassette.
        """
        with self._lock:
            if self.recorded is not None:
                return
            try:
                text = read_file(self.path).decode("utf-8")
            except FileNotFoundError:
                if self.mode == "none":
                    problem = f"{self.path} does not exist; record it with mode 'once' (`--record` on the command line)"
                    raise PlanError([("$.cassette", problem)]) from None
                self.records, self.recorded = True, []
                return
            except (OSError, UnicodeDecodeError) as error:
                raise PlanError([("$.cassette", f"{self.path} cannot be read: {error}")]) from error
            self.records = self.records or self.mode == "new"
            self.recorded = [exchange for exchange in self._read(text) if exchange.is_complete]

    def _read(self, text: str) -> list[Exchange]:
        exchanges: list[Exchange] = []
        parts: dict[str, dict[str, Any]] = {kind: {} for kind in _PARTS.values()}
        # Not splitlines(), which also splits at characters that JSON texts may contain.
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            try:
                self._read_line(number, line, parts, exchanges)
            except (KeyError, TypeError, ValueError, ModelError) as error:
                reason = f"no member {error}" if isinstance(error, KeyError) else str(error)
                problem = f"{self.path}, line {number}: {reason}; expected a file that this module recorded"
                raise PlanError([("$.cassette", problem)]) from error
        return exchanges

    def _read_line(
        self, number: int, text: str, parts: dict[str, dict[str, Any]], exchanges: list[Exchange]
    ) -> None:
        line = json.loads(text)
        kind = next(iter(line), "") if isinstance(line, dict) else ""
        if number == 1:
            if kind != "cassette" or line["cassette"] != _VERSION:
                raise ValueError(f'expected {{"cassette": {_VERSION}}}, found {text[:80]}')
        elif kind not in _KINDS:
            raise ValueError(
                f"expected one of {', '.join(_KINDS)} as the first member, found {kind!r:.80}"
            )
        elif kind == "provider":
            from_dict(ProviderInfo, line["info"])
            self.providers[line["provider"]] = line["info"]
        elif kind in parts:
            parts[kind][line[kind]] = line["value"]
        elif kind == "request":
            request: dict[str, Any] = dict(line["settings"])
            for section, part in _PARTS.items():
                values = [parts[part][name] for name in line[section]]
                if values or section == "messages":
                    request[section] = values
            exchanges.append(
                Exchange(place=line["request"], provider=line["provider"], request=request)
            )
        elif not exchanges or exchanges[-1].is_complete:
            raise ValueError("expected a request before the answer")
        else:
            _decoded(line, [])
            exchanges[-1].answer.append(line)

    def save(self) -> None:
        """Replace the file if there is something new.

        Raises:
            OSError: The system refuses; an old file is unchanged.
        """
        with self._lock:  # or an older text could replace a newer one
            if not any(exchange.is_complete for exchange in self.new):
                return
            text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in self._lines())
            make_folders(self.path.parent)
            replace_file(self.path, text.encode())

    def _lines(self) -> Iterator[Line]:
        yield {"cassette": _VERSION}
        for name, info in sorted(self.providers.items()):
            yield {"provider": name, "info": info}
        written: set[str] = set()
        for exchange in self.exchanges:
            line: Line = {"request": exchange.place, "provider": exchange.provider}
            for section, kind in _PARTS.items():
                line[section] = []
                for value in exchange.request.get(section, ()):
                    line[section].append(name := digest(value))
                    if name not in written:
                        written.add(name)
                        yield {kind: name, "value": value}
            line["settings"] = {
                key: value for key, value in exchange.request.items() if key not in _PARTS
            }
            yield line
            yield from exchange.answer


# ── the sessions that share a file ───────────────────────────────────────────────────────────────

_lock = Lock()
_cassettes: dict[Path, Cassette] = {}
"""The latest of each file; small, because recordings are only in it while a session is open."""


def join(session: object, path: Path, mode: str, run: str | None) -> tuple[Cassette, int]:
    """The cassette of a session that is being opened, and the session's number; `leave` must follow."""
    with _lock:
        cassette = _cassettes.get(path)
        if cassette is None or not cassette.takes(mode, run):
            cassette = _cassettes[path] = Cassette(path, mode, run)
        cassette.opened += 1
        cassette.sessions.add(session)
        return cassette, cassette.opened


def leave(session: object, cassette: Cassette) -> None:
    """The session is closed, or was not opened; a second call does nothing."""
    with _lock:
        cassette.sessions.discard(session)
        if not cassette.sessions:  # the next one of the run reads the file again
            cassette.recorded, cassette.new = None, []
