"""The redaction hook: what it redacts, what it keeps, and that it runs in linear time."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from amplifier import HookResult, PlanError
from amplifier.conformance import strategies
from amplifier.events import ALL_EVENTS, CATALOGUE
from amplifier.modules.hooks import redaction as hooks_redaction
from amplifier.modules.hooks.redaction import (
    PERSONAL,
    Redactor,
    read_redaction_options,
    redact_personal,
)
from amplifier.testing import EventRecorder, TestCoordinator

RANDOM = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8zA0cD2fG4hJ6k"
SECRETS = {
    "OpenAI": f"sk-proj-{RANDOM}",
    "Anthropic": f"sk-ant-api03-{RANDOM}-AA",
    "GitHub": f"ghp_{RANDOM[:36]}",
    "GitHub fine-grained": f"github_pat_{RANDOM[:22]}_{RANDOM}",
    "GitLab": f"glpat-{RANDOM[:20]}",
    "Slack": f"xoxb-123456789012-{RANDOM[:24]}",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "Google": f"AIza{RANDOM[:35]}",
    "Stripe": f"sk_live_{RANDOM[:24]}",
    "npm": f"npm_{RANDOM[:36]}",
    "PyPI": f"pypi-{RANDOM}{RANDOM}",
    "JWT": f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.{RANDOM}",
    "PEM": f"-----BEGIN RSA PRIVATE KEY-----\nMII{RANDOM}\n-----END RSA PRIVATE KEY-----",
}
PEOPLE = {
    "address": "bob.smith+news@mail.example.org",
    "short address": "a@b.io",
    "address of other letters": "müller@straße.example",
    "international number": "+49 (30) 1234-5678",
    "plain international number": "+4930123456789",
    "North American number": "(555) 123-4567",
    "with dashes": "555-123-4567",
}


class Gate:
    """A mounted gate without a session; `seen` is what the hooks behind it get."""

    def __init__(self, coordinator: TestCoordinator, close: Any) -> None:
        self.coordinator = coordinator
        self.close = close
        self.seen = EventRecorder()
        coordinator.hooks.register("*", self.seen, priority=90, name="behind")

    @classmethod
    async def open(cls, **config: Any) -> Gate:
        coordinator = TestCoordinator()
        return cls(coordinator, await hooks_redaction.mount(coordinator, config))

    async def emit(self, event: str, **data: Any) -> HookResult:
        return await self.coordinator.hooks.emit(event, data)

    def last(self) -> dict[str, Any]:
        return self.seen.events[-1][1]


# ── what goes ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", SECRETS)
async def test_no_secret_reaches_later_hooks(name):
    secret = SECRETS[name]
    gate = await Gate.open()
    given = {
        "a": f"x {secret} y",
        "b": [{"c": secret}],
        secret: 1,
        "d": ["-p", secret],
        "password": "hunter2",
    }
    result = await gate.emit("llm:response", **given)
    assert result.action == "modify"
    text = json.dumps(gate.last())
    assert RANDOM[:18] not in text
    assert "EXAMPLE" not in text
    assert "hunter2" not in text
    assert gate.last()["redaction"] == {"applied": True, "rules": ["secrets", "pii-basic"]}
    assert list(gate.last()["b"][0]) == ["c"], "the shape stays"


@pytest.mark.parametrize("name", PEOPLE)
async def test_personal_data_is_redacted_by_default(name):
    gate = await Gate.open()
    await gate.emit(
        "execution:end", response=f"write to {PEOPLE[name]}, please", who={PEOPLE[name]: 1}
    )
    assert gate.last()["response"] == f"write to {PERSONAL}, please"
    assert gate.last()["who"] == {PERSONAL: 1}
    assert (
        Redactor(read_redaction_options({"rules": ["secrets"]})).redact({"text": PEOPLE[name]})
        is None
    )


HARMLESS = [
    "2026-02-20T14:30:00.123456+00:00",
    "2026-02-20 14:30:00",
    "550e8400-e29b-41d4-a716-446655440000",
    "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "192.168.100.200",
    "3.141592653589793",
    "1.2.3-4567",
    "version 555.123.4567.8",
    "@decorator",
    "user@host",
    "git@:",
    "a @ b.c",
    "12345678901234",
    "1 000 000 000",
    "1 + 2 + 3",
    "tokens: 512, max_tokens: 4096",
    "def password(self): ...",
    "pypi-example-package",
]


@pytest.mark.parametrize("text", HARMLESS)
async def test_lookalikes_stay(text):
    gate = await Gate.open()
    result = await gate.emit("execution:end", response=text)
    assert result.action == "continue"
    assert gate.last()["response"] == text
    assert "redaction" not in gate.last()


async def test_own_literals_prefixes_and_keys():
    gate = await Gate.open(
        literals=["Projekt Ürsprung", "(x)*"], prefixes=["acme_"], keys=["badge"]
    )
    await gate.emit(
        "execution:end",
        a="about Projekt Ürsprung (x)*",
        b="acme_12-ab.c, no_acme_12",
        badge="17",
        c={"(x)*": 1},
    )
    assert gate.last()["a"] == "about [REDACTED] [REDACTED]"
    assert gate.last()["b"] == "[REDACTED], no_acme_12"
    assert gate.last()["badge"] == "[REDACTED]"
    assert gate.last()["c"] == {"[REDACTED]": 1}


async def test_two_members_do_not_become_one():
    gate = await Gate.open()
    await gate.emit("execution:end", by={"a@b.io": 1, "c@d.io": 2, PERSONAL: 3})
    assert sorted(gate.last()["by"].values()) == [1, 2, 3]


# ── what stays ───────────────────────────────────────────────────────────────────────────────────


async def test_working_data_of_agent_is_unchanged():
    gate = await Gate.open()
    for event in ("prompt:submit", "tool:pre", "tool:post"):
        result = await gate.emit(
            event, prompt=SECRETS["GitHub"], tool_input={"password": "hunter2"}
        )
        assert result.action == "continue", event
        assert gate.last()["prompt"] == SECRETS["GitHub"]
    assert {name for name, event in CATALOGUE.items() if "modify" in event.verdict} == {
        *("prompt:submit", "tool:pre", "tool:post")
    }


async def test_other_catalogue_events_are_redacted():
    """All events except pieces of text."""
    gate = await Gate.open()
    for event in CATALOGUE:
        await gate.emit(event, text=SECRETS["GitHub"])
    left = [name for name, data in gate.seen.events if data["text"] == SECRETS["GitHub"]]
    pieces = [
        "content_block:delta",
        *(f"llm:stream_block_{what}" for what in ("delta", "end", "start")),
        "thinking:delta",
    ]
    assert sorted(left) == sorted([*pieces, "prompt:submit", "tool:post", "tool:pre"])


@pytest.mark.parametrize(
    ("config", "left"),
    [
        (
            {"skip_events": ["session:end"], "additional_events": ["my:event"]},
            ["session:end", "other:event"],
        ),
        (
            {
                "enabled_events": [*ALL_EVENTS, "my:event"]
            },  # those that are skipped by default are so even then
            [
                "content_block:delta",
                "thinking:delta",
                "prompt:submit",
                "tool:pre",
                "tool:post",
                "other:event",
            ],
        ),
    ],
)
async def test_plan_chooses_events(config, left):
    gate = await Gate.open(**config)
    for event in (*ALL_EVENTS, "my:event", "other:event"):
        await gate.emit(event, text=SECRETS["GitHub"])
    assert sorted(
        name for name, data in gate.seen.events if data["text"] == SECRETS["GitHub"]
    ) == sorted(left)


async def test_identifying_fields_never_change():
    gate = await Gate.open(allowlist=["note", "usage.cost_usd", "deep.down"])
    mail = "a@b.io"
    await gate.emit(
        "execution:end",
        tool_name=mail,
        status=mail,
        note=mail,
        text=mail,
        usage={"cost_usd": mail, "other": mail},
        deep={"down": {"below": [mail]}, "up": mail},
    )
    seen = gate.last()
    assert (seen["tool_name"], seen["status"], seen["note"], seen["text"]) == (
        mail,
        mail,
        mail,
        PERSONAL,
    )
    assert seen["usage"] == {"cost_usd": mail, "other": PERSONAL}
    assert seen["deep"] == {"down": {"below": [mail]}, "up": PERSONAL}


async def test_shared_value_stays_at_allowed_path_only():
    shared = {"id": "a@b.io"}
    redacted = Redactor(read_redaction_options({"allowlist": ["one.id"]})).redact(
        {"one": shared, "two": shared}
    )
    assert redacted == {"one": {"id": "a@b.io"}, "two": {"id": PERSONAL}}
    assert shared == {"id": "a@b.io"}


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

redactor = Redactor(read_redaction_options({}))
_secrets = st.sampled_from([*SECRETS.values(), *PEOPLE.values()])
_words = st.text(alphabet="abc XYZ.,;:!?()[]{}\"'\n\té", max_size=20)


@given(before=_words, secret=_secrets, after=_words)
def test_secret_between_words_is_removed(before, secret, after):
    # Letters that touch would make it another word.
    text = f"{before} {secret} {after}"
    out = redactor.redact({"text": text})
    assert out is not None
    assert RANDOM[:18] not in out["text"]
    assert secret not in out["text"]


@given(data=strategies.json_objects(), secret=_secrets)
def test_secret_in_value_is_removed_shape_kept(data, secret):
    out = redactor.redact({"x": data, "y": [secret, {"z": f"({secret})"}]})
    assert out is not None
    assert secret not in json.dumps(out["y"], ensure_ascii=False)
    assert shape(out["x"]) == shape(redactor.redact({"x": data}) or {"x": data})["x"]


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: shape(member) for key, member in value.items()}
    return [shape(item) for item in value] if isinstance(value, list) else type(value)


@given(data=strategies.json_objects())
def test_nothing_is_redacted_twice(data):
    once = redactor.redact(data)
    assert once is None or redactor.redact(once) is None


@given(
    text=st.text(alphabet="abcdefghij ,.\n", max_size=200), number=st.integers(), flag=st.booleans()
)
def test_plain_words_and_numbers_stay(text, number, flag):
    assume("token" not in text)
    assert redactor.redact({"text": text, "n": number, "list": [text, flag, None]}) is None


@given(text=st.text(alphabet="a1@.-+() ", max_size=60))
def test_personal_data_is_gone_after_one_look(text):
    once = redact_personal(text)
    assert redact_personal(once) == once


# ── objects and failures ─────────────────────────────────────────────────────────────────────────


@attrs.define
class Thing:
    api_key: str
    name: str = "thing"


async def test_objects_are_replaced_only_if_needed():
    gate = await Gate.open()
    harmless, telling = object(), Thing("hunter2")
    await gate.emit("execution:end", thing=harmless, text="fine")
    assert gate.last()["thing"] is harmless
    await gate.emit("execution:end", thing=telling, other={1, 2}, error=ValueError("a@b.io"))
    seen = gate.last()
    assert seen["thing"] == {"api_key": "[REDACTED]", "name": "thing"}
    assert "a@b.io" not in json.dumps(seen), "what the hooks behind get is JSON"


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


async def test_unreadable_object_is_not_passed_on():
    gate = await Gate.open()
    await gate.emit("execution:end", thing=Unreadable())
    assert gate.last()["thing"] == "[UNREADABLE Unreadable]"


async def test_unredactable_event_stops(monkeypatch):
    gate = await Gate.open()

    def broken(self: Any, payload: Any) -> Any:
        raise RuntimeError(SECRETS["GitHub"])

    monkeypatch.setattr(Redactor, "redact", broken)
    for size in (10, 500_000):
        result = await gate.emit("provider:request", messages=["x" * size], key=SECRETS["GitHub"])
        assert result.action == "deny"
        assert "could not be searched for secrets (RuntimeError)" in str(result.reason)
        assert SECRETS["GitHub"] not in str(result.reason)
    assert [name for name, _ in gate.seen.events if name == "provider:request"] == []


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"patterns": ["(a+)+$"]}, "$.patterns"),
        ({"rules": ["everything"]}, "$.rules"),
        ({"rules": "secrets"}, "$.rules"),
        ({"rules": []}, "$.rules"),
        ({"allowlist": ["a..b"]}, "$.allowlist"),
        ({"allowlist": ["items[0].id"]}, "$.allowlist"),
        ({"literals": ["ab"]}, "$.literals"),
        ({"priority": "low"}, "$.priority"),
    ],
)
async def test_wrong_config_is_refused_with_path(config, path):
    with pytest.raises(PlanError) as caught:
        await Gate.open(**config)
    assert [where for where, _ in caught.value.problems] == [path]


# ── growth ───────────────────────────────────────────────────────────────────────────────────────


def seconds(action: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        action()
        best = min(best, time.process_time() - started)
    return best


PIECES = [
    "a",
    "@",
    "a@",
    "a@a.",
    "@a.",
    "1",
    "+1",
    "+1 ",
    "1-",
    "555-555-",
    "(555) ",
    "a.",
    "-",
    "acme_",
    "acme_a ",
    "é@é.",
]


@pytest.mark.parametrize("piece", PIECES)
def test_redaction_time_is_linear(piece):
    ours = Redactor(
        read_redaction_options({"prefixes": ["acme_"], "literals": ["aaaaab", "a@a@b"]})
    )
    short, long = (piece * (size // len(piece)) for size in (20_000, 160_000))
    ours.redact({"text": short})
    # Eight times the text: a quadratic pattern would take sixty-four times as long, noise nowhere near it.
    assert (
        seconds(lambda: ours.redact({"text": long}))
        < 30 * seconds(lambda: ours.redact({"text": short})) + 0.02
    )


@pytest.mark.parametrize(
    "texts", [["some words, nothing else. " * 40] * 1_000, ["x"] * 10_000], ids=["long", "many"]
)
async def test_large_text_is_searched_off_loop(texts):
    gate = await Gate.open()
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await anyio.lowlevel.checkpoint()
            ticks += 1

    async with anyio.create_task_group() as group:
        group.start_soon(tick)
        await gate.emit("provider:request", messages=[*texts, SECRETS["GitHub"]])
        seen = ticks
        group.cancel_scope.cancel()
    assert seen > 0
    assert gate.last()["messages"][-1] == "[REDACTED]"
