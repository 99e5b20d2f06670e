"""Results of a server that mean harm: nested too deeply, without an end, or changed at every call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.models import ToolResult
from tests.modules.tools.mcp.desk import opened, small

LONGEST = 20_000


def hostile(folder: Path, *more: str, **answers: str) -> dict[str, Any]:
    """The small server, with these answers."""
    file = folder / "answers.json"
    file.write_text(json.dumps({name.replace("__", "/"): text for name, text in answers.items()}))
    return small("--all", f"--answers-file={file}", *more)


def result(text: str, structured: str | None = None) -> str:
    content = json.dumps([{"type": "text", "text": text}])
    more = "" if structured is None else f', "structuredContent": {structured}'
    return f'{{"content": {content}{more}}}'


DEEP = 100_000
NESTED = {
    "text that looks like JSON": result("[" * DEEP, '{"a": 1}'),
    "text that is JSON": result("[" * DEEP + "]" * DEEP, '{"a": 1}'),
    "structured": result("x", '{"a":' * 150 + "1" + "}" * 150),
    "structured, beyond what is read": result("x", '{"a":' * DEEP + "1" + "}" * DEEP),
    "an image in many pieces": result("x")[:-2]
    + ', {"type": "image", "data": "AAAA", "mimeType": "image/png"}' * 5000
    + "]}",
}


# It is megabytes of text, which two processes read.
_SLOW = ("structured, beyond what is read",)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(answer, id=name, marks=[pytest.mark.slow] * (name in _SLOW))
        for name, answer in NESTED.items()
    ],
)
async def test_deeply_nested_result_is_contained(answer, tmp_path):
    server = hostile(tmp_path, erase=answer)
    server["call_timeout"] = 5  # what cannot be read is no answer
    async with opened({"s": server}, max_result_chars=LONGEST) as desk:
        with anyio.fail_after(60):
            got = await desk.call("s_erase")
            assert isinstance(got, ToolResult)
            assert len(got.content or ()) <= 200
            assert got.success or (got.error or {}).get("type") == "Timeout"
            assert len(json.dumps(got.output)) <= 2 * LONGEST
            assert (await desk.call("s_echo", text="still there")).output == "still there"


MANY = 3000
LISTS = {
    "resources": (
        "resources/list",
        "read_resource",
        '{"resources": [%s]}',
        '{"uri": "note://%s", "name": "n", "description": "d"}',
    ),
    "templates": (
        "resources/templates/list",
        "read_resource",
        '{"resourceTemplates": [%s]}',
        '{"uriTemplate": "note://{id}%s", "name": "n"}',
    ),
    "prompts": (
        "prompts/list",
        "get_prompt",
        '{"prompts": [%s]}',
        '{"name": "%s", "arguments": [{"name": "a"}]}',
    ),
}


@pytest.mark.parametrize(("method", "tool", "whole", "item"), LISTS.values(), ids=LISTS)
async def test_list_length_is_limited_like_results(method, tool, whole, item, tmp_path):
    items = ", ".join(item % (f"{number}" + "x" * 300) for number in range(MANY))
    async with opened(
        {"s": hostile(tmp_path, **{method: whole % items})}, max_result_chars=LONGEST
    ) as desk:
        with anyio.fail_after(60):
            got = await desk.call(f"s_{tool}")
        assert got.success
        assert len(json.dumps(got.output)) <= LONGEST + 1000
        assert "cut" in json.dumps(got.output)


async def test_flood_of_changes_does_not_delay_answer(tmp_path):
    async with opened({"s": small("--all", "--flood=1000")}) as desk:
        with anyio.fail_after(60):
            listed = [int((await desk.call("s_echo", text="here")).output) for _ in range(3)]
    assert listed[-1] < 100  # of 3,000 notices; one list answers all that came before it
