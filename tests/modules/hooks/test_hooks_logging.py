"""The event log: the content of lines, secrets, and files that cannot be written."""

from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier import PlanError
from amplifier.conformance import strategies
from amplifier.events import ALL_EVENTS, OUR_EVENTS
from amplifier.models.turns import ModelAnswer, ToolOutcome
from amplifier.modules.hooks import logging as hooks_logging
from amplifier.modules.hooks.logging import LogOptions, level_of, write_line
from amplifier.testing import MockTool, TestCoordinator
from tests.modules.hooks.test_hooks_together import KEY, Watched, lines


class Desk:
    """A mounted log without a session."""

    def __init__(self, coordinator: TestCoordinator, path: Path, close: Any) -> None:
        self.coordinator = coordinator
        self.path = path
        self.close = close

    @classmethod
    async def open(cls, folder: Path, session_id: str = "s-1", **config: Any) -> Desk:
        coordinator = TestCoordinator(session_id)
        config.setdefault("path", str(folder / "{session_id}.jsonl"))
        close = await hooks_logging.mount(coordinator, config)
        await hooks_logging.on_session_ready(coordinator)
        return cls(coordinator, folder / f"{session_id}.jsonl", close)

    async def emit(self, event: str, **data: Any) -> None:
        result = await self.coordinator.hooks.emit(event, data)
        assert result.action == "continue"

    @property
    def log(self) -> hooks_logging.EventLog:
        log: hooks_logging.EventLog = self.coordinator.session_state["hooks-logging"][0]
        return log

    def lines(self) -> list[dict[str, Any]]:
        return lines(self.path)


# ── lines ────────────────────────────────────────────────────────────────────────────────────────


async def test_event_line_has_published_shape(tmp_path):
    desk = await Desk.open(tmp_path)
    await desk.emit(
        "tool:pre", tool_name="grep", tool_input={"pattern": "x"}, status="fine", duration_ms=3
    )
    (line,) = desk.lines()
    assert line == {
        "ts": line["ts"],
        "lvl": "INFO",
        "schema": {"name": "amplifier.log", "ver": "1.0.0"},
        "event": "tool:pre",
        "session_id": "s-1",
        "status": "fine",
        "duration_ms": 3,
        "data": {"tool_name": "grep", "tool_input": {"pattern": "x"}},
    }
    assert line["ts"].endswith("+00:00")
    desk.close()


async def test_catalogue_events_are_written_except_deltas(tmp_path):
    desk = await Desk.open(tmp_path)
    for event in (*ALL_EVENTS, *OUR_EVENTS):
        await desk.emit(event, x=1)
    written = [line["event"] for line in desk.lines()]
    assert set(written) == {*ALL_EVENTS, *OUR_EVENTS} - {"content_block:delta", "thinking:delta"}
    assert len(written) == len(set(written))
    desk.close()


async def test_announced_events_are_found_in_every_form(tmp_path):
    coordinator = TestCoordinator("s-1")
    close = await hooks_logging.mount(
        coordinator, {"path": str(tmp_path / "x"), "additional_events": ["extra:one"]}
    )
    coordinator.register_capability(
        "observability.events", ["old:one"]
    )  # as older modules announce
    for name, names in {
        "a": ["new:one", "tool:pre"],
        "b": "new:two",
        "c": ("new:three",),
        "d": [None, 7, ""],
        "e": 5,
    }.items():
        coordinator.register_contributor("observability.events", name, lambda names=names: names)  # type: ignore[misc]
    for _ in range(2):
        await hooks_logging.on_session_ready(coordinator)  # once is enough, twice does no harm
    for event in (
        "old:one",
        "new:one",
        "new:two",
        "new:three",
        "extra:one",
        "tool:pre",
        "unknown:one",
    ):
        await coordinator.hooks.emit(event, {})
    written = [line["event"] for line in lines(tmp_path / "x")]
    assert written == ["old:one", "new:one", "new:two", "new:three", "extra:one", "tool:pre"]
    close()


