"""The error taxonomy: its drawing is correct, errors carry their facts and survive pickling."""

from __future__ import annotations

import builtins
import copy
import pickle
import re
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import errors

# ── the tree ─────────────────────────────────────────────────────────────────────────────────────


def drawn_tree(docstring: str) -> dict[str, tuple[str | None, str | None]]:
    """Read the drawing: class name to its parent's name and the foreign base in brackets."""
    tree: dict[str, tuple[str | None, str | None]] = {}
    above: list[str] = []  # above[depth] is the class last drawn at that depth
    one = r"\w+(?: \(\w+\))?"
    for line in docstring.splitlines():
        match = re.match(rf"    ((?:│   |    )*(?:├── |└── )?)({one}(?: · {one})*)", line)
        if match is None:
            continue
        depth = len(match[1]) // 4
        for name, foreign in re.findall(r"(\w+)(?: \((\w+)\))?", match[2]):
            tree[name] = (above[depth - 1] if depth else None, foreign or None)
            above[depth:] = [name]
    return tree


def real_tree() -> dict[str, tuple[str | None, str | None]]:
    """The classes as they are: name to the nearest public base of ours and the foreign base."""
    found: dict[str, tuple[str | None, str | None]] = {}
    for name in errors.__all__:
        cls = getattr(errors, name)
        ours = [
            base.__name__
            for base in cls.__mro__[1:]
            if base.__name__ in errors.__all__ and _is_ours(base)
        ]
        inherited = set(getattr(errors, ours[0]).__mro__) if ours else set()
        foreign = [
            base.__name__ for base in cls.__mro__ if not _is_ours(base) and base not in inherited
        ]
        found[name] = (ours[0] if ours else None, foreign[0] if ours and foreign else None)
    return found


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition("._")[0] == errors.__name__


def test_drawn_tree_matches_code():
    assert drawn_tree(errors.__doc__ or "") == real_tree()


def test_every_error_is_distinguished_in_docstring():
    assert [
        name for name in errors.__all__ if not (getattr(errors, name).__doc__ or "").strip()
    ] == []


def test_module_not_found_is_builtin_too():
    with pytest.raises(builtins.ModuleNotFoundError):
        raise errors.ModuleNotFoundError("no module 'tool-x'", module_id="tool-x")


# ── fields ───────────────────────────────────────────────────────────────────────────────────────

MESSAGE = "what was found, what was expected, what to do"

SAMPLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "SessionBusyError": ((MESSAGE,), {"session_id": "s-1"}),
    "ExecutionCancelled": (
        (MESSAGE,),
        {"session_id": "s-1", "was_immediate": False, "reason": "Ctrl-C"},
    ),
    "ExecutionDenied": ((MESSAGE,), {"event": "prompt:submit", "reason": "not today"}),
    "ExecutionTimeout": ((MESSAGE,), {"session_id": "s-1", "seconds": 2.5}),
    "BudgetError": ((MESSAGE,), {"what": "cost"}),
    "BudgetExceeded": (
        (MESSAGE,),
        {
            "what": "cost",
            "limit": Decimal("0.5"),
            "used": Decimal("0.4"),
            "requested": 0.2,
            "session_id": "s-1",
        },
    ),
    "DeadlineExceeded": ((MESSAGE,), {"operation": "mount", "module": "tool-x", "seconds": 120.0}),
    "HookRecursionError": ((MESSAGE,), {"chain": ("tool:pre", "tool:post")}),
    "NoOneToAskError": ((MESSAGE,), {"keeps_turn": True}),
    "PlanError": (
        ([("$.session", "is missing"), ("$.tools[0]", "has no module")],),
        {"subject": "plan.yaml"},
    ),
    "ModelError": (([("content[2].text", "expected str, got int")],), {"subject": "Message"}),
    "ResultError": (
        ([("$.price", "expected a number")],),
        {"subject": "the answer does not fit Invoice", "result_type": "Invoice", "answer": "{}"},
    ),
    "ContractError": ((MESSAGE,), {"module": "loop-x", "clause": "ORC-1"}),
    "MissingExtraError": (("the command line",), {"extra": "cli", "missing": "click"}),
    "ModuleNotFoundError": (
        (MESSAGE,),
        {"module_id": "tool-x", "searched": ("here", "there"), "suggestion": "tool-y"},
    ),
    "ModuleLoadError": ((MESSAGE,), {"module_id": "tool-x", "reason_code": "mount_failed"}),
    "OpeningErrors": ((MESSAGE, [ValueError("a"), OSError("b")]), {}),
    "ModuleConflictError": ((MESSAGE,), {"module_id": "tool-x", "reason_code": "conflict"}),
    "InvalidToolCallError": (
        (MESSAGE,),
        {
            "tool_name": "search",
            "raw_arguments": "{",
            "provider": "p",
            "model": "m",
            "status_code": 200,
        },
    ),
}
LLM_SAMPLE = {
    "provider": "openai",
    "model": "m-1",
    "status_code": 429,
    "retryable": True,
    "retry_after": 1.5,
    "delay_multiplier": 2.0,
}
LLM_NAMES = [name for name in errors.__all__ if issubclass(getattr(errors, name), errors.LLMError)]


