"""The one policy for the configuration of built-in modules: bad values are errors, unknown keys are warnings."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from importlib.metadata import entry_points
from inspect import isawaitable
from typing import Any

import attrs
import pytest

from amplifier._internal.reading import keys_of
from amplifier.errors import MisspellingWarning, PlanError
from amplifier.modules._shared.configuration import (
    Kind,
    any_text,
    choice,
    choices,
    delay,
    directory_name,
    existing_directory,
    existing_file,
    file_name,
    flag,
    list_of,
    mapping,
    mapping_of_secrets,
    no_limit_or_seconds,
    number,
    option,
    optional,
    read_options,
    seconds,
    secret,
    text,
    texts,
    url,
    whole_number,
)
from amplifier.modules.context import ContextOptions
from amplifier.modules.context.persistent import PersistentOptions
from amplifier.modules.hooks.approval import ApprovalOptions
from amplifier.modules.hooks.logging import LogOptions
from amplifier.modules.hooks.otel import OtelOptions
from amplifier.modules.hooks.redaction import RedactionOptions
from amplifier.modules.loop import TurnOptions
from amplifier.modules.providers.anthropic import AnthropicOptions
from amplifier.modules.providers.mock import _Options as MockOptions
from amplifier.modules.providers.offline import OfflineOptions
from amplifier.modules.providers.openai import _Options as OpenAIOptions
from amplifier.modules.providers.openai_compatible import _Options as CompatibleOptions
from amplifier.modules.providers.replay import ReplayOptions
from amplifier.modules.tools._base import NoOptions
from amplifier.modules.tools.bash._options import BashOptions
from amplifier.modules.tools.filesystem._read_tools import FilesystemOptions
from amplifier.modules.tools.search import SearchOptions
from amplifier.modules.tools.task import TaskOptions
from amplifier.modules.tools.web._urls import WebOptions
from amplifier.testing import TestCoordinator
from tests._support.tree import ROOT

# ── the policy over all modules ──────────────────────────────────────────────────────────────────


@attrs.frozen
class Case:
    """A built-in module with its options.

    Attributes:
        pages: The reference pages that name the keys, if not only the module's own.
    """

    options: type[attrs.AttrsInstance]
    pages: tuple[str, ...] = ()


CASES: Mapping[str, Case] = {
    "context-persistent": Case(PersistentOptions, ("context-persistent", "context-simple")),
    "context-simple": Case(ContextOptions),
    "hooks-approval": Case(ApprovalOptions),
    "hooks-logging": Case(LogOptions),
    "hooks-otel": Case(OtelOptions),
    "hooks-redaction": Case(RedactionOptions),
    "loop-basic": Case(TurnOptions, ("loops",)),
    "loop-events": Case(TurnOptions, ("loops",)),
    "loop-streaming": Case(TurnOptions, ("loops",)),
    "provider-anthropic": Case(AnthropicOptions),
    "provider-mock": Case(MockOptions),
    "provider-offline": Case(OfflineOptions),
    "provider-openai": Case(OpenAIOptions, ("provider-openai", "provider-anthropic")),
    "provider-openai-compatible": Case(
        CompatibleOptions, ("provider-openai-compatible", "provider-anthropic")
    ),
    "provider-replay": Case(ReplayOptions),
    "tool-bash": Case(BashOptions),
    "tool-filesystem": Case(FilesystemOptions),
    "tool-recall": Case(NoOptions),
    "tool-search": Case(SearchOptions),
    "tool-task": Case(TaskOptions),
    "tool-todo": Case(NoOptions),
    "tool-web": Case(WebOptions),
}
MODULES = entry_points(group="amplifier.builtin_modules")
CONFIGURABLE = [name for name, case in CASES.items() if keys_of(case.options)]


@pytest.fixture(params=CASES)
def name(request):
    return request.param


@pytest.fixture
def state(tmp_path, monkeypatch):
    """Keeps the files of modules out of the user's directory, and the user's credentials out of the modules."""
    for variable in ("ANTHROPIC", "OPENAI", "OPENAI_COMPATIBLE"):
        monkeypatch.delenv(f"{variable}_API_KEY", raising=False)
        monkeypatch.delenv(f"{variable}_BASE_URL", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


class Unacceptable:
    """A value that no option accepts."""

    def __repr__(self) -> str:
        return "an Unacceptable"


async def mount(name: str, config: dict[str, Any]) -> None:
    """Mount a module and close it again."""
    coordinator = TestCoordinator()
    cleanup = await MODULES[name].load()(coordinator, config)
    if cleanup is not None and isawaitable(closing := cleanup()):
        await closing


@pytest.mark.parametrize("name", CONFIGURABLE)
async def test_bad_values_are_reported_with_expectation(name, state):
    known = keys_of(CASES[name].options)
    aliases = {alias for declared in known.values() for alias in declared.aliases}
    keys = [key for key in known if key not in aliases]
    with pytest.raises(PlanError) as caught:
        await mount(name, dict.fromkeys(keys, Unacceptable()))
    assert f"invalid config of {name}" in str(caught.value)
    assert [path for path, _ in caught.value.problems] == [f"$.{key}" for key in keys]
    for (_, problem), key in zip(caught.value.problems, keys, strict=True):
        found = "Unacceptable" if known[key].kind.is_secret else "an Unacceptable"
        assert problem == f"expected {known[key].kind.expected}, got {found}"


async def test_unknown_key_is_logged_warning(name, state, caplog):
    await mount(name, {"zzzzzz": 1})
    (record,) = [each for each in caplog.records if "unknown key" in each.getMessage()]
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith(f"{name}: $.zzzzzz: unknown key, ignored; ")


@pytest.mark.parametrize("name", CONFIGURABLE)
async def test_misspelt_key_warns_with_nearest_key(name, state, caplog):
    known = keys_of(CASES[name].options)
    key = max((each for each in known if not known[each].restricts), key=len)
    misspelt = f"{key[:-2]}{key[-1]}{key[-2]}"
    with pytest.warns(MisspellingWarning) as caught:
        await mount(name, {misspelt: Unacceptable()})
    (message,) = [str(each.message) for each in caught]
    assert message == f"{name}: $.{misspelt}: unknown key, ignored; did you mean {key!r}?"
    assert message in caplog.text


RESTRICTING = [
    (name, key)
    for name, case in CASES.items()
    for key, declared in keys_of(case.options).items()
    if declared.restricts
]


@pytest.mark.parametrize(("name", "key"), RESTRICTING)
async def test_misspelt_restriction_is_error(name, key, state):
    misspelt = f"{key[:-2]}{key[-1]}{key[-2]}"
    with pytest.raises(PlanError) as caught:
        await mount(name, {misspelt: Unacceptable()})
    assert caught.value.problems == [(f"$.{misspelt}", f"unknown key; did you mean {key!r}?")]


@pytest.mark.parametrize("key", ["allowed_write_paths", "deniedCommands"])
async def test_unknown_key_named_like_restriction_is_error(name, key, state):
    """Such as one of the published module for the same job: without it the module could do more than was meant."""
    with pytest.raises(PlanError) as caught:
        await mount(name, {key: []})
    [(path, problem)] = caught.value.problems
    assert path == f"$.{key}"
    assert problem.startswith(
        ("unknown key for a restriction; known keys: ", "unknown key; did you mean")
    )


async def test_former_restriction_key_is_error(state):
    with pytest.raises(PlanError) as caught:
        await mount("tool-task", {"max_total_tokens": 1000})
    [(path, problem)] = caught.value.problems
    assert path == "$.max_total_tokens"
    assert problem.startswith("this key was removed; use the plan's session.budget")


def test_bounding_keys_restrict():
    assert {
        ("tool-filesystem", "allowed_paths"),
        ("tool-filesystem", "read_only"),
        ("tool-web", "allow_hosts"),
    } <= {*RESTRICTING}


async def test_no_configuration_means_defaults(name, state, caplog):
    await mount(name, {})
    assert "unknown key" not in caplog.text


def test_reference_pages_name_every_key(name):
    folder = ROOT / "docs" / "reference" / "modules"
    pages = CASES[name].pages or (name,)
    content = "".join((folder / f"{page}.md").read_text(encoding="utf-8") for page in pages)
    assert [key for key in keys_of(CASES[name].options) if f"`{key}`" not in content] == []


# ── the reader ───────────────────────────────────────────────────────────────────────────────────


@attrs.frozen(kw_only=True)
class Options:
    owner: str
    limit: int = option(whole_number(1), default=3, aliases=("most",))
    raw: bool = option(flag, key="debug", default=False)
    api_key: str | None = option(optional(secret), default=None)
    model: str = option(text, default="small")
    items: tuple[str, ...] = option(texts(), default=())

    def __attrs_post_init__(self) -> None:
        if len(self.items) > self.limit:
            raise PlanError(
                [("$.items", f"expected at most limit ({self.limit}) items, got {len(self.items)}")]
            )


def read(config: Mapping[Any, Any] | None, **values: Any) -> Options:
    return read_options(Options, "tool-x", config, **{"owner": "me", **values})


def test_values_are_read_into_their_fields():
    assert read({"most": 5, "debug": True, "items": ["a"]}) == Options(
        owner="me", limit=5, raw=True, items=("a",)
    )
    assert read(None) == Options(owner="me")


def test_non_option_field_is_unknown_key(caplog):
    with pytest.warns(
        MisspellingWarning, match=r"\$\.limits: unknown key, ignored; did you mean 'limit'\?"
    ):
        assert read({"owner": "you", "limits": 5}).owner == "me"
    assert "tool-x: $.owner: unknown key, ignored; known keys: limit, most, debug" in caplog.text


def test_unrelated_key_causes_no_misspelling_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", MisspellingWarning)
        read({"colour": 1, 7: 1, "": 1})


def test_module_may_have_own_defaults():
    assert read({}, model="large").model == "large"
    assert read({"model": "medium"}, model="large").model == "medium"


def test_contradictory_fields_are_module_error():
    with pytest.raises(
        PlanError, match=r"invalid config of tool-x.*\$\.items: expected at most limit \(1\)"
    ):
        read({"items": ["a", "b"], "limit": 1})


def test_environment_replaces_missing_or_empty_value(monkeypatch):
    monkeypatch.setenv("A_KEY", " from the environment ")
    environment = {"api_key": "A_KEY"}
    assert read({}, environment=environment).api_key == "from the environment"
    assert read({"api_key": ""}, environment=environment).api_key == "from the environment"
    assert read({"api_key": "own"}, environment=environment).api_key == "own"
    monkeypatch.setenv("A_KEY", " ")
    assert read({}, environment=environment).api_key is None


def test_bad_environment_variable_is_named(monkeypatch):
    monkeypatch.setenv("A_LIMIT", "many")
    with pytest.raises(
        PlanError,
        match=r"\$\.limit: environment variable A_LIMIT: expected a whole number .* 'many'",
    ):
        read({}, environment={"limit": "A_LIMIT"})


def test_secret_is_hidden_in_messages_and_repr():
    assert "hush" not in repr(read({"api_key": "hush"}))
    with pytest.raises(PlanError) as caught:
        read({"api_key": ["hush"]})
    assert caught.value.problems == [("$.api_key", "expected text, or null, got list")]


def test_problem_inside_value_has_path():
    def refuse(value: Any) -> None:
        raise PlanError([("$[0].name", "is missing"), ("$", "is short")])

    @attrs.frozen
    class Nested:
        rules: Any = option(Kind("rules", bool, refuse), default=None)

    with pytest.raises(PlanError) as caught:
        read_options(Nested, "hooks-x", {"rules": [1]})
    assert caught.value.problems == [("$.rules[0].name", "is missing"), ("$.rules", "is short")]


def test_long_value_is_shortened():
    with pytest.raises(PlanError) as caught:
        read({"limit": "x" * 10_000})
    assert len(str(caught.value)) < 400


# ── kinds of values ──────────────────────────────────────────────────────────────────────────────

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (flag, [True, False], [0, "true", None]),
        (whole_number(2), [2, 10**30], [1, True, 2.0, "2", None]),
        (whole_number(), [-5, 0], [True, 0.5]),
        (number(0, 1), [0, 1, 0.5], [-0.1, 1.1, NAN, INF, True, "1", None]),
        (number(0, 1, above=True), [1, 0.5], [0, -1]),
        (number(), [-1e300, 0], [INF, -INF, NAN]),
        (seconds, [0.001, 5], [0, -1, INF, NAN, True, None]),
        (delay, [0, 0.5], [-1, INF, None]),
        (no_limit_or_seconds, [None, 1], [0, False]),
        (optional(flag), [None, True], [0]),
        (text, ["a"], ["", "  ", None, 1]),
        (any_text, ["", "a"], [None, b"a"]),
        (secret, ["", "a"], [None, 1]),
        (choice("a", "b"), ["a", "b"], ["c", ["a"], None]),
        (mapping, [{}, {"a": 1}], [{1: 1}, [], None]),
        (mapping_of_secrets("headers"), [{}, {"a": "b"}], [{"": "b"}, {"a": 1}, {1: "a"}, []]),
        (directory_name, ["a"], ["", "a\0b", 1, None]),
        (file_name, ["a"], ["", "a\0b", 1, None]),
        (existing_directory, ["/"], ["/no such directory", "", "/\0", 1, None]),
        (existing_file, [__file__], ["/", "", "/\0", 1, None]),
        (url, ["http://a", "https://a/b@c"], ["a", "ftp://a", "http://me:hush@a/", None]),
    ],
)
def test_kind_accepts_stated_values(kind, accepted, refused):
    for value in accepted:
        kind.read(value)
    for value in refused:
        with pytest.raises(PlanError, match="expected") as caught:
            kind.read(value)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "accepted", "refused"),
    [
        (texts(), [[], ["a"], ("a", "b")], ["a", [1], [""], None]),
        (texts(least=1), [["a"]], [[]]),
        (choices("a", "b"), [["a", "b"], []], [["c"], "a", [["a"]]]),
        (list_of("ones", lambda item: item == 1), [[1, 1]], [[2], 1]),
    ],
)
def test_list_is_read_as_tuple(kind, accepted, refused):
    for value in accepted:
        assert kind.read(value) == tuple(value)
    for value in refused:
        with pytest.raises(PlanError, match="expected a list of"):
            kind.read(value)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (whole_number(), "a whole number"),
        (whole_number(3), "a whole number of at least 3"),
        (number(), "a number"),
        (number(0), "a number of at least 0"),
        (number(0, 1, above=True, what="a share"), "a share above 0 and at most 1"),
        (texts(least=2), "a list of at least 2 non-empty texts"),
        (choices("a", "b"), "a list of 'a', 'b'"),
        (no_limit_or_seconds, "a positive number of seconds, or null for no limit"),
        (optional(flag), "true or false, or null"),
    ],
)
def test_kind_states_expectation(kind, expected):
    assert kind.expected == expected
