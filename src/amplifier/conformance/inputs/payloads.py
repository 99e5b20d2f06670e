"""List payloads for handlers: ordinary ones, ones with a fault, and those of a failing session."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

from amplifier.conformance.inputs.values import changed_inside, is_harmless, near_misses, with_texts
from amplifier.events import CATALOGUE

Payload = dict[str, Any]

EVENTS = tuple(CATALOGUE)
UNKNOWN_EVENTS = ("my-module:something", "unknown", "", "tool:pre:extra", "TOOL:PRE", "ünï:✓")
"""Names that are not in the catalogue. Modules may emit any name."""

NEUTRAL: dict[str, Any] = {"kit_note": "plain", "kit_numbers": [1, 2]}
"""Keys that no handler uses. A handler that passes a payload on passes them on too."""

_RESULT = {"success": True, "output": "seen", "error": None}
_MESSAGES = [
    {"role": "user", "content": "Say something."},
    {"role": "assistant", "content": [{"type": "text", "text": "x"}]},
]
_USAGE = {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}

_VALUES: Payload = {
    "block": {"type": "text", "text": "Something."},
    "content": "Something.",
    "error": {"type": "ValueError", "message": "it failed"},
    "messages": _MESSAGES,
    "metadata": {},
    "options": ["Allow", "Deny"],
    "prompt": "Say something.",
    "raw": {"model": "a-model"},
    "response": "Something.",
    "result": _RESULT,
    "status": "completed",
    "tool_call_id": "call-1",
    "tool_calls": [{"id": "call-1", "name": "look", "arguments": {"text": "hello"}}],
    "tool_input": {"path": "canary.txt", "text": "hello", "command": "true"},
    "tool_name": "look",
    "tool_result": _RESULT,
    "usage": _USAGE,
}
_OF_TYPE: Payload = {"str": "text", "int": 3, "float": 0.5, "bool": False, "list": [], "dict": {}}
"""Values of the other keys, by the first word of their annotation."""
_KERNEL_KEYS: Payload = {
    "session_id": "session-1",
    "parent_id": None,
    "timestamp": "2024-05-17T12:30:00+00:00",
}


def ordinary_payload(event: str, **replaced: Any) -> Payload:
    """Return the usual payload of an event. An unknown event gets that of ``tool:pre``."""
    known = CATALOGUE.get(event, CATALOGUE["tool:pre"])
    hints = known.payload.__annotations__
    types = {
        key: re.split(r"\W", getattr(hints[key], "__forward_arg__", str(hints[key])))[0]
        for key in known.keys
    }
    values = {key: _VALUES.get(key, _OF_TYPE.get(types[key], "text")) for key in known.keys}
    return {**copy.deepcopy(values), **_KERNEL_KEYS, **copy.deepcopy(NEUTRAL), **replaced}


def reaching_payloads(
    event: str, source_keys: Iterable[str], choices: Iterable[str], triggers: Iterable[str] = ()
) -> Iterator[Payload]:
    """Yield ordinary payloads with keys and values that the module's source looks for.

    Args:
        event: The name of the event.
        source_keys: Keys that the source looks up, for the payload and the tool's input.
        choices: Texts of comparisons in the source, used as values.
        triggers: Texts that the source may look for inside others.
    """
    base = ordinary_payload(event)
    keys = [key for key in source_keys if is_harmless(key) and key not in base][:20]
    inner: Payload = dict.fromkeys(keys, "text")
    tool_input = {**_VALUES["tool_input"], **inner}
    yield {**base, **inner, "tool_input": tool_input}
    compared = [choice for choice in choices if is_harmless(choice)][:25]
    searched = [trigger for trigger in triggers if trigger not in compared][:25]
    for word, trigger in zip_longest(compared, searched):
        if trigger is not None:
            yield from _triggering({**base, **inner, "tool_input": tool_input}, trigger)
        if word is None:
            continue
        yield {**base, "tool_name": word}
        yield {**base, "tool_name": word, "tool_input": {**tool_input, **dict.fromkeys(keys, word)}}
        yield {
            **base,
            "tool_input": dict.fromkeys(tool_input, word),
            "prompt": f"say {word}",
            "status": word,
        }
        yield {
            **base,
            **{key: f"a {word} b" for key, value in base.items() if isinstance(value, str)},
        }


_EMPTY: Payload = {"none": None, "zero": 0, "no": False, "list": [], "lists": [[], {}, None]}
"""Members that a copy leaves out if its condition is careless."""


def _triggering(base: Payload, trigger: str) -> Iterator[Payload]:
    """Yield a payload with a text inside each of its texts, and one with the text alone."""
    embedded = f"a {trigger} b"
    nested = {**base["tool_input"], "items": ["text", {"deep": ["text"], **_EMPTY}]}
    kept = {key: base[key] for key in NEUTRAL}
    whole = {**base, "tool_input": nested, "kit_empty": dict(_EMPTY)}
    yield {**with_texts(whole, lambda _: embedded), **copy.deepcopy(kept)}
    # A text alone might be a path on this machine.
    if not any(part in trigger for part in ("/", "~", "..", "\\")):
        yield {**base, "tool_input": with_texts(nested, lambda _: trigger), "prompt": trigger}


def odd_payloads(
    event: str, source_keys: Iterable[str], *, briefly: bool = False
) -> Iterator[Payload]:
    """Yield payloads in which a key is missing, a value is of another type, or everything is wrong.

    Args:
        event: The name of the event, which determines the keys.
        source_keys: Keys that the module's source looks up.
        briefly: True to yield only a few.
    """
    base, looked_up = ordinary_payload(event), list(source_keys)
    keys = list(dict.fromkeys([*(key for key in base if key not in NEUTRAL), *looked_up]))[:24]
    if briefly:
        yield from (
            {},
            {"": None, "unknown key": {"nested": [1, None]}},
            dict.fromkeys(keys),
            dict.fromkeys(keys, 7),
        )
        return
    yield from near_misses(base, keys)
    for key, inner in base.items():
        yield from ({**base, key: changed} for changed in changed_inside(inner, looked_up))


MAX_REPEATED_FAILURES = 8
"""Maximum number of consecutive times that the same call fails in the same way."""

_TIMEOUT = {"type": "TimeoutError", "message": "timeout: it failed after 30 s"}
_FAILED = {"success": False, "output": None, "error": _TIMEOUT}
_RESULTS: tuple[tuple[Any, int], ...] = (
    (_RESULT, 2),
    ({"success": True, "output": "a long output, line after line\n" * 40, "error": None}, 1),
    ("a result that the loop has made a text of, as it is stored for the model. " * 4, 1),
    (_FAILED, MAX_REPEATED_FAILURES),
    (_RESULT, 1),
    ({"success": False, "output": None, "error": None}, MAX_REPEATED_FAILURES),
    (_RESULT, 1),
    ({"success": False, "output": "it failed", "error": {"message": "it failed"}}, 3),
    ("Error: it failed", 3),
    (None, MAX_REPEATED_FAILURES),
    (_RESULT, 1),
)
"""Results of one tool with the number of times that each is repeated. Each line is a turn.

