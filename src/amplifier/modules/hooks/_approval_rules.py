"""Rules of hooks-approval, and the calls they apply to. A rule never allows an ambiguous call: the user decides."""

from __future__ import annotations

import fnmatch
import os
import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import attrs

from amplifier._internal.programs import is_below
from amplifier.errors import PlanError, Problem

from .._shared.configuration import Kind, flag, list_each, mapping, option, optional, text

_LONGEST = 10_000
# Neither "~" nor globs, and no character that ends a word, begins an expansion, or differs between shells.
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+")
_BLANK = re.compile(r"[ \t]+")
_SINGLE = re.compile(r"'([^']*)'")
_DOUBLE = re.compile(r'"([^"$`\\!]*)"')
_KEYWORDS = frozenset(
    {
        "if",
        "then",
        "else",
        "elif",
        "fi",
        "do",
        "done",
        "case",
        "esac",
        "while",
        "until",
        "for",
        "in",
    }
    | {"select", "function", "time", "coproc"}
)
_NAMES = {
    "\n": "a line break",
    "\r": "a carriage return",
    "\0": "a NUL character",
    "'": "a quote",
    '"': "a quote",
}

_QUOTING = str.maketrans("", "", "'\"\\")
_PIECE = re.compile(r"[^\s;&|<>()$`{}!#=*?\[\]~]+")


# ── command parser ────────────────────────────────────────────────────────────────────────────────
# Parses a shell command into the words of one simple command, or states why it is ambiguous.
#
# Parses only the small unambiguous part of the shell's language: words of plain characters, and quoted text without
# expansions. Everything else (lists, pipes, redirections, substitutions, variables, globs, braces, escapes, comments,
# assignments, keywords, line breaks) is ambiguous. No rule allows an ambiguous command: the user decides.


@attrs.frozen
class Command:
    """A parsed command.

    Attributes:
        words: The program and its arguments; empty for an ambiguous command.
        doubt: Why the command is ambiguous; None if it is not.
        pieces: Everything that looks like a word, in any position: for rules that ask or deny.
    """

    words: tuple[str, ...]
    doubt: str | None
    pieces: tuple[str, ...]


def parse_command(text: str) -> Command:
    """Parse a command; never raises."""
    pieces = tuple(_PIECE.findall(text[:_LONGEST].translate(_QUOTING)))
    words, doubt = _simple_words(text)
    if doubt is None:
        doubt = _doubt_about(words)
    return Command((), doubt, pieces) if doubt else Command(words, None, pieces)


def _doubt_about(words: tuple[str, ...]) -> str | None:
    if not words or not words[0]:
        return "there is no program in it"
    if "=" in words[0]:
        return "it begins with an assignment"
    return f"{words[0]!r} is a keyword of the shell" if words[0] in _KEYWORDS else None


def _simple_words(text: str) -> tuple[tuple[str, ...], str | None]:
    """The words, or why the command may be more than a simple command."""
    if len(text) > _LONGEST:
        return (), f"it is longer than {_LONGEST} characters"
    words: list[str] = []
    parts: list[str] = []
    begun = False  # a word may be empty: ''
    at = 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            if begun:
                words.append("".join(parts))
            parts, begun, at = [], False, blank.end()
            continue
        if plain := _PLAIN.match(text, at):
            parts.append(plain[0])
            at = plain.end()
        elif (quoted := _SINGLE.match(text, at) or _DOUBLE.match(text, at)) and quoted[
            1
        ].isprintable():
            parts.append(quoted[1])
            at = quoted.end()
        else:
            return (
                (),
                f"{_NAMES.get(text[at]) or ascii(text[at])} may make it more than one simple command",
            )
        begun = True
    if begun:
        words.append("".join(parts))
    return tuple(words), None


ANY_MORE = "*"


# ── pattern matching ──────────────────────────────────────────────────────────────────────────────
# Matches commands, paths and hosts against the patterns of rules, in two ways.
#
# *Certainly*: the pattern describes exactly what will happen; only such a match allows a call. *Possibly*: the value
# may involve what the pattern names; for rules that ask or deny, which prefer false positives.


