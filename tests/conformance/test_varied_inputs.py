"""Inputs in which everything varies at every depth, and those that are chosen of them by what they were answered."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from amplifier.conformance.inputs.json_schema import acceptor, fingerprint
from amplifier.conformance.inputs.varied import (
    NOTHING,
    VariedInputs,
    choices_at,
    value_at,
    with_value,
)
from tests.conformance.modules import check, write_module

NESTED = {
    "type": "object",
    "properties": {
        "entries": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "properties": {
                    "kind": {"enum": ["in", "out"]},
                    "amount": {"type": "integer", "minimum": -3, "maximum": 9},
                    "note": {"type": "string", "examples": ["rent"]},
                },
                "required": ["kind"],
                "additionalProperties": False,
            },
        },
        "strict": {"type": "boolean"},
    },
    "required": ["entries"],
}


def drawn() -> list[dict]:
    return VariedInputs(NESTED, "file.txt").draw(100)


def test_varied_inputs_are_valid_and_different():
    accepts = acceptor(NESTED)
    assert accepts is not None
    assert all(accepts(given) for given in drawn())
    assert len({fingerprint(given) for given in drawn()}) == len(drawn()) > 50


def test_varied_inputs_vary_at_every_depth():
    """Lists have several different items, optional keys are there or not, and bounds and examples occur."""
    items = [item for given in drawn() for item in given["entries"]]
    keys = {tuple(sorted(item)) for item in items}
    assert keys == {
        ("kind",),
        ("amount", "kind"),
        ("kind", "note"),
        ("amount", "kind", "note"),
    }
    assert {item["kind"] for item in items} == {"in", "out"}
    assert {-3, 9} <= {item.get("amount") for item in items}
    assert "rent" in {item.get("note") for item in items}
    assert {"strict" in given for given in drawn()} == {True, False}
    several = [given["entries"] for given in drawn() if len(given["entries"]) > 1]
    assert several
    assert any(len({fingerprint(item) for item in each}) == len(each) for each in several)


def test_equal_seeds_draw_equal_inputs():
    assert drawn() == drawn()
    assert VariedInputs(NESTED, "file.txt", seed=1).draw(100) != drawn()


def test_values_are_read_and_changed_at_a_place():
    [(place, choices)] = choices_at(NESTED)
    assert place == ("entries", 0, "kind")
    assert choices == ["in", "out"]
    given = {"entries": [{"kind": "in"}, {"kind": "in"}]}
    assert value_at(with_value(given, place, "out"), place) == "out"
    assert given == {"entries": [{"kind": "in"}, {"kind": "in"}]}
    assert value_at({"entries": []}, place) is NOTHING


KEPT_BY_TYPE = """
    from amplifier import ToolResult

    __amplifier_module_type__ = "tool"


    class Half:
        name = "half"
        description = "Gives half of a number."
        input_schema = {
            "type": "object", "properties": {"number": {"type": "number"}}, "required": ["number"]
        }

        def __init__(self):
            self.known = {}

        async def execute(self, input):
            number = input.get("number")
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                return ToolResult(success=False, error={"message": "number: expected a number"})
            key = KEY
            if key not in self.known:
                self.known[key] = [number, number / 2]
            return ToolResult(output=list(self.known[key]))


    async def mount(coordinator, config):
        await coordinator.mount("tools", Half())
"""


@pytest.mark.parametrize(("key", "clauses"), [("number", ["T10"]), ("repr(number)", [])])
def test_equal_numbers_of_other_types_are_not_mixed_up(tmp_path: Path, key, clauses):
    module = write_module(tmp_path, KEPT_BY_TYPE.replace("KEY", key))
    report = check(module, backends=["asyncio"], only=["T10"])
    assert [found.clause for found in report.violations] == clauses, str(report)


BLOCKING = """
    import time

    from amplifier import ToolResult

    __amplifier_module_type__ = "tool"


    class Sleepy:
        name = "sleepy"
        description = "Answers late."
        input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}

        async def execute(self, input):
            time.sleep(0.3)
            return ToolResult(output=str(input.get("text")))


    async def mount(coordinator, config):
        await coordinator.mount("tools", Sleepy())
"""


@pytest.mark.timeout(120)
def test_blocking_is_found_first_and_ends_the_run(tmp_path: Path):
    """Everything else would take minutes; the report names the line and what was not examined."""
    steps: list[str] = []
    module = write_module(tmp_path, BLOCKING)
    report = check(
        module, backends=["asyncio"], progress=lambda step, done, total: steps.append(step)
    )
    assert [found.clause for found in report.violations] == ["A17"], str(report)
    line = dedent(BLOCKING).split("\n").index("        time.sleep(0.3)") + 1
    assert report.violations[0].location == f"tool_echo.py:{line}"
    assert steps == ["starting", "import:asyncio", "every_module.blocks_nothing:asyncio"]
    [note] = [note for note in report.notes if "every other check" in note]
    assert note.startswith("A17 is broken, and every other check would take long")
    assert "T5" in note
