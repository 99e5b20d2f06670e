"""The rules of hooks-approval, and the calls to which they apply."""

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

_MAX_COMMAND_CHARS = 10_000
# Matches words without "~", without globs, and without any character that ends a word, starts an
# expansion, or differs between shells.
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
# The parser reads only the small, unambiguous part of the shell's language: words of plain
# characters, and quoted text without expansions. Everything else (lists, pipes, redirections,
# substitutions, variables, globs, braces, escapes, comments, assignments, keywords, line breaks)
# is ambiguous. No rule allows an ambiguous command, so the user decides.


@attrs.frozen
class Command:
    """A parsed command.

    Attributes:
        words: The program and its arguments. Empty if the command is ambiguous.
        doubt: The reason why the command is ambiguous. None if it is unambiguous.
        pieces: Every word-like part of the command, for rules that ask or deny.
    """

    words: tuple[str, ...]
    doubt: str | None
    pieces: tuple[str, ...]


def parse_command(text: str) -> Command:
    """Parse a command, which may be any text."""
    pieces = tuple(_PIECE.findall(text[:_MAX_COMMAND_CHARS].translate(_QUOTING)))
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
    """Return the words, or the reason why the command may be more than a simple command."""
    if len(text) > _MAX_COMMAND_CHARS:
        return (), f"it is longer than {_MAX_COMMAND_CHARS} characters"
    words: list[str] = []
    parts: list[str] = []
    # An empty word, '', has begun as well.
    has_begun = False
    at = 0
    while at < len(text):
        if blank := _BLANK.match(text, at):
            if has_begun:
                words.append("".join(parts))
            parts, has_begun, at = [], False, blank.end()
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
            name = _NAMES.get(text[at]) or ascii(text[at])
            return (), f"{name} may make it more than one simple command"
        has_begun = True
    if has_begun:
        words.append("".join(parts))
    return tuple(words), None


ANY_MORE = "*"


# ── pattern matching ──────────────────────────────────────────────────────────────────────────────
# Commands, paths and hosts match the patterns of rules in two ways. A certain match describes
# exactly the effect of the call, and a rule needs one to allow the call. A possible match is enough
# for rules that ask or deny, because they prefer false positives.


def _split(names: str) -> frozenset[str]:
    return frozenset(names.split())


# Programs that run other programs that their arguments name. The list can't be complete.
_RUN_OTHERS = _split(
    "ash awk bash builtin busybox chroot command coproc csh dash doas docker env eval exec expect"
    " fish find flock gawk ionice ksh make nice node nohup npx parallel perl php podman python"
    " python3 ruby runuser script sed setsid sh ssh stdbuf strace su sudo systemd-run taskset tcsh"
    " time timeout unshare vi vim watch xargs zsh"
)


@lru_cache(maxsize=512)
def _pattern(word: str) -> re.Pattern[str]:
    # Brackets are not wildcards here: "[" is a program and part of many file names.
    return re.compile(fnmatch.translate(word.replace("[", "[[]")))


def word_matches(pattern: str, word: str) -> bool:
    """Return whether a word matches a pattern with the wildcards ``*`` and ``?``."""
    return _pattern(pattern).match(word) is not None


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


def command_certainly(pattern: Sequence[str], command: Command) -> bool:
    """Return whether a simple command has exactly these words.

    A trailing ``*`` matches any further words, or none.
    """
    return command.doubt is None and _words_match(pattern, command.words)


def command_possibly(pattern: Sequence[str], command: Command) -> bool:
    """Return whether the words occur anywhere in the command."""
    if command.doubt is None and _program(command.words[0]) not in _RUN_OTHERS:
        # The program is the first word, but may be named by its path.
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
    """Return whether a path matches name by name.

    ``**`` matches any number of names. A path with ``..`` never matches.
    """
    if not _is_plain_path(path) or path.startswith("/") != pattern.startswith("/"):
        return False
    return _names_match(_names(pattern), path.removeprefix("/").split("/"))


def _is_plain_path(path: str) -> bool:
    names = path.removeprefix("/").split("/")
    return path.isprintable() and "\\" not in path and {"", ".", ".."}.isdisjoint(names)