def _all_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


# Programs that run other programs given by their arguments; the list cannot be complete.
_RUN_OTHERS = _all_of(
    "ash awk bash builtin busybox chroot command coproc csh dash doas docker env eval exec expect fish find flock gawk"
    " ionice ksh make nice node nohup npx parallel perl php podman python python3 ruby runuser script sed setsid sh ssh"
    " stdbuf strace su sudo systemd-run taskset tcsh time timeout unshare vi vim watch xargs zsh"
)


@lru_cache(maxsize=512)
def _pattern(word: str) -> re.Pattern[str]:
    # Brackets are not wildcards here: "[" is a program and part of many file names.
    return re.compile(fnmatch.translate(word.replace("[", "[[]")))


def word_matches(pattern: str, word: str) -> bool:
    """Whether a word matches a pattern with the wildcards ``*`` and ``?``."""
    return _pattern(pattern).match(word) is not None


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


def command_certainly(pattern: Sequence[str], command: Command) -> bool:
    """Whether a simple command has exactly these words; a last ``*`` matches any further words, or none."""
    return command.doubt is None and _words_match(pattern, command.words)


def command_possibly(pattern: Sequence[str], command: Command) -> bool:
    """Whether the words occur anywhere in the command."""
    if command.doubt is None and _program(command.words[0]) not in _RUN_OTHERS:
        # The program is known; it may be named by its path.
        return any(
            _words_match(pattern, (name, *command.words[1:])) for name in _both(command.words[0])
        )
    words = pattern[:-1] if pattern[-1] == ANY_MORE and len(pattern) > 1 else pattern
    for at in range(len(command.pieces)):
        rest = command.pieces[at + 1 : at + len(words)]
        if any(_words_match(words, (name, *rest)) for name in _both(command.pieces[at])):
            return True
    return False


def _program(word: str) -> str:
    return word.rsplit("/", 1)[-1]


def _both(word: str) -> tuple[str, str]:
    return word, _program(word)


def _words_match(pattern: Sequence[str], words: Sequence[str]) -> bool:
    if pattern[-1] == ANY_MORE and len(pattern) > 1:
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    return len(pattern) == len(words) and all(map(word_matches, pattern, words))


# ── paths ────────────────────────────────────────────────────────────────────────────────────────


def path_certainly(pattern: str, path: str) -> bool:
    """Whether a path matches name by name; ``**`` matches any number of names. A path with ``..`` never matches."""
    if not _is_plain_path(path) or path.startswith("/") != pattern.startswith("/"):
        return False
    return _names_match(_names(pattern), path.removeprefix("/").split("/"))


def _is_plain_path(path: str) -> bool:
    names = path.removeprefix("/").split("/")
    return path.isprintable() and "\\" not in path and {"", ".", ".."}.isdisjoint(names)


def place_certainly(pattern: str, place: str, base: str) -> bool:
    """Check whether a real path matches name by name; a relative pattern starts at ``base``, a real path too."""
    if not place.isprintable() or "\\" in place:
        return False
    if pattern.startswith("/"):
        literal = list(takewhile(lambda name: not {"*", "?"} & set(name), _names(pattern)))
        # The plan may name a folder by a link to it.
        real = _names(os.path.realpath("/" + "/".join(literal)))
        return _names_match([*real, *_names(pattern)[len(literal) :]], _names(place))
    return is_below(place, base) and _names_match(_names(pattern), _names(place.removeprefix(base)))


def path_possibly(pattern: str, path: str, base: str) -> bool:
    """As `path_certainly`, but after normalising case, Unicode and ``..``; a relative pattern matches at any depth."""
    wanted = [_folded(name) for name in _names(pattern)]
    if not pattern.startswith("/"):
        wanted = ["**", *wanted]
    full = posixpath.normpath(posixpath.join(base, path.replace("\\", "/")))
    return _names_match(wanted, [_folded(name) for name in _names(full)])


def _names(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in ("", ".")]


def _folded(name: str) -> str:
    return unicodedata.normalize("NFKC", name).casefold()


