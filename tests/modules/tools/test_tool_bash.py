"""tool-bash: what a command gets to see, what the model gets to see of it, and that it keeps the tool contract."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier.errors import ModuleLoadError, PlanError
from amplifier.modules.tools import bash as tool_bash
from amplifier.modules.tools.bash._command import Capture
from amplifier.modules.tools.bash._tool import PASSED_ON
from amplifier.testing import TestCoordinator, wait_for
from tests._support.child_process import run_child
from tests.modules.tools.test_tool_filesystem import Desk


async def opened(folder: Path | None = None, **config: Any) -> Desk:
    if folder is not None:
        config["working_dir"] = str(folder)
    return await Desk.open(None, tool_bash, **config)


# ── mounting ─────────────────────────────────────────────────────────────────────────────────────


async def test_timeout_options_respect_maximum():
    """A default above the maximum is an error, and a lower maximum lowers the default."""
    with pytest.raises(PlanError, match=r"\$\.timeout: expected at most max_timeout, 5, got 10"):
        await opened(timeout=10, max_timeout=5)
    desk = await opened(max_timeout=0.2)
    assert (await desk.fail("bash", command="sleep 60"))[0] == "Timeout"


async def test_missing_bash_names_configuration(monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(ModuleLoadError, match="set 'shell' in its config to a shell"):
        await opened()
    desk = await opened(shell="/bin/sh")
    assert (await desk.get("bash", command="echo fine"))["stdout"] == "fine\n"


# ── what a command is ────────────────────────────────────────────────────────────────────────────


async def test_output_errors_and_exit_code_are_separate():
    desk = await opened()
    assert await desk.get("bash", command="echo out; echo err >&2") == {
        "stdout": "out\n",
        "stderr": "err\n",
        "returncode": 0,
    }


@pytest.mark.parametrize(
    ("command", "code", "kind", "message"),
    [
        ("echo half; exit 3", 3, "ExitCode", "exit code 3"),
        ("echo half; if", 2, "ExitCode", "exit code 2"),
        ("echo half; kill -SEGV $$", -11, "Signal", "ended by SIGSEGV"),
    ],
)
async def test_failing_command_keeps_output(command, code, kind, message):
    desk = await opened()
    result = await desk.call("bash", command=command)
    assert not result.success
    assert result.error == {"message": message, "type": kind}
    assert result.output["returncode"] == code
    assert result.output["stdout"] == ("" if code == 2 else "half\n")


@pytest.mark.parametrize("command", ["-c 'echo no'", "--version", "-", "--", "-x; echo x"])
async def test_command_is_never_option(command):
    desk = await opened()
    result = await desk.call("bash", command=command)
    assert "command not found" in result.output["stderr"] or result.output["returncode"] == 127
    assert "GNU bash" not in result.output["stdout"]


async def test_commands_have_fresh_shells_without_terminal(tmp_path):
    desk = await opened(tmp_path)
    await desk.get("bash", command="cd /; export LEFT=1; alias x=y")
    output = await desk.get("bash", command='pwd; echo "[$LEFT]"; cat; tty; ps -o tty= -p $$')
    assert output["stdout"].split() == [str(tmp_path.resolve()), "[]", "not", "a", "tty", "?"]


async def test_startup_files_are_not_run(tmp_path, monkeypatch):
    for name in (".bashrc", ".bash_profile", ".profile", "evil"):
        (tmp_path / name).write_text("echo evil\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("BASH_ENV", str(tmp_path / "evil"))
    monkeypatch.setenv("ENV", str(tmp_path / "evil"))
    monkeypatch.setenv("SSH_CLIENT", "127.0.0.1 1 2")
    desk = await opened(tmp_path)
    assert (await desk.get("bash", command="echo good"))["stdout"] == "good\n"


async def test_commands_follow_session_working_directory(tmp_path, monkeypatch):
    for name in ("one", "two", "three"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    desk = await opened()
    monkeypatch.chdir(tmp_path)
    seen = []
    for value in (None, str(tmp_path / "two"), tmp_path / "three", 7):
        desk.coordinator.register_capability("session.working_dir", value)
        seen.append(Path((await desk.get("bash", command="pwd"))["stdout"].strip()).name)
    assert seen == ["one", "two", "three", "one"]
    desk.coordinator.register_capability("session.working_dir", str(tmp_path / "gone"))
    assert (await desk.fail("bash", command="pwd"))[0] == "NotFound"


# ── the environment ──────────────────────────────────────────────────────────────────────────────

SECRETS = (
    *(
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "GITHUB_TOKEN",
        "HF_TOKEN",
        "DATABASE_URL",
    ),
    *(
        "SSH_AUTH_SOCK",
        "GPG_AGENT_INFO",
        "KUBECONFIG",
        "LD_PRELOAD",
        "PYTHONPATH",
        "NODE_OPTIONS",
        "BASH_ENV",
    ),
)


async def test_unrequested_variables_do_not_leak(monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "canary")
    desk = await opened()
    command = "env; cat /proc/self/environ 2>/dev/null; cat /proc/$$/environ 2>/dev/null; export -p"
    output = await desk.get("bash", command=command)
    assert "canary" not in json.dumps(output)
    names = {
        line.partition("=")[0]
        for line in (await desk.get("bash", command="env"))["stdout"].splitlines()
    }
    assert names <= {*PASSED_ON, "PWD", "OLDPWD", "SHLVL", "_", "GIT_CONFIG_SYSTEM"}


async def test_plan_sets_variables_of_commands(monkeypatch):
    monkeypatch.setenv("GITHUB_TOKEN", "wanted")
    monkeypatch.setenv("LANG", "C")
    monkeypatch.delenv("TERM", raising=False)
    desk = await opened(pass_env=["GITHUB_TOKEN", "NOT_SET"], env={"CI": "1", "LANG": "C.UTF-8"})
    output = await desk.get("bash", command='echo "$GITHUB_TOKEN $CI $LANG $TERM ${NOT_SET-unset}"')
    assert output["stdout"] == "wanted 1 C.UTF-8 dumb unset\n"


# ── output ───────────────────────────────────────────────────────────────────────────────────────


async def test_long_output_keeps_both_ends():
    desk = await opened(max_output_bytes=1000)
    output = await desk.get("bash", command="seq 1 100000; seq 1 10 >&2")
    total = len("".join(f"{n}\n" for n in range(1, 100001)))
    assert output["truncated"] is True
    assert output["stdout_total_bytes"] == total
    assert "stderr_total_bytes" not in output
    assert output["stdout"].startswith("1\n2\n3\n")
    assert output["stdout"].endswith("99999\n100000\n")
    assert f"[… {total - 1000} bytes dropped …]" in output["stdout"]
    assert len(output["stdout"]) < 1100


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (r"printf 'a\0b\n'", "a␀b\n"),
        (r"printf '\xff\xfe'", "\\xff\\xfe"),
        (r"printf '\xed\xa0\x80'", "\\xed\\xa0\\x80"),
        (r"printf '\xf0\x9f\x98\x80'", "😀"),
        (r"printf '\xf0\x9f'", "\\xf0\\x9f"),
        (r"printf '\x1b[31mred'", "\x1b[31mred"),
        (r"printf '\r\n\t'", "\r\n\t"),
    ],
)
async def test_any_bytes_become_json_text(command, expected):
    desk = await opened()
    assert (await desk.get("bash", command=command))["stdout"] == expected


@given(chunks=st.lists(st.binary(max_size=40), max_size=12), limit=st.integers(2, 60))
def test_capture_keeps_both_ends_within_limit(chunks, limit):
    capture, whole = Capture(limit), b"".join(chunks)
    for chunk in chunks:
        capture.add(chunk)
    assert capture.total == len(whole)
    assert capture.is_cut == (len(whole) > limit)
    text = capture.text()
    text.encode()
    if not capture.is_cut:
        assert text == whole.decode("utf-8", "backslashreplace").replace("\0", "␀")
    else:
        head, _, rest = text.partition("\n[… ")
        dropped, _, tail = rest.partition(" bytes dropped …]\n")
        assert len(whole) - limit <= int(dropped) <= len(whole) - limit + 6
        kept = [whole[: limit - limit // 2], whole[len(whole) - limit // 2 :]]
        shown = [part.decode("utf-8", "backslashreplace").replace("\0", "␀") for part in kept]
        assert shown[0].startswith(head.rstrip("\\")) or head == ""
        assert shown[1].endswith(tail)


@pytest.mark.slow
def test_huge_output_fits_little_memory():
    program = """
    import resource
    from amplifier.modules.tools import bash as tool_bash
    from amplifier.testing import TestCoordinator

    def peak():
        scale = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale

    async def main():
        coordinator = TestCoordinator()
        await tool_bash.mount(coordinator, {})
        tool = coordinator.get("tools", "bash")
        await tool.execute({"command": "head -c 1000000 /dev/zero"})
        before = peak()
        result = await tool.execute({"command": "head -c 300000000 /dev/zero & head -c 100000000 /dev/zero >&2; wait"})
        print_line(result.output["stdout_total_bytes"], result.output["stderr_total_bytes"], peak() - before)

    anyio.run(main, backend=backend)
    """
    for backend in ("asyncio", "trio"):
        ended = run_child(program, backend)
        assert ended.code == 0, ended.errors
        out, err, grown = map(int, ended.lines[0].split())
        assert (out, err) == (300_000_000, 100_000_000)
        assert grown < 8_000_000


# ── ends ─────────────────────────────────────────────────────────────────────────────────────────


ENOUGH_TIME_TO_START = (1, 10, 60)
"""Seconds until a deadline that is to find a command at work; each but the last may be too short on a busy machine."""


async def test_timed_out_command_keeps_output():
    desk = await opened()
    for seconds in ENOUGH_TIME_TO_START:
        result = await desk.call(
            "bash", command="echo early; echo bad >&2; sleep 600", timeout=seconds
        )
        assert result.error == {
            "message": f"timed out after {seconds} s",
            "type": "Timeout",
        }
        if result.output["stderr"] or seconds == 60:
            assert result.output == {"stdout": "early\n", "stderr": "bad\n", "returncode": None}
            break


async def test_timed_out_command_may_clean_up(tmp_path):
    command = "trap 'echo tidy; touch tidied; exit 0' TERM; touch started; sleep 600 & wait"
    for seconds in ENOUGH_TIME_TO_START:
        desk = await opened(tmp_path, timeout=seconds, kill_grace=60)
        result = await desk.call("bash", command=command)
        assert result.error is not None
        assert result.error["type"] == "Timeout"
        if (tmp_path / "started").exists() or seconds == 60:
            assert result.output["stdout"] == "tidy\n"
            assert (tmp_path / "tidied").exists()
            break


async def test_stubborn_command_is_killed():
    desk = await opened(timeout=0.3, kill_grace=0.1)
    with anyio.fail_after(60):
        kind, _ = await desk.fail(
            "bash", command="trap '' TERM INT HUP; while :; do sleep 0.01; done"
        )
    assert kind == "Timeout"


async def test_output_after_shell_end_is_kept():
    desk = await opened()
    for _ in range(5):
        output = await desk.get("bash", command="exec > >(sed s/x/y/); echo x")
        assert output["stdout"] == "y\n"
        assert "note" not in output


async def test_closed_session_ends_background_commands():
    desk = await opened()
    async with anyio.create_task_group() as group:
        results = []

        async def run() -> None:
            results.append(await desk.call("bash", command="echo begun > /dev/null; sleep 600"))

        group.start_soon(run)
        tool: Any = desk.tools["bash"]
        assert await wait_for(lambda: tool._running, timeout=60)
        with anyio.fail_after(60):
            await desk.coordinator.cleanup()
        await desk.coordinator.cleanup()
    assert results[0].error == {
        "message": "ended, because the session is being closed",
        "type": "Cancelled",
    }


# ── the tool contract ────────────────────────────────────────────────────────────────────────────


async def test_parallel_commands_are_separate_and_bounded(tmp_path):
    desk = await opened(tmp_path, max_parallel=3)
    outputs: dict[int, str] = {}

    async def run(number: int) -> None:
        command = (
            f"touch run.{number}; ls run.* | wc -l; sleep 0.05; rm run.{number}; echo {number}"
        )
        outputs[number] = (await desk.get("bash", command=command))["stdout"]

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(run, number)
    lines = {number: text.split() for number, text in outputs.items()}
    assert all(int(words[1]) == number for number, words in lines.items())
    assert max(int(words[0]) for words in lines.values()) <= 3


def test_commands_outside_main_thread():
    outputs: list[Any] = []

    async def main() -> None:
        coordinator = TestCoordinator()
        await tool_bash.mount(coordinator, {})
        outputs.append(
            (await coordinator.get("tools", "bash").execute({"command": "echo thread"})).output[
                "stdout"
            ]
        )

    for backend in ("asyncio", "trio"):
        thread = threading.Thread(target=anyio.run, args=(main,), kwargs={"backend": backend})
        thread.start()
        thread.join(20)
    assert outputs == ["thread\n", "thread\n"]


async def test_event_loop_runs_during_output_flood():
    desk = await opened()
    gaps = []
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            last = anyio.current_time()
            while True:
                await anyio.sleep(0.005)
                gaps.append(anyio.current_time() - last)
                last = anyio.current_time()

        group.start_soon(watch)
        await desk.get("bash", command="head -c 50000000 /dev/zero")
        group.cancel_scope.cancel()
    assert len(gaps) >= 2  # the loop was not blocked for the whole time


async def test_failure_is_logged_without_environment(caplog):
    caplog.set_level("INFO")
    desk = await opened(env={"TOKEN": "canary"})
    refused = await desk.fail("bash", command="echo \ud800 $TOKEN")
    assert refused == ("InvalidInput", "command: lone surrogate at character 5")
    assert "canary" not in caplog.text
    assert "lone surrogate" in caplog.text
