"""The same calls under other circumstances: in a used instance, beside another tool, and after a cancelled call."""

from __future__ import annotations

import pytest

from amplifier.conformance.oracles.calls import first_difference
from tests.conformance.corpus_modules import corpus_module
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


SCALES = """
    from amplifier import ToolResult

    __amplifier_module_type__ = "tool"


    class Scale:
        name = "scale"
        description = "Scales a text."
        input_schema = {
            "type": "object",
            "properties": {"text": {"type": "string"}, "times": {"type": "integer", "minimum": 1, "maximum": 9}},
            "required": ["text", "times"],
        }

        def __init__(self):
            self.known = {}

        async def execute(self, input):
            text, times = input.get("text"), input.get("times")
            if not isinstance(text, str) or type(times) is not int or not 0 < times < 10:
                return ToolResult(success=False, error={"message": "text and times, from 1 to 9"})
            key = (text, times)
            if key not in self.known:
                self.known[key] = text * times
            return ToolResult(output=self.known[key])


    async def mount(coordinator, config):
        coordinator.mount("tools", Scale())
"""
USED = "every_module.answers_the_same_when_used"


@pytest.mark.slow
@pytest.mark.parametrize("key", ["(text, times)", "text", "times"])
def test_a_cache_that_gives_one_call_the_result_of_another_is_found(tmp_path, key):
    source = SCALES.replace("key = (text, times)", f"key = {key}")
    report = check(write_module(tmp_path, source, "tool_scale.py"), only=[USED], backends=["trio"])
    assert [found.clause for found in report.violations] == (
        [] if key == "(text, times)" else ["T10"]
    ), str(report)


@pytest.mark.slow
def test_a_result_that_another_tool_of_the_module_changes_is_found(tmp_path):
    source = corpus_module("tool/sound/two_tools_of_one_list").source()
    assert "output=list(self.items)" in source
    for text, expected in (
        (source, []),
        (source.replace("output=list(self.items)", "output=self.items"), ["T10"]),
    ):
        report = check(
            write_module(tmp_path, text, "tool_list.py"), only=[USED], backends=["asyncio"]
        )
        assert [found.clause for found in report.violations] == expected, str(report)


def test_two_texts_are_shown_where_they_begin_to_differ():
    start = "the same beginning of both texts " * 5
    shown = first_difference(f"{start}one way", f"{start}another way")
    assert shown.startswith("…")
    assert "another way; expected …" in shown
    assert shown.endswith("one way")
    assert first_difference("a", "ab") == "ab; expected a"


WORDS = """
    import os
    import time
    from pathlib import Path

    from amplifier import ToolResult

    START = str(Path.home())

    __amplifier_module_type__ = "tool"


    class Words:
        name = "words"
        description = "Lists the words of a text, each once."
        input_schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}

        async def execute(self, input):
            text = input.get("text")
            if not isinstance(text, str):
                return ToolResult(success=False, error={"message": "text: expected a string"})
            known = dict.fromkeys(["one", "two", "three", *text.split()])
            return ToolResult(output=ORDER)


    async def mount(coordinator, config):
        coordinator.mount("tools", Words())
"""
PROCESSES = "every_module.answers_the_same_in_another_process"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "is_found"),
    [
        ("list(known)", False),
        ("sorted(set(known))", False),
        ("list(set(known))", True),
        ("list(set(known))[:2]", True),
        ("[hash(word) % 1000 for word in known]", True),
        ("[text, START, os.getpid(), time.time_ns() // 10**9]", False),
    ],
)
def test_an_order_that_follows_the_hashes_of_texts_is_found(tmp_path, order, is_found):
    report = check(
        write_module(tmp_path, WORDS.replace("ORDER", order), "tool_words.py"), only=[PROCESSES]
    )
    assert [found.clause for found in report.violations] == ["A25"] * is_found, str(report)
    for found in report.violations:
        assert (
            "in another process, in which texts have other hashes, execute of the tool 'words' gave"
            in found.what
        )
        assert found.reproduce.endswith(f"--only {PROCESSES}")
        assert found.input["tool"] == "words"
