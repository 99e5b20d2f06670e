"""The server or Python object under examination: its start, its settings, its secrets."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit, urlunsplit

import attrs

from amplifier._internal.json import redact_text
from amplifier._internal.spelling import suggestion
from amplifier.conformance.inputs.json_schema import resolved
from amplifier.conformance.inputs.values import properties_of
from amplifier.errors import AmplifierError

HIDDEN = "[REDACTED]"
_MIN_SECRET_LENGTH = 4
_PASSED = ("PATH", "LANG")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SECRET_OPTION = re.compile(r"(?i)^--?[\w-]*(key|token|secret|password|passwd|auth)[\w-]*$")


class SubjectProblem(AmplifierError, ValueError):
    """The server or object can't be examined as it was named. The text has the remedy."""


def as_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return names as a tuple. A single text is one name."""
    return (names,) if isinstance(names, str) else tuple(names)


@attrs.frozen(kw_only=True)
class Subject:
    """The server or object under examination, with its settings.

    Attributes:
        kind: ``command`` for a program, ``url`` for a remote server, ``python`` for an object.
        target: The command line, the URL or ``package:object`` as the user wrote it.
        env: Names of variables of this process that a program gets.
        headers: Headers for a URL as the user wrote them. ``${NAME}`` in them is a variable.
        arguments: Fixed values of arguments by tool, and under ``*`` for every tool.
        folder: The user's working directory, for files and Python packages.
        auth: Makes the object that adds a login to requests to a URL, or None.
    """

    kind: Literal["command", "url", "python"]
    target: str
    env: tuple[str, ...] = attrs.field(default=(), converter=as_names)
    headers: Mapping[str, str] = attrs.field(factory=dict)
    arguments: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    folder: Path = attrs.field(factory=Path.cwd)
    auth: Callable[[], Any] | None = None

    def __attrs_post_init__(self) -> None:
        if not self.target.strip():
            raise SubjectProblem("there is nothing to examine: the command is empty")
        if self.kind == "url" and self.env:
            raise SubjectProblem("--env is for a command. A URL takes --header")
        if self.kind != "url" and self.headers:
            raise SubjectProblem("--header is for a URL. A command takes --env")
        for name in self.env:
            if name not in os.environ:
                raise SubjectProblem(f"--env {name}: there is no such variable here; set it first")
        for name in (name for value in self.headers.values() for name in _VARIABLE.findall(value)):
            if name not in os.environ:
                raise SubjectProblem(
                    f"--header names ${{{name}}}, and there is no such variable; set it first"
                )
        if self.kind == "python" and not re.fullmatch(r"[^:]+:[\w.]+", self.target):
            raise SubjectProblem(
                f"{self.target!r} is not package:object, such as my_package.tools:search"
            )
        self.words()

    # ── starting it ──

    def words(self) -> list[str]:
        """Return the program and its arguments, or an empty list for a URL.

        Raises:
            SubjectProblem: The command line has an open quote.
        """
        if self.kind == "url":
            return []
        if self.kind == "python":
            program = str(Path(__file__).with_name("python_tools.py"))
            places = json.dumps([str(self.folder), *(entry for entry in sys.path if entry)])
            return [sys.executable, "-P", program, places, self.target]
        try:
            return shlex.split(self.target)
        except ValueError as error:
            raise SubjectProblem(f"{self.target!r} is not a command line: {error}") from error

    def environment(self, home: Path) -> dict[str, str]:
        """Return the whole environment of a program."""
        passed = {name: os.environ[name] for name in (*_PASSED, *self.env) if name in os.environ}
        return {"PATH": os.defpath, **passed, "HOME": str(home)}

    def sent_headers(self) -> dict[str, str]:
        """Return the headers with the values of their variables."""
        return {
            name: _VARIABLE.sub(lambda match: os.environ[match[1]], value)
            for name, value in self.headers.items()
        }

    def fixed(self, tool: str, listed: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the values of arguments that the user has fixed for a tool.

        Args:
            tool: The name of the tool.
            listed: The tool in the form of its server's list. A value for all tools applies to
                those with such an argument.
        """
        for_all = self.arguments.get("*", {})
        if listed is not None:
            for_all = {
                key: value for key, value in for_all.items() if key in _argument_names(listed)
            }
        return {**for_all, **self.arguments.get(tool, {})}

    def reject_misfits(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """Refuse fixed values without effect, since they may be there to keep calls harmless.

        Raises:
            SubjectProblem: A value names a tool or an argument that doesn't exist.
        """
        names = {str(tool.get("name")): _argument_names(tool) for tool in tools}
        every = [key for keys in names.values() for key in keys]
        for tool, fixed in self.arguments.items():
            if tool != "*" and tool not in names:
                known = ", ".join(names) or "none"
                raise SubjectProblem(
                    f"--arguments names {tool!r}: there is no such tool"
                    f"{suggestion(tool, names) or '.'} The tools are: {known}"
                )
            keys = every if tool == "*" else names[tool]
            for key in fixed:
                # A tool without named arguments may take any.
                if key not in keys and (keys or tool == "*"):
                    owner = "no tool has" if tool == "*" else f"{tool!r} does not have"
                    raise SubjectProblem(
                        f"--arguments fixes {key!r}, an argument that {owner}"
                        f"{suggestion(key, keys)}"
                    )

    # ── showing it ──

    @property
    def shown(self) -> str:
        """The target without secrets."""
        if self.kind == "url":
            parts = urlsplit(self.target)
            return redact_text(
                urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
            )
        if self.kind == "python":
            return self.target
        words = self.words()
        shown = [
            HIDDEN
            if index and _SECRET_OPTION.match(words[index - 1]) and not word.startswith("-")
            else word
            for index, word in enumerate(words)
        ]
        return self.without_secrets(redact_text(shlex.join(shown)))

    def command(self, arguments_file: str | None = None) -> list[str]:
        """Return the command line that repeats the examination, without secrets."""
        words = ["amplifier", "validate", "python" if self.kind == "python" else "mcp", self.shown]
        for name in self.env:
            words += ["--env", name]
        for name, value in self.headers.items():
            words += ["--header", f"{name}={value if _VARIABLE.search(value) else HIDDEN}"]
        return [*words, *(["--arguments", arguments_file] if arguments_file else [])]

    def without_secrets(self, text: str) -> str:
        """Return a text without the values of variables, headers and fixed arguments."""
        for secret in self._secrets():
            text = text.replace(secret, HIDDEN)
        return redact_text(text)

    def shown_input(self, tool: str, arguments: object) -> object:
        """Return an input for a report. Fixed arguments appear without their values."""
        if not isinstance(arguments, dict):
            return arguments
        fixed = self.fixed(tool)
        return {
            key: "(from --arguments)" if key in fixed else value for key, value in arguments.items()
        }

    def _secrets(self) -> list[str]:
        values = [os.environ.get(name, "") for name in self.env]
        for value in self.sent_headers().values():
            values += [value, *value.split()[1:]]
        values += [text for fixed in self.arguments.values() for text in _texts(fixed)]
        if self.kind == "url":
            parts = urlsplit(self.target)
            values += [
                parts.password or "",
                *(pair.partition("=")[2] for pair in parts.query.split("&")),
            ]
        return sorted(
            {value for value in values if len(value) >= _MIN_SECRET_LENGTH}, key=len, reverse=True
        )


def _argument_names(tool: Mapping[str, Any]) -> list[str]:
    """Return the names of the arguments of a listed tool."""
    schema = tool.get("inputSchema")
    return list(properties_of(resolved(schema, schema))) if isinstance(schema, dict) else []


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for member in value.values():
            yield from _texts(member)
    elif isinstance(value, Sequence):
        for member in value:
            yield from _texts(member)
