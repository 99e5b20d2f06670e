"""provider-offline: the default provider of the command line, a demonstration. No language model: fixed rules over English, and real tools.

A reply is a pure function of the request. Each instruction of the prompt is one tool call, whose id carries the instruction's number, so that
nothing has to be remembered between two requests of a turn.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from amplifier.contracts import Coordinator
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    Degradation,
    Message,
    TextBlock,
    ToolCallBlock,
)

from .._shared.configuration import number, option, read_options
from .._shared.failure import shown
from ._conversation import NO_RESULT, ToolResultEntry, calls_in, read_conversation, used_ids
from ._local_answers import Answer, LocalAnswerProvider, estimated_usage, fresh_id
from ._streams import calls_among

__all__ = ["DISCLAIMER", "RULES", "OfflineOptions", "OfflineProvider", "mount"]

__amplifier_module_type__ = "provider"

_MOST_INSTRUCTIONS = 12
_LISTED = 15
_SHOWN_LINES = 40
_TAG = re.compile(
    r"\s*<[a-z][\w-]*(?:\s[^>]*)?>"
)  # starts a message that a hook injected: ``<system-reminder>``
_ATTACHED = (
    "<file>",
    "<file name=",
)  # the text of a file in the prompt, as `amplifier.file` makes it: no instructions
_CALL_ID = re.compile(r"offline_(\d{1,4})_\d+(?:_\d+)?")
DISCLAIMER = (
    "provider-offline is no language model: fixed rules for a few instructions, such as `list the files` or `read README.md`.\n"
    "For a model set ANTHROPIC_API_KEY or OPENAI_API_KEY and run `amplifier run -p anthropic` or `-p openai`."
)

_Groups = Mapping[str, str]
_Data = Mapping[str, Any]
_QUOTED = r"(?:\"[^\"\n]+\"|`[^`\n]+`|(?<!\w)'[^'\n]+'(?!\w))"
_WORD = rf"(?:{_QUOTED}|[^\s\"`',;]+)"
_DIRECTORY = rf"(?: in (?:the )?(?P<directory>{_WORD})(?: (?:directory|folder))?)?"
_FILE = rf"(?:the )?(?:file )?(?P<path>{_WORD})"
_KINDS = {
    "python": "*.py",
    "markdown": "*.md",
    "text": "*.txt",
    "json": "*.json",
    "yaml": "*.{yaml,yml}",
}
_FILES = rf"(?:all )?(?:the )?(?:(?P<kind>{'|'.join(_KINDS)}) )?files?"


@attrs.frozen
class _Rule:
    """One form of instruction: what it looks like, the tool that it needs, and the answer made of the tool's result."""

    tool: str
    key: str
    """The field that the result must have."""
    kind: type
    pattern: str
    """Matches a whole clause, so that no word is dropped; a blank matches any white space."""
    arguments: Callable[[_Groups], dict[str, Any]]
    answer: Callable[[_Groups, _Data], str]
    changes: bool = False


def _directory(groups: _Groups, data: _Data) -> str:
    entries = [entry for entry in data["entries"] if isinstance(entry, dict)]
    names = [f"{entry.get('name')}{'/' * (entry.get('type') == 'directory')}" for entry in entries]
    visible = [name for name in names if not name.startswith(".")]
    return f"{_count(len(visible), 'visible entry', 'visible entries')}{groups['place']}:\n\n{_listed(visible)}".strip()


def _glob(groups: _Groups) -> dict[str, Any]:
    pattern = _KINDS.get(groups["kind"].lower(), "*")
    # Not below hidden directories at the top: caches and environments are there.
    top = "[!.]*" if pattern == "*" else pattern
    return {"pattern": f"{{{top},[!.]*/**/{pattern}}}", "path": groups["directory"] or "."}


def _files(groups: _Groups, data: _Data) -> str:
    paths = [path for path in data["paths"] if isinstance(path, str) and not path.endswith("/")]
    text = f"{_count(len(paths), (groups['kind'] + ' file').strip())}{groups['place']}"
    return text + ("." if groups["verb"].lower() == "count" else f":\n\n{_listed(paths)}")


