"""Keywords that a model does not know: ignored or kept, and warned about when they are nearly a field's name."""

from __future__ import annotations

import subprocess
import sys
import warnings

import attrs
import pytest

from amplifier import compat
from amplifier.errors import MisspellingWarning
from amplifier.models import (
    ChatRequest,
    HookResult,
    Message,
    ToolCall,
    ToolResult,
    Usage,
    from_dict,
    from_json,
    to_json,
)
from amplifier.modules.loop._messages import _models as request_models


@pytest.fixture(autouse=True)
def _without_the_alias():
    was_installed = compat.is_installed()
    compat.uninstall()
    yield
    if was_installed:
        compat.install()


@pytest.mark.parametrize(
    ("cls", "given", "found", "meant", "lot"),
    [
        (ToolResult, {"sucess": False}, "sucess", "success", "ignored"),
        (ToolResult, {"outptu": "x"}, "outptu", "output", "ignored"),
        (HookResult, {"action": "deny", "raeson": "no"}, "raeson", "reason", "ignored"),
        (HookResult, {"userMessage": "x"}, "userMessage", "user_message", "ignored"),
        (
            Message,
            {"role": "user", "content": "x", "nmae": "y"},
            "nmae",
            "name",
            "kept as an extra member",
        ),
    ],
)
def test_misspelt_keyword_warns_at_callers_line(cls, given, found, meant, lot):
    with pytest.warns(MisspellingWarning) as caught:
        cls(**given)
    here = sys._getframe().f_lineno - 1
    [warning] = caught
    assert (
        str(warning.message)
        == f"{cls.__name__} has no field {found!r}, so it is {lot}; did you mean {meant!r}?"
    )
    assert (warning.filename, warning.lineno) == (__file__, here)


def test_every_misspelt_keyword_of_call_is_named():
    with pytest.warns(MisspellingWarning) as caught:
        ToolResult(sucess=False, eror={"message": "x"}, colour="red")
    assert [str(warning.message).split("'")[1] for warning in caught] == ["sucess", "eror"]


def test_misspelt_keyword_of_missing_required_one():
    with (
        pytest.warns(MisspellingWarning, match="'arguments'"),
        pytest.raises(ValueError, match="arguments: required"),
    ):
        ToolCall(id="1", name="x", argumnets={})


def test_first_instance_of_class_warns_too():
    """What a class needs is made at its first use, some frames further away from the caller."""
    program = "\n".join(
        (
            "import warnings",
            "from amplifier.models import ToolResult",
            "with warnings.catch_warnings(record=True) as caught:",
            "    warnings.simplefilter('always')",
            "    ToolResult(sucess=False)",
            "    ToolResult(sucess=False)",
            "assert [(w.filename, w.lineno) for w in caught] == [('<program>', 5), ('<program>', 6)], caught",
        )
    )
    code = f"exec(compile({program!r}, '<program>', 'exec'), {{'__name__': 'program'}})"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_place_is_warned_about_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            HookResult(raeson="no")
        HookResult(raeson="no")
    assert len(caught) == 2


@pytest.mark.parametrize(
    ("cls", "given"),
    [
        (
            HookResult,
            {"action": "continue", "metadata": {"a": 1}},
        ),  # a published module writes this
        (ToolResult, {"is_error": True, "message": "x", "id": "1"}),
        (Message, {"role": "assistant", "content": "x", "tool_calls": []}),
        (
            Usage,
            {
                "input_tokens": 1,
                "output_tokens": 1,
                "total_tokens": 2,
                "cache_creation_input_tokens": 3,
            },
        ),
    ],
)
def test_extra_keyword_does_not_warn(cls, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cls(**given)


def test_data_is_read_without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        read = from_json(Message, '{"role": "user", "content": "x", "nmae": "y"}')
        assert read.extra == {"nmae": "y"}
        assert from_dict(ToolResult, {"sucess": False}) == ToolResult()
        assert from_json(ToolResult, to_json(ToolResult(success=False))).success is False
        assert from_dict(HookResult, {"raeson": "no"}).reason is None
        block = {"type": "text", "text": "x", "tetx": "y"}
        [inner] = Message(role="user", content=[block]).content
        assert inner.extra == {"tetx": "y"}
        ChatRequest(messages=[{"role": "user", "content": "x", "nmae": "y"}])
        [shown] = request_models([{"role": "user", "content": "x", "nmae": "y"}])
        assert shown.extra == {"nmae": "y"}
        assert attrs.evolve(read, role="assistant").extra == {"nmae": "y"}


def test_alias_does_not_warn():
    compat.install()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            import amplifier_core

            amplifier_core.ToolResult(sucess=False)
            amplifier_core.HookResult.model_validate({"raeson": "no"})
            amplifier_core.message_models.Message(role="user", content="x", nmae="y")
    finally:
        compat.uninstall()
    with pytest.warns(MisspellingWarning):
        ToolResult(sucess=False)
