"""The event catalogue: canonical names and order, our additions, and what the table promises about each."""

from __future__ import annotations

import subprocess
import sys
from typing import get_args

import pytest

from amplifier import events

CANONICAL = [
    "session:start",
    "session:end",
    "session:fork",
    "session:resume",
    "prompt:submit",
    "prompt:complete",
    "plan:start",
    "plan:end",
    "provider:request",
    "provider:response",
    "provider:retry",
    "provider:error",
    "provider:throttle",
    "provider:tool_sequence_repaired",
    "provider:resolve",
    "llm:request",
    "llm:response",
    "content_block:start",
    "content_block:delta",
    "content_block:end",
    "thinking:delta",
    "thinking:final",
    "tool:pre",
    "tool:post",
    "tool:error",
    "context:pre_compact",
    "context:post_compact",
    "context:compaction",
    "context:include",
    "orchestrator:complete",
    "execution:start",
    "execution:end",
    "user:notification",
    "artifact:write",
    "artifact:read",
    "policy:violation",
    "approval:required",
    "approval:granted",
    "approval:denied",
    "cancel:requested",
    "cancel:completed",
    "module:on_session_ready_failed",
    "module:load_failed",
]

OURS = [
    "session:config",
    "module:unresponsive",
    "hook:timeout",
    "hook:failed",
    "module:crashed",
    "cleanup:failed",
    "turn:resumed",
    "content_block:reset",
    "budget:warning",
    "budget:exceeded",
    "orchestrator:steering_injected",
    "provider:refusal",
    "context:cache_break",
]

OF_LOOPS = (
    "turn:resumed",
    "content_block:reset",
    "orchestrator:steering_injected",
    "provider:refusal",
    "context:cache_break",
)

OF_PROVIDERS = [
    "llm:stream_block_start",
    "llm:stream_block_delta",
    "llm:stream_block_end",
    "llm:stream_aborted",
]


def test_all_events_have_canonical_order() -> None:
    assert events.ALL_EVENTS == CANONICAL
    assert len(events.ALL_EVENTS) == 43


def test_catalogue_holds_every_event_once() -> None:
    assert list(events.CATALOGUE) == CANONICAL + OURS + OF_PROVIDERS
    assert all(name == event.name for name, event in events.CATALOGUE.items())


def test_dunder_all_is_complete() -> None:
    public = {
        name for name, value in vars(events).items() if not name.startswith("_") and name.isupper()
    }
    assert public | {"Emitter", "Event", "TraceRole", "Verdict"} == set(events.__all__)


def test_terminal_events_are_unwinding_ones() -> None:
    assert (
        frozenset(
            {
                "cancel:requested",
                "cancel:completed",
                "session:end",
                "execution:end",
                "orchestrator:complete",
                "tool:error",
                "budget:exceeded",
            }
        )
        == events.TERMINAL_EVENTS
    )


def test_kernel_emits_its_own_events() -> None:
    assert set(events.KERNEL_EVENTS) == {
        "session:start",
        "session:end",
        "session:fork",
        "session:resume",
        "approval:required",
        "approval:granted",
        "approval:denied",
        "cancel:requested",
        "cancel:completed",
        "module:on_session_ready_failed",
        "module:load_failed",
        *(event for event in OURS if event not in OF_LOOPS),
    }


@pytest.mark.parametrize("name", CANONICAL + OURS)
def test_every_event_has_constant_and_row(name: str) -> None:
    constant = name.replace(":", "_").upper()
    assert getattr(events, constant) == name
    assert constant in events.__all__
    event = events.CATALOGUE[name]
    assert event.keys
    assert all(key.isidentifier() and key == key.lower() for key in event.keys)
    assert len(set(event.keys)) == len(event.keys)
    assert not set(event.keys) & set(events.COMMON_KEYS)
    assert event.emitted_by in get_args(events.Emitter)
    assert set(event.verdict) <= set(get_args(events.Verdict))
    assert len(set(event.verdict)) == len(event.verdict)
    assert event.summary.endswith(".")
    assert "\n" not in event.summary


def test_verdicts_count_before_effects_only() -> None:
    assert {name: event.verdict for name, event in events.CATALOGUE.items() if event.verdict} == {
        "prompt:submit": ("deny", "ask_user", "inject_context", "modify"),
        "provider:request": ("deny", "ask_user", "inject_context"),
        "tool:pre": ("deny", "ask_user", "inject_context", "modify"),
        "tool:post": ("deny", "inject_context", "modify"),
    }


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("prompt:submit", {"prompt"}),
        ("execution:start", {"prompt"}),
        ("execution:end", {"response", "status"}),
        ("orchestrator:complete", {"orchestrator", "turn_count", "status"}),
        ("provider:request", {"provider", "messages", "model"}),
        ("provider:response", {"provider", "response", "usage"}),
        ("llm:response", {"usage"}),
        ("tool:pre", {"tool_name", "tool_call_id", "tool_input"}),
        ("tool:post", {"tool_name", "tool_call_id", "tool_input", "tool_result", "result"}),
        ("tool:error", {"tool_name", "tool_call_id", "error"}),
        ("context:pre_compact", {"message_count", "token_count"}),
        ("context:post_compact", {"message_count", "token_count"}),
        ("session:end", {"status"}),
        ("session:fork", {"parent", "metadata", "raw"}),
        ("cancel:completed", {"was_immediate", "error", "stopped"}),
        ("module:load_failed", {"module_type", "module_id", "error", "reason_code", "instance_id"}),
        ("module:on_session_ready_failed", {"module_id", "error"}),
        ("artifact:write", {"path", "bytes"}),
        ("session:config", {"raw"}),
    ],
)
def test_keys_read_by_modules_are_documented(name: str, keys: set[str]) -> None:
    assert keys <= set(events.CATALOGUE[name].keys)


def test_catalogue_works_without_docstrings() -> None:
    program = "from amplifier.events import CATALOGUE; print(len(CATALOGUE), CATALOGUE['tool:pre'].keys[0])"
    done = subprocess.run(
        [sys.executable, "-OO", "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["60", "tool_name"]
