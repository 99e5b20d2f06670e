"""Rules of the plan and the calls they apply to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal, TypeAlias

import attrs

from . import _pattern_matching as matching
from ._command_parser import Command, parse_command

Action: TypeAlias = Literal["allow", "ask", "deny"]

STRICTNESS: Mapping[Action, int] = {"allow": 0, "ask": 1, "deny": 2}

PATH_KEYS = ("file_path", "path", "notebook_path", "directory", "filename")
_BESIDE_COMMAND = frozenset({"command", "timeout", "description"})
"""Members of an input besides the command that do not change what runs."""


class Call:
    """A tool call to decide on.

    Args:
        tool: The tool's name.
        given: Its input.
        base: The directory that relative paths refer to.
        is_read_only: Whether the tool states that it changes nothing, in its ``annotations``.
        is_sandboxed: Whether the tool runs it in a sandbox.
    """

    def __init__(
        self,
        tool: str,
        given: Mapping[str, Any],
        base: str = "/",
        *,
        is_read_only: bool = False,
        is_sandboxed: bool = False,
    ) -> None:
        self.tool = tool
        self.given = given
        self.base = base
        self.is_read_only = is_read_only
        self.is_sandboxed = is_sandboxed

    @cached_property
    def command(self) -> Command | None:
        """Its shell command, if it has one."""
        text = self.given.get("command")
        return parse_command(text) if isinstance(text, str) else None

    @property
    def paths(self) -> list[str]:
        """The paths it names."""
        return [value for key in PATH_KEYS if isinstance(value := self.given.get(key), str)]


@attrs.frozen(kw_only=True)
class Rule:
    """The action for the calls it applies to; every given condition has to hold.

    Attributes:
        action: The action.
        tools: Patterns of tool names.
        command: Words of a command; a last ``*`` matches any further words.
        path: A pattern for the path in the input.
        host: A pattern for the host of the URL in the input.
        sandboxed: Whether the call has to run in a sandbox, or outside of any; None for both.
        given: Members of the input with their required values.
        read_only: Only tools that state that they change nothing (True), or only all others (False); None for both.
        reason: The reason, for the user and the model.
    """

    action: Action
    tools: tuple[str, ...] = ("*",)
    command: tuple[str, ...] | None = None
    path: str | None = None
    host: str | None = None
    sandboxed: bool | None = None
    given: Mapping[str, Any] = attrs.field(factory=dict)
    read_only: bool | None = None
    reason: str | None = None

    def applies(self, call: Call) -> bool:
        """Whether the rule applies to this call: a certain match if it allows, a possible match otherwise."""
        if not any(matching.word_matches(pattern, call.tool) for pattern in self.tools):
            return False
        if self.sandboxed is not None and self.sandboxed is not call.is_sandboxed:
            return False
        if any(key not in call.given or not _same(call.given[key], value) for key, value in self.given.items()):
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
            if not matching.command_certainly(self.command, call.command):
                return False
        if self.path is not None and not (
            len([key for key in PATH_KEYS if key in call.given]) == 1
            and call.paths
            and matching.path_certainly(self.path, call.paths[0])
        ):
            return False
        url = call.given.get("url")
        return self.host is None or (isinstance(url, str) and matching.host_certainly(self.host, url))

    def _possibly(self, call: Call) -> bool:
        if self.command is not None and (
            call.command is None or not matching.command_possibly(self.command, call.command)
        ):
            return False
        if self.path is not None:
            path = self.path
            if not any(matching.path_possibly(path, given, call.base) for given in call.paths):
                return False
        url = call.given.get("url")
        return self.host is None or (isinstance(url, str) and matching.host_possibly(self.host, url))

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        about = [f"tool {' or '.join(self.tools)}"]
        if self.command is not None:
            about.append(f"command {' '.join(self.command)!r}")
        about += [f"{name} {value!r}" for name, value in (("path", self.path), ("host", self.host)) if value]
        about += [] if self.sandboxed is None else ["inside a sandbox" if self.sandboxed else "outside of a sandbox"]
        about += [f"{key} {value!r}" for key, value in self.given.items()]
        about += [] if self.read_only is None else [f"read_only {str(self.read_only).lower()}"]
        return f"rule for {', '.join(about)}"


def _same(found: Any, wanted: Any) -> bool:
    return type(found) is type(wanted) and bool(found == wanted)  # true is not 1


def strictest(rules: tuple[Rule, ...], call: Call) -> Rule | None:
    """The strictest of the rules that apply to a call, in any order."""
    found = [rule for rule in rules if rule.applies(call)]
    return max(found, key=lambda rule: STRICTNESS[rule.action], default=None)
