"""Module contracts: the context contract, with the context its snippets make up."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from amplifier import ContextManager, HookRegistry, Message, ModuleCoordinator, from_dict
from amplifier.testing import EventRecorder, MockContextManager, MockProvider, TestCoordinator
from tests._support.seed_sessions import seed_session


class MyContextManager:
    """The document's context: its snippets for the five methods, the budget and the compaction.

    The document's ``_compact_internal`` overwrites the stored history, which its own section on non-destructive
    compaction forbids; here the same steps make a view.
    """

    def __init__(
        self, max_tokens: int, compaction_threshold: float = 0.8, keep_recent: int = 5, hooks: Any = None
    ) -> None:
        self._max_tokens = max_tokens
        self._compaction_threshold = compaction_threshold
        self._keep_recent = keep_recent
        self._hooks = hooks or HookRegistry()
        self._messages: list[dict[str, Any]] = []
        self._token_count = 0

    def _estimate_tokens(self, message: dict[str, Any]) -> int:
        return len(json.dumps(message)) // 4

    async def add_message(self, message: dict[str, Any]) -> None:
        if "role" not in message:
            raise ValueError("Message must have 'role' field")

        self._messages.append(message)

        self._token_count += self._estimate_tokens(message)

    async def get_messages_for_request(
        self,
        token_budget: int | None = None,
        provider: Any | None = None,
    ) -> list[dict[str, Any]]:
        budget = self._calculate_budget(token_budget, provider)

        messages = list(self._messages)

        if self._token_count > (budget * self._compaction_threshold):
            return await self._compact_messages(messages)
        return messages

    def _calculate_budget(self, token_budget: int | None, provider: Any | None) -> int:
        if token_budget is not None:
            return token_budget

        if provider is not None:
            try:
                info = provider.get_info()
                defaults = info.defaults or {}
                context_window = defaults.get("context_window")
                max_output_tokens = defaults.get("max_output_tokens")

                if context_window and max_output_tokens:
                    safety_margin = 1000
                    return context_window - max_output_tokens - safety_margin
            except Exception:
                return self._max_tokens

        return self._max_tokens

    async def _compact_messages(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        await self._hooks.emit(
            "context:pre_compact",
            {
                "message_count": len(messages),
                "token_count": self._token_count,
            },
        )

        recent_start = max(0, len(messages) - self._keep_recent)

        while recent_start > 0:
            msg = messages[recent_start]
            if msg.get("role") == "tool":
                recent_start -= 1
            else:
                break

        system_messages = [m for m in messages[:recent_start] if m["role"] == "system"]
        view = system_messages + messages[recent_start:]

        await self._hooks.emit(
            "context:post_compact",
            {
                "message_count": len(view),
                "token_count": sum(self._estimate_tokens(m) for m in view),
            },
        )
        return view

    async def get_messages(self) -> list[dict[str, Any]]:
        return list(self._messages)

    async def set_messages(self, messages: list[dict[str, Any]]) -> None:
        self._messages = list(messages)
        self._token_count = sum(self._estimate_tokens(m) for m in self._messages)

    async def clear(self) -> None:
        self._messages = []
        self._token_count = 0


async def mount(coordinator: ModuleCoordinator, config: dict) -> ContextManager | Callable | None:
    context = MyContextManager(
        max_tokens=config.get("max_tokens", 100000),
        compaction_threshold=config.get("compaction_threshold", 0.8),
    )
    await coordinator.mount("session", context, name="context")
    return context


def test_the_protocol_asks_for_five_async_methods() -> None:
    assert isinstance(MyContextManager(1), ContextManager)
    for name, parameters in {
        "add_message": ["self", "message"],
        "get_messages_for_request": ["self", "token_budget", "provider"],
        "get_messages": ["self"],
        "set_messages": ["self", "messages"],
        "clear": ["self"],
    }.items():
        method = getattr(ContextManager, name)
        assert inspect.iscoroutinefunction(method)
        assert list(inspect.signature(method).parameters) == parameters


MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "User's input text"},
    {"role": "assistant", "content": "Assistant's response"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_123", "type": "function", "function": {"name": "read_file", "arguments": "{}"}},
        ],
    },
    {"role": "system", "content": "System instructions"},
    {"role": "tool", "tool_call_id": "call_123", "content": "Tool output"},
]
"""The document's five forms of a message; the ``{...}`` of its arguments is empty here."""


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message["role"])
async def test_every_form_of_a_message_is_kept_as_it_is(message: dict[str, Any]) -> None:
    context = MockContextManager()
    await context.add_message(message)
    assert await context.get_messages() == [message]


@pytest.mark.parametrize("message", [m for m in MESSAGES if m["content"] is not None], ids=lambda m: m["role"])
def test_a_message_of_the_context_is_one_for_a_provider(message: dict[str, Any]) -> None:
    """Without the form whose content is None: the model wants text or blocks, so a loop has to convert that one."""
    assert from_dict(Message, message).content == message["content"]


async def test_mount_at_session_by_name_is_understood() -> None:
    async with seed_session(context=mount) as session:
        context = session.coordinator.get("context")
        assert isinstance(context, MyContextManager)
        assert await session.execute("hello") == "answer to hello"


async def test_the_configuration_of_a_context_reaches_its_mount() -> None:
    """The document states only that it "can be passed via top-level config": the section ``context`` beside ``session``."""
    session = seed_session(context=mount)
    session.config["context"] = {"config": {"max_tokens": 7}}
    async with session:
        assert session.coordinator.get("context")._max_tokens == 7


async def test_a_message_without_a_role_is_refused() -> None:
    context = MyContextManager(max_tokens=10)
    with pytest.raises(ValueError, match="'role'"):
        await context.add_message({"content": "x"})


def test_the_budget_comes_from_the_caller_else_from_the_provider_else_from_the_configuration() -> None:
    context = MyContextManager(max_tokens=777)
    provider = MockProvider(defaults={"context_window": 50_000, "max_output_tokens": 4_000})
    assert context._calculate_budget(123, provider) == 123
    assert context._calculate_budget(None, provider) == 45_000
    assert context._calculate_budget(None, MockProvider(defaults={"context_window": None})) == 777
    assert context._calculate_budget(None, None) == 777


async def test_compaction_is_a_view_and_announced() -> None:
    hooks, recorder = HookRegistry(), EventRecorder()
    recorder.listen(hooks)
    context = MyContextManager(max_tokens=20, keep_recent=2, hooks=hooks)
    await context.add_message({"role": "system", "content": "rules"})
    for number in range(10):
        await context.add_message({"role": "user", "content": f"message {number}"})
    view = await context.get_messages_for_request()
    assert [message["content"] for message in view] == ["rules", "message 8", "message 9"]
    assert len(await context.get_messages()) == 11
    assert recorder.names() == ["context:pre_compact", "context:post_compact"]
    assert [data["message_count"] for _, data in recorder.events] == [11, 3]


async def test_a_context_announces_its_events() -> None:
    coordinator = TestCoordinator()
    coordinator.register_contributor(
        "observability.events",
        "my-context",
        lambda: ["context:pre_compact", "context:post_compact"],
    )
    assert await coordinator.collect_contributions("observability.events") == [
        ["context:pre_compact", "context:post_compact"]
    ]


# ── testing; each on the document's context and on our double ──


@pytest.fixture(params=[MyContextManager, MockContextManager])
def make_context(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return request.param if request.param is MyContextManager else lambda **_: MockContextManager()


async def test_context_manager(make_context):
    context = make_context(max_tokens=1000)

    await context.add_message({"role": "user", "content": "Hello"})
    await context.add_message({"role": "assistant", "content": "Hi there!"})

    messages = await context.get_messages_for_request()
    assert len(messages) == 2
    assert messages[0]["role"] == "user"

    raw_messages = await context.get_messages()
    assert len(raw_messages) == 2

    await context.clear()
    assert len(await context.get_messages()) == 0


async def test_compaction_preserves_tool_pairs(make_context):
    context = make_context(max_tokens=100, compaction_threshold=0.5)

    await context.add_message({"role": "user", "content": "Read file.txt"})
    await context.add_message(
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_123", "type": "function", "function": {}}],
        }
    )
    await context.add_message(
        {
            "role": "tool",
            "tool_call_id": "call_123",
            "content": "File contents...",
        }
    )

    for i in range(50):
        await context.add_message({"role": "user", "content": f"Message {i}"})

    messages = await context.get_messages_for_request()

    tool_use_ids = set()
    tool_result_ids = set()
    for msg in messages:
        if msg.get("tool_calls"):
            for tc in msg["tool_calls"]:
                tool_use_ids.add(tc.get("id"))
        if msg.get("role") == "tool":
            tool_result_ids.add(msg.get("tool_call_id"))

    assert tool_result_ids.issubset(tool_use_ids), "Orphaned tool results found!"


async def test_session_resume(make_context):
    """A file-based context may ignore this call in the document; ours replaces everything (decided, DESIGN 12)."""
    context = make_context(max_tokens=1000)

    saved_messages = [
        {"role": "user", "content": "Previous conversation"},
        {"role": "assistant", "content": "Previous response"},
    ]

    await context.set_messages(saved_messages)

    messages = await context.get_messages()
    assert len(messages) == 2
    assert messages[0]["content"] == "Previous conversation"


async def test_mock_context_manager_shows_its_state() -> None:
    context = MockContextManager()

    await context.add_message({"role": "user", "content": "Test"})
    messages = await context.get_messages_for_request()

    assert len(context.messages) == 1
    assert messages == context.messages
