"""`amplifier keys`: in a real keyring, the one that keeps a file; agents find what is in it, and no one is shown it."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests._support.forked import Forked
from tests._support.terminal import PATIENCE, command, environment, open_terminal, run_cli

KEY = "sk-ant-" + "q7" * 20


@pytest.fixture
def keyring(tmp_path: Path) -> dict[str, str]:
    """Variables of a process whose keyring is a file."""
    return {
        "PYTHON_KEYRING_BACKEND": "keyrings.alt.file.PlaintextKeyring",
        "XDG_DATA_HOME": str(tmp_path / "data"),
    }


def test_key_is_kept_listed_used_and_removed(home, workdir, keyring):
    def run(*arguments, stdin=None, **more):
        return run_cli(*arguments, home=home, cwd=workdir, stdin=stdin, extra={**keyring, **more})

    kept = run("keys", "set", "anthropic", stdin=f"{KEY}\n")
    assert (kept.returncode, kept.stderr) == (0, "ANTHROPIC_API_KEY is in the keyring\n")
    assert run("keys", "set", "FILES_TOKEN", stdin="abc").returncode == 0
    assert (
        run("keys").stdout
        == "ANTHROPIC_API_KEY\tkept in the keyring\nFILES_TOKEN\tkept in the keyring\n"
    )
    assert run("keys", FILES_TOKEN="other").stdout.endswith(
        "FILES_TOKEN\thidden by the environment\n"
    )
    assert stat.S_IMODE((home / "keys").stat().st_mode) == 0o600
    for file in home.rglob("*"):
        assert not file.is_file() or KEY not in file.read_text()

    chosen = json.loads(run("config", "--json").stdout)["provider"]
    assert chosen == {"value": "provider-anthropic", "origin": "default: ANTHROPIC_API_KEY is set"}
    assert "ANTHROPIC_API_KEY is set in the keyring (provider-anthropic)" in run("doctor").stdout
    server = {"command": "files", "args": ["${FILES_TOKEN}"]}
    (workdir / "plan.json").write_text(json.dumps({"mcpServers": {"files": server}}))
    tested = run("mcp", "test", "--plan", "plan.json")
    assert "FILES_TOKEN" not in tested.stderr, "the variable is set"

    assert run("keys", "remove", "anthropic").returncode == 0
    assert run("keys").stdout == "FILES_TOKEN\tkept in the keyring\n"
    gone = run("keys", "remove", "anthropic")
    assert (
        gone.returncode,
        "the keyring has no ANTHROPIC_API_KEY; it has: FILES_TOKEN" in gone.stderr,
    ) == (2, True)


def test_key_lost_by_keyring_is_named(home, workdir, keyring):
    run_cli("keys", "set", "openai", home=home, cwd=workdir, stdin=KEY, extra=keyring)
    (Path(keyring["XDG_DATA_HOME"]) / "python_keyring/keyring_pass.cfg").unlink()
    finished = run_cli("run", "hello", home=home, cwd=workdir, extra=keyring)
    assert finished.returncode == 0
    assert (
        "OPENAI_API_KEY is no longer in the keyring; set it again: amplifier keys set OPENAI_API_KEY"
        in finished.stderr
    )


@pytest.mark.parametrize(
    ("name", "stdin", "message"),
    [
        ("antropic", KEY, "did you mean 'anthropic'?"),
        (
            "lower_case",
            KEY,
            "expected a provider (anthropic, openai) or a variable such as GITHUB_TOKEN",
        ),
        (
            "anthropic",
            "",
            "expected ANTHROPIC_API_KEY as one line of text on standard input, got 0 lines",
        ),
        ("anthropic", "a\x1bb", "as one line of text"),
        ("anthropic", "a\nb\n", "as one line of text on standard input, got 2 lines"),
    ],
)
def test_invalid_key_is_refused(name, stdin, message, home, workdir, keyring):
    refused = run_cli("keys", "set", name, home=home, cwd=workdir, stdin=stdin, extra=keyring)
    assert (refused.returncode, message in refused.stderr) == (2, True), refused.stderr
    assert not (home / "keys").exists()


def test_system_without_keyring_is_reported(home, workdir):
    none = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring"}
    refused = run_cli("keys", "set", "anthropic", home=home, cwd=workdir, stdin=KEY, extra=none)
    assert refused.returncode == 2
    assert (
        "the keyring of this system refuses: No recommended backend was available" in refused.stderr
    )


def test_missing_backend_is_reported(home, workdir, keyring):
    """An agent without a key runs."""
    run_cli("keys", "set", "anthropic", home=home, cwd=workdir, stdin=KEY, extra=keyring)
    broken = {"PYTHON_KEYRING_BACKEND": "nowhere.Keyring"}
    finished = run_cli("run", "hello", "-p", "offline", home=home, cwd=workdir, extra=broken)
    assert finished.returncode == 0
    assert (
        finished.stderr.count("ANTHROPIC_API_KEY is not read: the keyring of this system refuses: ")
        == 1
    )


SLOW = """
import pathlib, time
from keyring.backend import KeyringBackend
class Keyring(KeyringBackend):
    priority = 1
    def get_password(self, service, name):
        pathlib.Path("asked").touch()
        time.sleep(600)  # as a dialog that waits to be answered
    set_password = delete_password = get_password
"""


def test_waiting_keyring_can_be_left(home, workdir, keyring):
    run_cli("keys", "set", "anthropic", home=home, cwd=workdir, stdin=KEY, extra=keyring)
    (workdir / "slow_keyring.py").write_text(SLOW)
    path = os.pathsep.join([str(workdir), environment(home)["PYTHONPATH"]])
    variables = environment(
        home, {"PYTHON_KEYRING_BACKEND": "slow_keyring.Keyring", "PYTHONPATH": path}
    )
    with Forked(
        command("run", "hello"), cwd=workdir, env=variables, stdin=subprocess.DEVNULL
    ) as process:
        give_up = time.monotonic() + PATIENCE
        while not (workdir / "asked").exists():
            assert time.monotonic() < give_up
            time.sleep(0.01)  # another process makes it
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


def test_terminal_hides_typed_key(home, workdir, keyring):
    with open_terminal(
        "keys", "set", "anthropic", home=home, cwd=workdir, extra=keyring
    ) as terminal:
        terminal.expect("ANTHROPIC_API_KEY:")
        terminal.type(f"{KEY}\r")
        terminal.expect("is in the keyring")
        assert terminal.end() == 0
        assert KEY not in terminal.text
