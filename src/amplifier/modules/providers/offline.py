"""provider-offline: fixed rules for English and real tools, for demonstrations without a model."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import attrs

from amplifier._internal.json import JSON
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

_MAX_INSTRUCTIONS = 12
_LISTED = 15
_SHOWN_LINES = 40
# A message that a hook injected begins with a tag such as ``<system-reminder>``.
_TAG = re.compile(r"\s*<[a-z][\w-]*(?:\s[^>]*)?>")
# The text of a file in the prompt begins like this (see `amplifier.file`). It isn't searched for
# instructions.
_ATTACHED = ("<file>", "<file name=")
_CALL_ID = re.compile(r"offline_(\d{1,4})_\d+(?:_\d+)?")
DISCLAIMER = (
    "provider-offline is not a language model: it has fixed rules for a few instructions, such as "
    "`list the files` or `read README.md`.\n"
    "For a model set ANTHROPIC_API_KEY or OPENAI_API_KEY and run `amplifier run -p anthropic` "
    "or `-p openai`."
)

_Groups = Mapping[str, str]
_Data = Mapping[str, JSON]
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
    """One form of instruction.

    Attributes:
        tool: The tool that it needs.
        key: A field that the tool's result must have.
        kind: The type of that field.
        pattern: A regular expression that matches a whole clause, so that no word is ignored. A
            blank matches any whitespace.
        arguments: Returns the arguments of the tool.
        answer: Returns the answer from the tool's result.
        changes: Whether the tool may change something.
    """

    tool: str
    key: str
    kind: type
    pattern: str
    arguments: Callable[[_Groups], dict[str, JSON]]
    answer: Callable[[_Groups, _Data], str]
    changes: bool = False


def _directory(groups: _Groups, data: _Data) -> str:
    entries = [entry for entry in data["entries"] if isinstance(entry, dict)]
    names = [f"{entry.get('name')}{'/' * (entry.get('type') == 'directory')}" for entry in entries]
    visible = [name for name in names if not name.startswith(".")]
    counted = _count(len(visible), "visible entry", "visible entries")
    return f"{counted}{groups['place']}:\n\n{_listed(visible)}".strip()


def _glob(groups: _Groups) -> dict[str, JSON]:
    pattern = _KINDS.get(groups["kind"].lower(), "*")
    # Hidden directories at the top are left out, because they hold caches and environments.
    top = "[!.]*" if pattern == "*" else pattern
    return {"pattern": f"{{{top},[!.]*/**/{pattern}}}", "path": groups["directory"] or "."}


def _files(groups: _Groups, data: _Data) -> str:
    paths = [path for path in data["paths"] if isinstance(path, str) and not path.endswith("/")]
    text = f"{_count(len(paths), (groups['kind'] + ' file').strip())}{groups['place']}"
    return text + ("." if groups["verb"].lower() == "count" else f":\n\n{_listed(paths)}")


def _matches(groups: _Groups, data: _Data) -> str:
    lines = [
        f"{match.get('file_path')}:{match.get('line')}: {match.get('text')}"
        for match in data["matches"]
        if isinstance(match, dict)
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
        first = next((text for text in paragraphs if text and not text.startswith("#")), "")
        text = f"{counted} and {_count(len(content.split()), 'word')}."
        return text + (f" It begins: {shown(first, 300)}" if first else "")
    return f"{counted}:\n\n{_fenced(content)}"


def _command(groups: _Groups, data: _Data) -> str:
    parts = [
        _fenced(text) for text in (data["stdout"], str(data.get("stderr") or "")) if text.strip()
    ]
    return "\n\n".join([*parts, f"It ended with code {data.get('returncode', 'unknown')}."])


def _search(groups: _Groups) -> dict[str, JSON]:
    pattern, place = re.sub(r"([\\.^$*+?{}\[\]|()])", r"\\\1", groups["text"]), groups["directory"]
    # Matches in hidden directories would use up the tool's limit.
    hidden = {} if place else {"glob": "[!.]*/**"}
    return {"pattern": pattern, "path": place or ".", "output_mode": "content", **hidden}


RULES = (
    _Rule(
        tool="list_directory",
        key="entries",
        kind=list,
        pattern=rf"(?:list|show) (?:the )?files{_DIRECTORY}",
        arguments=lambda groups: {"path": groups["directory"] or "."},
        answer=_directory,
    ),
    _Rule(
        tool="glob",
        key="paths",
        kind=list,
        pattern=rf"(?P<verb>list|show|find|count) {_FILES}{_DIRECTORY}",
        arguments=_glob,
        answer=_files,
    ),
    _Rule(
        tool="read_file",
        key="content",
        kind=str,
        pattern=rf"(?P<verb>count (?:the )?lines (?:in|of)|summari[sz]e) {_FILE}",
        arguments=lambda groups: {"file_path": groups["path"], "offset": 1, "limit": 2_000},
        answer=_content,
    ),
    _Rule(
        tool="read_file",
        key="content",
        kind=str,
        pattern=rf"(?P<verb>read|show) {_FILE}",
        arguments=lambda groups: {"file_path": groups["path"], "offset": 1, "limit": _SHOWN_LINES},
        answer=_content,
    ),
    _Rule(
        tool="grep",
        key="matches",
        kind=list,
        pattern=rf"(?:find|search for|grep) (?:where )?(?P<text>{_WORD})(?: is mentioned)?"
        rf"{_DIRECTORY}",
        arguments=_search,
        answer=_matches,
    ),
    _Rule(
        tool="write_file",
        key="bytes",
        kind=int,
        pattern=rf"write (?P<text>{_QUOTED}) (?:to|into) {_FILE}",
        arguments=lambda groups: {"file_path": groups["path"], "content": groups["text"] + "\n"},
        answer=lambda groups, data: (
            f"Wrote {_count(data['bytes'], 'byte')} to {shown(groups['path'], 200)}."
        ),
        changes=True,
    ),
    _Rule(
        tool="bash",
        key="stdout",
        kind=str,
        pattern=rf"(?:run|execute) (?P<command>{_QUOTED})",
        arguments=lambda groups: {"command": groups["command"]},
        answer=_command,
        changes=True,
    ),
)
"""The rules in order. The first match is used."""

_PATTERNS = [(rule, re.compile(rule.pattern.replace(" ", r"\s+"), re.IGNORECASE)) for rule in RULES]
_FILLER = re.compile(r"(?:(?:please|now|then|also|and|can you|could you)[\s,:]+)*", re.IGNORECASE)
_VERBS = "list|show|read|find|search|grep|count|summari[sz]e|write|run|execute"
_VERB = rf"(?={_FILLER.pattern}(?:{_VERBS})\s)"
_END = rf"[;\n]+|[.!?]+(?=\s|$)|,?\s+(?:and\s+then|and|then)\s+{_VERB}|,\s*{_VERB}"
_SEPARATOR = re.compile(rf"{_QUOTED}|(?P<end>{_END})", re.IGNORECASE)


def _clauses(prompt: str) -> list[str]:
    """Split a prompt at the ends of sentences, and at a comma or "and" before a verb.

    Text in quotes is not split.
    """
    clauses = _SEPARATOR.sub(
        lambda match: "\0" if match["end"] else match[0], prompt.replace("\0", " ")
    ).split("\0")
    return [text for clause in clauses if (text := _FILLER.sub("", clause.strip(), count=1))]


def _rule(clause: str) -> tuple[_Rule, _Groups] | None:
    for rule, pattern in _PATTERNS:
        if match := pattern.fullmatch(clause):
            texts = {"directory": "", "kind": ""} | {
                name: value or "" for name, value in match.groupdict().items()
            }
            groups = {
                name: text[1:-1] if re.fullmatch(_QUOTED, text) else text
                for name, text in texts.items()
            }
            return rule, groups | {
                "place": groups["directory"] and f" in {shown(groups['directory'], 100)}"
            }
    return None


def _read_turn(request: ChatRequest) -> tuple[str, dict[int, str | None], int]:
    """Return the prompt, the results of instructions by number, and the number of calling replies.

    An instruction's result is None if the conversation doesn't contain it.
    """
    messages = list(request.messages)
    user_messages = [
        index
        for index, message in enumerate(messages)
        if message.role == "user" and _text(message).strip()
    ]
    prompts = [index for index in user_messages if _TAG.match(_text(messages[index])) is None]
    start = next(reversed(prompts or user_messages), None)
    since = messages if start is None else messages[start + 1 :]
    results = [
        entry for entry in read_conversation(since).entries if isinstance(entry, ToolResultEntry)
    ]
    texts = {
        result.call_id: "".join(part.text for part in result.parts if isinstance(part, TextBlock))
        for result in results
    }
    replies = [
        calls for message in since if message.role == "assistant" and (calls := calls_in(message))
    ]
    matches = {
        call.id: match
        for calls in replies
        for call in calls
        if (match := _CALL_ID.fullmatch(call.id))
    }
    outcomes = {int(match[1]): texts.get(call_id) for call_id, match in matches.items()}
    return "" if start is None else _text(messages[start]), outcomes, len(replies)


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    blocks = [block for block in message.content if isinstance(block, TextBlock)]
    return "\n".join(block.text for block in blocks if not block.text.startswith(_ATTACHED))


# A reply is a pure function of the request. Each instruction in the prompt is one tool call, and
# the call's id contains the instruction's number. So the provider keeps no state between requests.


def _reply_to(request: ChatRequest) -> tuple[str, list[ToolCallBlock]]:
    """Return the text and the next calls.

    Calls that change nothing are made together. Any other call is made alone.
    """
    prompt, results, steps = _read_turn(request)
    # `shown` replaces a lone surrogate, which JSON can't represent, with at most six characters. So
    # this limit shortens nothing.
    clauses = _clauses(shown(prompt, 6 * len(prompt))) if len(prompt) <= 8_000 else []
    rules = [_rule(clause) for clause in clauses]
    if not any(rules):
        return DISCLAIMER, []
    offered = () if request.tool_choice == "none" else [spec.name for spec in request.tools or ()]
    taken = used_ids(request)
    # The mark differs between requests even if a context leaves out all earlier ids.
    last_text = _text(request.messages[-1])[-200:]
    mark = zlib.crc32(f"{len(request.messages)} {prompt} {last_text}".encode(errors="replace"))
    sections: list[str] = []
    calls: list[ToolCallBlock] = []
    for place, (clause, match) in enumerate(zip(clauses[:_MAX_INSTRUCTIONS], rules, strict=False)):
        if match is None:
            outcome = "I do not understand this and did nothing for it."
        elif match[0].tool not in offered:
            outcome = f"Not done: it needs the tool `{match[0].tool}`, which is not offered here."
        elif results and place <= max(results):
            # No call may be made twice, even if the context has left out its result.
            outcome = _outcome(*match, results.get(place))
        elif steps >= _MAX_INSTRUCTIONS:
            outcome = "Not done: one turn makes only a limited number of tool calls."
        elif match[0].changes and calls:
            break
        else:
            key = fresh_id(f"offline_{place}_{mark}", taken)
            calls.append(
                ToolCallBlock(id=key, name=match[0].tool, input=match[0].arguments(match[1]))
            )
            if match[0].changes:
                break
            continue
        sections.append((f"### {shown(clause, 120)}\n\n" if len(clauses) > 1 else "") + outcome)
    if calls:
        return f"Calling {', '.join(f'`{call.name}`' for call in calls)}.", calls
    if len(clauses) > _MAX_INSTRUCTIONS:
        sections.append(
            f"Only the first {_MAX_INSTRUCTIONS} of {len(clauses)} instructions were carried out."
        )
    if not any(DISCLAIMER in _text(message) for message in request.messages):
        sections.append(DISCLAIMER)
    return shown("\n\n".join(sections), 100_000), []


def _outcome(rule: _Rule, groups: _Groups, result: str | None) -> str:
    """Return the answer for a result.

    The built-in tools return an object, or plain text for a failed or denied call.
    """
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
    # The tool's note about parts that it left out.
    note = data.get("note")
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
    """Return a code block with the first lines of a text, with a fence longer than any in them."""
    kept = "\n".join(text.splitlines()[:_SHOWN_LINES])[:6_000]
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", kept))])
    return f"{fence}\n{kept}\n{fence}" + (
        "\n(the rest is not shown)" if len(kept) < len(text.rstrip()) else ""
    )


@attrs.frozen(kw_only=True)
class OfflineOptions:
    """The configuration of provider-offline.

    Attributes:
        stream_delay_ms: Milliseconds before each piece of a stream.
    """

    stream_delay_ms: float = option(number(0, what="a number of milliseconds"), default=0.0)


class OfflineProvider(LocalAnswerProvider):
    """Answers according to fixed rules, and keeps no state between requests."""

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
        limit = request.max_output_tokens
        # Four characters count as a token.
        if limit is not None and len(text) > limit * 4:
            text, reason = text[: max(0, limit) * 4], reason if calls else "length"
        blocks: list[Any] = [*([TextBlock(text=text)] if text else ()), *calls]
        usage, format_, degradation = (
            estimated_usage(request, blocks),
            request.response_format,
            None,
        )
        if format_ is not None and format_.type != "text":
            degradation = Degradation(
                requested=format_.type,
                actual="text",
                reason="provider-offline answers in text only",
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
    """Mount the provider ``offline``, and return the cleanup, which closes unfinished streams."""
    provider = OfflineProvider(
        coordinator, read_options(OfflineOptions, "provider-offline", config)
    )
    await coordinator.mount("providers", provider, name=provider.name)
    return provider.aclose
