"""Typed answers of a real model, whose grammar leaves it no other choice; `test_typed_answers` has every kind of type."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import pytest

from amplifier import AmplifierSession
from tests._support import small_model

Size = Literal["small", "large"]


@attrs.frozen
class House:
    size: Size
    is_old: bool


SCHEMA = {
    "type": "object",
    "properties": {"size": {"enum": ["small", "large"]}, "is_deep": {"type": "boolean"}},
    "required": ["size", "is_deep"],
    "additionalProperties": False,
}

KINDS: dict[str, tuple[Any, Any]] = {
    "attrs": (House, lambda value: isinstance(value, House) and value.size in ("small", "large")),
    "literal": (Size, lambda value: value in ("small", "large")),
    "json-schema": (SCHEMA, lambda value: value.keys() == {"size", "is_deep"}),
}
"""Types, and whether a value is one of theirs."""


@pytest.mark.slow
async def test_types_and_schemas_are_answered_by_a_real_model():
    assert small_model.is_there(), "the small model is missing; bring it with: python -m tests._support.small_model"
    options = {"model_path": str(small_model.MODEL), "context_size": 1024, "temperature": 0, "seed": 1, "threads": 1}
    plan = {
        "session": {"orchestrator": {"module": "loop-streaming"}, "context": {"module": "context-simple"}},
        "providers": [{"module": "provider-local", "config": options}],
    }
    async with AmplifierSession(plan) as session:
        context = session.coordinator.get("context")
        assert context is not None
        for name, (result_type, fits) in KINDS.items():
            value = await session.execute("Describe one. Be brief.", result_type=result_type)
            assert fits(value), (name, value)
            await context.clear()