async def test_events_without_discovery_are_named_ones(tmp_path):
    coordinator = TestCoordinator()
    coordinator.register_contributor("observability.events", "a", lambda: ["new:one"])
    close = await hooks_logging.mount(
        coordinator, {"path": str(tmp_path / "x"), "auto_discover": False}
    )
    await hooks_logging.on_session_ready(coordinator)
    await coordinator.hooks.emit("new:one", {})
    assert lines(tmp_path / "x") == []
    close()


async def test_star_subscribes_to_everything_once(tmp_path):
    desk = await Desk.open(tmp_path, additional_events=["*"])
    for event in ("tool:pre", "unannounced:event"):
        await desk.emit(event)
    assert [line["event"] for line in desk.lines()] == ["tool:pre", "unannounced:event"]
    desk.close()


@pytest.mark.parametrize("key", ["include_events", "enabled_events"])
async def test_patterns_choose_events(tmp_path, key):
    chosen: dict[str, Any] = {key: ["tool:*", "session:*"], "exclude_events": ["*:post"]}
    desk = await Desk.open(tmp_path, **chosen)
    for event in ("tool:pre", "tool:post", "session:start", "provider:request"):
        await desk.emit(event)
    assert [line["event"] for line in desk.lines()] == ["tool:pre", "session:start"]
    assert "provider:request" not in desk.coordinator.hooks.list_handlers(), (
        "what is not wanted costs nothing"
    )
    desk.close()


LEVELS: list[tuple[str, dict[str, Any], str]] = [
    ("tool:pre", {}, "INFO"),
    ("tool:error", {}, "ERROR"),
    ("tool:post", {"error": {"message": "x"}}, "ERROR"),
    ("execution:end", {"status": "error"}, "ERROR"),
    ("execution:end", {"status": "completed"}, "INFO"),
    ("module:load_failed", {}, "ERROR"),
    ("hook:timeout", {}, "ERROR"),
    ("provider:retry", {}, "WARNING"),
    ("approval:denied", {}, "WARNING"),
    ("llm:request", {"lvl": "DEBUG"}, "DEBUG"),
    ("user:notification", {"level": "warning"}, "WARNING"),
    ("user:notification", {"level": "shout"}, "INFO"),
    ("user:notification", {"level": 7}, "INFO"),
]


@pytest.mark.parametrize(("event", "data", "level"), LEVELS)
def test_level_is_event_severity(event, data, level):
    assert level_of(event, data) == level


async def test_events_below_level_are_left_out(tmp_path):
    desk = await Desk.open(tmp_path, level="warning")
    for event, data, _ in LEVELS:
        await desk.emit(event, **data)
    assert {line["lvl"] for line in desk.lines()} == {"WARNING", "ERROR"}
    desk.close()


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────

PLACES: dict[str, dict[str, Any]] = {
    "tool input": {"tool_input": {"command": f"curl -H 'Authorization: Bearer {KEY}' x"}},
    "header": {"headers": {"X-Api-Key": KEY}},
    "list": {"a": [KEY]},
    "tuple": {"a": (KEY,)},
    "set": {"a": {KEY}},
    "key": {KEY: 1},
    "bytes": {"a": KEY.encode()},
    "json in text": {"a": json.dumps({"password": KEY})},
    "error": {"error": ValueError(f"bad key {KEY}")},
    "lifted": {"status": KEY, "error": {"message": KEY}},
    "url": {"url": f"https://user:{KEY}@host/"},
    "password": {"password": KEY},
}


@pytest.mark.parametrize("place", PLACES)
async def test_secret_is_never_written(tmp_path, place):
    desk = await Desk.open(tmp_path)
    await desk.emit("tool:pre", **PLACES[place])
    assert len(desk.lines()) == 1
    assert KEY not in desk.path.read_text()
    desk.close()


