from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.kernel.hooks.merge import (
    INVALID_RESPONSE,
    gates_of,
    is_plain_continue,
    parse_answer,
    processed_result,
    was_modified,
)
from amplifier.models import ApprovalGate, ContextInjection, HookResult, to_dict
from tests.kernel.hooks.answers import (
    chatter,
    denials,
    names,
    payloads,
    permissions,
    silences,
    unusable_answers,
)
from tests.kernel.hooks.merging import merge

OWNED = {"timestamp": "2026-01-31T12:00:00.000001+00:00", "session_id": "s-1", "parent_id": None}
RANK = ["continue", "modify", "inject_context", "ask_user", "deny"]
LOUDNESS = ["info", "warning", "error"]

Answers = list[tuple[str, Any]]


def merged(answers: Answers, payload: dict[str, Any] | None = None) -> HookResult:
    return merge("tool:pre", {"tool_name": "bash", **OWNED, **(payload or {})}, answers, OWNED)


def spoken(answers: Answers) -> list[tuple[str, HookResult]]:
    """The answers that are HookResults; all others of `chatter` are empty."""
    return [(name, answer) for name, answer in answers if isinstance(answer, HookResult)]


def injected_by(answer: HookResult) -> list[tuple[str, str, bool, bool]]:
    """What one answer injects. Lists speak under every action, scalar fields only under their own."""
    if answer.context_injections:
        return [
            (i.content, i.role, i.ephemeral, i.append_to_last_tool_result)
            for i in answer.context_injections
        ]
    if answer.action == "inject_context" and answer.context_injection is not None:
        scalar = answer.context_injection, answer.context_injection_role, answer.ephemeral
        return [(*scalar, answer.append_to_last_tool_result)]
    return []


def asked_by(answer: HookResult) -> list[tuple[Any, ...]]:
    if answer.approval_gates:
        return [(g.prompt, g.options, g.timeout, g.default) for g in answer.approval_gates]
    if answer.action == "ask_user":
        return [
            (
                answer.approval_prompt,
                answer.approval_options,
                answer.approval_timeout,
                answer.approval_default,
            )
        ]
    return []


def modifies(answer: HookResult) -> bool:
    return answer.action == "modify" and answer.data is not None


def everything_but_names(result: HookResult) -> dict[str, Any]:
    """A result as a dict, without the names of the handlers."""
    shown = to_dict(result)
    for item in (*shown.get("context_injections", ()), *shown.get("approval_gates", ())):
        item.pop("hook_name", None)
        item.pop("event", None)
    return {**shown, "modified": was_modified(result)}


# ── nothing is lost ──────────────────────────────────────────────────────────────────────────────


@given(chatter)
def test_injections_keep_order_and_origin(answers):
    kept = [
        (i.content, i.role, i.ephemeral, i.append_to_last_tool_result, i.hook_name, i.event)
        for i in merged(answers).context_injections
    ]
    assert kept == [
        (*injection, name, "tool:pre")
        for name, answer in spoken(answers)
        for injection in injected_by(answer)
    ]


@given(chatter)
def test_scalar_injection_joins_list(answers):
    result = merged(answers)
    items = result.context_injections
    if not items:
        assert result.context_injection is None
        return
    assert result.context_injection == "\n\n".join(item.content for item in items)
    assert result.context_injection_role == items[0].role
    assert result.ephemeral == any(item.ephemeral for item in items)
    assert result.append_to_last_tool_result == any(
        item.append_to_last_tool_result for item in items
    )


@given(chatter)
def test_questions_keep_order_and_asker(answers):
    result = merged(answers)
    kept = [(g.hook_name, g.prompt, g.options, g.timeout, g.default) for g in result.approval_gates]
    assert kept == [
        (name, *question) for name, answer in spoken(answers) for question in asked_by(answer)
    ]
    if kept:
        scalar = (
            result.approval_prompt,
            result.approval_options,
            result.approval_timeout,
            result.approval_default,
        )
        assert scalar == kept[0][1:]


@given(chatter)
def test_every_message_is_kept_at_loudest_level(answers):
    result = merged(answers)
    with_message = [
        (name, answer) for name, answer in spoken(answers) if answer.user_message is not None
    ]
    if not with_message:
        assert result.user_message is None
        return
    assert result.user_message == "\n".join(str(answer.user_message) for _, answer in with_message)
    assert result.user_message_level == max(
        (a.user_message_level for _, a in with_message), key=LOUDNESS.index
    )
    assert result.user_message_source == ", ".join(
        dict.fromkeys(a.user_message_source or name for name, a in with_message)
    )