def _matches(groups: _Groups, data: _Data) -> str:
    found = [match for match in data["matches"] if isinstance(match, dict)]
    lines = [
        f"{match.get('file_path')}:{match.get('line')}: {match.get('text')}" for match in found
    ]
    text = f"“{shown(groups['text'], 80)}” is in {_count(len(lines), 'line')}{groups['place']}"
    return (
        f"{text}:\n\n{_listed([shown(line.strip(), 160) for line in lines])}"
        if lines
        else f"{text}."
    )


def _content(groups: _Groups, data: _Data) -> str:
    content, total = data["content"], data.get("total_lines")
    counted = f"{shown(groups['path'], 200)} has {_count(total, 'line')}"
    if groups["verb"].lower().startswith("count"):
        return f"{counted}."
    if groups["verb"].lower().startswith("summari"):
        paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", content))
        first = next((words for words in paragraphs if words and not words.startswith("#")), "")
        text = f"{counted} and {_count(len(content.split()), 'word')}."
        return text + (f" It begins: {shown(first, 300)}" if first else "")
    return f"{counted}:\n\n{_fenced(content)}"


def _command(groups: _Groups, data: _Data) -> str:
    parts = [
        _fenced(text) for text in (data["stdout"], str(data.get("stderr") or "")) if text.strip()
    ]
    return "\n\n".join([*parts, f"It ended with code {data.get('returncode', 'unknown')}."])


def _search(groups: _Groups) -> dict[str, Any]:
    pattern, place = re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", groups["text"]), groups["directory"]
    hidden = (
        {} if place else {"glob": "[!.]*/**"}
    )  # matches in hidden directories would use up the tool's limit
    return {"pattern": pattern, "path": place or ".", "output_mode": "content", **hidden}


RULES = (
    _Rule("list_directory", "entries", list, rf"(?:list|show) (?:the )?files{_DIRECTORY}",
         lambda groups: {"path": groups["directory"] or "."}, _directory),
    _Rule("glob", "paths", list, rf"(?P<verb>list|show|find|count) {_FILES}{_DIRECTORY}", _glob, _files),
    _Rule("read_file", "content", str, rf"(?P<verb>count (?:the )?lines (?:in|of)|summari[sz]e) {_FILE}",
         lambda groups: {"file_path": groups["path"], "offset": 1, "limit": 2_000}, _content),
    _Rule("read_file", "content", str, rf"(?P<verb>read|show) {_FILE}",
         lambda groups: {"file_path": groups["path"], "offset": 1, "limit": _SHOWN_LINES}, _content),
    _Rule("grep", "matches", list, rf"(?:find|search for|grep) (?:where )?(?P<text>{_WORD})(?: is mentioned)?{_DIRECTORY}", _search, _matches),
    _Rule("write_file", "bytes", int, rf"write (?P<text>{_QUOTED}) (?:to|into) {_FILE}",
         lambda groups: {"file_path": groups["path"], "content": groups["text"] + "\n"},
         lambda groups, data: f"Wrote {_count(data['bytes'], 'byte')} to {shown(groups['path'], 200)}.", changes=True),
    _Rule("bash", "stdout", str, rf"(?:run|execute) (?P<command>{_QUOTED})",
         lambda groups: {"command": groups["command"]}, _command, changes=True),
)  # fmt: skip
"""Tried in order; the first that matches is taken."""

_PATTERNS = [(rule, re.compile(rule.pattern.replace(" ", r"\s+"), re.IGNORECASE)) for rule in RULES]
_FILLER = re.compile(r"(?:(?:please|now|then|also|and|can you|could you)[\s,:]+)*", re.IGNORECASE)
_VERB = rf"(?={_FILLER.pattern}(?:list|show|read|find|search|grep|count|summari[sz]e|write|run|execute)\s)"
_END = rf"[;\n]+|[.!?]+(?=\s|$)|,?\s+(?:and\s+then|and|then)\s+{_VERB}|,\s*{_VERB}"
_SEPARATOR = re.compile(rf"{_QUOTED}|(?P<end>{_END})", re.IGNORECASE)


