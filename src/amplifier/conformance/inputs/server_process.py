"""Start the fake LLM server on first use, and read the requests that it has received.

``{service}`` in a configuration stands for its address. The server runs in a separate process, so
that its sockets and threads don't count as the module's.
"""

from __future__ import annotations

import json
import subprocess
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any

from amplifier._internal.programs import python_command

SERVICE = "{service}"
SERVICE_HOST = "{service_host}"
"""Host and port of the server alone, for settings that allow certain hosts."""
_REQUEST_SECONDS = 5.0
_kept: list[subprocess.Popen[bytes]] = []


@cache
def service_address() -> str:
    """Return the address of the server, which the first call starts."""
    script = Path(__file__).with_name("fake_server.py")
    # The server ends when its standard input is closed, at the latest when this process ends.
    process = subprocess.Popen(
        python_command("-I", str(script)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    _kept.append(process)
    return f"http://127.0.0.1:{int(process.stdout.readline())}"


def server_ids() -> set[int]:
    """Return the process ids of the servers that were started."""
    return {process.pid for process in _kept}


def received_requests() -> list[dict[str, Any]]:
    """Return the path and body of each request since the last call of this function."""
    with urllib.request.urlopen(f"{service_address()}/seen", timeout=_REQUEST_SECONDS) as answer:
        requests: list[dict[str, Any]] = json.load(answer)
    return requests


def is_served(config: Any) -> bool:
    """Return whether a configuration names the server."""
    return SERVICE in json.dumps(config, default=str)


def with_scenario(config: dict[str, Any], scenario: str) -> dict[str, Any]:
    """Return a configuration that names the server, with another of its scenarios."""
    changed: dict[str, Any] = json.loads(json.dumps(config).replace("/auto", f"/{scenario}"))
    return changed


def with_service(value: Any) -> Any:
    """Replace the placeholder for the server in a JSON value with its address."""
    text = json.dumps(value)
    return json.loads(text.replace(SERVICE, service_address())) if SERVICE in text else value


def without_service(value: Any) -> Any:
    """Replace the address of the server, which differs in every process, with its placeholder."""
    if not _kept:
        return value
    text = json.dumps(value, default=repr)
    return (
        json.loads(text.replace(service_address(), SERVICE)) if service_address() in text else value
    )