def _names_match(pattern: Sequence[str], names: Sequence[str]) -> bool:
    """Track all partial matches at the same time, so that many ``**`` do not make it slow."""
    reached = _skip_stars(pattern, {0})
    for name in names:
        after: set[int] = set()
        for at in reached:
            if at == len(pattern):
                continue
            if pattern[at] == "**":
                after.add(at)
            elif word_matches(pattern[at], name):
                after.add(at + 1)
        reached = _skip_stars(pattern, after)
    return len(pattern) in reached


def _skip_stars(pattern: Sequence[str], reached: set[int]) -> set[int]:
    for at in sorted(reached):
        end = at
        while end < len(pattern) and pattern[end] == "**":
            end += 1
            reached.add(end)
    return reached


# ── hosts ────────────────────────────────────────────────────────────────────────────────────────


def host_certainly(pattern: str, url: str) -> bool:
    """Whether a URL is of that host; ``*.example.org`` matches every host below example.org."""
    if not url.isascii() or not url.isprintable() or {" ", "\\"} & set(url):
        return False
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return False
    if parts.scheme not in ("http", "https") or "@" in parts.netloc or not host:
        return False
    if pattern.startswith("*."):
        return host.endswith(pattern[1:].lower())
    return host == pattern.lower()


def host_possibly(pattern: str, url: str) -> bool:
    """Whether the host's name occurs anywhere in the URL."""
    return pattern.removeprefix("*.").casefold() in _folded(url)


Action: TypeAlias = Literal["allow", "ask", "deny"]

STRICTNESS: Mapping[Action, int] = {"allow": 0, "ask": 1, "deny": 2}

BUILT_IN_TOOLS: Mapping[str, tuple[str, ...]] = {
    "bash": ("tool-bash",),
    "edit_file": ("tool-filesystem",),
    "glob": ("tool-search", "tool-filesystem"),
    "grep": ("tool-search",),
    "list_directory": ("tool-filesystem",),
    "read_file": ("tool-filesystem",),
    "recall": ("tool-recall",),
    "task": ("tool-task",),
    "todo": ("tool-todo",),
    "web_fetch": ("tool-web",),
    "write_file": ("tool-filesystem",),
}
"""The modules that the names of built-in tools stand for. What another module mounts under such a name is another tool."""

PATH_KEYS = ("file_path", "path", "notebook_path", "directory", "filename")
_BESIDE_COMMAND = frozenset({"command", "timeout", "description"})
"""Members of an input besides the command that do not change what runs."""


@attrs.define(slots=False)
class Call:
    """A tool call to decide on.

    Attributes:
        tool: The tool's name.
        given: Its input.
        base: The directory that relative paths refer to.
        module: The module that mounted the tool; None for the application.
        is_read_only: Whether the tool states that it changes nothing, in its ``annotations``.
        is_sandboxed: Whether the tool runs it in a sandbox.
        places: The real paths of `paths`, in the same order; empty if they were not looked up.
        start: The real path of the folder that relative patterns start at, where places are known.
    """

    tool: str
    given: Mapping[str, Any]
    base: str = "/"
    module: str | None = None
    is_read_only: bool = False
    is_sandboxed: bool = False
    places: tuple[str, ...] = ()
    start: str = "/"

    @property
    def is_stand_in(self) -> bool:
        """Whether another module than the built-in one mounted a tool of this name; names alone allow nothing then."""
        return self.module is not None and self.module not in BUILT_IN_TOOLS.get(
            self.tool, (self.module,)
        )

    @cached_property
    def command(self) -> Command | None:
        """Its shell command, if it has one."""
        text = self.given.get("command")
        return parse_command(text) if isinstance(text, str) else None

    @property
    def paths(self) -> list[str]:
        """The paths it names."""
        return [value for key in PATH_KEYS if isinstance(value := self.given.get(key), str)]


# ── rules ────────────────────────────────────────────────────────────────────────────────────────

