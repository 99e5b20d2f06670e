"""Text that a model, a tool, a file or a server chose controls neither the terminal nor the lines of a log."""

from __future__ import annotations

import io
import json
import logging
import unicodedata

import pytest

from amplifier.cli.terminal.display import Display, install_log_handler
from amplifier.cli.terminal.output import StandardStreams

ATTACKS = {
    "escape": "\x1b[2J\x1b]0;title\x07",
    "one-byte escape": "\x9b2J",
    "return": "ok\rforged",
    "newline": "ok\nERROR amplifier: forged",
    "separators": "ok\u2028\x0b\x0c\x85ERROR amplifier: forged",
    "bidi": "\u202eforged",
    "backspaces": "ok\x08\x08forged",
}


def _controls(text: str) -> set[str]:
    return {
        character
        for character in text
        if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp")
    } - {"\n"}


@pytest.fixture
def debug_log(monkeypatch, request):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    root, package = logging.getLogger(), logging.getLogger("amplifier")
    handlers, level = root.handlers[:], package.level
    install_log_handler(Display(StandardStreams(), "text", quiet=False), debug=True)
    yield stream
    root.handlers[:] = handlers
    package.setLevel(level)


@pytest.mark.parametrize("attack", ATTACKS)
def test_debug_record_is_one_clean_line(attack, debug_log):
    logging.getLogger("amplifier.x").debug("input %s", {"path": ATTACKS[attack]}["path"])
    lines = debug_log.getvalue().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("DEBUG amplifier.x: input ")
    assert not _controls(debug_log.getvalue())


@pytest.mark.parametrize("attack", ATTACKS)
def test_debug_traceback_is_indented_and_clean(attack, debug_log):
    try:
        raise ValueError(ATTACKS[attack])
    except ValueError:
        logging.getLogger("amplifier.x").exception("failed")
    first, *rest = debug_log.getvalue().splitlines()
    assert first == "ERROR amplifier.x: failed"
    assert all(line.startswith("    ") for line in rest)
    assert not _controls(debug_log.getvalue())


def test_secret_in_debug_log_is_redacted(debug_log):
    logging.getLogger("amplifier.x").debug("input password=hunter2!")
    assert debug_log.getvalue() == "DEBUG amplifier.x: input password=[REDACTED]\n"


@pytest.mark.parametrize("attack", ATTACKS)
def test_notice_cannot_imitate_another(attack, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    Display(StandardStreams(), "text", quiet=False).notice(f"[hook] {ATTACKS[attack]}", "warning")
    assert not _controls(stream.getvalue())
    assert all(line.startswith("  ") for line in stream.getvalue().splitlines()[1:])


@pytest.mark.parametrize("attack", ATTACKS)
def test_plan_problems_are_one_line_each(attack, tmp_path, cli):
    file = tmp_path / "plan.json"
    file.write_text(json.dumps({"session": {"orchestrator": ATTACKS[attack]}, ATTACKS[attack]: 1}))
    captured = cli("plan", "check", str(file), code=1)
    assert not _controls(captured.out + captured.err)
    assert all(line.startswith(str(file)) for line in (captured.out + captured.err).splitlines())


@pytest.mark.parametrize("attack", ATTACKS)
def test_plan_is_shown_clean_and_equivalent(attack, tmp_path, cli):
    plan = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "agents": {"ü": ATTACKS[attack]},
    }
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    shown = cli("plan", "show", str(file)).out
    assert json.loads(shown) == plan
    assert not _controls(shown)


@pytest.mark.parametrize("attack", ATTACKS)
def test_failed_command_error_is_clean(attack, tmp_path, monkeypatch, cli):
    monkeypatch.setenv(
        "AMPLIFIER_HOME", str(tmp_path / ATTACKS[attack])
    )  # its name is part of the message
    (tmp_path / ATTACKS[attack]).touch()
    written = cli("--debug", "run", "hello", code=2).err
    assert "is not a folder" in written
    assert not _controls(written)
    assert [
        line.partition(" ")[0]
        for line in written.splitlines()
        if line and not line.startswith("  ")
    ] == ["amplifier:"]
