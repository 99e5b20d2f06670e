"""`--otel`: the traces of a run and of every door at a collector, by the official exporter and the official messages."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable

import pytest

from tests._support.terminal import environment, run_cli
from tests.cli.doors import Door, by_acp, by_http, by_mcp
from tests.cli.otlp_receiver import running_receiver

PROMPT = "list the files"


@pytest.mark.slow
def test_run_trace_reaches_collector(backend, home, workdir):
    with running_receiver() as receiver:
        done = run_cli(
            "run",
            "-y",
            "-p",
            "offline",
            "--otel",
            receiver.url,
            PROMPT,
            "--backend",
            backend,
            home=home,
            cwd=workdir,
        )
    assert done.returncode == 0, done.stderr
    assert receiver.tree() == [
        [
            "invoke_agent amplifier",
            ["chat offline-rules"],
            ["execute_tool list_directory"],
            ["chat offline-rules"],
        ]
    ]
    assert receiver.services == {"amplifier"}
    assert receiver.metrics == {
        "gen_ai.client.operation.duration",
        "gen_ai.client.operation.time_per_output_chunk",
        "gen_ai.client.operation.time_to_first_chunk",
        "gen_ai.client.token.usage",
        "gen_ai.execute_tool.duration",
        "gen_ai.invoke_agent.duration",
        "gen_ai.invoke_agent.inference_calls",
        "gen_ai.invoke_agent.tool_calls",
    }
    assert PROMPT not in str(receiver.spans)


WORKER = """
import json, sys
import anyio
from amplifier import AmplifierSession
from amplifier.durable import open_engine
from amplifier.tracing import export_traces

async def main():
    plan = {**json.load(open("plan.json")), "hooks": ["hooks-otel"]}
    async with open_engine("turns.db") as engine, anyio.create_task_group() as group:
        group.start_soon(engine.work, lambda session_id: AmplifierSession(plan, session_id=session_id))
        answer = await engine.result(await engine.start("a", "hello"))
        group.cancel_scope.cancel()
    return answer

with export_traces(sys.argv[2], print):
    answer = anyio.run(main, backend=sys.argv[-1])
print(answer.splitlines()[0])
"""
PLAN = {
    "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
    "providers": ["provider-offline"],
}
DOORS: dict[str, tuple[tuple[str, ...], Callable[[Door], list[str]]]] = {
    "serve": (("-m", "amplifier", "serve", "plan.json", "--no-token", "--port", "0"), by_http),
    "acp": (("-m", "amplifier", "acp", "--plan", "plan.json"), by_acp),
    "mcp serve": (("-m", "amplifier", "mcp", "serve", "plan.json"), by_mcp),
    "durable worker": (("-c", WORKER), lambda door: [next(door.lines()).strip()]),
}


@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_traces_of_every_entry_reach_collector(door, backend, home, workdir):
    (workdir / "plan.json").write_text(json.dumps(PLAN))
    words, ask = DOORS[door]
    with running_receiver() as receiver:
        options = ["--otel", receiver.url, "--backend", backend]
        with Door(workdir, environment(home), *words, *options) as opened:
            assert ask(opened) != []
    turn = ["invoke_agent amplifier", ["chat offline-rules"]]
    of_the_library = door == "mcp serve"  # the SDK traces its own requests
    assert receiver.tree() == (
        [["initialize"], ["tools/call run", turn]] if of_the_library else [turn]
    )
    assert "gen_ai.invoke_agent.duration" in receiver.metrics


@pytest.mark.slow
@pytest.mark.parametrize("is_there", [False, True])
def test_absent_collector_does_not_disturb_run(is_there, home, workdir):
    with running_receiver(silent=True) as receiver, socket.create_server(("127.0.0.1", 0)) as free:
        url = receiver.url if is_there else f"http://127.0.0.1:{free.getsockname()[1]}"
        if not is_there:
            free.close()
        done = run_cli(
            "run", "-y", "-q", "-p", "offline", "--otel", url, PROMPT, home=home, cwd=workdir
        )
    assert done.returncode == 0
    assert "0 visible entries" in done.stdout


@pytest.mark.parametrize(
    "url", ["localhost:4318", "ftp://localhost", "http://", "http://me:secret@localhost:4318"]
)
def test_invalid_collector_url_is_refused(home, workdir, url):
    refused = run_cli("run", "-y", "-p", "offline", "--otel", url, PROMPT, home=home, cwd=workdir)
    assert refused.returncode == 2
    assert "expected the URL of a collector" in refused.stderr
