"""Python programs that talk to the OpenAI API, from PyPI: ``python -m tests._support.openai_clients``.

Each has an environment of its own below ``.openai-clients``, because they need different versions of the SDK. A second run finds
everything in place and does nothing. Only tests marked ``slow`` use them; `make parts` installs them.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests._support import python_parts
from tests._support.programs import run_program
from tests._support.tree import ROOT

FOLDER = ROOT / ".openai-clients"

CLIENTS = {
    "langchain": {"langchain-openai": "1.7.3"},
    "litellm": {
        "litellm": "1.106.2",
        "mcp": "2.3.0",
    },  # which it imports as soon as there are tools
    "pydantic-ai": {"pydantic-ai-slim[openai]": "2.66.0"},
}
"""Exact versions of their packages."""

_EACH = """
import json, os
script, results = os.environ["SCRIPT"], []
for url, key in json.loads(os.environ["AGENTS"]):
    found = {}
    exec(script, {"json": json, "url": url, "key": key, "found": found})
    results.append(found)
print(json.dumps(results))
"""
_PATIENCE = 180.0


def install(client: str) -> bool:
    """Install what is not there; returns whether there was anything to do."""
    FOLDER.mkdir(exist_ok=True)
    return python_parts.install(FOLDER / client, CLIENTS[client])


def found_by(client: str, script: str, servers: list[tuple[str, str]]) -> Any:
    """Run a script that talks to a server with ``url`` and ``key`` and puts what it gets into ``found``.

    Args:
        client: One of `CLIENTS`.
        script: Its text.
        servers: Address and token of each that it is to talk to, one after the other in one process: they take seconds to import.

    Returns:
        What it has found at each.
    """
    install(client)
    agents = json.dumps([(f"{address}/v1", token) for address, token in servers])
    environment = {
        **os.environ,
        "SCRIPT": script,
        "AGENTS": agents,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    finished = run_program(
        [FOLDER / client / "bin" / "python", "-c", _EACH], env=environment, timeout=_PATIENCE
    )
    if finished.returncode:
        raise AssertionError(finished.stderr[-3000:])
    return json.loads(finished.stdout.splitlines()[-1])


if __name__ == "__main__":
    for each in CLIENTS:
        sys.stdout.write(f"{each}: {'installed' if install(each) else 'in place'}\n")
