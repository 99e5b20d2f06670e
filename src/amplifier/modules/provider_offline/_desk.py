"""Calls that answers are made of.

An intent is answered by an ordinary function that asks the desk for results. A result that the transcript holds is given
at once; one that it lacks is noted as wanted, and the function is left with `Waiting`. The next request runs the same
functions again, and they get a step further: nothing has to be remembered between two requests.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from ._conversation import Turn

EFFECTS = frozenset({"write_file", "edit_file", "bash", "todo"})
"""Tools that change something: what was seen before such a call is not taken for what is there after it."""

MODULES: Mapping[str, str] = {
    "read_file": "tool-filesystem",
    "write_file": "tool-filesystem",
    "edit_file": "tool-filesystem",
    "list_directory": "tool-filesystem",
    "glob": "tool-filesystem or tool-search",
    "grep": "tool-search",
    "bash": "tool-bash",
    "todo": "tool-todo",
    "web_fetch": "tool-web",
}

_SYNONYMS: Mapping[str, tuple[str, ...]] = {"file_path": ("path", "filename"), "path": ("directory", "file_path")}
"""Other names under which tools of the same name take the same thing."""

Key = tuple[int, str, str]


class Waiting(Exception):
    """A result is not there yet; it has been asked for."""


@attrs.frozen
class Result:
    """What came back from a call.

    Attributes:
        data: The tool's output, if it is an object.
        text: Everything as text: of a failed call, what went wrong.
        ok: Whether there is output to work with.
    """

    data: Mapping[str, Any] = attrs.field(factory=dict)
    text: str = ""
    ok: bool = True

    def number(self, key: str) -> int:
        """A number of the output; 0 if it is not there."""
        value = self.data.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else 0

    def texts(self, key: str) -> list[str]:
        """A list of texts of the output."""
        value = self.data.get(key)
        return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []

    def objects(self, key: str) -> list[Mapping[str, Any]]:
        """A list of objects of the output."""
        value = self.data.get(key)
        return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


@attrs.frozen
class Wanted:
    """A call to make."""

    tool: str
    arguments: Mapping[str, Any]


class Desk:
    """The calls of one turn, made and wanted.

    Args:
        turn: What was called so far.
        max_calls: Calls one turn may make.
        max_steps: Answers with calls one turn may have.

    Attributes:
        wanted: What has to be called next, in order and each once.
        refused: Whether something was not called because a limit was reached.
    """

    def __init__(self, turn: Turn, *, max_calls: int, max_steps: int) -> None:
        self._turn = turn
        self._room = 0 if turn.steps >= max_steps else max(0, max_calls - len(turn.called))
        self._epoch = 0
        self._done: dict[Key, Result] = {}
        self._missing: set[Key] = set()
        self.wanted: list[Wanted] = []
        self.refused = False
        epoch = 0
        for call in turn.called:
            key = _key(epoch, call.tool, call.arguments)
            if call.result is None:
                self._missing.add(key)
            else:
                self._done.setdefault(key, _read(call.result))
            epoch += call.tool in EFFECTS

    def offers(self, tool: str) -> bool:
        """Whether a tool may be called."""
        return tool in self._turn.tools

    def call(self, tool: str, **arguments: Any) -> Result:
        """The result of one call.

        Raises:
            Waiting: It was not made yet.
        """
        return self.calls(Wanted(tool, arguments))[0]

    def calls(self, *wanted: Wanted) -> list[Result]:
        """The results of several calls, made at the same time.

        Raises:
            Waiting: Some of them were not made yet.
        """
        results: list[Result] = []
        is_waiting = False
        for item in wanted:
            if not self.offers(item.tool):
                module = MODULES.get(item.tool, "another module")
                results.append(
                    Result(text=f"this needs the tool `{item.tool}` of {module}, not offered here", ok=False)
                )
                continue
            fitted = Wanted(item.tool, self._fitted(item))
            key = _key(self._epoch, fitted.tool, fitted.arguments)
            if key in self._done:
                results.append(self._done[key])
                self._epoch += item.tool in EFFECTS
            elif key in self._missing:
                results.append(Result(text=f"the result of `{item.tool}` is not in the conversation", ok=False))
            elif self._room <= 0 and fitted not in self.wanted:
                self.refused = True
                results.append(Result(text="not done: one answer makes only so many calls", ok=False))
            else:
                is_waiting = True
                if fitted not in self.wanted:
                    self.wanted.append(fitted)
                    self._room -= 1
        if is_waiting:
            raise Waiting
        return results

    def _fitted(self, wanted: Wanted) -> dict[str, Any]:
        """The arguments under the names that the offered tool has for them; what it does not know is left out."""
        known = self._turn.tools[wanted.tool].get("properties")
        if not isinstance(known, Mapping) or not known:
            return dict(wanted.arguments)
        fitted = {}
        for name, value in wanted.arguments.items():
            for candidate in (name, *_SYNONYMS.get(name, ())):
                if candidate in known:
                    fitted[candidate] = value
                    break
        return fitted


def _key(epoch: int, tool: str, arguments: Mapping[str, Any]) -> Key:
    return epoch, tool, json.dumps(arguments, sort_keys=True, default=str)


def _read(text: str) -> Result:
    """A result as the transcript holds it: the built-in tools answer with an object, and with plain text if they fail.

    A hook may have put words behind it.
    """
    start = text.lstrip()
    if start.startswith("{"):
        try:
            data, _ = json.JSONDecoder().raw_decode(start)
        except (ValueError, RecursionError):  # cut short, most likely by the context's compaction
            return Result(text="the result was cut short and cannot be read", ok=False)
        return Result(data=data, text=text)
    return Result(text=text.strip() or "no result", ok=False)
