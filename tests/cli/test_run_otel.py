"""`amplifier run --otel`: the trace of a run at a collector, by the official exporter and the official messages."""

from __future__ import annotations

import socket

import pytest

from tests._support.otlp_receiver import running_receiver
from tests._support.terminal import run_cli

PROMPT = "list the files"


@pytest.mark.slow
def test_the_trace_of_a_run_arrives_at_a_collector(backend, home, workdir):
    with running_receiver() as receiver:
        done = run_cli(
            "run", "-y", "-p", "offline", "--otel", receiver.url, PROMPT, "--backend", backend, home=home, cwd=workdir
        )
    assert done.returncode == 0, done.stderr
    assert receiver.tree() == [
        ["invoke_agent amplifier", ["chat offline-rules"], ["execute_tool list_directory"], ["chat offline-rules"]]
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


@pytest.mark.slow
def test_a_collector_that_is_not_there_does_not_disturb_the_run(home, workdir):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    done = run_cli("run", "-y", "-q", "-p", "offline", "--otel", url, PROMPT, home=home, cwd=workdir)
    assert done.returncode == 0
    assert "0 visible entries" in done.stdout


@pytest.mark.slow
def test_a_collector_that_never_answers_does_not_keep_the_run_from_ending(home, workdir):
    with running_receiver(silent=True) as receiver:
        done = run_cli("run", "-y", "-q", "-p", "offline", "--otel", receiver.url, PROMPT, home=home, cwd=workdir)
    assert done.returncode == 0
    assert "0 visible entries" in done.stdout


@pytest.mark.parametrize("url", ["localhost:4318", "ftp://localhost", "http://", "http://me:secret@localhost:4318"])
def test_what_is_no_url_of_a_collector_is_refused(home, workdir, url):
    refused = run_cli("run", "-y", "-p", "offline", "--otel", url, PROMPT, home=home, cwd=workdir)
    assert refused.returncode == 2
    assert "expected the URL of a collector" in refused.stderr