@given(chatter)
def test_last_modification_is_payload_without_denial(answers):
    result = merged(answers)
    changes = [answer.data or {} for _, answer in spoken(answers) if modifies(answer)]
    assert result.data == {**(changes[-1] if changes else {}), "tool_name": "bash", **OWNED}
    assert was_modified(result) == bool(changes)


@given(chatter)
def test_reasons_are_joined_once(answers):
    """One suppression suppresses the output."""
    result = merged(answers)
    reasons = list(
        dict.fromkeys(answer.reason for _, answer in spoken(answers) if answer.reason is not None)
    )
    assert result.reason == ("; ".join(str(reason) for reason in reasons) if reasons else None)
    assert result.suppress_output == any(answer.suppress_output for _, answer in spoken(answers))


# ── names of one value ───────────────────────────────────────────────────────────────────────────

SECRET = {"result": {"output": "secret"}, "tool_result": {"output": "secret"}}
REDACTED = {"result": {"output": "[redacted]"}, "tool_result": {"output": "[redacted]"}}


def after_tool(*changes: dict[str, Any], before: dict[str, Any] = SECRET) -> dict[str, Any]:
    """The payload of ``tool:post`` after handlers that modify it."""
    answers: Answers = [
        (f"h{i}", HookResult(action="modify", data=data)) for i, data in enumerate(changes)
    ]
    found = merge("tool:post", {**before, **OWNED}, answers, OWNED).data
    assert found is not None
    return {key: value for key, value in found.items() if key not in OWNED}


@pytest.mark.parametrize("name", ["result", "tool_result"])
def test_modified_value_appears_under_both_names(name):
    assert after_tool({**SECRET, name: {"output": "[redacted]"}}) == REDACTED
    assert after_tool({name: {"output": "[redacted]"}}) == REDACTED


@pytest.mark.parametrize(
    ("first", "second"), [("result", "tool_result"), ("tool_result", "result")]
)
def test_later_modification_wins_under_either_name(first, second):
    checked = {"output": "secret (checked)"}
    seen = {"result": checked, "tool_result": checked}
    assert (
        after_tool({**SECRET, first: checked}, {**seen, second: {"output": "[redacted]"}})
        == REDACTED
    )


def test_unrelated_modification_leaves_both_names():
    assert after_tool(REDACTED, {**REDACTED, "note": 1}) == {**REDACTED, "note": 1}
    assert after_tool(REDACTED, {"note": 1}) == {**REDACTED, "note": 1}
    assert after_tool(REDACTED, {"result": REDACTED["result"]}) == REDACTED


def test_change_of_type_changes_value():
    found = after_tool(
        {"result": [1], "tool_result": [True]}, before={"result": [1], "tool_result": [1]}
    )
    assert (found["result"], found["result"][0] is True) == ([True], True)


def test_first_name_wins_in_one_handler():
    assert after_tool({"result": "a", "tool_result": "b"}) == {"result": "a", "tool_result": "a"}


def test_absent_names_are_not_added():
    assert after_tool({"result": "new"}, before={"result": "old"}) == {"result": "new"}
    assert after_tool({"tool_result": "new"}, before={"result": "old"}) == {
        "result": "new",
        "tool_result": "new",
    }
    assert after_tool({"note": 1}, before={}) == {"note": 1}


def test_other_events_have_no_paired_names():
    change = HookResult(action="modify", data={"result": 2, "tool_result": 1})
    found = merge("tool:pre", {"result": 1, "tool_result": 1}, [("h", change)]).data
    assert found == {"result": 2, "tool_result": 1}


# ── precedence ───────────────────────────────────────────────────────────────────────────────────


@given(chatter)
def test_strongest_action_wins(answers):
    wanted = ["continue"]
    for _, answer in spoken(answers):
        wanted += ["modify"] * modifies(answer)
        wanted += ["inject_context"] * bool(injected_by(answer))
        wanted += ["ask_user"] * bool(asked_by(answer))
    assert merged(answers).action == max(wanted, key=RANK.index)


@given(chatter, names, denials, chatter)
def test_denial_ends_dispatch_with_own_fields(before, name, denial, after):
    result = merged([*before, (name, denial), *after])
    payload = merged(before).data
    assert result == HookResult(
        action="deny",
        data={**denial.data, "tool_name": "bash", **OWNED} if denial.data is not None else payload,
        reason=denial.reason,
        suppress_output=denial.suppress_output,
        user_message=denial.user_message,
        user_message_level=denial.user_message_level,
        user_message_source=denial.user_message_source,
    )


@given(chatter, names, st.sampled_from(sorted(unusable_answers())), chatter)
def test_invalid_answer_denies(before, name, what, after):
    result = merged([*before, (name, unusable_answers()[what]), *after])
    assert (result.action, result.reason) == ("deny", INVALID_RESPONSE)
    assert result.data == merged(before).data


