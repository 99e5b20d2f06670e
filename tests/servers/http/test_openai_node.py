"""`amplifier serve` as a process on both backends, with the official SDK of OpenAI for JavaScript."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests._support.node_parts import node, program
from tests.servers.http._server import PATIENCE


@pytest.mark.slow
def test_openai_sdk_for_node_works(server):
    script = Path(__file__).with_name("_openai_client.mjs")
    finished = subprocess.run(
        [node(), str(script), program("openai", "index.mjs"), f"{server.address}/v1", server.token],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout.splitlines()[-1])
    assert found["settings"]["temperature"] == 0.5
    assert (found["stream"], found["responses"]) == ("one two ", "2 prompts so far ")
    assert found["typed"] == {"name": "rust", "red": 183}
    assert found["tool"] == "done: rain in Oslo "
    assert found["refused"] == ["BadRequestError", "seed"]
