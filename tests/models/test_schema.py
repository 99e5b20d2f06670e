"""The shipped JSON Schema of the models describes what is written: nothing that is written breaks it."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amplifier import models
from amplifier.conformance.strategies import instances
from amplifier.errors import ModelError
from amplifier.models import Model, from_json, to_json
from tests.models.test_fields import model_classes

SCHEMA = json.loads(
    files("amplifier.models").joinpath("models.schema.json").read_text(encoding="utf-8")
)
MODELS = model_classes()


def validator(name: str) -> Any:
    return jsonschema_rs.validator_for({**SCHEMA, "$ref": f"#/$defs/{name}"})


VALIDATORS = {model.__name__: validator(model.__name__) for model in MODELS}


def test_schema_defines_every_public_model() -> None:
    jsonschema_rs.meta.validate(SCHEMA)
    assert set(SCHEMA["$defs"]) == {model.__name__ for model in MODELS}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_written_models_fit_schema(model: type[Model]) -> None:
    @settings(max_examples=50)
    @given(instances(model))
    def check(instance: Model) -> None:
        VALIDATORS[model.__name__].validate(json.loads(to_json(instance)))

    check()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_missing_member_fails_schema_and_reader(model: type[Model]) -> None:
    required = SCHEMA["$defs"][model.__name__].get("required", [])

    @settings(max_examples=15)
    @given(instances(model), st.data())
    def check(instance: Model, data: st.DataObject) -> None:
        written = json.loads(to_json(instance))
        if required:
            del written[data.draw(st.sampled_from(required))]
            assert not VALIDATORS[model.__name__].is_valid(written)
            with pytest.raises(ModelError):
                from_json(model, json.dumps(written))

    check()


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("Message", {"role": "robot", "content": "x"}),
        ("Message", {"role": "user", "content": 5}),
        ("Message", {"role": "user", "content": [{"type": "text"}]}),
        ("Message", {"role": "user", "content": [{"text": "x"}]}),
        ("HookResult", {"action": "explode"}),
        ("ToolResult", {"success": "perhaps"}),
        ("ChatRequest", {"messages": [{"role": "user"}]}),
        ("ChatResponse", {"content": "words"}),
        ("Usage", {"input_tokens": "many", "output_tokens": 1, "total_tokens": 2}),
    ],
)
def test_wrong_value_fails_schema_and_reader(name: str, wrong: Any) -> None:
    assert not VALIDATORS[name].is_valid(wrong)
    with pytest.raises(ModelError):
        from_json(getattr(models, name), json.dumps(wrong))


def test_schema_of_unknown_and_known_blocks() -> None:
    """A block of an unknown type is valid, one of a known type is checked."""

    def message(**block: Any) -> dict[str, Any]:
        return {"role": "user", "content": [block]}

    assert VALIDATORS["Message"].is_valid(message(type="hologram", depth=3))
    assert not VALIDATORS["Message"].is_valid(message(type="tool_call", name="x"))