def _clauses(prompt: str) -> list[str]:
    """Split a prompt at the ends of sentences, and at commas and "and" before a verb; never inside of quotes."""
    clauses = _SEPARATOR.sub(
        lambda found: "\0" if found["end"] else found[0], prompt.replace("\0", " ")
    ).split("\0")
    return [words for clause in clauses if (words := _FILLER.sub("", clause.strip(), count=1))]


def _rule(clause: str) -> tuple[_Rule, _Groups] | None:
    for rule, pattern in _PATTERNS:
        if match := pattern.fullmatch(clause):
            given = {"directory": "", "kind": ""} | {
                name: value or "" for name, value in match.groupdict().items()
            }
            groups = {
                name: text[1:-1] if re.fullmatch(_QUOTED, text) else text
                for name, text in given.items()
            }
            return rule, groups | {
                "place": groups["directory"] and f" in {shown(groups['directory'], 100)}"
            }
    return None


def _read_turn(request: ChatRequest) -> tuple[str, dict[int, str | None], int]:
    """The prompt, the result of each instruction (None if the conversation does not hold it), and the number of replies with calls."""
    messages = list(request.messages)
    spoken = [
        index
        for index, message in enumerate(messages)
        if message.role == "user" and _text(message).strip()
    ]
    own = [index for index in spoken if _TAG.match(_text(messages[index])) is None]
    start = next(reversed(own or spoken), None)
    since = messages if start is None else messages[start + 1 :]
    results = [
        entry for entry in read_conversation(since).entries if isinstance(entry, ToolResultEntry)
    ]
    texts = {
        each.call_id: "".join(p.text for p in each.parts if isinstance(p, TextBlock))
        for each in results
    }
    replies = [
        calls for message in since if message.role == "assistant" and (calls := calls_in(message))
    ]
    places = {
        call.id: found
        for calls in replies
        for call in calls
        if (found := _CALL_ID.fullmatch(call.id))
    }
    outcomes = {int(found[1]): texts.get(call) for call, found in places.items()}
    return "" if start is None else _text(messages[start]), outcomes, len(replies)


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    blocks = [block for block in message.content if isinstance(block, TextBlock)]
    return "\n".join(block.text for block in blocks if not block.text.startswith(_ATTACHED))


def _reply_to(request: ChatRequest) -> tuple[str, list[ToolCallBlock]]:
    """The text and the calls to make next: those that only look at the same time, one that may change something alone."""
    prompt, results, steps = _read_turn(request)
    # `shown` spells out lone surrogates, which JSON cannot hold, with six characters at most; it cuts nothing off here.
    clauses = _clauses(shown(prompt, 6 * len(prompt))) if len(prompt) <= 8_000 else []
    rules = [_rule(clause) for clause in clauses]
    if not any(rules):
        return DISCLAIMER, []
    offered = () if request.tool_choice == "none" else [spec.name for spec in request.tools or ()]
    taken = used_ids(request)
    # Differs between requests whose context leaves out all earlier ids.
    mark = zlib.crc32(
        f"{len(request.messages)} {prompt} {_text(request.messages[-1])[-200:]}".encode(
            errors="replace"
        )
    )
    sections: list[str] = []
    calls: list[ToolCallBlock] = []
    for place, (clause, found) in enumerate(zip(clauses[:_MOST_INSTRUCTIONS], rules, strict=False)):
        if found is None:
            outcome = "I do not understand this and did nothing for it."
        elif found[0].tool not in offered:
            outcome = f"Not done: it needs the tool `{found[0].tool}`, which is not offered here."
        elif results and place <= max(results):
            # A call whose result the context left out was made all the same; it must not be made twice.
            outcome = _outcome(*found, results.get(place))
        elif steps >= _MOST_INSTRUCTIONS:
            outcome = "Not done: one turn makes only a limited number of tool calls."
        elif found[0].changes and calls:
            break
        else:
            key = fresh_id(f"offline_{place}_{mark}", taken)
            calls.append(
                ToolCallBlock(id=key, name=found[0].tool, input=found[0].arguments(found[1]))
            )
            if found[0].changes:
                break
            continue
        sections.append((f"### {shown(clause, 120)}\n\n" if len(clauses) > 1 else "") + outcome)
    if calls:
        return f"Calling {', '.join(f'`{call.name}`' for call in calls)}.", calls
    if len(clauses) > _MOST_INSTRUCTIONS:
        sections.append(
            f"Only the first {_MOST_INSTRUCTIONS} of {len(clauses)} instructions were carried out."
        )
    if not any(DISCLAIMER in _text(message) for message in request.messages):
        sections.append(DISCLAIMER)
    return shown("\n\n".join(sections), 100_000), []


