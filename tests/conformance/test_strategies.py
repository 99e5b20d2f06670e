"""The strategies draw valid models of every kind, and take keywords."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st

from amplifier import models
from amplifier.conformance import strategies
from amplifier.models import Message, Model, OpenModel, TextBlock, UnknownBlock, from_json, to_json

# Made by a function of another form, or defined in another package.
WITHOUT_A_NAME = {
    "Model",
    "OpenModel",
    "StreamChunk",
    "TurnEvent",
    "ResultDelta",
    "TextDelta",
    "ThinkingDelta",
    "ToolStarted",
    "ToolFinished",
    "AnswerReset",
    "SubAgentEvent",
}
CLASSES = [
    cls
    for name in models.__all__
    if isinstance(cls := getattr(models, name), type)
    and issubclass(cls, Model)
    and name not in WITHOUT_A_NAME
]

QUICK = settings(
    max_examples=5_000,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@settings(max_examples=1)
@given(data=st.data())
def test_every_model_has_a_strategy(data):
    for cls in CLASSES:
        assert type(data.draw(strategies.instances(cls))) is cls


OTHERS = [getattr(strategies, name)() for name in strategies.__all__ if name != "instances"]


@given(strategy=st.sampled_from([*map(strategies.instances, CLASSES), *OTHERS]), data=st.data())
def test_whatever_is_drawn_survives_json(strategy, data):
    value = data.draw(strategy)
    if isinstance(value, Model):
        assert from_json(type(value), to_json(value)) == value
    else:
        assert to_json(value)


@given(strategies.instances(Message, role="user", content=st.just("hi"), extra={"vendor": 1}))
def test_keywords_fix_fields_by_value_or_by_strategy(message):
    assert (message.role, message.content, message.extra) == ("user", "hi", {"vendor": 1})


@pytest.mark.parametrize(
    "wanted",
    [
        lambda message: isinstance(message.content, str),
        lambda message: any(isinstance(block, UnknownBlock) for block in message.content),
        lambda message: any(
            isinstance(block, TextBlock) and block.extra for block in message.content
        ),
        lambda message: message.metadata,
        lambda message: message.extra,
    ],
)
def test_the_interesting_messages_are_among_them(wanted):
    assert wanted(find(strategies.instances(Message), wanted, settings=QUICK))


def test_classes_of_ones_own_can_be_drawn():
    from amplifier.models.base import model

    @model
    class Note(OpenModel):
        text: str
        about: Message | None = None

    drawn = find(strategies.instances(Note), lambda note: note.about is not None, settings=QUICK)
    assert isinstance(drawn.about, Message)


def test_without_hypothesis_the_error_names_what_to_install():
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from amplifier.errors import MissingExtraError\n"
        "try:\n    import amplifier.conformance.strategies\n"
        "except MissingExtraError as error:\n    print(error.extra, error.missing)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert finished.stdout.split() == ["testing", "hypothesis"]