@pytest.mark.parametrize("longest", [64, 1000])
@pytest.mark.parametrize("redactions", [0, 1, 9, 15])
def test_secret_at_cut_is_not_written(longest, redactions):
    options = LogOptions(path=Path("unused"), max_field_chars=longest, max_line_bytes=100_000)
    shorter = (
        f" password={'hunter22' * 12} " * redactions
    )  # redaction moves what follows to the left of the cut
    starts = {*range(0, longest + 20, 7), *range(longest + 960, longest + 1060)}
    for start in starts:
        text = shorter + "x" * (start - len(shorter)) + f" {KEY} " + "y" * 4000
        line = write_line("tool:post", "INFO", {"text": text}, options).decode()
        assert "sk-ant" not in line, start
        assert "hunter22" not in line
        assert "characters left out" in line
        assert len(json.loads(line)["data"]["text"]) < longest + 60


def test_long_text_is_cut_and_rest_counted():
    options = LogOptions(path=Path("unused"), max_field_chars=1000)
    for size in (1000, 1001, 2024, 2025, 50_000):
        line = json.loads(write_line("tool:post", "INFO", {"text": "x" * size}, options))
        left_out = f"… [{size - 1000} characters left out]" if size > 1000 else ""
        assert line["data"]["text"] == "x" * 1000 + left_out


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────

TOO_MUCH: dict[str, dict[str, Any]] = {
    "text": {"a": "x" * 1_000_000},
    "texts": {"a": ["y" * 5_000 for _ in range(1_000)]},
    "members": {str(n): n for n in range(100_000)},
    "items": {"a": list(range(200_000))},
    "long names": {"n" * 50_000 + str(n): n for n in range(50)},
    "bytes": {"a": b"\xff" * 1_000_000},
    "objects": {f"{n:090}": {f"{m:060}": {"c": "\0" * 100} for m in range(20)} for n in range(20)},
    "numbers": {f"n{n}": {f"m{m}": 1 << 10_000 for m in range(20)} for n in range(20)},
    "wide": {"a": "\U0001f600" * 400_000},
}


@pytest.mark.parametrize("kind", TOO_MUCH)
async def test_no_line_is_longer_than_allowed(tmp_path, kind):
    desk = await Desk.open(tmp_path, max_line_bytes=50_000)
    await desk.emit("tool:post", **TOO_MUCH[kind])
    (line,) = desk.lines()
    assert desk.path.stat().st_size <= 50_000
    assert " left out" in json.dumps(line)
    assert line["session_id"] == "s-1"
    desk.close()


async def test_request_line_omits_logged_messages(tmp_path):
    desk = await Desk.open(tmp_path)
    assert not desk.coordinator.hooks.has_handlers("provider:request", "messages"), (
        "no loop has to build them for the log"
    )
    await desk.emit(
        "provider:request",
        provider="p",
        model="m",
        iteration=2,
        messages=[{"role": "user", "content": "x"}],
    )
    assert desk.lines()[0]["data"] == {"provider": "p", "model": "m", "iteration": 2}
    desk.close()


async def test_oversized_payload_is_cut_by_member(
    tmp_path,
):
    """Of many texts each is cut, and short members are kept."""
    desk = await Desk.open(tmp_path)
    for count in (20, 200):
        texts = [f"{number} " * 10_000 for number in range(count)]
        await desk.emit("tool:post", tool_call_id="c1", texts=texts, took=0.5)
    some, many = [line["data"] for line in desk.lines()]
    assert (some["tool_call_id"], len(some["texts"])) == ("c1", 20)
    assert all("characters left out" in text for text in some["texts"])
    assert (many["tool_call_id"], many["took"], many.get("texts")) == ("c1", 0.5, None)
    desk.close()


def test_failure_survives_large_output():
    error = {"type": "exit", "message": "exit code 1"}
    result = {
        "output": {"lines": [f"{n:06} {'x' * 300}" for n in range(1000)]},
        "success": False,
        "error": error,
    }
    line = write_line(
        "tool:post",
        "INFO",
        {"tool_name": "bash", "result": result},
        LogOptions(path=Path("unused")),
    )
    outcome = ToolOutcome.read("tool:post", json.loads(line)["data"])
    assert (outcome.status, outcome.error) == ("error", "exit code 1")


