"""Strategies for contexts: programs of operations, and conversations that are too long. Needs the ``testing`` extra.

Everything drawn is JSON values, small, and legal: calls have results, ids are made from positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from amplifier.conformance.inputs.conversations import prose

_TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00"), max_size=12) | st.sampled_from(
    ["", " ", "hello", "line one\nline two", "a\u2028b\x85c\r\nd", "é漢字🙂", '{"role": "user"}', "x" * 3000]
)
_LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from([0.5, "", "text"])
_VALUES: SearchStrategy[Any] = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)
_EXTRAS: SearchStrategy[dict[str, Any]] = st.dictionaries(
    st.sampled_from(["name", "metadata", "cache", "source", "x-y"]), _VALUES, max_size=2
)
_BLOCKS = st.lists(
    st.one_of(
        st.builds(lambda text: {"type": "text", "text": text}, _TEXTS),
        st.builds(lambda text: {"type": "thinking", "thinking": text, "signature": "sig=="}, _TEXTS),
        st.just({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}),
    ),
    min_size=1,
    max_size=3,
)
_CONTENTS = _TEXTS | st.none() | _BLOCKS
_ROLES = st.sampled_from(["user", "assistant", "user", "assistant", "system", "developer"])


def _plain_messages() -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({"do": st.just("say"), "role": _ROLES, "content": _CONTENTS, "extra": _EXTRAS})


def _tool_turns() -> SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "do": st.just("call"),
            "calls": st.integers(1, 3),
            "content": st.none() | _TEXTS | _BLOCKS,
            "between": st.sampled_from([None, None, "system", "user"]),
            "blocks": st.booleans(),
        }
    )


def programs(facts: dict[str, Any]) -> SearchStrategy[Any]:
    """Sequences of operations."""
    adding = st.one_of(_plain_messages(), _plain_messages(), _tool_turns(), st.just({"do": "again"}))
    steps = st.one_of(
        adding,
        adding,
        st.fixed_dictionaries({"do": st.just("set"), "messages": st.lists(adding, max_size=4)}),
        st.just({"do": "clear"}),
        st.fixed_dictionaries(
            {"do": st.just("overwrite"), "what": st.sampled_from(["given", "stored", "view", "small view"])}
        ),
        st.fixed_dictionaries({"do": st.just("view"), "budget": st.sampled_from([None, 1, 5, 20, 100, 10_000_000])}),
        st.fixed_dictionaries({"do": st.just("burst"), "count": st.integers(2, 5)}),
        st.fixed_dictionaries(
            {
                "do": st.just("cancel"),
                "what": st.sampled_from(["add_message", "set_messages", "clear", "get_messages_for_request"]),
                "at": st.integers(1, 4),
                "content": _TEXTS,
            }
        ),
    )
    return st.fixed_dictionaries({"placed": st.booleans(), "steps": st.lists(steps, min_size=1, max_size=12)})


def listed_programs(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """One of everything, stored in both ways: changed wherever it can be reached, viewed, replaced and cleared; two results of one call."""

    def say(role: str, content: Any, **extra: Any) -> dict[str, Any]:
        return {"do": "say", "role": role, "content": content, "extra": extra}

    blocks = [
        {"type": "thinking", "thinking": "so", "signature": "sig=="},
        {"type": "text", "text": "m0033 blocks", "visibility": None},
    ]
    call = {"do": "call", "calls": 1, "content": "m0079 I look", "between": None}
    everything = [
        say("system", prose(10, 5)),
        say("user", "a\u2028b\x85c\r\nd é漢字🙂", name=None, metadata={"n": [1, {"deep": None}], "ok": False}),
        {"do": "call", "calls": 3, "content": None, "between": "system", "blocks": True},
        say("assistant", blocks, cache={"type": "ephemeral"}),
        say("developer", "m0050 be brief"),
        say("user", ""),
        {"do": "again"},
        say("user", "  spaces around it \n"),
        say("assistant", None),
        say("user", prose(60, 5)),
        {"do": "again"},
        call,
        say("user", prose(80, 5)),
    ]
    looks: list[dict[str, Any]] = [
        {"do": "overwrite", "what": what} for what in ("given", "stored", "view", "small view")
    ]
    looks += [{"do": "view", "budget": budget} for budget in (None, 200, 60, 20, 10_000_000)]
    sets = [{"do": "set", "messages": messages} for messages in ([say("user", "m0500 next")], [], everything)]
    for placed in (True, False):
        yield {"placed": placed, "steps": [*everything, *looks, *sets, {"do": "clear"}]}
    yield {"placed": True, "steps": [sets[-1], *looks, sets[0], say("user", "m0600 more")]}
    # Histories that differ early and agree late: what is remembered of one is not true of the other.
    late = [say("user", "m0700 and so on"), say("assistant", "m0701 yes")]
    alike = [
        {"do": "set", "messages": [say("user", text), *late]} for text in ("m0699 first", "m0698 other", "m0699 first")
    ]
    yield {"placed": True, "steps": [step for each in alike for step in (each, looks[4], looks[-1])]}
    # Closed and mounted again: a file holds the last state.
    again, replaced = {"do": "remount"}, {"do": "remount", "replaced": True}
    many = [*everything, *(say("user", prose(100 + number, 3)) for number in range(15))]
    yield {"placed": True, "steps": [*many, again, say("user", "m0600 more"), again, {"do": "clear"}, replaced]}
    yield {"placed": True, "steps": [{"do": "set", "messages": many[:2]}, replaced]}
    yield {"placed": True, "steps": [*many, {"do": "set", "messages": many[5:]}, replaced]}
    for what in ("add_message", "get_messages_for_request", "set_messages", "clear"):
        yield {"placed": True, "steps": [{"do": "sweep", "what": what}]}
    repeated = [call, say("tool", prose(29, 5), tool_call_id="call-10-0")]
    yield {"placed": True, "steps": repeated}
    yield {"placed": True, "steps": [{"do": "set", "messages": repeated}]}


def _unit() -> SearchStrategy[dict[str, Any]]:
    words = st.integers(20, 40)
    return st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "words": words}),
        st.fixed_dictionaries(
            {
                "calls": st.integers(1, 3),
                "words": st.integers(8, 24),
                "between": st.sampled_from([None, None, "user"]),
                "says": st.booleans(),
                "blocks": st.booleans(),
            }
        ),
    )


def long_conversations(facts: dict[str, Any]) -> SearchStrategy[Any]:
    """Patterns of units to repeat, and the positions of system messages and of a huge message."""
    return st.fixed_dictionaries(
        {
            "placed": st.booleans(),
            "pattern": st.lists(_unit(), min_size=1, max_size=7),
            "count": st.integers(50, 90),
            "systems": st.lists(st.integers(0, 120), max_size=3, unique=True),
            "huge": st.none() | st.sampled_from(["user", "assistant", "tool"]),
            "how": st.sampled_from(["add", "set", "both"]),
            "units": st.sampled_from([4, 12, 16]),
            "ends": st.sampled_from(["user", "calls"]),
            "again": st.integers(1, 2),
            "echo": st.booleans(),
        }
    )


def listed_conversations(facts: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A late system message before a newest message that takes much of the budget."""
    common = {"placed": False, "count": 60, "huge": None, "how": "add", "units": 12, "again": 1, "echo": False}
    pattern = [{"role": "user", "words": 30}, {"role": "assistant", "words": 30}]
    yield {**common, "pattern": pattern, "systems": [0, 40], "ends": "user", "newest": 200}
