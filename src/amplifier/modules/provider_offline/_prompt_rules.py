"""The sentences that it understands.

A pattern has to match a whole clause of the prompt, so that no word of an instruction is dropped: "count the files not in src"
is not answered as if it were "count the files".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import attrs

from ._answers import (
    Answer,
    add_todo,
    count_lines,
    fetch_page,
    find_files,
    find_text,
    list_directory,
    read_file,
    replace_text,
    run_command,
    show_todos,
    summarise_file,
    write_file,
)

_LONGEST_PROMPT = 8_000

_KINDS: Mapping[str, tuple[str, str]] = {
    "python": ("Python", "*.py"),
    "markdown": ("Markdown", "*.md"),
    "text": ("text", "*.txt"),
    "json": ("JSON", "*.json"),
    "yaml": ("YAML", "*.{yaml,yml}"),
    "toml": ("TOML", "*.toml"),
    "html": ("HTML", "*.{html,htm}"),
    "shell": ("shell", "*.{sh,bash}"),
}

_QUOTED = r"(?:\"[^\"\n]+\"|`[^`\n]+`|(?<!\w)'[^'\n]+'(?!\w))"
_WORD = rf"(?:{_QUOTED}|[^\s\"`',;]+)"
_FILES = rf"(?:(?P<kind>{'|'.join(_KINDS)}|\.\w+) )?files?"
_DIRECTORY = rf"(?:the )?(?:(?:directory|folder) )?(?P<directory>{_WORD})(?: (?:directory|folder))?"
_FILE = rf"(?:the )?(?:file )?(?P<path>{_WORD})"


@attrs.frozen
class Rule:
    """One form of instruction.

    Attributes:
        example: A sentence of this form.
        tool: The tool that it needs.
        pattern: Matches a whole clause; a blank matches any white space.
        answer: Starts the answer, from the groups of the match without their quotes.
    """

    example: str
    tool: str
    pattern: str
    answer: Callable[[Mapping[str, str]], Answer]


def _find_files(groups: Mapping[str, str], *, is_listed: bool) -> Answer:
    kind = groups["kind"]
    name, pattern = _KINDS.get(kind.lower(), (kind, f"*{kind}"))
    return find_files(name, pattern, groups["directory"], is_listed=is_listed)


RULES = (
    Rule(
        "list the files",
        "list_directory",
        rf"(?:list|show) (?:the )?files(?: in {_DIRECTORY})?",
        lambda groups: list_directory(groups["directory"]),
    ),
    Rule(
        "list the Python files in src",
        "glob",
        rf"(?:list|show|find) (?:all )?(?:the )?{_FILES}(?: in {_DIRECTORY})?",
        lambda groups: _find_files(groups, is_listed=True),
    ),
    Rule(
        "count the Python files in src",
        "glob",
        rf"(?:count|how many) (?:all )?(?:the )?{_FILES}(?: are(?: there)?)?(?: in {_DIRECTORY})?",
        lambda groups: _find_files(groups, is_listed=False),
    ),
    Rule(
        "count the lines in README.md",
        "read_file",
        rf"(?:count|how many) (?:the )?lines (?:are )?(?:in|of) {_FILE}",
        lambda groups: count_lines(groups["path"]),
    ),
    Rule(
        "summarise README.md",
        "read_file",
        rf"summari[sz]e {_FILE}",
        lambda groups: summarise_file(groups["path"]),
    ),
    Rule(
        'add "buy milk" to the todo list',
        "todo",
        rf"add (?P<text>{_QUOTED}) to (?:the|my) (?:todo list|todos)",
        lambda groups: add_todo(groups["text"]),
    ),
    Rule(
        "show the todo list",
        "todo",
        r"(?:show|list) (?:the |my )?(?:todo list|todos)",
        lambda groups: show_todos(),
    ),
    Rule(
        "read README.md",
        "read_file",
        rf"(?:read|show) {_FILE}",
        lambda groups: read_file(groups["path"]),
    ),
    Rule(
        'find "timeout" in src; find where timeout is mentioned',
        "grep",
        rf"(?:find|search for|grep) (?:where )?(?P<text>{_WORD})(?: is mentioned)?(?: in {_DIRECTORY})?",
        lambda groups: find_text(groups["text"], groups["directory"]),
    ),
    Rule(
        'write "some text" to notes.txt',
        "write_file",
        rf"write (?P<text>{_QUOTED}) (?:to|into) {_FILE}",
        lambda groups: write_file(groups["path"], groups["text"] + "\n"),
    ),
    Rule(
        'replace "old" with "new" in notes.txt',
        "edit_file",
        rf"replace (?P<old>{_QUOTED}) (?:with|by) (?P<new>{_QUOTED}) in {_FILE}",
        lambda groups: replace_text(groups["path"], groups["old"], groups["new"]),
    ),
    Rule(
        'run "git status"',
        "bash",
        rf"(?:run|execute) (?:the command )?(?P<command>{_QUOTED})",
        lambda groups: run_command(groups["command"]),
    ),
    Rule(
        "fetch https://example.org",
        "web_fetch",
        rf"fetch (?P<url>{_WORD})",
        lambda groups: fetch_page(groups["url"]),
    ),
)
"""Tried in order; the first that matches is taken."""

_PATTERNS = [(rule, re.compile(rule.pattern.replace(" ", r"\s+"), re.IGNORECASE)) for rule in RULES]

_FILLER = re.compile(
    r"(?:(?:please|now|then|also|next|first|finally|and|can you|could you|[-*])[\s,:]+)*", re.IGNORECASE
)
_GREETING = re.compile(r"hello|hi|hey|thanks|thank you|please", re.IGNORECASE)
_HELP = re.compile(r"help|what can you do|what are you|who are you", re.IGNORECASE)
_VERB = re.compile(
    rf"{_FILLER.pattern}(?:list|show|read|find|search|grep|count|how many|summari[sz]e|write|replace|run|execute|fetch|add)\s",
    re.IGNORECASE,
)
_SEPARATOR = re.compile(
    rf"{_QUOTED}|(?P<hard>[;\n]+|[.!?]+(?=\s|$))|(?P<soft>,?\s+(?:and\s+then|and|then)\s+|,\s*)", re.IGNORECASE
)


@attrs.frozen
class Instruction:
    """One clause of the prompt.

    Attributes:
        words: The clause.
        rule: The rule that matches it, or None if it is not understood.
        groups: What the rule's answer needs.
    """

    words: str
    rule: Rule | None = None
    groups: Mapping[str, str] = attrs.field(factory=dict)


def read_instructions(prompt: str) -> list[Instruction]:
    """Read the clauses of a prompt, in order; greetings, and a prompt that only asks for help, are left out."""
    if len(prompt) > _LONGEST_PROMPT:
        return [Instruction(prompt)]
    if _HELP.fullmatch(prompt.strip(" \n.!?")):
        return []
    return [_instruction(clause) for clause in _clauses(prompt) if _GREETING.fullmatch(clause) is None]


def _clauses(prompt: str) -> list[str]:
    """Split a prompt at the ends of sentences, and at commas and "and" before a verb; never inside of quotes."""
    clauses, start = [], 0
    for found in _SEPARATOR.finditer(prompt):
        if found["hard"] or (found["soft"] and _VERB.match(prompt, found.end())):
            clauses.append(prompt[start : found.start()])
            start = found.end()
    clauses.append(prompt[start:])
    return [words for clause in clauses if (words := _FILLER.sub("", clause.strip(), count=1))]


def _instruction(clause: str) -> Instruction:
    for rule, pattern in _PATTERNS:
        if match := pattern.fullmatch(clause):
            groups = {name: _unquoted(value or "") for name, value in match.groupdict().items()}
            return Instruction(clause, rule, groups)
    return Instruction(clause)


def _unquoted(text: str) -> str:
    return text[1:-1] if re.fullmatch(_QUOTED, text) else text
