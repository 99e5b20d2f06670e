"""Strategies for what hook handlers return, valid and not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import strategies as st

from amplifier.models import ApprovalGate, ContextInjection, HookResult

leaves = st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
payloads = st.dictionaries(
    st.sampled_from(["tool_name", "tool_input", "session_id", "timestamp"]), values, max_size=3
)
names = st.sampled_from(["first", "second", "third"])
texts = st.text(max_size=4)

injections = st.builds(
    ContextInjection,
    content=texts,
    role=st.sampled_from(["system", "user", "assistant"]),
    ephemeral=st.booleans(),
    append_to_last_tool_result=st.booleans(),
    hook_name=st.just("forged"),
    event=st.just("forged"),
)
gates = st.builds(
    ApprovalGate,
    hook_name=st.just("forged"),
    prompt=st.none() | texts,
    options=st.none() | st.lists(texts, max_size=2),
    timeout=st.sampled_from([1.0, 300.0]),
    default=st.sampled_from(["allow", "deny"]),
)


def _results(actions: list[str]) -> st.SearchStrategy[HookResult]:
    return st.builds(
        HookResult,
        action=st.sampled_from(actions),
        data=st.none() | payloads,
        reason=st.none() | texts,
        context_injection=st.none() | texts,
        context_injection_role=st.sampled_from(["system", "user", "assistant"]),
        ephemeral=st.booleans(),
        approval_prompt=st.none() | texts,
        approval_options=st.none() | st.lists(texts, max_size=2),
        approval_timeout=st.sampled_from([1.0, 300.0]),
        approval_default=st.sampled_from(["allow", "deny"]),
        suppress_output=st.booleans(),
        user_message=st.none() | texts,
        user_message_level=st.sampled_from(["info", "warning", "error"]),
        user_message_source=st.none() | st.just("elsewhere"),
        append_to_last_tool_result=st.booleans(),
        context_injections=st.lists(injections, max_size=2),
        approval_gates=st.lists(gates, max_size=2),
    )


permissions = _results(["continue", "modify", "inject_context", "ask_user"])
"""Results that let the event pass, or ask first."""
denials = _results(["deny"])
silences: st.SearchStrategy[Any] = st.one_of(
    st.none(),
    st.builds(dict),
    st.builds(HookResult),
    st.builds(lambda: {"action": "continue"}),
    st.builds(lambda data: HookResult(action="continue", data=data), payloads),
)
"""Empty answers."""
chatter = st.lists(st.tuples(names, permissions | silences), max_size=4)
"""Pairs of hook name and answer, without a denial."""


class RaisingMapping(Mapping[str, Any]):
    """A third-party mapping that cannot be read."""

    def __getitem__(self, key: str) -> Any:
        raise RuntimeError("unreadable")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("unreadable")

    def __len__(self) -> int:
        return 1


def spoilt(**fields: Any) -> HookResult:
    """A HookResult whose fields were changed after construction, past all checks."""
    result = HookResult(
        action=fields.pop("action", "continue"),
        user_message="hi",
        context_injection="x",
        approval_prompt="?",
    )
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def unusable_answers() -> dict[str, Any]:
    """What no handler may return, by what is wrong with it."""
    circular: dict[str, Any] = {}
    circular["me"] = circular
    return {
        "a str": "allow",
        "an empty str": "",
        "a bool": True,
        "zero": 0,
        "a list": [],
        "a tuple": (),
        "an object": object(),
        "a generator": (number for number in [1]),
        "a class": HookResult,
        "a dict without a known key": {"verdict": "deny"},
        "a dict with a key that is no str": {1: 2},
        "an unknown action": {"action": "allow"},
        "an action of the wrong type": {"action": 5},
        "data that is no dict": {"action": "modify", "data": [1]},
        "a message that is no str": {"user_message": ["hi"]},
        "a mapping that raises": RaisingMapping(),
        "data that contains itself": {"action": "modify", "data": circular},
        "a changed action": _changed("action", "allow"),
        "an action that cannot be hashed": _changed("action", []),
        "changed data": _changed("data", "payload"),
        "a changed reason": _changed("reason", 5),
        "a changed message": spoilt(user_message=5),
        "a changed level": spoilt(user_message_level="loud"),
        "a changed source": spoilt(user_message_source=5),
        "a changed injection": spoilt(action="inject_context", context_injection=5),
        "a changed role": spoilt(action="inject_context", context_injection_role="root"),
        "injections that are none": spoilt(context_injections=["text"]),
        "an injection changed inside": spoilt(context_injections=[_changed_injection()]),
        "gates that are none": spoilt(approval_gates=["really?"]),
        "a changed prompt": spoilt(action="ask_user", approval_prompt=5),
        "changed options": spoilt(action="ask_user", approval_options=[1]),
        "a changed default": spoilt(action="ask_user", approval_default="maybe"),
        "changed output suppression": spoilt(action="deny", suppress_output="very"),
    }


def _changed(field: str, value: Any) -> HookResult:
    result = HookResult()
    setattr(result, field, value)
    return result


def _changed_injection() -> ContextInjection:
    item = ContextInjection(content="x")
    item.ephemeral = "perhaps"  # type: ignore[assignment]
    return item
