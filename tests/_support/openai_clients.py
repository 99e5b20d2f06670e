"""Python programs that talk to the OpenAI API, from PyPI: ``python -m tests._support.openai_clients``.

Each has an environment of its own below ``.openai-clients``, because they need different versions of the SDK. A second run finds
everything in place and does nothing. Only tests marked ``slow`` use them; `make test-slow` installs them first.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from tests._support import python_parts
from tests._support.tree import ROOT

FOLDER = ROOT / ".openai-clients"

CLIENTS = {
    "langchain": {"langchain-openai": "1.7.3"},
    "litellm": {"litellm": "1.106.2", "mcp": "2.3.0"},  # which it imports as soon as there are tools
    "pydantic-ai": {"pydantic-ai-slim[openai]": "2.66.0"},
}
"""Exact versions of their packages."""

_BEGIN = """
import json, os
url, key = os.environ["AGENT_URL"], os.environ["AGENT_KEY"]
found = {}
"""


def install(client: str) -> bool:
    """Install what is not there; returns whether there was anything to do."""
    FOLDER.mkdir(exist_ok=True)
    return python_parts.install(FOLDER / client, CLIENTS[client])


def found_by(client: str, script: str, address: str, token: str, patience: float) -> Any:
    """Run a program that talks to a server with ``url`` and ``key`` and puts what it gets into ``found``."""
    install(client)
    finished = subprocess.run(
        [str(FOLDER / client / "bin" / "python"), "-c", f"{_BEGIN}{script}\nprint(json.dumps(found))"],
        env={**os.environ, "AGENT_URL": f"{address}/v1", "AGENT_KEY": token, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        capture_output=True,
        text=True,
        timeout=patience,
        check=False,
    )
    if finished.returncode:
        raise AssertionError(finished.stderr[-3000:])
    return json.loads(finished.stdout.splitlines()[-1])


if __name__ == "__main__":
    for each in CLIENTS:
        sys.stdout.write(f"{each}: {'installed' if install(each) else 'in place'}\n")
