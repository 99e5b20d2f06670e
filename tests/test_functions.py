"""Functions as tools: for every signature, what the schema accepts is called and what it rejects goes back with a path."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import functools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Required, TypedDict

import annotated_types
import anyio
import attrs
import hypothesis.strategies as st
import jsonschema  # type: ignore[import-untyped]
import msgspec
import pydantic
import pytest
from hypothesis import given

from amplifier import AmplifierSession, HookResult, ToolResult, agent
from amplifier.agents import AgentSession
from amplifier.contracts import Coordinator, CurrentCall, Session
from amplifier.functions import FunctionTool, mount_hook, mount_tool, on, tool
from amplifier.testing import MockApprovalSystem, MockProvider, MockTool, script


@attrs.define
class Point:
    x: int
    y: float = 1.0


@dataclasses.dataclass
class Row:
    name: str
    marks: list[int] = dataclasses.field(default_factory=list)


@attrs.define
class Shelf:
    books: dict[int, str]


class Entry(TypedDict):
    key: str


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Options(TypedDict, total=False):
    key: Required[Annotated[int, annotated_types.Ge(1)]]
    name: list[Annotated[str, annotated_types.MinLen(1)]]


@dataclasses.dataclass
class Tree:
    number: int
    name: list[Tree] = dataclasses.field(default_factory=list)


@attrs.frozen
class Even:
    """What it takes is known to its own code alone."""

    x: int = attrs.field()

    @x.validator
    def _check(self, attribute: Any, value: int) -> None:
        if value % 2:
            raise ValueError("expected an even number")


class Order(pydantic.BaseModel):
    number: int
    items: list[str] = []


class Limited(pydantic.BaseModel):
    number: int = pydantic.Field(gt=0)
    key: Literal["a", "b"] | None = None


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
whole = st.integers(-(2**31), 2**31)


async def waits_to_decide(text: str) -> bool:
    return True


TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (str, texts),
    (int, whole),
    (float, whole | st.floats(-1e6, 1e6)),
    (bool, st.booleans()),
    (list[int], st.lists(whole, max_size=3)),
    (dict[str, int], st.dictionaries(texts, whole, max_size=3)),
    (int | None, st.none() | whole),
    (int | str, whole | texts),
    (Literal["a", "b"], st.sampled_from(["a", "b"])),
    (Colour, st.sampled_from(["red", "blue"])),
    (Annotated[int, annotated_types.Ge(1), annotated_types.Le(7)], st.integers(1, 7)),
    (Annotated[int, msgspec.Meta(ge=0)], st.integers(0, 9)),
    (Annotated[list[str], annotated_types.Len(1, 2)], st.lists(texts, min_size=1, max_size=2)),
    (list[Annotated[int, annotated_types.Gt(0)]], st.lists(st.integers(1, 9), max_size=2)),
    (
        Point,
        st.builds(lambda x: {"x": x}, whole)
        | st.builds(lambda x, y: {"x": x, "y": y}, whole, whole),
    ),
    (Row, st.builds(lambda n, m: {"name": n, "marks": m}, texts, st.lists(whole, max_size=2))),
    (Entry, st.builds(lambda k: {"key": k}, texts)),
    (list[Point], st.lists(st.builds(lambda x: {"x": x}, whole), max_size=2)),
    (Order, st.builds(lambda n: {"number": n}, whole)),
    (Order | None, st.none() | st.builds(lambda n: {"number": n}, whole)),
    (Annotated[int, pydantic.Field(ge=3)], st.integers(3, 9)),
    (Size | None, st.sampled_from([None, 1, 2])),
    (
        Options,
        st.builds(
            lambda k, n: {"key": k, "name": n},
            st.integers(1, 9),
            st.lists(st.just("a"), max_size=2),
        ),
    ),
    (Tree, st.builds(lambda n, m: {"number": n, "name": [{"number": m}]}, whole, whole)),
    (Limited, st.builds(lambda n: {"number": n, "key": "a"}, st.integers(1, 9))),
    (Annotated[int | None, annotated_types.Ge(1)], st.none() | st.integers(1, 9)),
    (Annotated[str, annotated_types.Len(1, 2)] | bool, st.booleans() | st.just("a")),
    (Annotated[float, annotated_types.Interval(gt=0, le=5)], st.floats(0.5, 5)),
    (tuple[int, str], st.builds(lambda n, t: [n, t], whole, texts)),
    (tuple[Point, ...], st.lists(st.builds(lambda x: {"x": x}, whole), max_size=2)),
    (
        Point | Row | int,
        whole | st.builds(lambda x: {"x": x}, whole) | st.builds(lambda n: {"name": n}, texts),
    ),
    (Literal[1, "a", None], st.sampled_from([1, "a", None])),
    (Any, whole),
    (dict[int, str], st.dictionaries(whole.map(str), texts, max_size=2)),
    (dict[float, int], st.dictionaries(st.floats(-1e9, 1e9).map(repr), whole, max_size=2)),
    (dict[Colour, int], st.dictionaries(st.sampled_from(["red", "blue"]), whole, max_size=2)),
    (dict[Size, int], st.dictionaries(st.sampled_from(["1", "2"]), whole, max_size=2)),
    (
        list[dict[Literal["a", 1], int]],
        st.lists(st.dictionaries(st.sampled_from(["a", "1"]), whole, max_size=2), max_size=2),
    ),
    (dict[int, dict[int, int]] | None, st.none() | st.just({"1": {"-2": 3}})),
    (
        Annotated[dict[int, int], annotated_types.MaxLen(1)],
        st.dictionaries(whole.map(str), whole, max_size=1),
    ),
]
anything = st.recursive(
    st.none() | st.booleans() | whole | st.floats(-10, 10) | st.sampled_from([1.0, -2.0, 1e30, 2**70]) | texts | st.sampled_from(["a", "red", ""]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["x", "y", "name", "key", "number", "items", "1", "a", "red", "01", "-0", "1.5", "1e5", "9" * 30]) | texts, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
signatures = st.lists(
    st.tuples(st.sampled_from(range(len(TYPES))), st.booleans()), min_size=0, max_size=4
)  # a type, and whether the argument has a default


def function_of(
    signature: list[tuple[int, bool]],
) -> tuple[Callable[..., Any], list[dict[str, Any]]]:
    """A function with this signature, which stores what it is called with."""
    calls: list[dict[str, Any]] = []

    async def drawn(**values: Any) -> None:
        calls.append(values)

    import inspect

    parameters = [
        inspect.Parameter(
            f"p{number}",
            inspect.Parameter.KEYWORD_ONLY,
            annotation=TYPES[kind][0],
            default=None if optional else inspect.Parameter.empty,
        )
        for number, (kind, optional) in enumerate(signature)
    ]
    drawn.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    drawn.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return drawn, calls


@st.composite
def inputs(draw: st.DrawFn) -> tuple[list[tuple[int, bool]], Any]:
    signature = draw(signatures)
    names = [f"p{number}" for number in range(len(signature))]
    given_input: dict[str, Any] = {}
    for name, (kind, _) in zip(names, signature, strict=True):
        how = draw(st.sampled_from(["good", "good", "good", "any", "missing"]))
        if how != "missing":
            given_input[name] = draw(TYPES[kind][1] if how == "good" else anything)
    if draw(st.integers(0, 9)) == 0:
        given_input["p9"] = 1
    return signature, given_input


@given(inputs())
async def test_call_follows_schema(drawn):
    """Accepted input is called, rejected input goes back with a path."""
    signature, given_input = drawn
    function, calls = function_of(signature)
    made = FunctionTool(function)
    result = await made.execute(given_input)
    if jsonschema.Draft202012Validator(made.input_schema).is_valid(given_input):
        assert result.success, result.error
        assert calls[0].keys() == given_input.keys()
    else:
        assert not result.success
        assert result.error is not None
        assert result.error["type"] == "InvalidInput"
        assert ": $" in result.error["message"]
        assert calls == []


async def test_input_has_declared_types():
    seen: list[Any] = []

    async def take(
        point: Point,
        row: Row,
        colour: Colour,
        day: datetime.date,
        at: Annotated[int, "how many"] = 3,
    ) -> Point:
        seen.extend([point, row, colour, day, at])
        return point

    result = await FunctionTool(take).execute(
        {
            "point": {"x": 1},
            "row": {"name": "n", "marks": [1]},
            "colour": "red",
            "day": "2026-01-02",
        }
    )
    assert seen == [Point(1), Row("n", [1]), Colour.RED, datetime.date(2026, 1, 2), 3]
    assert result.output == {"x": 1, "y": 1.0}


async def test_keys_have_declared_types():
    seen: list[Any] = []

    async def take(
        days: dict[datetime.date, int],
        sizes: dict[Size, str],
        shelf: Shelf,
        prices: dict[float, int],
        at: dict[int, dict[Colour, int]],
    ) -> None:
        seen.extend([days, sizes, shelf, prices, at])

    given_input = {
        "days": {"2026-01-02": 1}, "sizes": {"1": "s"}, "shelf": {"books": {"7": "b"}}, "prices": {"1.5": 2}, "at": {"-3": {"red": 4}},
    }  # fmt: skip
    assert (await FunctionTool(take).execute(given_input)).success
    assert seen == [
        {datetime.date(2026, 1, 2): 1}, {Size.SMALL: "s"}, Shelf({7: "b"}), {1.5: 2}, {-3: {Colour.RED: 4}},
    ]  # fmt: skip


async def test_omitted_positional_argument_keeps_default():
    async def pair(first: int = 1, second: int = 2, /) -> list[int]:
        return [first, second]

    assert (await FunctionTool(pair).execute({"second": 5})).output == [1, 5]


@pytest.mark.parametrize(
    ("kind", "value", "problem"),
    [
        (Even, {"x": 3}, "$.value: expected an even number"),
        (list[Even], [{"x": 2}, {"x": 3}], "$.value[1]: expected an even number"),
        (list[Annotated[Order, pydantic.AfterValidator(lambda order: 1 / order.number)]], [{"number": 0}], "$.value: ZeroDivisionError: division by zero"),
        (Annotated[str, pydantic.AfterValidator(lambda text: text.index("@"))], "a", "$.value: Value error, substring not found"),
        (Tree, {"number": 1, "name": [{"number": 1, "name": [{"numer": 1}]}]}, "$.value.name[0].name[0]: Additional properties"),
        (datetime.date, "soon", "$.value: Invalid RFC3339 encoded date"),
        (dict[int, str], {"x": "y"}, '$.value: "x" does not match'),
        (dict[datetime.date, str], {"soon": "y"}, "$.value: Invalid RFC3339 encoded date in a key"),
        (Shelf, {"books": {"x": "y"}}, "$.value.books: Expected `int`, got `str` in a key"),
        (set[Any], [[1]], "$.value: TypeError: unhashable type: 'list'"),
    ],
    ids=["attrs", "list of attrs", "pydantic that fails", "pydantic", "recursive", "date", "keys", "dates as keys", "keys in a class", "set"],
)  # fmt: skip
async def test_type_specific_problem_has_path(kind, value, problem):
    async def take(value: Any) -> None: ...

    take.__annotations__["value"] = kind
    result = await FunctionTool(take).execute({"value": value})
    assert result.error is not None
    assert result.error["message"].startswith(f"invalid input for take: {problem}")


@pytest.mark.parametrize(
    "given_input", [None, 3, "text", [], [{"city": "Oslo"}], {"city": None}, {}, {"City": "Oslo"}]
)
async def test_non_object_input_is_refused(given_input):
    async def take(city: str) -> None: ...

    result = await FunctionTool(take).execute(given_input)
    assert result.error is not None
    assert result.error["message"].startswith("invalid input for take: $")


GOOGLE = """Tells the weather.

