"""The same programs against the published kernel's registry, coordinator, token and sessions, and ours.

Differences that are on purpose are in docs/reference/compat.md; the programs below are drawn so that they do not run into
them, or a function here takes them out of both answers. Only the kind of an error is compared, never its words.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from .kernels import Kernel, both_kernels

SERVER = str(Path(__file__).with_name("_runtime_server.py"))
SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


class Both:
    """The published kernel and ours."""

    def __init__(self, published: Kernel, ours: Kernel) -> None:
        self.published, self.ours = published, ours

    def agree(self, kind: str, program: Any) -> None:
        """Fail unless both saw the same."""
        question = json.dumps([kind, program])
        assert self.ours.ask(question) == self.published.ask(question)


@pytest.fixture(scope="module")
def both(reference_python: str) -> Iterator[Both]:
    """Both kernels, for all programs of this file."""
    with both_kernels(reference_python, (SERVER,), (SERVER,)) as kernels:
        yield Both(*kernels)


# ── what programs are made of ──

names = st.sampled_from(["a", "b", "c"])
events = st.sampled_from(["one", "two", "tool:pre", "session:end"])
words = st.text(alphabet="abc é\n\x07", max_size=6)
# The published kernel's JSON reader is off by one bit for some floats; eighths and powers of two it reads exactly.
integers = st.integers(-(2**63), 2**64 - 1) | st.sampled_from([2**64, 2**70, -(2**63) - 2**20])
scalars = (
    st.none()
    | st.booleans()
    | integers
    | st.integers(-999, 999).map(lambda number: number / 8)
    | words
)
payloads = st.dictionaries(
    names,
    st.recursive(scalars, lambda inner: st.lists(inner, max_size=2), max_leaves=4),
    max_size=3,
)

injections = st.fixed_dictionaries(
    {"content": words},
    optional={
        "role": st.sampled_from(["system", "user", "assistant"]),
        "ephemeral": st.booleans(),
        "append_to_last_tool_result": st.booleans(),
    },
)
results = st.fixed_dictionaries(
    {"action": st.sampled_from(["continue", "deny", "modify", "inject_context", "ask_user"])},
    optional={
        "data": payloads,
        "reason": words,
        "context_injection": words,
        "context_injection_role": st.sampled_from(["system", "user", "assistant"]),
        "context_injections": st.lists(injections, max_size=2),
        "ephemeral": st.booleans(),
        "suppress_output": st.booleans(),
        "user_message": words,
        "user_message_level": st.sampled_from(["info", "warning", "error"]),
        "append_to_last_tool_result": st.booleans(),
    },
)
# Injections are carried out whatever the action is, and the message of a question when the answer is yes: nothing is lost.
_INJECTIONS = {"context_injection", "context_injections"}
_LEFT_OUT = {"ask_user": _INJECTIONS | {"user_message"}, "inject_context": set()}
results = results.filter(
    lambda result: not result.keys() & _LEFT_OUT.get(result["action"], _INJECTIONS)
)
handlers = st.one_of(
    st.fixed_dictionaries(
        {"result": results}, optional={"sync": st.booleans(), "spoils": st.booleans()}
    ),
    st.fixed_dictionaries({"raises": st.sampled_from(["ValueError", "CancelledError"])}),
    st.fixed_dictionaries(
        {
            "returns": st.sampled_from(
                [None, {}, {"action": "deny"}, {"action": "bogus"}, "text", 5, True, ["x"]]
            )
        }
    ),
)
hook_steps = st.one_of(
    st.tuples(st.just("register"), events, st.integers(-2, 2), names, handlers),
    st.tuples(st.just("remove"), st.integers(0, 3)),
    st.tuples(st.just("unregister"), names),
    st.tuples(st.just("defaults"), payloads),
    st.tuples(st.just("list")),
    st.tuples(st.just("emit"), events, payloads),
    st.tuples(st.just("collect"), events, payloads),
)


@settings(deadline=None, suppress_health_check=SLOW)
@given(program=st.lists(hook_steps, max_size=8))
def test_hooks_are_called_and_merged_alike(both: Both, program: list[Any]):
    both.agree("hooks", program)


points = st.sampled_from(
    ["tools", "providers", "orchestrator", "context", "module-source-resolver", "hooks", "agents"]
)
questions = st.fixed_dictionaries(
    {"action": st.just("ask_user")},
    optional={
        # The native kernel asks a question of its own for an empty prompt, shows what is hidden in one, and cuts it with "…".
        "approval_prompt": words.map(lambda text: text.replace("\x07", "") or "a")
        | st.just("p" * 200),
        # Not the empty list: the native kernel offers "Allow" and "Deny" where no option is given.
        "approval_options": st.lists(words, min_size=1, max_size=2),
        "approval_default": st.sampled_from(["allow", "deny"]),
    },
)
coordinator_steps = st.one_of(
    st.tuples(st.just("mount"), points, names, st.none() | names, st.none() | names),
    st.tuples(st.just("unmount"), points, st.none() | names),
    st.tuples(st.just("get"), points.filter(lambda point: point != "hooks"), st.none() | names),
    st.tuples(st.just("capability"), names, words),
    st.tuples(
        st.just("contribute"),
        names,
        names,
        st.fixed_dictionaries(
            {"value": st.none() | words}, optional={"async": st.booleans(), "raises": st.booleans()}
        ),
    ),
    st.tuples(st.just("collect"), names),
    st.tuples(st.just("context")),
    st.tuples(st.just("process"), results | questions, events, names),
    st.tuples(
        st.just("cleanup"),
        names,
        st.fixed_dictionaries({}, optional={"async": st.booleans(), "raises": st.booleans()}),
    ),
    st.tuples(st.just("clean up")),
    st.tuples(st.just("reset")),
)
limits = st.fixed_dictionaries(
    {},
    optional={
        "injection_size_limit": st.integers(0, 6),
        "injection_budget_per_turn": st.integers(0, 3),
    },
)
# "Allow always" is remembered, and an answer that is no text denies.
answers = st.lists(
    st.sampled_from(["Allow", "allow ONCE", "Deny", " allow", "timeout"]), max_size=3
)


@settings(deadline=None, suppress_health_check=SLOW)
@given(limits=limits, answers=answers, steps=st.lists(coordinator_steps, max_size=8))
def test_coordinators_do_alike(
    both: Both, limits: dict[str, Any], answers: list[Any], steps: list[Any]
):
    both.agree("coordinator", [limits, answers, steps])


token_steps = st.tuples(
    st.integers(0, 2),
    st.sampled_from(
        [
            *("request_graceful", "request_immediate", "request_cancellation", "reset"),
            *("child", "orphan", "start", "complete", "callback", "trigger"),
        ]
    ),
    st.integers(0, 2),
)


@settings(deadline=None, suppress_health_check=SLOW)
@given(program=st.lists(token_steps, max_size=10))
def test_tokens_change_alike(both: Both, program: list[Any]):
    both.agree("cancellation", program)


def module(kind: str) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries({"module": st.sampled_from([f"{kind}-a", f"{kind}-b"])})


session_plans = st.fixed_dictionaries(
    {
        "session": st.fixed_dictionaries(
            {
                "orchestrator": st.just("loop-x") | st.just({"module": "loop-x"}),
                "context": st.just("context-x"),
            },
            optional={"metadata": payloads, "raw": st.booleans(), "api_key": st.just("hidden")},
        )
    },
    optional={
        "providers": st.lists(module("provider"), max_size=2, unique_by=str),
        "tools": st.lists(module("tool"), max_size=2, unique_by=str),
    },
)
behaviours = st.fixed_dictionaries(
    {},
    optional={
        "loop-x": st.fixed_dictionaries(
            {},
            optional={"acts": st.sampled_from(["answers", "raises", "graceful"])},
        ),
        "tool-a": st.fixed_dictionaries(
            {}, optional={"load": st.just("fails"), "mount": st.sampled_from(["fails", "nothing"])}
        ),
        "provider-a": st.fixed_dictionaries({}, optional={"mount": st.just("fails")}),
    },
)
session_settings = st.fixed_dictionaries(
    {"session_id": st.just("s")},
    optional={"parent_id": st.none() | st.just("p"), "is_resumed": st.booleans()},
)
session_steps = st.lists(st.sampled_from(["initialize", "hello", "again"]), max_size=4)


@settings(deadline=None, suppress_health_check=SLOW)
@given(options=session_settings, plan=session_plans, does=behaviours, steps=session_steps)
def test_sessions_run_alike(
    both: Both, options: dict[str, Any], plan: Any, does: Any, steps: list[str]
):
    both.agree("session", [options, plan, does, ["initialize", *steps, "cleanup"]])


@pytest.mark.parametrize(
    "plan",
    [
        *(
            None,
            [],
            {},
            {"a": 1},
            {"session": 1},
            {"session": {}},
            {"session": {"orchestrator": "x"}},
        ),
        {"session": {"orchestrator": None, "context": "c"}},
    ],
)
def test_constructors_refuse_same_plans(both: Both, plan: Any):
    both.agree("session", [{}, plan, {}, []])
