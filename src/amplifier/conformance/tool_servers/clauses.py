"""The promises of any tool, offered by an MCP server or by a Python library."""

from __future__ import annotations

from functools import partial

import attrs

from amplifier.contracts import Clause

_required = partial(Clause, level="required")
_recommended = partial(Clause, level="recommended")
_PROTOCOL = "Model Context Protocol"
_OURS = "contract clarifications: tools"

_PROMISES = {
    "S1": _required(
        "The server starts, and each tool it lists has a name of its own and an input schema.",
        source=_PROTOCOL,
        hint="Give every tool a unique name and an inputSchema with the type object.",
    ),
    "S2": _required(
        "Names, descriptions and schemas stay the same unless the server announces a change.",
        source=_PROTOCOL,
        hint="Build the list once. Send notifications/tools/list_changed when it changes.",
    ),
    "S3": _required(
        "Input and output schemas are valid JSON Schemas of an object.",
        source=_PROTOCOL,
        hint="Try the schema with a JSON Schema validator.",
    ),
    "S4": _required(
        "The input schema is accurate: an input that it accepts is not refused for its shape.",
        source=_OURS,
        hint="Name in the schema exactly the keys and types that the tool reads, and those it "
        "cannot do without as required.",
    ),
    "S5": _required(
        "Any input is answered, with a result or an error, and the server stays usable.",
        source=_OURS,
        hint="Check the input before you use it, catch what may fail, and put a deadline on what "
        "may never end.",
    ),
    "S6": _required(
        "A failure is an error, not a text in a successful result.",
        source=_PROTOCOL,
        hint="Return isError: true, or raise, when a call fails or the tool does not exist.",
    ),
    "S7": _required(
        "A result has the form that the protocol and the tool's output schema promise.",
        source=_PROTOCOL,
        hint="Return structuredContent that fits outputSchema, and content of the known types.",
    ),
    "S8": _required(
        "Calls at the same time do not mix: each gets the answer it gets alone.",
        source=_OURS,
        hint="Keep what belongs to one call in local variables, not in globals or on an object.",
    ),
    "S9": _required(
        "A cancelled call stops, and the server answers the calls after it.",
        source=_PROTOCOL,
        hint="Let the cancellation through, and release locks in finally.",
    ),
    "S10": _required(
        "A cancelled call leaves the state as before or as after it, never in between.",
        source=_OURS,
        hint="Prepare the new state first and replace the old one in a single step.",
    ),
    "S11": _required(
        "Repeated calls do not let files, threads, processes or memory grow without limit.",
        source=_OURS,
        hint="Close files and connections in finally, and bound caches.",
    ),
    "S12": _required(
        "The server ends when its standard input ends, and leaves no process behind.",
        source=_PROTOCOL,
        hint="Leave the main loop at the end of standard input, and end child processes there.",
    ),
    "S13": _required(
        "Standard output carries messages of the protocol only.",
        source=_PROTOCOL,
        hint="Print and log to standard error.",
    ),
    "S14": _required(
        "A tool with readOnlyHint changes nothing.",
        source=_PROTOCOL,
        hint="Remove readOnlyHint from a tool that writes, or do not write.",
    ),
    "S15": _required(
        "A second call of a tool with idempotentHint, with the same input, changes nothing more.",
        source=_PROTOCOL,
        hint="Remove idempotentHint, or check what is already there before you write.",
    ),
    "S16": _recommended(
        "Every tool has a description for the model.",
        source="recommendation of this project",
        hint="Describe what the tool does and when to use it.",
    ),
    "S17": _recommended(
        "A refused call changes nothing.",
        source="recommendation of this project",
        hint="Check all of the input before the first side effect.",
    ),
}

CLAUSES = tuple(attrs.evolve(clause, id=number) for number, clause in _PROMISES.items())

ONLY_PROCESSES = frozenset({"S11", "S12", "S13"})
"""Clauses that only a server in a process of this machine can show."""
ONLY_MESSAGES = frozenset({"S13"})
"""Clauses about messages, which do not apply to Python objects."""


def clauses_of(kind: str) -> tuple[Clause, ...]:
    """Return the clauses that bind a subject of a kind."""
    left_out = (
        ONLY_MESSAGES if kind == "python" else ONLY_PROCESSES if kind == "url" else frozenset()
    )
    return tuple(clause for clause in CLAUSES if clause.id not in left_out)