# The names of the published module besides ours.
ACTIONS: Mapping[str, Action] = {
    "allow": "allow",
    "auto_approve": "allow",
    "ask": "ask",
    "deny": "deny",
    "auto_deny": "deny",
}


def is_action(value: Any) -> bool:
    """Whether it is the name of an action."""
    return isinstance(value, str) and value in ACTIONS


def _words(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


def _are_names(value: Any) -> bool:
    return (
        isinstance(value, list | tuple)
        and bool(value)
        and all(isinstance(name, str) and name for name in value)
    )


def _read_command(value: Any) -> tuple[str, ...]:
    words = tuple(_words(value))
    if {"*", "?"} & set(words[0]):
        hint = f"write {words[0].rstrip('*')!r} and, for any arguments, a last word '*'"
        raise PlanError([("$", f"expected the program by its name, got {words[0]!r}; {hint}")])
    return words


_ACTION = Kind("'allow', 'ask' or 'deny'", is_action, ACTIONS.__getitem__)
_TOOL_NAMES = Kind(
    "a name, or a list of names ('*' for all)",
    lambda value: (isinstance(value, str) and bool(value)) or _are_names(value),
    lambda value: (value,) if isinstance(value, str) else tuple(value),
)
_COMMAND = optional(
    Kind(
        "the words of a command such as 'git status'",
        lambda value: _are_names(_words(value)),
        _read_command,
    )
)
_EXAMPLE = Kind(
    "a command, or an input of the tool",
    lambda value: text.accepts(value) or mapping.accepts(value),
    lambda value: {"command": value} if isinstance(value, str) else value,
)
_EXAMPLES = list_each("commands, or inputs of the tool", _EXAMPLE)


@attrs.frozen(kw_only=True)
class Rule:
    """The action for the calls it applies to; every given condition has to hold.

    Attributes:
        action: The action.
        tools: Patterns of tool names; ``bash`` if there are none beside a command.
        modules: Patterns of the modules that mounted the tool; None for all, except that the name of a built-in tool allows nothing
            that another module mounted under it.
        command: Words of a command; a last ``*`` matches any further words.
        path: A pattern for the path in the input.
        host: A pattern for the host of the URL in the input.
        sandboxed: Whether the call has to run in a sandbox, or outside of any; None for both.
        given: Members of the input with their required values.
        read_only: Only tools that state that they change nothing (True), or only all others (False); None for both.
        reason: The reason, for the user and the model.
        description: The published module's name of it; `reason` comes first.
        match: Examples that it applies to: a rule that means something else than its author is refused.
        not_match: Examples that it does not apply to.
    """

    action: Action = option(_ACTION)
    tools: tuple[str, ...] = option(_TOOL_NAMES, key="tool", default=())
    modules: tuple[str, ...] | None = option(_TOOL_NAMES, key="module", default=None)
    command: tuple[str, ...] | None = option(_COMMAND, default=None, aliases=("pattern",))
    path: str | None = option(optional(text), default=None)
    host: str | None = option(optional(text), default=None)
    sandboxed: bool | None = option(flag, default=None)
    given: Mapping[str, Any] = option(mapping, key="input", default=attrs.Factory(dict))
    read_only: bool | None = option(optional(flag), default=None)
    reason: str | None = option(optional(text), default=None)
    description: str | None = option(optional(text), default=None)
    match: tuple[Mapping[str, Any], ...] = option(_EXAMPLES, default=())
    not_match: tuple[Mapping[str, Any], ...] = option(_EXAMPLES, default=())

    def __attrs_post_init__(self) -> None:
        if not self.tools and not self.command:
            raise PlanError([("$.tool", f"is missing; expected {_TOOL_NAMES.expected}")])
        problems = [
            *self._misfits("match", self.match),
            *self._misfits("not_match", self.not_match),
        ]
        if problems:
            raise PlanError(problems)

    def _misfits(self, key: str, examples: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
        for number, example in enumerate(examples):
            # What a tool states about itself and where it runs are no part of an example.
            call = Call(
                self.names[0].replace("*", "x"),
                example,
                is_read_only=bool(self.read_only),
                is_sandboxed=bool(self.sandboxed),
            )
            wanted = key == "match"
            if (
                attrs.evolve(self, modules=("application",), match=(), not_match=()).applies(call)
                is wanted
            ):
                continue
            doubt = None if call.command is None or self.action != "allow" else call.command.doubt
            because = f": {doubt}, and no rule allows that" if wanted and doubt else ""
            verb = "does not apply" if wanted else "applies"
            said = example.get("command") or example
            yield (
                f"$.{key}[{number}]",
                f"the rule {verb} to {said!r}{because}; change the rule or the example",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """Patterns of the names of the tools that it is about."""
        return self.tools or ("bash",)

    def applies(self, call: Call) -> bool:
        """Whether the rule applies to this call: a certain match if it allows, a possible match otherwise."""
        if not any(word_matches(pattern, call.tool) for pattern in self.names):
            return False
        if self.modules is None:
            if self.action == "allow" and call.is_stand_in:
                return False
        elif not any(
            word_matches(pattern, call.module or "application") for pattern in self.modules
        ):
            return False
        if self.sandboxed is not None and self.sandboxed is not call.is_sandboxed:
            return False
        if any(
            key not in call.given or not _same(call.given[key], value)
            for key, value in self.given.items()
        ):
            return False
        if self.read_only is not None and self.read_only != call.is_read_only:
            return False
        judge = self._certainly if self.action == "allow" else self._possibly
        return judge(call)

    def _certainly(self, call: Call) -> bool:
        if self.command is not None:
            known = _BESIDE_COMMAND | self.given.keys()
            if call.command is None or not call.given.keys() <= known:
                return False
            if not command_certainly(self.command, call.command):
                return False
        if self.path is not None:
            if len([key for key in PATH_KEYS if key in call.given]) != 1 or not call.paths:
                return False
            if not call.places:
                is_match = path_certainly(self.path, call.paths[0])
            else:
                is_match = _is_plain_path(call.paths[0]) and place_certainly(
                    self.path, call.places[0], call.start
                )
            if not is_match:
                return False
        url = call.given.get("url")
        return self.host is None or (isinstance(url, str) and host_certainly(self.host, url))

    def _possibly(self, call: Call) -> bool:
        if self.command is not None and (
            call.command is None or not command_possibly(self.command, call.command)
        ):
            return False
        if self.path is not None:
            path = self.path
            if not any(
                path_possibly(path, given, call.base) for given in (*call.paths, *call.places)
            ):
                return False
        url = call.given.get("url")
        return self.host is None or (isinstance(url, str) and host_possibly(self.host, url))

    def names_place(self, call: Call) -> bool:
        """Check whether the rule allows the call by naming its one real place, without wildcards."""
        is_exact = self.path is not None and not {"*", "?"} & set(self.path)
        return self.action == "allow" and is_exact and bool(call.places) and self.applies(call)

    def __str__(self) -> str:
        if reason := self.reason or self.description:
            return reason
        about = [f"tool {' or '.join(self.names)}"]
        about += [] if self.modules is None else [f"of module {' or '.join(self.modules)}"]
        if self.command is not None:
            about.append(f"command {' '.join(self.command)!r}")
        about += [
            f"{name} {value!r}"
            for name, value in (("path", self.path), ("host", self.host))
            if value
        ]
        about += (
            []
            if self.sandboxed is None
            else ["inside a sandbox" if self.sandboxed else "outside of a sandbox"]
        )
        about += [f"{key} {value!r}" for key, value in self.given.items()]
        about += [] if self.read_only is None else [f"read_only {str(self.read_only).lower()}"]
        return f"rule for {', '.join(about)}"


def _same(found: Any, wanted: Any) -> bool:
    return type(found) is type(wanted) and bool(found == wanted)  # true is not 1


def strictest(rules: tuple[Rule, ...], call: Call) -> Rule | None:
    """The strictest of the rules that apply to a call, in any order."""
    found = [rule for rule in rules if rule.applies(call)]
    return max(found, key=lambda rule: STRICTNESS[rule.action], default=None)
