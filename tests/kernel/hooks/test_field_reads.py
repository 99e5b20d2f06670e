"""Fields that a handler reads as its code shows: the rest of the payload is not copied for it, and it cannot notice that."""

from __future__ import annotations

import copy
import enum
import functools
import inspect
import sys
import warnings
from typing import Any

import anyio
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from amplifier.kernel.hooks import field_reads
from amplifier.kernel.hooks.field_reads import fields_read_by
from amplifier.models import HookResult
from tests._support.hook_registry import registry

pytestmark = pytest.mark.virtual_time

Data = dict[str, Any]


async def reads_nothing(event: str, data: Data) -> None:
    return None


async def reads_some(event: str, data: Data) -> HookResult:
    name = data["tool_name"]
    text = data.get("text")
    path = data.get("tool_input", {}).get("path", text)
    again = data["tool_name"]
    if "error" in data and "b" not in data:
        return HookResult(action="deny", reason=f"{name}{again} {path} {data.get('c', 7)}")
    return HookResult()


def reads_in_a_comprehension(event: str, data: Data) -> list[Any]:
    return [message for message in data["messages"] if message]


def reads_after_assignments(event: str, data: Data) -> Any:
    name = event
    first = data["a"]
    second = data["b"]
    return name, first, second, event, data["c"]


class Handlers:
    def method(self, event: str, data: Data) -> Any:
        return data["a"], data.get("b", self)

    @staticmethod
    def static(event: str, data: Data) -> Any:
        return data["a"]


@pytest.mark.parametrize(
    ("handler", "fields"),
    [
        (reads_nothing, ()),
        (reads_some, ("tool_name", "text", "tool_input", "error", "b", "c")),
        (reads_in_a_comprehension, ("messages",)),
        (reads_after_assignments, ("a", "b", "c")),
        (Handlers().method, ("a", "b")),
        (Handlers.static, ("a",)),
        (lambda event, data: data["a"]["b"], ("a",)),
        (lambda *_: None, None),
    ],
)
def test_the_fields_that_the_code_names_are_known(handler, fields):
    assert fields_read_by(handler) == fields


def rebinds(event: str, data: Any) -> Any:
    data = {"a": data}
    return data["a"]


def captures(event: str, data: Data) -> Any:
    def read() -> Any:
        return data["a"]

    return read()


def matches(event: str, data: Data) -> Any:
    match data:
        case {"a": found}:
            return found


def looks_at_its_frame(event: str, data: Data) -> Any:
    return inspect.currentframe(), data["a"]


@pytest.mark.parametrize(
    "handler",
    [
        rebinds,
        captures,
        matches,
        looks_at_its_frame,
        lambda event, data: data,
        lambda event, data: {**data},
        lambda event, data: data[event],
        lambda event, data: data.get(event),
        lambda event, data: data.get("a" + event),
        lambda event, data: data.get("a", data),
        lambda event, data: (event, "a", event in data),
        lambda event, data: (data.get, "a"),
        lambda event, data: data.keys(),
        lambda event, data: data["a":],
        lambda event, data: len(data),
        lambda event, data: locals(),
        lambda event, data: breakpoint(),
        lambda event, data=None, *rest: (rest, data),
        lambda *given: given[1]["a"],
        functools.partial(reads_some),
        functools.wraps(reads_some)(lambda *given: given),
        print,
    ],
)
def test_whatever_is_not_certain_counts_as_everything(handler):
    assert fields_read_by(handler) is None


def test_under_a_debugger_every_handler_gets_all():
    before = sys.gettrace()
    sys.settrace(lambda *_: None)
    try:
        under_trace = fields_read_by(reads_some)
    finally:
        sys.settrace(before)
    assert under_trace is None
    if sys.version_info >= (3, 12):
        sys.monitoring.use_tool_id(sys.monitoring.DEBUGGER_ID, "a debugger")
        try:
            assert fields_read_by(reads_some) is None
        finally:
            sys.monitoring.free_tool_id(sys.monitoring.DEBUGGER_ID)


def made(lines: int, use: str) -> Any:
    names: dict[str, Any] = {}
    body = "".join(f"    x = data.get('f{number}', {number})\n" for number in range(lines))
    exec(f"def handler(event, data):\n    {use}\n{body}", names)
    return names.pop("handler")


def test_hundreds_of_constants_are_told_apart():
    assert fields_read_by(made(400, "pass")) == tuple(f"f{number}" for number in range(400))


def test_a_function_of_thousands_of_lines_is_not_looked_at():
    assert fields_read_by(made(3000, "pass")) is None


