"""Streamed content: standard dataclasses, because modules put them into events as they are."""

from __future__ import annotations

import dataclasses

import pytest

from amplifier.models import (
    ContentBlock,
    ContentBlockType,
    TextContent,
    ThinkingContent,
    ToolCallContent,
    ToolResultContent,
)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (ContentBlock(type=ContentBlockType.TEXT), {"type": "text"}),
        (TextContent(text="x", raw={"secret": 1}), {"type": "text", "text": "x"}),
        (ThinkingContent(text="x"), {"type": "thinking", "text": "x"}),
        (
            ToolCallContent(id="1", name="n"),
            {"type": "tool_call", "id": "1", "name": "n", "arguments": None},
        ),
        (ToolResultContent(), {"type": "tool_result", "tool_call_id": "", "output": None}),
        (
            ToolResultContent(tool_call_id="1", output=5, error="e"),
            {"type": "tool_result", "tool_call_id": "1", "output": 5, "error": "e"},
        ),
    ],
)
def test_content_dict_omits_raw_data(content, expected):
    assert content.to_dict() == expected


def test_content_kinds_are_text_and_members():
    assert [kind.value for kind in ContentBlockType] == [
        "text",
        "thinking",
        "tool_call",
        "tool_result",
    ]
    assert ContentBlockType.TEXT == "text"
    assert TextContent().type.value == "text"


def test_field_order_matches_published_classes():
    names = {
        cls: [field.name for field in dataclasses.fields(cls)]
        for cls in (ToolCallContent, ToolResultContent)
    }
    assert names == {
        ToolCallContent: ["type", "raw", "id", "name", "arguments"],
        ToolResultContent: ["type", "raw", "tool_call_id", "output", "error"],
    }