async def test_usage_survives_large_response(tmp_path):
    desk = await Desk.open(tmp_path)
    usage = {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15, "cache_read_tokens": 7}
    logprobs = [{"token": "a", "logprob": -0.5}] * 20_000
    await desk.emit(
        "llm:response", response={"model": "m", "logprobs": logprobs}, usage=usage, duration_ms=5
    )
    (line,) = desk.lines()
    call = ModelAnswer.read(line["data"])
    assert (call.input_tokens, call.output_tokens, call.cache_read_tokens, call.model) == (
        12,
        3,
        7,
        "m",
    )
    assert line["duration_ms"] == 5
    desk.close()


def test_non_latin_texts_are_cut_before_dropped():
    data = {"messages": ["中" * 30_000 for _ in range(3)]}
    options = LogOptions(path=Path("unused"))
    line = write_line("tool:post", "INFO", data, options)
    assert len(line) <= options.max_line_bytes
    texts = json.loads(line)["data"]["messages"]
    assert [text[2047:] for text in texts] == [f"中… [{30_000 - 2048} characters left out]"] * 3


# ── any payload ──────────────────────────────────────────────────────────────────────────────────


@attrs.define
class Thing:
    api_key: str = KEY
    name: str = "thing"


class Unreadable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


async def test_values_without_json_form_become_text(tmp_path):
    desk = await Desk.open(tmp_path)
    odd = {
        "a": {1, 2},
        "b": b"x",
        "c": 1 << 80,
        "d": "\ud800",
        "e": float("nan"),
        "f": Thing(),
        "g": object(),
        5: 6,
    }
    await desk.emit("tool:pre", odd=odd, bad=Unreadable())
    data = desk.lines()[0]["data"]
    assert data["odd"]["c"] == 1 << 80
    assert data["odd"]["f"] == {"api_key": "[REDACTED]", "name": "thing"}
    assert data["odd"]["5"] == 6
    assert KEY not in desk.path.read_text()
    desk.close()


async def test_unreadable_payload_still_leaves_line(tmp_path, caplog):
    class Hostile(dict):
        def get(self, *_args: Any) -> Any:
            raise RuntimeError("hands off")

    desk = await Desk.open(tmp_path)
    for payload in (Hostile(), None, 5):
        result = await desk.log("tool:pre", payload)  # type: ignore[arg-type]
        assert result.action == "continue"
    assert [line["error"].split()[0] for line in desk.lines()] == [
        "RuntimeError",
        "AttributeError",
        "AttributeError",
    ]
    desk.close()


@given(event=st.text(), data=strategies.json_objects())
def test_json_payload_becomes_one_line_unchanged(event, data):
    before = json.dumps(data)
    line = write_line(event, "INFO", data, LogOptions(path=Path("unused")))
    assert line.count(b"\n") == 1
    assert json.loads(line)["event"] == event.encode("utf-8", "replace").decode()
    assert json.dumps(data) == before


# ── the file ─────────────────────────────────────────────────────────────────────────────────────


async def test_file_and_folders_are_private_to_owner(tmp_path):
    desk = await Desk.open(tmp_path, path=str(tmp_path / "a" / "b" / "{session_id}.jsonl"))
    path = tmp_path / "a" / "b" / "s-1.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o700
    desk.close()


async def test_default_path_is_beside_conversation(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "{odd}"))
    coordinator = TestCoordinator("s-1")
    close = await hooks_logging.mount(coordinator)
    assert (tmp_path / "{odd}" / "amplifier" / "sessions" / "s-1" / "events.jsonl").exists()
    close()


async def test_template_names_session_and_project(tmp_path):
    coordinator = TestCoordinator("s-1")
    coordinator.register_capability("session.working_dir", "/srv/my site")
    close = await hooks_logging.mount(
        coordinator, {"session_log_template": f"{tmp_path}/{{project}}/{{session_id}}/e.jsonl"}
    )
    assert (tmp_path / "-srv-my-site" / "s-1" / "e.jsonl").exists()
    close()