Of a town.

Args:
    city: Which town.
    days: How many
        days.
"""
NUMPY = """Tells the weather.

Of a town.

Parameters
----------
city : str
    Which town.
days : int
    How many days.
"""
SPHINX = """Tells the weather.

Of a town.

:param city: Which town.
:param days: How many days.
"""


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, SPHINX], ids=["google", "numpy", "sphinx"])
def test_descriptions_come_from_docstring(docstring):
    def weather(city: str, days: int = 3) -> str:
        return city

    weather.__doc__ = docstring
    made = FunctionTool(weather)
    assert (made.name, made.description) == ("weather", "Tells the weather.\n\nOf a town.")
    assert made.input_schema == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "Which town."},
            "days": {"type": "integer", "description": "How many days.", "default": 3},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_function_is_read_again_when_it_changes():
    """A function is read once for all sessions, but not longer than it stays as it is."""

    def look(n: int = 1) -> str:
        """Look."""
        return "seen"

    first, same = FunctionTool(look), FunctionTool(look)
    assert first._format is same._format
    assert (first.description, first.input_schema) == (same.description, same.input_schema)
    look.__doc__ = "Look again."
    assert FunctionTool(look).description == "Look again."
    look.__annotations__["n"] = str
    assert FunctionTool(look).input_schema["properties"]["n"]["type"] == "string"
    look.__defaults__ = None
    assert FunctionTool(look).input_schema["required"] == ["n"]
    assert FunctionTool(tool(name="other")(look)).name == "other"


def test_marked_function_stays_itself():
    @tool(name="add_numbers", description="Adds.", repeatable=True)
    def add(a: int, b: int) -> int:
        return a + b

    made = FunctionTool(add)
    assert add(1, 2) == 3
    assert (made.name, made.description, made.repeatable) == ("add_numbers", "Adds.", True)


async def test_sync_functions_use_threads_unless_quick():
    def where() -> int:
        return threading.get_ident()

    here = threading.get_ident()
    assert (await FunctionTool(where).execute({})).output != here
    assert (await FunctionTool(tool(quick=True)(where)).execute({})).output == here


@tool(isolate=True)
def own_process(text: str) -> list[Any]:
    return [os.getpid(), text]


@tool(isolate=True)
def holds(path: str) -> None:
    with open(path, "w") as file:
        file.write(str(os.getpid()))
    while True:
        time.sleep(0.01)


def holds_for_a_time(path: str) -> None:
    holds(path)


@tool(isolate=True)
def raises() -> None:
    print("prints do not spoil the answer")
    raise ValueError("no such thing")


@tool(isolate=True)
def leaves() -> None:
    os._exit(3)


@tool(isolate=True)
def gives_a_lock() -> Any:
    return threading.Lock()


async def test_isolated_function_has_own_process():
    result = await FunctionTool(own_process).execute({"text": "hi"})
    assert result.output[0] != os.getpid()
    assert result.output[1] == "hi"


async def test_timeout_ends_isolated_process(tmp_path):
    path, timeout = tmp_path / "pid", 0.5
    while (
        not path.exists() or not path.read_text()
    ):  # a slow machine takes longer to start the process
        timeout *= 2
        result = await FunctionTool(tool(isolate=True, timeout=timeout)(holds_for_a_time)).execute(
            {"path": str(path)}
        )
        assert result.error is not None
        assert result.error["type"] == "Timeout"
    pid = int(path.read_text())
    with pytest.raises(ProcessLookupError):  # it was killed and waited for
        os.kill(pid, 0)


async def test_cancellation_ends_isolated_process(tmp_path):
    path = tmp_path / "pid"
    os.mkfifo(path)  # opening it for reading waits until the function has opened it for writing
    async with anyio.create_task_group() as group:
        group.start_soon(FunctionTool(holds).execute, {"path": str(path)})
        pid = int(await anyio.Path(path).read_text())
        group.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_isolated_errors_and_exits_reach_caller():
    with pytest.raises(ValueError, match="no such thing"):
        await FunctionTool(raises).execute({})
    with pytest.raises(
        RuntimeError, match="the process of tool 'leaves' ended with 3 before it had answered"
    ):
        await FunctionTool(leaves).execute({})
    with pytest.raises(RuntimeError, match="cannot be sent between processes"):
        await FunctionTool(gives_a_lock).execute({})
    with pytest.raises(TypeError, match="define it at the top of a module"):
        FunctionTool(tool(isolate=True, name="unnamed")(lambda: None))


async def test_slow_async_function_is_stopped():
    stopped = anyio.Event()

    @tool(timeout=0.01)
    async def wait() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    result = await FunctionTool(wait).execute({})
    assert result.error == {
        "message": "wait took longer than 0.01 s and was stopped",
        "type": "Timeout",
    }
    assert stopped.is_set()


async def test_own_timeout_error_is_not_limit():
    @tool(timeout=100)
    async def fails() -> None:
        raise TimeoutError("the server did not answer")

    with pytest.raises(TimeoutError, match="the server did not answer"):
        await FunctionTool(fails).execute({})


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (None, None),
        ("text", "text"),
        (Point(1), {"x": 1, "y": 1.0}),
        (Order(number=2), {"number": 2, "items": []}),
        (
            [Order(number=2), Colour.RED, datetime.date(2026, 1, 2)],
            [{"number": 2, "items": []}, "red", "2026-01-02"],
        ),
        ({1: (2, 3)}, {"1": [2, 3]}),
    ],
    ids=repr,
)
async def test_results_are_written_as_json(value, output):
    async def give() -> Any:
        return value

    result = await FunctionTool(give).execute({})
    assert result.success
    assert json.loads(json.dumps(result.output)) == output


async def test_result_without_json_form_is_explained():
    async def give() -> Any:
        return object()

    result = await FunctionTool(give).execute({})
    assert result.error is not None
    assert result.error["message"].startswith("give returned a object that has no JSON form")


async def test_tool_result_is_passed_on():
    async def give() -> ToolResult:
        return ToolResult(success=False, error={"message": "no"})

    assert (await FunctionTool(give).execute({})).error == {"message": "no"}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FunctionTool(takes_anything),
            "takes \\*\\*values; a model sends arguments by name, so write them out",
        ),
        (lambda: FunctionTool(takes_many), "takes \\*values; a model sends"),
        (
            lambda: FunctionTool(unknown_name),
            "its type hints cannot be read: name 'Nowhere' is not defined",
        ),
        (
            lambda: FunctionTool(takes_a_lock),
            "tool 'takes_a_lock': argument 'lock': .* has no JSON Schema",
        ),
        (
            lambda: FunctionTool(takes_lower_case),
            "argument 'text': the constraint Predicate.* has no JSON Schema; check",
        ),
        (
            lambda: FunctionTool(takes_flags),
            "argument 'flags': .*keys of dict.* are no text that a bool could be read from",
        ),
        (
            lambda: FunctionTool(takes_pairs),
            "argument 'pairs': .* are no text that a tuple.* could be read from",
        ),
        (
            lambda: FunctionTool(tool(lambda text: text)),
            "'<lambda>' is not a name for a tool",
        ),
        (
            lambda: FunctionTool(tool(max)),
            "tool 'max' has no signature that Python can read: .*; wrap it in a def",
        ),
        (lambda: FunctionTool(tool(print)), "tool 'print' takes \\*args; a model sends"),
        (lambda: tool(Point), "expected a function, got the class Point"),
        (lambda: FunctionTool(3), "expected a function, got int"),  # type: ignore[arg-type]
        (lambda: tool(nmae="x"), "nmae: unknown argument; did you mean .name."),
        (on, "expected names of events"),
        (
            lambda: mount_hook(own_process),
            r"the function own_process\(.*\).* without @on; name its events, as in @on",
        ),
        (
            lambda: FunctionTool(tool(isolate=True)(waits)),
            "cannot be isolated in a worker process, because it is async",
        ),
    ],
)
def test_unusable_function_is_refused_with_advice(make, message):
    with pytest.raises(TypeError, match=message):
        make()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": value}, "expected a positive number of seconds") for value in ("x", -1, 0, float("nan"), float("inf"), True)
    ]
    + [
        ({"approve": waits_to_decide}, "expected True, False or a function without async"),
        ({"approve": "yes"}, "expected True, False or a function without async, of the same arguments, got 'yes'"),
        ({"quick": True, "isolate": True}, "quick calls the function directly, and isolate in another process; use one of them"),
        ({"name": "two words"}, "expected a name of letters, digits, _ and -, got 'two words'"),
        ({"quick": "no"}, "expected true or false, got 'no'"),
        ({"description": 3}, "expected a non-empty text, got 3"),
    ],
)  # fmt: skip
def test_senseless_option_is_refused_at_definition(options, message):
    with pytest.raises(TypeError, match=message):
        tool(**options)


class Postman:
    def __init__(self, town: str) -> None:
        self.town = town

    def send(self, text: str) -> str:
        """Sends a text."""
        return f"{text} to {self.town}"

    @tool(name="send_quickly", quick=True)
    def hurry(self, text: str) -> str:
        """Sends it at once."""
        return f"{text} to {self.town}!"


def deliver(text: str, town: str, key: str = "k") -> str:
    """Delivers a text."""
    return f"{text} to {town} with {key}"


@pytest.mark.parametrize(
    ("function", "name", "arguments", "output"),
    [
        (Postman("Oslo").send, "send", ["text"], "hi to Oslo"),
        (tool(Postman("Oslo").send), "send", ["text"], "hi to Oslo"),
        (tool(name="post", quick=True)(Postman("Oslo").send), "post", ["text"], "hi to Oslo"),
        (Postman("Oslo").hurry, "send_quickly", ["text"], "hi to Oslo!"),
        (functools.partial(deliver, town="Oslo"), "deliver", ["text", "key"], "hi to Oslo with k"),
        (tool(name="post")(functools.partial(deliver, town="Oslo", key="x")), "post", ["text"], "hi to Oslo with x"),
        (tool(name="echo")(lambda text: text), "echo", ["text"], "hi"),
    ],
    ids=["method", "tool of a method", "options", "marked in its class", "partial", "options of a partial", "lambda"],
)  # fmt: skip
async def test_methods_partials_and_lambdas_are_tools(function, name, arguments, output):
    made = FunctionTool(function)
    assert (made.name, list(made.input_schema["properties"])) == (name, arguments)
    assert (await made.execute({"text": "hi"})).output == output


def test_method_options_do_not_reach_class():
    first = Postman("Oslo")
    tool(name="post")(first.send)
    assert FunctionTool(first.send).name == FunctionTool(Postman("Bergen").send).name == "send"


def takes_anything(**values: int) -> None: ...
def takes_many(*values: int) -> None: ...
def unknown_name(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def takes_a_lock(lock: threading.Event) -> None: ...
def takes_lower_case(text: Annotated[str, annotated_types.Predicate(str.islower)]) -> None: ...
async def waits() -> None: ...
def takes_flags(flags: dict[bool, int]) -> None: ...
def takes_pairs(pairs: list[dict[tuple[int, int], int]]) -> None: ...


# ── in a session ──


def session_with(
    script: list[Any], *, tools: Sequence[Any] = (), hooks: Sequence[Any] = (), **more: Any
) -> AmplifierSession:
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [MockProvider(script)],
        "tools": [mount_tool(function) for function in tools],
        "hooks": [mount_hook(function) for function in hooks],
    }
    return AmplifierSession(plan, **more)


async def test_session_coordinator_and_call_are_injected():
    """They are not part of the schema."""
    seen: list[Any] = []

    async def look(
        text: str, session: Session, coordinator: Coordinator, call: CurrentCall | None = None
    ) -> str:
        seen.extend([session.session_id, coordinator.session_id, call])
        return text

    async def look_closer(session: AmplifierSession, same: AgentSession | None = None) -> str:
        assert session is same
        return session.session_id

    assert list(FunctionTool(look).input_schema["properties"]) == ["text"]
    script = [[("look", {"text": "hi"}), ("look_closer", {})], "done"]
    async with session_with(script, tools=[look, look_closer]) as session:
        assert await session.execute("go") == "done"
        assert seen[:2] == [session.session_id] * 2
        assert seen[2].tool_name == "look"
        messages = await session.coordinator.get("context").get_messages()
        assert session.session_id in messages[3]["content"]


async def test_function_receives_events_and_gate_denies():
    heard: list[str] = []
    called: list[str] = []

    async def echo(text: str) -> str:
        called.append(text)
        return text

    @on("tool:pre", "tool:post", fields=("tool_name",))
    async def listen(event: str, data: dict[str, Any]) -> None:
        heard.append(f"{event} {'tool_name' in data} {'tool_input' in data}")

    @on("tool:pre", priority=5, gate=True)
    async def judge(event: str, data: dict[str, Any]) -> HookResult:
        if data["tool_input"]["text"] == "bad":
            return HookResult(action="deny", reason="no")
        return HookResult()

    script = [[("echo", {"text": "good"}), ("echo", {"text": "bad"})], "done"]
    async with session_with(script, tools=[echo], hooks=[listen, judge]) as session:
        assert await session.execute("go") == "done"
    assert called == ["good"]
    assert set(heard) == {"tool:pre True False", "tool:post True False"}


@pytest.mark.parametrize(("answer", "runs"), [("Allow once", True), ("Deny", False)])
async def test_tool_needing_approval_is_asked_about(answer, runs):
    called: list[str] = []

    @tool(approve=lambda text: text != "harmless")
    async def send(text: str) -> str:
        called.append(text)
        return text

    person = MockApprovalSystem([answer])
    script = [[("send", {"text": "harmless"}), ("send", {"text": "all\u202e my money"})], "done"]
    async with session_with(script, tools=[send], approval_system=person) as session:
        assert await session.execute("go") == "done"
    assert [request["prompt"] for request in person.requests] == [
        'Allow send with {"text": "all\\u202e my money"}?'
    ]
    assert sorted(called) == (["all\u202e my money", "harmless"] if runs else ["harmless"])


def test_failing_decision_asks():
    def decide(text: str) -> bool:
        raise RuntimeError("broken")

    @tool(approve=decide)
    def send(text: str) -> None: ...

    assert FunctionTool(send).needs_approval({"text": "x"})
    assert FunctionTool(send).needs_approval("no object")


def test_decision_function_gets_tool_defaults():
    @tool(approve=lambda count: count > 3)
    async def send(count: int = 1, label: str = "") -> str:
        """Send it."""
        return label

    made = FunctionTool(send)
    assert [made.needs_approval(given) for given in ({}, {"count": 2}, {"count": 4})] == [
        False,
        False,
        True,
    ]
    assert made.needs_approval({"label": "x"})  # it cannot decide about what it does not take


def test_unguarded_program_does_not_rerun(
    tmp_path,
):
    (tmp_path / "program.py").write_text(
        """
import anyio
from amplifier import agent, tool
from amplifier.testing import script

@tool(isolate=True)
def slow(n: int) -> int:
    "Adds one."
    return n + 1

async def main() -> None:
    async with agent(script(("slow", {"n": 1}), "done"), tools=[slow]) as session:
        print(await session.execute("x"), session.last_turn.tool_calls[0].error)

anyio.run(main)
"""
    )
    finished = subprocess.run(
        [sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=False
    )
    assert finished.stdout.count("done") == 1
    assert "if __name__ == '__main__'" in finished.stdout


@pytest.mark.parametrize(
    "value", [float("nan"), [float("inf")], {"a": "\ud800"}], ids=["nan", "inf", "surrogate"]
)
async def test_non_json_result_is_error_for_model(value):
    def odd() -> Any:
        """Odd."""
        return value

    async with agent(
        script([("odd", {}), ("raw", {})], "x"), tools=[odd, MockTool("raw", return_value=value)]
    ) as session:
        await session.execute("x")
        assert session.last_turn is not None
        odd_call, raw_call = session.last_turn.tool_calls
    assert "has no JSON form" in odd_call.error
    assert raw_call.tool == "raw"