def sample(name: str) -> tuple[Exception, dict[str, Any]]:
    """An error with every field set, and the fields."""
    cls = getattr(errors, name)
    arguments, fields = SAMPLES.get(name, ((MESSAGE,), LLM_SAMPLE if name in LLM_NAMES else {}))
    return cls(*arguments, **fields), fields


def pickled(error: Exception) -> Any:
    """The error as another process would see it."""
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("name", errors.__all__)
@pytest.mark.parametrize("transport", [pickled, copy.copy, copy.deepcopy])
def test_error_survives_pickling_and_copying(name, transport):
    error, fields = sample(name)
    assert not hasattr(transport(error), "__notes__")
    error.add_note("while mounting 'tool-x'")
    twin = transport(error)
    assert twin.__notes__ == ["while mounting 'tool-x'"]
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert repr(twin) == repr(error)
    for each in (error, twin):
        assert {key: getattr(each, key) for key in fields} == fields


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("SessionBusyError", {"session_id": None}),
        ("ExecutionCancelled", {"session_id": None, "was_immediate": True, "reason": None}),
        ("ExecutionTimeout", {"session_id": None, "seconds": None}),
        ("DeadlineExceeded", {"operation": "", "module": None, "seconds": 0.0}),
        ("HookRecursionError", {"chain": ()}),
        ("ContractError", {"module": None, "clause": None}),
        ("ModuleNotFoundError", {"module_id": None, "searched": (), "suggestion": None}),
        ("ModuleLoadError", {"module_id": None, "reason_code": "unknown"}),
        ("ModuleConflictError", {"module_id": None, "reason_code": "conflict"}),
        ("InvalidToolCallError", {"tool_name": None, "raw_arguments": None, "retry_after": None}),
    ],
)
def test_missing_field_has_default(name, defaults):
    error = getattr(errors, name)(MESSAGE)
    assert {key: getattr(error, key) for key in defaults} == defaults
    assert str(error) == MESSAGE


# ── errors of language models ────────────────────────────────────────────────────────────────────

RETRYABLE = {
    "RateLimitError",
    "ProviderUnavailableError",
    "NetworkError",
    "LLMTimeoutError",
    "StreamError",
}


@pytest.mark.parametrize("name", LLM_NAMES)
def test_transient_errors_are_retryable_by_default(name):
    error = getattr(errors, name)(MESSAGE)
    assert error.retryable is (name in RETRYABLE)
    assert (error.provider, error.model, error.status_code, error.retry_after) == (
        None,
        None,
        None,
        None,
    )
    assert error.delay_multiplier == 1.0
    assert [
        getattr(errors, name)(MESSAGE, retryable=answer).retryable for answer in (True, False)
    ] == [True, False]


def test_invalid_tool_call_takes_no_delays():
    with pytest.raises(TypeError, match="retry_after"):
        errors.InvalidToolCallError(MESSAGE, retry_after=1.0)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (errors.LLMError("no"), "LLMError('no')"),
        (errors.LLMError("no", provider="p", model="m"), "LLMError('no', provider='p', model='m')"),
        (errors.LLMError("no", status_code=0), "LLMError('no', status_code=0)"),
        (errors.RateLimitError("no"), "RateLimitError('no', retryable=True)"),
        (errors.RateLimitError("no", retryable=False), "RateLimitError('no')"),
        (
            errors.StreamError("no", retry_after=0.0, delay_multiplier=3.0),
            "StreamError('no', retry_after=0.0, retryable=True, delay_multiplier=3.0)",
        ),
        (
            errors.InvalidToolCallError("no", tool_name="t", raw_arguments="{", provider="p"),
            "InvalidToolCallError('no', tool_name='t', raw_arguments='{', provider='p')",
        ),
    ],
)
def test_repr_shows_differences_from_plain_error(error, shown):
    assert repr(error) == shown


# ── messages ─────────────────────────────────────────────────────────────────────────────────────


def test_several_problems_are_counted_and_listed():
    error = errors.PlanError(
        [("$.session", "is missing"), ("$.tools[0].module", "expected str, got None")]
    )
    assert str(error) == (
        "invalid mount plan: 2 problems\n  - $.session: is missing\n  - $.tools[0].module: expected str, got None"
    )


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5), st.text())
def test_problem_report_loses_nothing(problems, subject):
    error = errors.PlanError(iter(problems), subject=subject)
    assert isinstance(error, ValueError)
    assert error.problems == problems
    assert error.subject == subject
    assert all(path in str(error) and problem in str(error) for path, problem in problems)
    assert pickle.loads(pickle.dumps(error)).problems == problems


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        (
            "click",
            (
                "the command line needs an optional part (click is not installed); "
                "install it with: pip install 'amplifier[cli]'"
            ),
        ),
        (
            None,
            "the command line needs an optional part; install it with: pip install 'amplifier[cli]'",
        ),
    ],
)
def test_missing_extra_error_names_package(missing, text):
    error = errors.MissingExtraError("the command line", extra="cli", missing=missing)
    assert isinstance(error, ImportError)
    assert str(error) == text