def place_certainly(pattern: str, place: str, base: str) -> bool:
    """Return whether a real path matches name by name.

    A relative pattern starts at ``base``, which is a real path as well.
    """
    if not place.isprintable() or "\\" in place:
        return False
    if pattern.startswith("/"):
        literal = list(takewhile(lambda name: not {"*", "?"} & set(name), _names(pattern)))
        # The plan may refer to a folder through a link.
        real = _names(os.path.realpath("/" + "/".join(literal)))
        return _names_match([*real, *_names(pattern)[len(literal) :]], _names(place))
    return is_below(place, base) and _names_match(_names(pattern), _names(place.removeprefix(base)))


def path_possibly(pattern: str, path: str, base: str) -> bool:
    """Return whether a path matches after normalising case, Unicode and ``..``.

    A relative pattern matches at any depth.
    """
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
    """Match name by name. Tracking all partial matches at once keeps many ``**`` fast."""
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
    """Return whether a URL names the host. ``*.example.org`` matches hosts below example.org."""
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
    """Return whether the host's name occurs anywhere in the URL."""
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
"""The modules that mount each built-in tool. From another module, the name means another tool."""

PATH_KEYS = ("file_path", "path", "notebook_path", "directory", "filename")
_BESIDE_COMMAND = frozenset({"command", "timeout", "description"})
"""Members of an input that can accompany the command without changing its effect."""


@attrs.define(slots=False)
class Call:
    """A tool call to decide on.

    Attributes:
        tool: The tool's name.
        arguments: The input of the tool.
        base: The directory that relative paths refer to.
        module: The module that mounted the tool. None for the application.
        is_read_only: True if the tool's ``annotations`` declare that it changes nothing.
        is_sandboxed: True if the tool runs the call in a sandbox.
        places: The real paths of `paths`, in the same order. Empty if they weren't looked up.
        start: The real path of the folder at which relative patterns start. Only valid together
            with `places`.
    """

    tool: str
    arguments: Mapping[str, Any]
    base: str = "/"
    module: str | None = None
    is_read_only: bool = False
    is_sandboxed: bool = False
    places: tuple[str, ...] = ()
    start: str = "/"

    @property
    def is_stand_in(self) -> bool:
        """True if a module other than the built-in one mounted a tool of this name.

        In that case, a rule that gives only the tool's name allows nothing.
        """
        return self.module is not None and self.module not in BUILT_IN_TOOLS.get(
            self.tool, (self.module,)
        )

    @cached_property
    def command(self) -> Command | None:
        """The shell command of the call, if it has one."""
        text = self.arguments.get("command")
        return parse_command(text) if isinstance(text, str) else None

    @property
    def paths(self) -> list[str]:
        """The paths in the input."""
        return [value for key in PATH_KEYS if isinstance(value := self.arguments.get(key), str)]


# ── rules ────────────────────────────────────────────────────────────────────────────────────────

# Our names of actions, and those of the published module.
ACTIONS: Mapping[str, Action] = {
    "allow": "allow",
    "auto_approve": "allow",
    "ask": "ask",
    "deny": "deny",
    "auto_deny": "deny",
}


def is_action(value: object) -> bool:
    """Return whether the value is the name of an action."""
    return isinstance(value, str) and value in ACTIONS


def _words(value: Any) -> Any:
    return value.split() if isinstance(value, str) else value