def test_nothing_is_kept_of_code_that_is_gone():
    before = len(field_reads._known)
    for _ in range(20):
        assert fields_read_by(made(1, "pass")) == ("f0",)
    assert len(field_reads._known) == before


def test_code_with_a_constant_that_cannot_be_hashed_is_read():
    handler = made(1, "pass")
    handler.__code__ = handler.__code__.replace(co_consts=(*handler.__code__.co_consts, []))
    assert fields_read_by(handler) == ("f0",)


# ── the law: a handler cannot tell the difference ──

NAMES = st.sampled_from(["a", "b", "missing"])
SIMPLE = st.one_of(
    NAMES.map(lambda name: f"data[{name!r}]"),
    NAMES.map(lambda name: f"data.get({name!r})"),
    NAMES.map(lambda name: f"{name!r} in data"),
    NAMES.map(repr),
    st.sampled_from(
        [
            *("data", "event", "x", "None", "7", "data.get", "{**data}", "dict(data)", "len(data)", "sorted(data)"),
            *("data | {}", "data.copy()", "data.pop('a', None)", "[*data]", "data.items()", "locals()", "str(data)"),
        ]
    ),
)


def _compound(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    one, two, three = inner, st.tuples(inner, inner), st.tuples(inner, inner, inner)
    return st.one_of(
        one.map(lambda e: f"data[{e}]"),
        one.map(lambda e: f"data.get({e})"),
        st.tuples(NAMES, inner).map(lambda e: f"data.get({e[0]!r}, {e[1]})"),
        one.map(lambda e: f"({e}) in data"),
        one.map(lambda e: f"show({e})"),
        one.map(lambda e: f"(lambda: {e})()"),
        one.map(lambda e: f"[{e} for x in (1, 2)]"),
        one.map(lambda e: f"[x for data in ({e},)]"),
        one.map(lambda e: f"({e})['b']"),
        two.map(lambda e: f"({e[0]}) or ({e[1]})"),
        two.map(lambda e: f"show({e[0]}, {e[1]})"),
        two.map(lambda e: f"({e[0]}, {e[1]})"),
        two.map(lambda e: f"({e[0]}) == ({e[1]})"),
        two.map(lambda e: f"({e[0]})[{e[1]}]"),
        three.map(lambda e: f"(({e[0]}) if ({e[1]}) else ({e[2]}))"),
        three.map(lambda e: f"(({e[0]}) if ({e[1]}) else ({e[2]})) in data"),
        three.map(lambda e: f"data.get(({e[0]}) if ({e[1]}) else ({e[2]}))"),
    )


EXPRESSIONS = st.recursive(SIMPLE, _compound, max_leaves=6)
STATEMENTS = st.one_of(
    EXPRESSIONS.map(lambda e: [f"x = {e}"]),
    EXPRESSIONS.map(lambda e: [f"show({e})"]),
    EXPRESSIONS.map(lambda e: [f"return {e}"]),
    EXPRESSIONS.map(lambda e: [f"data = {e}"]),
    EXPRESSIONS.map(lambda e: [f"if {e}:", "    x = data['a']", "else:", "    x = 'b' in data"]),
    EXPRESSIONS.map(lambda e: ["try:", f"    x = {e}", "except Exception as data:", "    show(x)"]),
    EXPRESSIONS.map(lambda e: ["for x in (1, 2):", f"    show({e})"]),
    EXPRESSIONS.map(lambda e: [f"match {e}:", "    case {'a': x}:", "        show(x)"]),
    st.sampled_from([["del data['a']"], ["data['a'] = 1"], ["data['a']['b'].append(1)"], ["del data"]]),
)
BODIES = st.lists(STATEMENTS, min_size=1, max_size=4).map(lambda parts: [line for part in parts for line in part])
FULL = {"a": {"b": [1], "a": "b"}, "b": "a", "c": [3], "d": None}


def outcome(handler: Any, payload: Data, shown: list[Any]) -> tuple[str, list[str]]:
    del shown[:]
    try:
        answer = f"returned {handler('a', copy.deepcopy(payload))!r}"
    except Exception as exc:
        answer = f"raised {exc!r}"
    return answer.partition(" at 0x")[0], list(shown)


@given(body=BODIES)
@example(body=["show('a', x in data)"])
@example(body=["x = 'a'", "return (x in data, data['b'])"])
@example(body=["return ('a' if event else 'b') in data"])
@example(body=["return (data if x else {})['c']"])
@example(body=["return show(data, data['a'])"])
def test_a_handler_that_gets_only_what_it_reads_behaves_the_same(body):
    shown: list[Any] = []

    def show(*values: Any) -> Any:
        shown.append(repr(values).partition(" at 0x")[0])
        return values[0]

    names: dict[str, Any] = {"show": show}
    lines = ["def handler(event, data, x='c'):", *(f"    {line}" for line in body)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # such as 'a'['b']
        exec("\n".join(lines), names)
    fields = fields_read_by(names["handler"])
    if fields is not None:
        part = {field: FULL[field] for field in fields if field in FULL}
        assert outcome(names["handler"], part, shown) == outcome(names["handler"], FULL, shown)


# ── what follows from it ──


async def test_what_a_handler_does_not_read_is_not_copied():
    hooks, seen = registry(), []

    async def handler(event: str, data: Data) -> None:
        seen.append((data["tool_name"], data["tool_input"]))

    for _ in range(3):
        hooks.register("tool:pre", handler)
    circular: list[Any] = []
    circular.append(circular)  # a copy of it fails
    given_input = {"path": ["x"]}
    result = await hooks.emit("tool:pre", {"tool_name": "look", "tool_input": given_input, "circular": circular})
    assert seen == [("look", given_input)] * 3
    assert len({id(each[1]) for each in seen} | {id(given_input)}) == 4
    assert result.data is not None
    assert result.data["circular"] is circular


async def test_its_modification_is_still_the_whole_payload():
    hooks = registry()

    async def shorten(event: str, data: Data) -> HookResult:
        return HookResult(action="modify", data={"tool_name": data["tool_name"].upper()})

    hooks.register("tool:pre", shorten)
    result = await hooks.emit("tool:pre", {"tool_name": "look", "tool_input": {}})
    assert result.data is not None
    assert result.data["tool_name"] == "LOOK"
    assert "tool_input" not in result.data


@pytest.mark.parametrize("is_method", [False, True])
async def test_new_code_of_a_handler_gets_what_it_reads(is_method):
    hooks, seen = registry(), []

    class Reloaded:
        async def on(self, event: str, data: Data) -> None:
            seen.append(data["a"])

        async def waits_and_reads_all(self, event: str, data: Data) -> None:
            await anyio.sleep(1)
            seen.append(data)

    async def plain(event: str, data: Data) -> None:
        seen.append(data["a"])

    async def waits_and_reads_all(event: str, data: Data) -> None:
        await anyio.sleep(1)
        seen.append(data)

    hooks.register("x:y", Reloaded().on if is_method else plain, timeout=0.5)
    assert not hooks.has_handlers("x:y", "b")
    if is_method:
        Reloaded.on.__code__ = Reloaded.waits_and_reads_all.__code__
    else:
        plain.__code__ = waits_and_reads_all.__code__
    assert hooks.has_handlers("x:y", "b")
    await hooks.emit("x:y", {"a": 1, "b": 2})
    assert seen == []  # cut off: it may wait now
    await hooks.emit_and_collect("x:y", {"a": 1, "b": 2}, timeout=2)
    assert [data["b"] for data in seen] == [2]


async def test_handlers_that_name_the_same_fields_with_other_types_do_not_meet():
    class Field(enum.StrEnum):
        TOOL = "tool_name"

    seen = []
    for fields in ((Field.TOOL,), ("tool_name",)):
        hooks = registry()
        hooks.register("tool:pre", lambda _, data: seen.append(next(iter(data))), fields=fields)
        await hooks.emit("tool:pre", {"tool_name": "look"})
    assert list(map(type, seen)) == [str, str]


async def test_a_registry_knows_which_fields_its_handlers_read():
    hooks = registry()
    hooks.register("provider:request", reads_nothing)
    assert hooks.has_handlers("provider:request")
    assert not hooks.has_handlers("provider:request", "messages")
    hooks.register("provider:request", reads_in_a_comprehension)
    assert hooks.has_handlers("provider:request", "messages")


async def test_handlers_of_different_fields_and_of_a_modified_payload_get_theirs():
    hooks, seen = registry(), []
    hooks.register("x:y", lambda _, data: seen.append(data["a"]))
    hooks.register("x:y", lambda _, data: seen.append(data.get("b")))
    hooks.register("x:y", lambda _, data: seen.append(sorted(data)))
    hooks.register("x:y", lambda _, data: {"action": "modify", "data": {"a": data["a"] + 1, "b": 5}})
    hooks.register("x:y", lambda _, data: seen.append(data["a"]))
    hooks.register("x:y", lambda _, data: seen.append(data.get("b")))
    await hooks.emit("x:y", {"a": 1})
    assert seen == [1, None, ["a", "parent_id", "session_id", "timestamp"], 2, 5]
