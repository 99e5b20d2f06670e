"""One examination of a server: its calls, the observed state, and the findings."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from amplifier._internal.json import JSON
from amplifier.conformance.inputs.json_schema import Accepts, acceptor, fingerprint
from amplifier.conformance.inputs.values import valid_inputs
from amplifier.conformance.target.mounted import CANARY

from .permission import hints_of

if TYPE_CHECKING:
    from .connection import Link, Reply

Input = dict[str, Any]

FILE = "the file "
_MAX_INPUTS = 20
_MAX_PROBES = 4
_GROWTH_CALLS = 45
_ALL_SECONDS, _MIN_SECONDS, _MAX_SECONDS = 45.0, 0.6, 2.0
_MIN_CALLS = 3
SLOW_SECONDS = 0.1
_CHECKS = 7
"""Checks that call every tool. One check of one tool gets its share of the seconds."""

# Answers with the time or a made-up id differ without any change of state.
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d([.,]\d+)?)?(Z|[+-]\d\d:?\d\d)?"
    r"|\b\d{1,2}:\d\d(:\d\d)?\b|\b1[6-9]\d{8}(\d{3})?\b"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"
)


class CutShort(Exception):
    """A check ends early because no more calls are allowed or the connection is lost."""


@attrs.frozen(kw_only=True)
class ServerFault:
    """One broken promise.

    Attributes:
        clause: The id of the clause.
        what: The broken promise, and the observation.
        check: The name of the check.
        tool: The name of the tool, or None for the server as a whole.
        arguments: The smallest input that shows it, or None.
        location: The line of a Python object, ``file:line``, or None.
    """

    clause: str
    what: str
    check: str
    tool: str | None = None
    arguments: Input | None = None
    location: str | None = None


@attrs.define(kw_only=True)
class ExaminedTool:
    """A tool that may be called.

    Attributes:
        name: The name of the tool.
        schema: Its input schema as it was sent.
        output_schema: Its output schema, or None.
        hints: Its annotations.
        fixed: Values of arguments that the user has fixed.
        inputs: Inputs that its schema accepts.
        replies: Its first replies to them.
        accepts: Returns whether the schema accepts an input. None if the schema can't be used.
        calls: The number of calls so far.
        fastest: Seconds of its quickest answer. 0 before the first.
    """

    name: str
    schema: dict[str, JSON]
    output_schema: dict[str, JSON] | None
    hints: dict[str, JSON]
    fixed: dict[str, JSON]
    inputs: list[Input] = attrs.field(factory=list)
    replies: list[tuple[Input, Reply]] = attrs.field(factory=list)
    accepts: Accepts | None = None
    calls: int = 0
    fastest: float = 0.0

    @classmethod
    def read(cls, tool: Mapping[str, JSON], fixed: dict[str, JSON]) -> ExaminedTool:
        """Read a tool from the list of a server, and generate inputs for it."""
        schema = tool.get("inputSchema")
        output_schema = tool.get("outputSchema")
        examined = cls(
            name=str(tool["name"]),
            schema=schema if isinstance(schema, dict) else {},
            output_schema=output_schema if isinstance(output_schema, dict) else None,
            hints=hints_of(dict(tool)),
            fixed=fixed,
        )
        examined.accepts = acceptor(examined.schema, check_formats=False)
        inputs = {
            fingerprint(fixed_input): fixed_input
            for arguments in valid_inputs(examined.schema, CANARY)
            if (fixed_input := examined.fix(arguments))
        }
        inputs = inputs or {"{}": examined.fix({})}
        # The smallest come first, so that the first finding has the smallest input.
        examined.inputs = sorted(
            list(inputs.values())[:_MAX_INPUTS], key=lambda arguments: len(fingerprint(arguments))
        )
        return examined

    def fix(self, arguments: Input) -> Input:
        """Return an input with the values that the user has fixed."""
        return {**arguments, **self.fixed}

    @property
    def is_read_only(self) -> bool:
        """True if it declares that it changes nothing."""
        return self.hints.get("readOnlyHint") is True

    def successes(self) -> list[tuple[Input, Reply]]:
        """Return the inputs with a successful first reply, and the replies."""
        return [(arguments, reply) for arguments, reply in self.replies if reply.kind == "result"]


@attrs.frozen
class State:
    """The answers of the readers and the contents of the files at one moment, by name."""

    shown: dict[str, str]

    def changes(self, later: State) -> list[str]:
        """Return the names that differ in a later state. A reader counts if both have it."""
        both = self.shown.keys() & later.shown.keys()
        names = [
            name for name in {**self.shown, **later.shown} if name in both or name.startswith(FILE)
        ]
        return [name for name in names if self.shown.get(name) != later.shown.get(name)]


class Examination:
    """One examination.

    Args:
        link: The open connection.
        tools: The tools that may be called.
        max_calls: The maximum number of calls of each tool.
        call_seconds: The deadline of a call, in seconds.
        progress: Gets the name of a check, its number, and the number of checks.

    Attributes:
        faults: The findings, at most one for each clause and tool.
        examined: The clauses that were really examined.
        reasons: The reasons why other clauses weren't examined.
        probes: Calls of read-only tools that give the same answer each time.
        slow: Tools that gave no answer.
        cut_short: For each check, the tools for which it ended early.
    """

    def __init__(
        self,
        link: Link,
        tools: Sequence[ExaminedTool],
        *,
        max_calls: int,
        call_seconds: float,
        progress: Callable[[str, int, int], None],
    ) -> None:
        self.link = link
        self.tools = tools
        self.call_seconds = call_seconds
        self.progress = progress
        self.faults: list[ServerFault] = []
        self.examined: set[str] = set()
        self.reasons: dict[str, str] = {}
        self.probes: list[tuple[ExaminedTool, Input]] = []
        self.check = ""
        self.slow: set[str] = set()
        self.cut_short: dict[str, dict[str, None]] = {}
        self._max_calls = max_calls
        # Calls that are reserved for the check of growth, which comes last and needs many.
        self.reserve: int = min(_GROWTH_CALLS, max_calls // 3)
        self._before = 0
        self._seen: Counter[tuple[str, str | None]] = Counter()

    def fault(
        self,
        clause: str,
        what: str,
        tool: ExaminedTool | None = None,
        arguments: Input | None = None,
        *,
        location: str | None = None,
    ) -> None:
        """Report a broken promise, unless one of this tool is known already."""
        name = None if tool is None else tool.name
        self.examined.add(clause)
        self._seen[clause, name] += 1
        if self._seen[clause, name] == 1:
            fault = ServerFault(
                clause=clause,
                what=what,
                check=self.check,
                tool=name,
                arguments=arguments,
                location=location,
            )
            self.faults.append(fault)

    def is_known(self, clause: str, tool: ExaminedTool) -> bool:
        """Return whether a broken promise of a tool was reported before."""
        return bool(self._seen[clause, tool.name])

    def look(self, *clauses: str) -> None:
        """Note that clauses are being examined."""
        self.examined.update(clauses)

    def explain(self, clause: str, reason: str) -> None:
        """Note why a clause is not examined."""
        self.reasons.setdefault(clause, reason)

    # ── calls ──

    def start_tool(self, tool: ExaminedTool) -> None:
        """Begin to count the check's calls of another tool."""
        self._before = tool.calls

    def is_over(self, tool: ExaminedTool) -> bool:
        """Return whether the check has used up its calls of a slow tool."""
        # Calls are counted and not timed, so that busy and idle machines find the same.
        if tool.fastest <= SLOW_SECONDS:
            return False
        share = _ALL_SECONDS / (_CHECKS * max(1, len(self.tools)))
        seconds = min(max(share, _MIN_SECONDS), _MAX_SECONDS)
        return tool.calls - self._before >= max(_MIN_CALLS, int(seconds / tool.fastest))

    def goes_on(self, tool: ExaminedTool, count: int = 1) -> bool:
        """Return whether the check may make ``count`` more calls, and note where it ends early."""
        if self.can_call(tool, count) and not self.is_over(tool):
            return True
        self.note_cut(tool)
        return False

    def note_cut(self, tool: ExaminedTool) -> None:
        """Note that the check ends early for a tool."""
        self.cut_short.setdefault(self.check, {})[tool.name] = None

    def can_call(self, tool: ExaminedTool, count: int = 1) -> bool:
        """Return whether ``count`` more calls of a tool may be made."""
        return not self.link.is_lost and tool.calls + count <= self._max_calls - self.reserve

    def count_call(self, tool: ExaminedTool, *, is_reading: bool = False) -> None:
        """Count a call before it is made.

        Raises:
            CutShort: The call may not be made.
        """
        if not (self.can_read() if is_reading else self.can_call(tool)):
            raise CutShort
        tool.calls += 1

    async def call(
        self, tool: ExaminedTool, arguments: Input, *, is_reading: bool = False
    ) -> Reply:
        """Call a tool.

        Raises:
            CutShort: The call may not be made.
        """
        self.count_call(tool, is_reading=is_reading)
        reply = await self.link.call(tool.name, arguments, self.call_seconds)
        tool.fastest = min(tool.fastest or reply.seconds, reply.seconds)
        if reply.kind == "late":
            self.slow.add(tool.name)
        if self.link.gave_up:
            raise CutShort
        return reply

    # ── state ──

    def can_read(self, count: int = 1) -> bool:
        """Return whether the state may be read ``count`` more times.

        Reading may use the calls that are reserved for the last check.
        """
        per_reading = max(Counter(tool.name for tool, _ in self.probes).values(), default=0)
        calls = max((tool.calls for tool, _ in self.probes), default=0)
        return not self.link.is_lost and calls + count * per_reading <= self._max_calls

    async def state(self) -> State:
        """Read the readers and the files.

        Raises:
            CutShort: A reader can no longer be called, so that nothing can be compared.
        """
        shown = {}
        for tool, arguments in self.probes:
            reply = await self.call(tool, arguments, is_reading=True)
            shown[f"{tool.name}({fingerprint(arguments)[:60]})"] = stable_text(reply)
        if self.link.subject.kind != "url":
            shown |= {
                f"{FILE}{name}": _VOLATILE.sub("<volatile>", repr(data))
                for name, data in self.link.files().items()
            }
        return State(shown)

    @property
    def shows_state(self) -> bool:
        """True if a change of the state can be observed."""
        return bool(self.probes) or self.link.subject.kind != "url"

    def choose_probes(self, candidates: Iterable[tuple[ExaminedTool, Input]]) -> None:
        """Choose calls that show the state, one of each tool first."""
        waiting: dict[str, list[tuple[ExaminedTool, Input]]] = {}
        for candidate in candidates:
            waiting.setdefault(candidate[0].name, []).append(candidate)
        while waiting and len(self.probes) < _MAX_PROBES:
            for name in list(waiting):
                self.probes.append(waiting[name].pop(0))
                if not waiting[name]:
                    del waiting[name]
        del self.probes[_MAX_PROBES:]


def stable_text(reply: Reply) -> str:
    """Return the answer of a reader without the time and made-up ids."""
    return _VOLATILE.sub("<volatile>", reply.key)