def _outcome(rule: _Rule, groups: _Groups, result: str | None) -> str:
    """The answer made of a result: the built-in tools return an object, and plain text for a failed or denied call."""
    if result is None or result == NO_RESULT:
        return f"Could not do it: the result of `{rule.tool}` is not in the conversation."
    if not result.lstrip().startswith("{"):
        return f"Could not do it: {shown(result.strip() or 'the tool returned nothing', 500)}"
    try:
        data, _ = json.JSONDecoder().raw_decode(result.lstrip())
    except (ValueError, RecursionError):
        data = {}
    if not isinstance(data.get(rule.key), rule.kind):
        return f"Could not do it: the result cannot be read, or has no usable field {rule.key!r}."
    note = data.get("note")  # the tool's own note on what it left out
    return rule.answer(groups, data) + (
        f"\n\nNote: {shown(note, 300)}." if isinstance(note, str) and note else ""
    )


def _count(amount: object, noun: str, plural: str = "") -> str:
    plural = plural or f"{noun}s"
    return (
        f"{amount:,} {noun if amount == 1 else plural}"
        if isinstance(amount, int)
        else f"unknown {plural}"
    )


def _listed(items: list[str]) -> str:
    more = [f"… and {len(items) - _LISTED:,} more"] if len(items) > _LISTED else []
    return "\n".join(f"- {item}" for item in [*items[:_LISTED], *more])


def _fenced(text: str) -> str:
    """A code block with the first lines of a text; its fence is longer than any in the text."""
    kept = "\n".join(text.splitlines()[:_SHOWN_LINES])[:6_000]
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", kept))])
    return f"{fence}\n{kept}\n{fence}" + (
        "\n(the rest is not shown)" if len(kept) < len(text.rstrip()) else ""
    )


@attrs.frozen(kw_only=True)
class OfflineOptions:
    """The configuration of provider-offline."""

    stream_delay_ms: float = option(number(0, what="a number of milliseconds"), default=0.0)


class OfflineProvider(LocalAnswerProvider):
    """Answers by fixed rules; keeps no state, so that it serves any number of requests at once."""

    _name = "offline"
    _title = "Offline (fixed rules, no language model)"
    _model = "offline-rules"
    _capabilities = ("tools", "streaming", "text_only")

    def __init__(self, coordinator: Coordinator, options: OfflineOptions) -> None:
        super().__init__(coordinator)
        self._pause = options.stream_delay_ms / 1000

    async def _answer(self, request: ChatRequest) -> Answer:
        text, calls = _reply_to(request)
        reason = "tool_calls" if calls else "stop"
        for stop in request.stop or ():
            text = text.partition(stop)[0] if stop else text
        most = request.max_output_tokens
        if most is not None and len(text) > most * 4:  # four characters count as a token
            text, reason = text[: max(0, most) * 4], reason if calls else "length"
        blocks: list[Any] = [*([TextBlock(text=text)] if text else ()), *calls]
        usage, asked, degradation = estimated_usage(request, blocks), request.response_format, None
        if asked is not None and asked.type != "text":
            degradation = Degradation(
                requested=asked.type, actual="text", reason="provider-offline answers in text only"
            )
        response = ChatResponse(
            content=blocks,
            tool_calls=calls_among(calls) or None,
            usage=usage,
            degradation=degradation,
            finish_reason=reason,
        )
        return Answer(response=response, pause=self._pause)


async def mount(
    coordinator: Coordinator, config: dict[str, Any] | None = None
) -> Callable[[], Awaitable[None]]:
    """Mount the provider ``offline``; returns the cleanup, which closes unfinished streams."""
    provider = OfflineProvider(
        coordinator, read_options(OfflineOptions, "provider-offline", config)
    )
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose
