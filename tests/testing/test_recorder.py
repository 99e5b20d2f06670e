"""EventRecorder: a handler, and a stand-in for a registry."""

from __future__ import annotations

from amplifier.kernel import HookRegistry
from amplifier.models import HookResult
from amplifier.testing import EventRecorder


async def test_it_remembers_name_and_payload_and_lets_everything_pass() -> None:
    recorder = EventRecorder()
    assert await recorder.record("tool:pre", {"tool_name": "Write"}) == HookResult(
        action="continue", data={"tool_name": "Write"}
    )
    await recorder.emit("tool:post", {"tool_name": "Write"})
    await recorder("tool:error", {})
    await recorder.emit("session:end")
    assert recorder.names() == ["tool:pre", "tool:post", "tool:error", "session:end"]
    assert recorder.get_events("tool:post") == [("tool:post", {"tool_name": "Write"})]
    assert recorder.get_events() == recorder.events
    assert recorder.get_events() is not recorder.events
    assert recorder.get_events("never") == []
    assert repr(recorder) == "<EventRecorder 4 events>"
    recorder.clear()
    assert recorder.events == []


async def test_payloads_are_copies() -> None:
    recorder, data = EventRecorder(), {"list": [1]}
    result = await recorder.record("x", data)
    data["list"].append(2)
    assert result.data is not None
    result.data["list"].append(3)
    assert recorder.events == [("x", {"list": [1]})]


async def test_it_records_every_event_of_a_registry_until_it_is_removed() -> None:
    hooks, everything, tools_only = HookRegistry(), EventRecorder(), EventRecorder()
    stop = everything.listen(hooks)
    tools_only.listen(hooks, "tool:pre")
    await hooks.emit("tool:pre", {"n": 1})
    await hooks.emit("tool:post", {"n": 2})
    stop()
    await hooks.emit("tool:pre", {"n": 3})
    assert [(event, data["n"]) for event, data in everything.events] == [("tool:pre", 1), ("tool:post", 2)]
    assert [data["n"] for _, data in tools_only.events] == [1, 3]