@pytest.mark.parametrize("session_id", ["../escape", "a/b", "..", ".hidden", "", "x" * 201, "a\0b"])
async def test_session_id_resembling_path_is_refused(tmp_path, session_id):
    coordinator = TestCoordinator(session_id)
    with pytest.raises(PlanError):
        await hooks_logging.mount(coordinator, {"path": str(tmp_path / "{session_id}")})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"path": ""}, "$.path"),
        ({"path": "{user}"}, "$.path"),
        ({"path": "{session_id!s}"}, "$.path"),
        ({"path": "{session_id:>20}"}, "$.path"),
        ({"path": "{session_id.__class__}"}, "$.path"),
        ({"path": "{}"}, "$.path"),
        ({"path": "{"}, "$.path"),
        ({"path": 5}, "$.path"),
        ({"path": "x", "session_log_template": "x"}, "$.session_log_template"),
        ({"include_events": [], "enabled_events": []}, "$.enabled_events"),
        ({"level": "LOUD"}, "$.level"),
        ({"exclude_events": "tool:*"}, "$.exclude_events"),
        ({"max_line_bytes": 10}, "$.max_line_bytes"),
        ({"priority": None}, "$.priority"),
    ],
)
async def test_wrong_config_is_refused_with_path(config, path):
    with pytest.raises(PlanError) as caught:
        await hooks_logging.mount(TestCoordinator(), config)
    assert [where for where, _ in caught.value.problems] == [path]


def a_folder(path: Path) -> None:
    path.mkdir()


def a_link(path: Path) -> None:
    path.symlink_to(path.parent / "elsewhere")


def a_fifo(path: Path) -> None:
    os.mkfifo(path)


def below_a_file(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("no folder")


@pytest.mark.parametrize("obstacle", [a_folder, a_link, a_fifo, below_a_file])
async def test_unopenable_file_is_logged_once(tmp_path, caplog, obstacle):
    """It is logged again on closing, and the session continues."""
    path = tmp_path / "in" / "e.jsonl"
    path.parent.mkdir()
    obstacle(path)
    watched = Watched(
        [("look", {}), "done"], MockTool("look"), hooks={"hooks-logging": {"path": str(path)}}
    )
    with caplog.at_level(logging.WARNING, "amplifier.modules.hooks-logging"):
        assert await watched.run() == "done"
    warnings = [
        record.getMessage()
        for record in caplog.records
        if record.name == "amplifier.modules.hooks-logging"
    ]
    assert len(warnings) == 2
    assert "no events will be written" in warnings[0]
    assert "events were not written" in warnings[1]
    assert not (path.parent / "elsewhere").exists()


async def test_early_failures_of_modules_are_logged(tmp_path):
    path = tmp_path / "e.jsonl"
    watched = Watched(["done"], hooks={"hooks-logging": {"path": str(path)}, "hooks-missing": {}})
    await watched.run()
    written = {line["event"]: line for line in lines(path)}
    assert written["module:load_failed"]["data"]["module_id"] == "hooks-missing"
    assert "session:start" in written
    assert written["session:end"]["lvl"] == "INFO"


async def test_child_log_is_beside_or_in_parents(tmp_path):
    for template, files in (("{session_id}.jsonl", 2), ("one.jsonl", 1)):
        folder = tmp_path / template.replace("{", "").replace("}", "")
        watched = Watched(
            ["a", "b"],
            hooks={"hooks-logging": {"path": str(folder / template)}},
            session_id="parent",
        )
        async with watched.session as session:
            await session.execute("x")
            async with session.fork(session_id="child") as child:
                await child.execute("y")
        assert len(list(folder.iterdir())) == files
        written = [line for path in folder.iterdir() for line in lines(path)]
        assert {line["session_id"] for line in written} == {"parent", "child"}
        assert all(
            line["data"].get("parent_id") == "parent"
            for line in written
            if line["session_id"] == "child"
        )