def _are_names(value: object) -> bool:
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
    """An action for the calls that meet all of its conditions.

    Attributes:
        action: The action.
        tools: Patterns of tool names. ``bash`` if the rule has a command and no tools.
        modules: Patterns of the modules that mounted the tool. None for all. Even then, a rule that
            names a built-in tool doesn't allow another module's tool of that name.
        command: Words of a command. A trailing ``*`` matches any further words.
        path: A pattern for the path in the input.
        host: A pattern for the host of the URL in the input.
        sandboxed: True to apply only inside a sandbox, False only outside, None to both.
        arguments: Members of the input with their required values.
        read_only: True to apply only to tools that declare that they change nothing, False only to
            all others, None to both.
        reason: The reason, for the user and the model.
        description: The reason under the published module's name. `reason` takes precedence.
        match: Examples to which the rule must apply. Otherwise the rule is refused.
        not_match: Examples to which the rule must not apply. Otherwise the rule is refused.
    """

    action: Action = option(_ACTION)
    tools: tuple[str, ...] = option(_TOOL_NAMES, key="tool", default=())
    modules: tuple[str, ...] | None = option(_TOOL_NAMES, key="module", default=None)
    command: tuple[str, ...] | None = option(_COMMAND, default=None, aliases=("pattern",))
    path: str | None = option(optional(text), default=None)
    host: str | None = option(optional(text), default=None)
    sandboxed: bool | None = option(flag, default=None)
    arguments: Mapping[str, Any] = option(mapping, key="input", default=attrs.Factory(dict))
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
            # An example has neither a tool's annotations nor a sandbox.
            call = Call(
                self.names[0].replace("*", "x"),
                example,
                is_read_only=bool(self.read_only),
                is_sandboxed=bool(self.sandboxed),
            )
            is_positive = key == "match"
            rule = attrs.evolve(self, modules=("application",), match=(), not_match=())
            if rule.applies(call) is is_positive:
                continue
            doubt = None if call.command is None or self.action != "allow" else call.command.doubt
            explanation = f": {doubt}, and no rule allows that" if is_positive and doubt else ""
            verb = "does not apply" if is_positive else "applies"
            shown = example.get("command") or example
            yield (
                f"$.{key}[{number}]",
                f"the rule {verb} to {shown!r}{explanation}; change the rule or the example",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The patterns of tool names to which the rule applies."""
        return self.tools or ("bash",)

    def applies(self, call: Call) -> bool:
        """Return whether the rule applies to this call.

        A rule that allows needs a certain match. For any other rule, a possible match is enough.
        """
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
            key not in call.arguments or not _same(call.arguments[key], value)
            for key, value in self.arguments.items()
        ):
            return False
        if self.read_only is not None and self.read_only != call.is_read_only:
            return False
        judge = self._certainly if self.action == "allow" else self._possibly
        return judge(call)

    def _certainly(self, call: Call) -> bool:
        if self.command is not None:
            known = _BESIDE_COMMAND | self.arguments.keys()
            if call.command is None or not call.arguments.keys() <= known:
                return False
            if not command_certainly(self.command, call.command):
                return False
        if self.path is not None:
            if len([key for key in PATH_KEYS if key in call.arguments]) != 1 or not call.paths:
                return False
            if not call.places:
                is_match = path_certainly(self.path, call.paths[0])
            else:
                is_match = _is_plain_path(call.paths[0]) and place_certainly(
                    self.path, call.places[0], call.start
                )
            if not is_match:
                return False
        url = call.arguments.get("url")
        return self.host is None or (isinstance(url, str) and host_certainly(self.host, url))

    def _possibly(self, call: Call) -> bool:
        if self.command is not None and (
            call.command is None or not command_possibly(self.command, call.command)
        ):
            return False
        if self.path is not None:
            pattern, paths = self.path, (*call.paths, *call.places)
            if not any(path_possibly(pattern, path, call.base) for path in paths):
                return False
        url = call.arguments.get("url")
        return self.host is None or (isinstance(url, str) and host_possibly(self.host, url))

    def names_place(self, call: Call) -> bool:
        """Return whether the rule allows the call by naming the call's only real place exactly."""
        is_exact = self.path is not None and not {"*", "?"} & set(self.path)
        return self.action == "allow" and is_exact and bool(call.places) and self.applies(call)

    def __str__(self) -> str:
        if reason := self.reason or self.description:
            return reason
        conditions = [f"tool {' or '.join(self.names)}"]
        conditions += [] if self.modules is None else [f"of module {' or '.join(self.modules)}"]
        if self.command is not None:
            conditions.append(f"command {' '.join(self.command)!r}")
        conditions += [
            f"{name} {value!r}"
            for name, value in (("path", self.path), ("host", self.host))
            if value
        ]
        conditions += (
            []
            if self.sandboxed is None
            else ["inside a sandbox" if self.sandboxed else "outside of a sandbox"]
        )
        conditions += [f"{key} {value!r}" for key, value in self.arguments.items()]
        conditions += [] if self.read_only is None else [f"read_only {str(self.read_only).lower()}"]
        return f"rule for {', '.join(conditions)}"


def _same(actual: object, wanted: object) -> bool:
    # True equals 1 in Python, but not in JSON.
    return type(actual) is type(wanted) and bool(actual == wanted)


def strictest(rules: tuple[Rule, ...], call: Call) -> Rule | None:
    """Return the strictest rule that applies to a call, or None if none does."""
    matches = [rule for rule in rules if rule.applies(call)]
    return max(matches, key=lambda rule: STRICTNESS[rule.action], default=None)
