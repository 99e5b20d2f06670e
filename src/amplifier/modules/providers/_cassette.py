"""A cassette: its file, its recordings, and the sessions of this process that share it."""

# The format makes diffs readable. The first member of a line is its kind. Messages and tools are
# written once, before the first request that contains them, and requests refer to them by the
# digest of their content. So a changed prompt changes one line instead of one in each later
# request. The lines between two requests are the answer to the first one:
#
#     {"cassette": 1}
#     {"provider": "openai", "info": {…}}
#     {"message": "5f2b…", "value": {"role": "user", "content": "…"}}
#     {"tool": "9c01…", "value": {"name": "read_file", …}}
#     {"request": "main", "provider": "openai", "messages": ["5f2b…"], "tools": ["9c01…"],
#      "settings": {…}}
#     {"chunk": "block_delta", "index": 0, "block_type": "text", "text": "…"}
#     {"response": {…}}
#     {"error": "RateLimitError", "message": "…", …}
#
# A recording is found by its place, the provider, the request, and the number of equal requests
# before it. The place is the session. For a child session it includes the tool calls that led to
# it. It distinguishes equal requests from parallel child sessions, because their order depends on
# the scheduler.

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
    JSON,
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

# Members of requests and messages that only affect the delivery, or belong to the application.
_NOT_COMPARED = ("stream", "timeout", "metadata", "conversation_id", "producer_model")
_RANDOM_ID = re.compile(
    # A child session of tool-task has the id PARENT-RANDOM_AGENT.
    r"(?<![\w.:-])[\w.:-]{1,200}?-[0-9a-f]{16}_[\w.:-]{1,60}+"
    r"|(?<![0-9A-Za-z])"
    r"(?:[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}|[0-9a-f]{16})"
    r"(?![0-9A-Za-z])",
    re.ASCII,
)
# Shorter values of sensitive names, as in ``AUTH=none``, are common words in other texts.
_MIN_SECRET = 8
# Variables that are named like a password but hold a directory.
_NO_SECRETS = ("PWD", "OLDPWD")
_SHOWN = 120
_CONTEXT = 40
_MISSING = object()


# ── what may be written ──────────────────────────────────────────────────────────────────────────


class Scrubber:
    """Removes secrets from JSON values, and replaces texts with placeholders.

    Secrets are the matches of `redact_secrets`, and the values under sensitive names in the plan
    and the environment. They are removed wherever they occur, because a service may quote a key in
    an error.

    Args:
        placeholders: Texts, keyed by placeholder name.
        plan: The mount plan.
    """

    def __init__(self, placeholders: Mapping[str, str], plan: Mapping[str, JSON]) -> None:
        variables = {name: value for name, value in os.environ.items() if name not in _NO_SECRETS}
        self._hide = _replacing(dict.fromkeys(_secret_values([dict(plan), variables]), REDACTED))
        self._name = _replacing({text: name for name, text in placeholders.items()})
        self._restore = _replacing(placeholders)

    def scrub(self, value: JSON) -> JSON:
        """Return a copy of a JSON value that may be written."""
        return _map_texts(redact_secrets(_map_texts(value, self._hide)), self._name)

    def restore(self, value: JSON) -> JSON:
        """Return a copy of a written JSON value, with texts instead of their placeholders."""
        return _map_texts(value, self._restore)


def _map_texts(value: JSON, change: Callable[[str], str]) -> JSON:
    """Return a copy of a JSON value after applying a function to its texts, except for keys."""

    def visit(leaf: JSON, _frames: Sequence[Frame]) -> JSON:
        return change(leaf) if isinstance(leaf, str) else leaf

    return rebuild(value, visit, subject="the request or answer cannot be recorded")


def _replacing(replacements: Mapping[str, str]) -> Callable[[str], str]:
    """Return a function that replaces texts in a text, with the longest match at each place."""
    longest_first = sorted(filter(None, replacements), key=lambda text: (-len(text), text))
    if not longest_first:
        return str
    pattern = re.compile("|".join(map(re.escape, longest_first)))
    return lambda text: pattern.sub(lambda match: replacements[match[0]], text)