# ── the algebra ──────────────────────────────────────────────────────────────────────────────────


@given(chatter, names, silences, st.integers(0, 4))
def test_silence_changes_nothing_wherever_it_falls(answers, name, silence, position):
    assert merged([*answers[:position], (name, silence), *answers[position:]]) == merged(answers)


@given(chatter, names, permissions)
def test_plain_answer_changes_nothing(answers, name, answer):
    if is_plain_continue(answer):
        assert merged([*answers, (name, answer)]) == merged(answers)
    else:
        assert parse_answer(answer) is answer


@given(chatter, chatter)
def test_merge_is_associative(first, second):
    whole, left = merged(first + second), merged(first)
    right = merge("tool:pre", left.data or {}, second, OWNED)
    assert whole.context_injections == left.context_injections + right.context_injections
    assert whole.approval_gates == left.approval_gates + right.approval_gates
    assert whole.data == right.data
    assert was_modified(whole) == (was_modified(left) or was_modified(right))
    assert whole.action == max(left.action, right.action, key=RANK.index)
    assert whole.suppress_output == (left.suppress_output or right.suppress_output)
    messages = [part.user_message for part in (left, right) if part.user_message is not None]
    assert whole.user_message == ("\n".join(messages) if messages else None)


@given(chatter, names)
def test_merged_result_passed_on_loses_nothing(answers, name):
    once = merged(answers)
    assert everything_but_names(merged([(name, once)])) == everything_but_names(once)


@given(chatter, payloads)
def test_kernel_fields_survive_every_modification(answers, forged):
    result = merged(
        [*answers, ("forger", HookResult(action="modify", data={**forged, "session_id": "other"}))]
    )
    assert {key: (result.data or {})[key] for key in OWNED} == OWNED


# ── purity ───────────────────────────────────────────────────────────────────────────────────────


@given(chatter, payloads)
def test_merging_changes_nothing_it_was_given(answers, payload):
    before = copy.deepcopy((answers, payload))
    merge("tool:pre", payload, answers, OWNED)
    assert (answers, payload) == before


def test_handler_cannot_change_sent_modification():
    data: dict[str, Any] = {"tool_input": {"path": ["a"]}}
    result = merged([("hook", HookResult(action="modify", data=data))])
    data["tool_input"]["path"].append("b")
    assert (result.data or {})["tool_input"] == {"path": ["a"]}


def test_modification_leaves_are_shared():
    leaf = object()
    result = merged([("hook", {"action": "modify", "data": {"tool_input": [leaf]}})])
    assert (result.data or {})["tool_input"][0] is leaf


# ── reading answers ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("answer", [None, {}])
def test_no_answer_is_plain_continue(answer):
    assert parse_answer(answer) is None


@given(permissions | denials)
def test_dict_equals_result_with_its_fields(answer):
    assert parse_answer(to_dict(answer)) == answer


# ── what is left once the coordinator has carried a result out ──────────────────────────────────


def test_scalar_question_becomes_named_gate():
    asking = HookResult(
        action="ask_user", approval_prompt="Delete?", approval_options=["Yes"], approval_timeout=7
    )
    assert gates_of(asking, "guard") == [
        ApprovalGate(
            hook_name="guard", prompt="Delete?", options=["Yes"], timeout=7.0, default="deny"
        )
    ]


def test_listed_gates_are_asked_in_their_order():
    gates = [ApprovalGate(hook_name="a", prompt="1"), ApprovalGate(hook_name="b", prompt="2")]
    assert (
        gates_of(HookResult(action="ask_user", approval_prompt="0", approval_gates=gates), "guard")
        == gates
    )


@given(chatter)
def test_remainder_keeps_payload_and_ephemeral_injections(answers):
    result = merged(answers)
    ephemeral = [item for item in result.context_injections if item.ephemeral]
    left = processed_result(result, ephemeral)
    assert left.context_injections == ephemeral
    assert left.approval_gates == []
    assert left.data == result.data
    assert was_modified(left) == was_modified(result)
    expected = "inject_context" if ephemeral else "modify" if was_modified(result) else "continue"
    assert left.action == expected
    assert (left.user_message, left.suppress_output) == (
        result.user_message,
        result.suppress_output,
    )


def test_remainder_text_is_ephemeral_only():
    items = [
        ContextInjection(content="kept"),
        ContextInjection(content="shown once", ephemeral=True, role="user"),
    ]
    left = processed_result(
        merged([("hook", HookResult(action="inject_context", context_injections=items))]), items[1:]
    )
    assert (left.context_injection, left.context_injection_role, left.ephemeral) == (
        "shown once",
        "user",
        True,
    )
