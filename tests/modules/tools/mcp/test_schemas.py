"""What a server writes into the schemas of its tools: nothing is fetched, and nothing waits for it."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from amplifier.modules.loop import _tool_runner as tool_runner
from amplifier.testing import MockTool
from tests.internal.test_schema_validator import doubled, listener, nested
from tests.modules.tools.mcp.desk import answer, opened, small

__all__ = ["listener"]


def listed(folder: Any, **tools: Any) -> str:
    """The option that has the small server list these tools, by their input schemas."""
    file = folder / "tools.json"
    file.write_text(json.dumps([{"name": name, **about} for name, about in tools.items()]))
    return f"--tools-file={file}"


async def test_server_schemas_fetch_nothing(listener, tmp_path, caplog):
    address, requests = listener
    secret = tmp_path / "secret.json"
    secret.write_text('{"type": "string"}')
    web = {"type": "object", "properties": {"a": {"$ref": f"{address}/a.json"}}}
    file = {"type": "object", "properties": {"a": {"$ref": secret.as_uri()}}}
    option = listed(
        tmp_path,
        web={"inputSchema": web},
        file={"inputSchema": file},
        result={"inputSchema": {"type": "object"}, "outputSchema": web},
    )
    model = [answer("", ("small_result", {"a": 1}), ("small_echo", {"text": "b"})), answer("done")]
    async with opened({"small": small(option)}, model=model) as desk:
        assert sorted(desk.tools) == ["small_echo", "small_result", "small_upper"]
        assert await desk.session.execute("go") == "done"
    assert requests == []
    for name, found in (("web", f"{address}/a.json"), ("file", secret.as_uri())):
        assert (
            f"tool '{name}' is not used: its input schema is refused: it refers to {found!r}, which is another"
            in caplog.text
        )


async def test_oversized_schemas_are_refused(tmp_path, caplog):
    """The other tools are used."""
    option = listed(
        tmp_path,
        deep={"inputSchema": nested(80)},
        huge={"inputSchema": {"type": "object", "description": "x" * 10_000_000}},
        doubled={"inputSchema": doubled(40)},
    )
    async with opened({"small": small(option)}) as desk:
        assert sorted(desk.tools) == ["small_echo", "small_upper"]
        assert (await desk.call("small_upper", text="a")).output == "A"
    for name, words in (
        ("deep", "it is nested more than"),
        ("huge", "it is larger than"),
        ("doubled", "with its references"),
    ):
        assert f"tool '{name}' is not used: its input schema is refused: {words}" in caplog.text


async def test_results_are_not_checked_by_server_schema(tmp_path):
    # Python's own patterns backtrack: this one would take years in the event loop.
    slow = {"type": "object", "properties": {"text": {"type": "string", "pattern": "^(a+)+$"}}}
    tool = {
        "inputSchema": {"type": "object"},
        "outputSchema": slow,
        "structured": {"text": "a" * 60 + "b"},
    }
    async with opened({"small": small(listed(tmp_path, slow=tool))}) as desk:
        assert (await desk.call("small_slow")).success


async def test_large_schema_validator_is_built_off_loop(monkeypatch):
    large = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string"} for n in range(2000)},
        "required": ["p0"],
    }
    schemas = tool_runner.ToolSchemas({"a": MockTool("a", schema=large)})
    schemas.specs()
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(count)
        assert await schemas.problem("a", {}) == 'input: "p0" is a required property'
        group.cancel_scope.cancel()
    assert turns > 0


@pytest.mark.parametrize(
    "schema", [doubled(40), {"type": "object", "properties": {"a": {"$ref": "file:///etc/hosts"}}}]
)
async def test_unusable_schema_is_named_once(schema, caplog):
    schemas = tool_runner.ToolSchemas({"a": MockTool("a", schema=schema)})
    schemas.specs()
    assert [await schemas.problem("a", {"a": 1}) for _ in range(2)] == [None, None]
    assert (
        caplog.text.count("the schema of tool 'a' cannot be used, so its inputs are not checked")
        == 1
    )