def _secret_values(value: JSON) -> Iterator[str]:
    """Yield the texts that redaction removes completely because of their names."""
    pending = [(value, redact_secrets(value))]
    while pending:
        original, redacted = pending.pop()
        if isinstance(original, dict) and isinstance(redacted, dict):
            pending += [
                (member, redacted[key]) for key, member in original.items() if key in redacted
            ]
        elif isinstance(original, list) and isinstance(redacted, list):
            pending += zip(original, redacted, strict=False)
        elif redacted == REDACTED and isinstance(original, str) and len(original) >= _MIN_SECRET:
            yield original


# ── comparison ───────────────────────────────────────────────────────────────────────────────────


def canonical_request(
    request: ChatRequest, scrubber: Scrubber, ignore: Iterable[str]
) -> dict[str, JSON]:
    """Return a request as it is compared and written, as JSON that shares nothing with it."""
    compared_members = _without_unseen(to_dict(request))
    messages = [_without_unseen(message) for message in copy_json(compared_members["messages"])]
    _number_calls(messages)
    compared_members["messages"] = messages
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0], f"<id {len(numbers) + 1}>")

    def compared(text: str) -> str:
        for pattern in ignore:
            text = re.sub(pattern, "<ignored>", text)
        return _RANDOM_ID.sub(number, text)

    canonical: dict[str, JSON] = _map_texts(scrubber.scrub(compared_members), compared)
    return canonical


def _without_unseen(value: dict[str, JSON]) -> dict[str, JSON]:
    return {
        key: member
        for key, member in value.items()
        if key not in _NOT_COMPARED and member is not None
    }


def _number_calls(messages: list[dict[str, JSON]]) -> None:
    """Replace the ids of tool calls in messages, blocks and ``tool_calls`` with numbers."""
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


def digest(value: JSON) -> str:
    """Return a short name for a JSON value. Equal values have equal names."""
    return hashlib.sha256(canonical_dumps(value).encode()).hexdigest()[:12]


# ── differences ──────────────────────────────────────────────────────────────────────────────────


def first_difference(
    recorded: JSON, actual: JSON, path: tuple[str | int, ...] = ()
) -> tuple[str, str, str] | None:
    """Return the first difference, in the order of the recorded value.

    Returns:
        The path, such as ``$.messages[2].content``, and the recorded and the actual value there as
        text. None if the values are equal.
    """
    old, new = recorded, actual
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        members = ((key, old.get(key, _MISSING), new.get(key, _MISSING)) for key in {**old, **new})
        differences = (first_difference(one, other, (*path, key)) for key, one, other in members)
        return next(filter(None, differences), None)
    if type(old) is type(new) and old == new:
        return None
    start = 0
    if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > _SHOWN:
        start = max(0, _common_prefix(old, new) - _CONTEXT)
    return format_path(path, "$"), _shown(old, start), _shown(new, start)


def _common_prefix(one: str, other: str) -> int:
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071  # characters are meant


def _shown(value: JSON, start: int) -> str:
    """Return a value as text. A long text is shown from a position on."""
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
# The factor for the delay before a retry. A loop would ignore 0.
_NO_DELAY = 1e-9

Line = dict[str, JSON]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