None stands for a tool that raises.
"""


def session_events(tool_name: str, tool_input: Mapping[str, Any]) -> Iterator[tuple[str, Payload]]:
    """Yield the events of a session that calls one tool with the same input every time."""
    calls = 0
    yield "session:start", ordinary_payload("session:start")
    for result, times in _RESULTS:
        for event in ("prompt:submit", "execution:start"):
            yield event, ordinary_payload(event)
        for iteration in range(1, times + 1):
            calls += 1
            for event in ("provider:request", "llm:request", "llm:response", "provider:response"):
                yield event, ordinary_payload(event, iteration=iteration)
            yield from _tool_call(
                result, tool_name=tool_name, tool_input=tool_input, tool_call_id=f"call-{calls}"
            )
        for event in ("execution:end", "orchestrator:complete", "prompt:complete"):
            yield event, ordinary_payload(event)
    yield "session:end", ordinary_payload("session:end")


_LEAVES: tuple[Any, ...] = (
    None,
    "",
    "{0} {name} {} %s %d $word {",
    "two\nlines \u2028",
    10**18,
    -1,
    1e300,
    True,
    [],
    {},
    ["text", None, 3],
    {"text": None},
    "word " * 2_000,
)
"""Values that few handlers expect in a field, of every type."""
_MAX_PLACES = 3
_EARLY_EVENTS = (
    "session:start",
    "prompt:submit",
    "execution:start",
    "tool:pre",
    "tool:post",
    "tool:error",
)
_TOOLS = ("look", "count", "write_file", "look", "count")
_TOOL_RESULTS = (_RESULT, _FAILED, _FAILED, "a result as a text", _FAILED)


def odd_fields(event: str) -> Iterator[Payload]:
    """Yield the ordinary payload of an event with an odd value in one field, at any depth."""
    base = ordinary_payload(event)
    failed: Payload = {key: _FAILED for key in ("result", "tool_result") if key in base}
    for given in [base, {**base, **failed}] if failed else [base]:
        for place in _places(given, ()):
            for value in _LEAVES:
                changed = copy.deepcopy(given)
                inner = changed
                for key in place[:-1]:
                    inner = inner[key]
                inner[place[-1]] = copy.deepcopy(value)
                yield changed


def _places(payload: Payload, place: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for key, value in payload.items():
        if key in NEUTRAL:
            continue
        yield (*place, key)
        if isinstance(value, dict) and len(place) < _MAX_PLACES:
            yield from _places(value, (*place, key))


def odd_beginnings(likely: Iterable[str]) -> Iterator[tuple[str, Payload]]:
    """Yield the likely events, then the early events of a session, each with an odd value."""
    events = [*(event for event in likely if event in CATALOGUE), *_EARLY_EVENTS]
    for event in dict.fromkeys(events):
        for payload in odd_fields(event):
            yield event, payload


def several_tools() -> Iterator[tuple[str, Payload]]:
    """Yield the events of a short session with several tools, some of which fail."""
    for event in ("session:start", "prompt:submit", "execution:start"):
        yield event, ordinary_payload(event)
    for number, name in enumerate(_TOOLS):
        about = {
            "tool_name": name,
            "tool_call_id": f"call-{number}",
            "tool_input": {"path": f"file{number}.txt", "text": f"hello {number}"},
        }
        for event in ("provider:request", "llm:response", "provider:response"):
            yield event, ordinary_payload(event, iteration=number)
        for result in (_TOOL_RESULTS[number], None):
            yield from _tool_call(result, **about)
    for event in ("provider:request", "execution:end", "session:end"):
        yield event, ordinary_payload(event)


def _tool_call(result: Any, **about: Any) -> Iterator[tuple[str, Payload]]:
    yield "tool:pre", ordinary_payload("tool:pre", **copy.deepcopy(about))
    if result is None:
        error = {"type": "OSError", "message": "it failed"}
        yield "tool:error", ordinary_payload("tool:error", error=error, **copy.deepcopy(about))
    else:
        results = {"result": copy.deepcopy(result), "tool_result": copy.deepcopy(result)}
        yield "tool:post", ordinary_payload("tool:post", **results, **copy.deepcopy(about))
