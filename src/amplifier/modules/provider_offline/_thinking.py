"""From a request to an answer: a pure function, without memory, clock or chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from amplifier.models import ChatRequest
from amplifier.modules._tool_base import shown

from .._canned import fresh_id
from ._conversation import Turn, read_turn
from ._counting import count_files, count_lines, lines_of
from ._desk import Desk, Waiting, Wanted
from ._doing import fetch_page, keep_todos, replace_text, run_command, write_file
from ._gathering import gather
from ._intents import (
    CountFiles,
    CountLines,
    FetchPage,
    Files,
    FindFile,
    FindText,
    Help,
    Intent,
    ListFiles,
    ReadFiles,
    ReplaceText,
    RunCommand,
    Summarise,
    Todo,
    Unknown,
    WriteFile,
)
from ._looking import find_file, find_text, list_files, read_files
from ._summarising import summarise
from ._understanding import understand
from ._wording import FOOTER, LONGEST_ANSWER, Section, help_text

_EFFECTS = (WriteFile, ReplaceText, RunCommand, Todo)

_ANSWERS: Mapping[type, Callable[[Desk, Any], Section]] = {
    ListFiles: list_files,
    FindText: find_text,
    FindFile: find_file,
    CountFiles: count_files,
    CountLines: count_lines,
    Summarise: summarise,
    ReplaceText: replace_text,
    RunCommand: run_command,
    FetchPage: fetch_page,
    Todo: keep_todos,
}


@attrs.frozen(kw_only=True)
class Thought:
    """What to answer: words, and calls by their ids.

    Attributes:
        text: The words.
        calls: What to call; the answer goes on when the results are there.
    """

    text: str
    calls: Mapping[str, Wanted] = attrs.field(factory=dict)


def think(request: ChatRequest, *, max_calls: int, max_steps: int) -> Thought:
    """Answer a request.

    Args:
        request: Not changed; the same request always gets the same answer.
        max_calls: Calls of tools in one turn.
        max_steps: Answers with calls in one turn.
    """
    turn = read_turn(request)
    intents, left_out = understand(shown(turn.prompt, 10_000))
    if all(isinstance(intent, Help | Unknown) for intent in intents):
        unknown = [intent for intent in intents if isinstance(intent, Unknown)]
        words = " ".join(intent.words for intent in unknown if not intent.part)
        return Thought(text=help_text(words, turn.tools, [_refusal(intent) for intent in unknown if intent.part]))
    desk = Desk(turn, max_calls=max_calls, max_steps=max_steps)
    sections = _sections(desk, intents)
    if desk.wanted:
        return Thought(text=_announced(desk.wanted), calls=_identified(desk.wanted, turn))
    return Thought(text=_composed(sections, intents, left_out, desk))


def _sections(desk: Desk, intents: list[Intent]) -> list[Section]:
    """Answer as much as the results at hand allow; the desk notes what is wanted for the rest.

    What only looks is asked for all at once. What changes something waits for all before it, and all after it waits.
    """
    sections: list[Section] = []
    is_waiting = False
    is_alone = sum(not isinstance(intent, Help | Unknown) for intent in intents) == 1
    for intent in intents:
        acts = isinstance(intent, _EFFECTS)
        if acts and is_waiting:
            break
        try:
            section = _section(desk, intent, sections, is_alone=is_alone)
        except Waiting:
            is_waiting = True
            if acts:
                break
        else:
            if section is not None:
                sections.append(section)
    return sections


def _section(desk: Desk, intent: Intent, before: list[Section], *, is_alone: bool) -> Section | None:
    if isinstance(intent, Help | Unknown):
        return None
    if isinstance(intent, WriteFile):
        return write_file(desk, intent, before)
    if isinstance(intent, ReadFiles):
        return read_files(desk, _picked(desk, intent), is_alone=is_alone)
    return _ANSWERS[type(intent)](desk, intent)


def _picked(desk: Desk, intent: ReadFiles) -> ReadFiles:
    """``the longest one``, or ``them``, as the paths they stand for."""
    if intent.files.paths:
        return intent
    if not intent.files.pick:
        paths = gather(desk, intent.files).paths
        return attrs.evolve(intent, files=Files(paths=paths or (intent.files.pattern,)))
    counted = lines_of(desk, intent.files)
    path = counted.picked(intent.files.pick)
    return attrs.evolve(intent, files=Files(paths=(path or intent.files.pattern,)))


def _refusal(unknown: Unknown) -> str:
    part, words = shown(ascii(unknown.part), 120), shown(ascii(unknown.words), 200)
    return f"I did not understand {part} in {words}; without it this is another question, so I did not answer it."


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:] if text.startswith("at least") else text


def _identified(wanted: list[Wanted], turn: Turn) -> dict[str, Wanted]:
    calls: dict[str, Wanted] = {}
    for index, item in enumerate(wanted):
        name = f"offline_{turn.mark}_{turn.steps + 1}_{index}"
        calls[fresh_id(name, turn.taken | calls.keys())] = item
    return calls


def _announced(wanted: list[Wanted]) -> str:
    shown_calls = [f"`{item.tool}` ({_subject(item.arguments)})" for item in wanted[:6]]
    more = f" and {len(wanted) - 6} more" if len(wanted) > 6 else ""
    return f"Calling {', '.join(shown_calls)}{more}."


def _subject(arguments: Mapping[str, Any]) -> str:
    for key in ("command", "url", "file_path", "pattern", "path", "action"):
        if key in arguments:
            return shown(str(arguments[key]).replace("`", "'").replace("\n", " "), 60)
    return "…"


def _composed(sections: list[Section], intents: list[Intent], left_out: int, desk: Desk) -> str:
    if len(sections) == 1:
        parts = [_capital(sections[0].body)]
    else:
        parts = [f"### {s.title}\n\n{_capital(s.body)}" if s.title else s.body for s in sections]
    parts += [_refusal(intent) for intent in intents if isinstance(intent, Unknown) and intent.part]
    unknown = [shown(ascii(intent.words), 120) for intent in intents if isinstance(intent, Unknown) and not intent.part]
    if unknown:
        parts.append(f"I did not understand: {'; '.join(unknown)}. Ask for `help` to see what I know.")
    if left_out:
        parts.append(f"I look at the first requests only; {left_out} more were left out.")
    if desk.refused:
        parts.append("Some of it was not done: the number of calls in one answer is limited.")
    body = "\n\n".join(parts)
    if len(body) > LONGEST_ANSWER:
        body = f"{body[:LONGEST_ANSWER]}\n\n(the answer was cut here)"
    return f"{body}\n\n{FOOTER}"