@attrs.define(kw_only=True)
class Exchange:
    """A request and its answer. Recordings of the same request are equal.

    Attributes:
        place: The place of the request, such as ``main`` or ``main/call_1``.
        provider: The name of the provider.
        request: The request as JSON.
        answer: The lines of the answer in the file. Empty until the answer is complete. They aren't
            compared.
    """

    place: str
    provider: str
    request: dict[str, JSON]
    answer: list[Line] = attrs.field(factory=list, eq=False)

    @property
    def is_complete(self) -> bool:
        """True if there is an answer to replay. An interrupted answer can't be replayed."""
        return bool(self.answer) and "chunk" not in self.answer[-1]

    def finish(
        self, end: ChatResponse | LLMError, chunks: Iterable[StreamChunk], scrubber: Scrubber
    ) -> None:
        """Record the answer and the chunks before it."""
        last = scrubber.scrub(
            _error_line(end) if isinstance(end, LLMError) else {"response": to_dict(end)}
        )
        self.answer = [*_chunk_lines(chunks, _content(last), scrubber), last]

    def replayed(self, scrubber: Scrubber) -> Answer:
        """Return the recorded answer.

        Raises:
            LLMError: The recorded error, if there were no chunks before it.
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
        # A secret may be split between two chunks, so the replay makes its own chunks.
        return
    for line in lines:
        kind, index = line.pop("kind"), line.get("index", 0)
        written = scrubber.scrub(line)
        # The response contains the same block.
        if index < len(content) and written.get("block") == content[index]:
            del written["block"]
        yield {"chunk": kind, **written}


def _error_line(error: LLMError) -> Line:
    # A subclass from another package may not be installed when the recording is replayed.
    kind = next(base for base in type(error).__mro__ if base.__module__ == LLMError.__module__)
    fields = {
        name: value for name in _ERROR_FIELDS if (value := getattr(error, name, None)) is not None
    }
    return {"error": kind.__name__, "message": str(error), **fields}


def _decoded(line: Line, content: list[Any]) -> JSON:
    """Return the chunk, the response or the error of a line.

    A loop retries after the error without a delay.

    Raises:
        ModelError: The line is none of these.
        TypeError: As above.
        ValueError: As above.
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
        fields["delay_multiplier"] = _NO_DELAY
    return kind(line.get("message", ""), **fields)


# ── the cassette ─────────────────────────────────────────────────────────────────────────────────


class Cassette:
    """The recordings of one session and its children, or of several sessions that share a file.

    Sessions share the cassette while they are open at the same time. If their plans have the same
    `run`, they share it even one after another. They are numbered in the order in which they open:
    the first is ``main``, the second ``main-2``. No session overwrites the recordings of another.

    Args:
        path: The file.
        mode: ``none``, ``once`` or ``new``.
        run: The option ``run`` of the plan.

    Attributes:
        path: The file.
        mode: ``none``, ``once`` or ``new``.
        run: The option ``run`` of the plan.
        opened: Number of sessions that were opened.
        sessions: The open sessions. A session disappears if it is garbage-collected without being
            closed.
        records: Whether the sessions record. This is decided when the file is read for the first
            session.
        providers: Descriptions of the recorded providers, keyed by mount name.
        recorded: The exchanges in the file when it was read for the first session. None until then.
        new: The exchanges since then, including incomplete ones.
    """

    def __init__(self, path: Path, mode: str, run: str | None) -> None:
        self.path = path
        self.mode = mode
        self.run = run
        self.opened = 0
        self.sessions: WeakSet[Any] = WeakSet()
        self.records: bool = False
        self.providers: dict[str, dict[str, JSON]] = {}
        self.recorded: list[Exchange] | None = None
        self.new: list[Exchange] = []
        # Sessions that share the file read and write it in threads.
        self._lock = Lock()

    @property
    def exchanges(self) -> list[Exchange]:
        """The complete exchanges, sorted by place, so that recordings of one run look the same."""
        complete = [
            exchange for exchange in (*(self.recorded or ()), *self.new) if exchange.is_complete
        ]
        return sorted(complete, key=lambda exchange: exchange.place)

    def takes(self, mode: str, run: str | None) -> bool:
        """Check whether a new session can share this cassette."""
        if mode != self.mode:
            return False
        return (run is not None and run == self.run) or (
            bool(self.sessions) and (run == self.run or self.records)
        )

    def place(self, number: int) -> str:
        """Return the place of a session. A recording of one session is replayed in all sessions."""
        has_several = any(item.place.startswith("main-") for item in self.recorded or ())
        if number == 1 or not (self.records or has_several):
            return "main"
        return f"main-{number}"

    def mismatch(self, exchange: Exchange, uses: int) -> ReplayMismatchError:
        """Return the error for a request that was made ``uses`` times, with the reason."""
        recorded = self.exchanges
        candidates = [item for item in recorded if item.provider == exchange.provider]
        difference: tuple[str | None, str | None, str | None] | None = None
        if uses > 1:
            times = "once" if uses == 2 else f"{uses - 1} times"
            reason = f": it was made {uses} times, but recorded {times}"
        elif not candidates:
            reason = f"; recorded providers: {', '.join(map(repr, self.providers)) or 'none'}"
        else:
            messages = canonical_dumps(exchange.request["messages"])

            def similarity(candidate: Exchange) -> tuple[bool, int]:
                return candidate.place == exchange.place, _common_prefix(
                    canonical_dumps(candidate.request["messages"]), messages
                )

            nearest = max(candidates, key=similarity)
            difference = first_difference(nearest.request, exchange.request)
            number = recorded.index(nearest) + 1
            reason = f"; the same request is recorded for {nearest.place} (request {number})"
            if difference is not None:
                path, expected, found = difference
                reason = (
                    f"; the nearest is request {number} (of {nearest.place}), which differs at "
                    f"{path}: expected {expected}, found {found}"
                )
        error = ReplayMismatchError(
            f"{self.path.name} has no recording for this request of {exchange.place} to provider "
            f"{exchange.provider!r}{reason}; undo the change, or record again: remove the file and "
            "use mode 'once' (`--record` on the command line)",
            provider=exchange.provider,
        )
        error.path, error.expected, error.found = difference or (None, None, None)
        return error

    # ── the file ─────────────────────────────────────────────────────────────────────────────────

    def load(self) -> None:
        """Read the file for the first of the open sessions.

        Raises:
            PlanError: The file is needed but missing, or isn't a cassette.
        """
        with self._lock:
            if self.recorded is not None:
                return
            try:
                text = read_file(self.path).decode("utf-8")
            except FileNotFoundError:
                if self.mode == "none":
                    problem = (
                        f"{self.path} does not exist; record it with mode 'once' "
                        "(`--record` on the command line)"
                    )
                    raise PlanError([("$.cassette", problem)]) from None
                self.records, self.recorded = True, []
                return
            except (OSError, UnicodeDecodeError) as error:
                raise PlanError([("$.cassette", f"{self.path} cannot be read: {error}")]) from error
            self.records = self.records or self.mode == "new"
            self.recorded = [exchange for exchange in self._read(text) if exchange.is_complete]

    def _read(self, text: str) -> list[Exchange]:
        exchanges: list[Exchange] = []
        parts: dict[str, dict[str, JSON]] = {kind: {} for kind in _PARTS.values()}
        # splitlines() would also split at characters that JSON texts may contain.
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            try:
                self._read_line(number, line, parts, exchanges)
            except (KeyError, TypeError, ValueError, ModelError) as error:
                reason = f"no member {error}" if isinstance(error, KeyError) else str(error)
                problem = (
                    f"{self.path}, line {number}: {reason}; "
                    "expected a file that this module recorded"
                )
                raise PlanError([("$.cassette", problem)]) from error
        return exchanges

    def _read_line(
        self, number: int, text: str, parts: dict[str, dict[str, JSON]], exchanges: list[Exchange]
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
            request: dict[str, JSON] = dict(line["settings"])
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
        """Replace the file if there are new exchanges.

        Raises:
            OSError: The file could not be written. An existing file is unchanged.
        """
        # Without the lock, an older text could replace a newer one.
        with self._lock:
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
# The latest cassette of each file. Cassettes are small, because they hold recordings only while a
# session is open.
_cassettes: dict[Path, Cassette] = {}


def join(session: object, path: Path, mode: str, run: str | None) -> tuple[Cassette, int]:
    """Return the cassette of an opening session, and the session's number. `leave` must follow."""
    with _lock:
        cassette = _cassettes.get(path)
        if cassette is None or not cassette.takes(mode, run):
            cassette = _cassettes[path] = Cassette(path, mode, run)
        cassette.opened += 1
        cassette.sessions.add(session)
        return cassette, cassette.opened


def leave(session: object, cassette: Cassette) -> None:
    """Remove a session that is closed or failed to open. A second call does nothing."""
    with _lock:
        cassette.sessions.discard(session)
        # The next session of the run reads the file again.
        if not cassette.sessions:
            cassette.recorded, cassette.new = None, []
