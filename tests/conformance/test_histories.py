"""Histories of calls with a cancelled one: a module that only a used instance shows to be torn, and one that counts what was cancelled."""

from __future__ import annotations

import pytest

from amplifier.conformance.oracles.calls import first_difference
from tests.conformance.modules import check, write_module

NAMES = """
    import anyio.lowlevel

    from amplifier import ToolResult

    __amplifier_module_type__ = "tool"


    class Names:
        name = "names"
        description = "Adds a name, or lists all."
        input_schema = {
            "type": "object",
            "properties": {"do": {"enum": ["add", "list"]}, "text": {"type": "string"}},
            "required": ["do"],
        }

        def __init__(self):
            self.names, self.sorted, self.calls = [], [], 0

        async def execute(self, input):
            self.calls += 1
            text = input.get("text")
            if input.get("do") == "list":
                return ToolResult(output={"names": list(self.names), "sorted": list(self.sorted), "calls": self.calls})
            if input.get("do") != "add" or not isinstance(text, str):
                return ToolResult(success=False, error={"message": "do: add (text) or list"})
            if not self.names:
                self.names, self.sorted = [text], [text]
                return ToolResult(output="added")
            self.names = [*self.names, text]
            await anyio.lowlevel.checkpoint()
            self.sorted = sorted([*self.sorted, text])
            return ToolResult(output="added")


    async def mount(coordinator, config):
        coordinator.mount("tools", Names())
"""
WHOLE = NAMES.replace("            self.names = [*self.names, text]\n", "").replace(
    "self.sorted = sorted([*self.sorted, text])",
    "self.names = [*self.names, text]; self.sorted = sorted(self.names)",
)
CHECK = "every_module.goes_on_as_if"


@pytest.mark.slow
def test_a_state_that_is_torn_after_other_calls_is_found_and_shown_where_it_differs(tmp_path):
    report = check(write_module(tmp_path, NAMES, "tool_names.py"), only=[CHECK], backends=["trio"])
    (found,) = report.violations
    assert found.clause == "A9"
    assert "was cancelled as call" in found.what
    assert found.input["calls"]
    assert (found.cancelled_at or "").startswith(f"{tmp_path.name}/tool_names.py:")


@pytest.mark.slow
def test_a_call_that_was_cancelled_may_be_counted(tmp_path):
    report = check(write_module(tmp_path, WHOLE, "tool_names.py"), only=[CHECK], backends=["trio"])
    assert report.violations == [], str(report)


def test_two_texts_are_shown_where_they_begin_to_differ():
    start = "the same beginning of both texts " * 5
    shown = first_difference(f"{start}one way", f"{start}another way")
    assert shown.startswith("…")
    assert "another way; expected …" in shown
    assert shown.endswith("one way")
    assert first_difference("a", "ab") == "ab; expected a"
