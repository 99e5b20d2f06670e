"""Starts the fake LLM server when a configuration first names it, and reads the requests it has received.

``{service}`` in a configuration is replaced by its address. The server runs in a process of its own, so that its sockets
and threads do not count as the module's.
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
"""Its host and port alone, for settings that allow certain hosts."""
_SECONDS = 5.0
_kept: list[subprocess.Popen[bytes]] = []


@cache
def service_address() -> str:
    """The address of the server, which is started the first time."""
    script = Path(__file__).with_name("fake_server.py")
    process = subprocess.Popen(
        python_command("-I", str(script)),
        stdin=subprocess.PIPE,  # it ends when this pipe is closed, at the latest when this process ends
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    _kept.append(process)
    return f"http://127.0.0.1:{int(process.stdout.readline())}"


def server_ids() -> set[int]:
    """The process ids of the servers that were started."""
    return {process.pid for process in _kept}


def received_requests() -> list[dict[str, Any]]:
    """The requests since the last call of this function, each with its path and body."""
    with urllib.request.urlopen(f"{service_address()}/seen", timeout=_SECONDS) as answer:
        requests: list[dict[str, Any]] = json.load(answer)
    return requests


def is_served(config: Any) -> bool:
    """Whether a configuration names the server."""
    return SERVICE in json.dumps(config, default=str)


def with_scenario(config: dict[str, Any], scenario: str) -> dict[str, Any]:
    """A configuration that names the server, with another of its scenarios."""
    changed: dict[str, Any] = json.loads(json.dumps(config).replace("/auto", f"/{scenario}"))
    return changed


def with_service(value: Any) -> Any:
    """A JSON value in which the placeholder for the server is replaced by its address."""
    text = json.dumps(value)
    return json.loads(text.replace(SERVICE, service_address())) if SERVICE in text else value


def without_service(value: Any) -> Any:
    """A JSON value in which the address of the server, another one in every process, is replaced by its placeholder."""
    if not _kept:
        return value
    text = json.dumps(value, default=repr)
    return (
        json.loads(text.replace(service_address(), SERVICE)) if service_address() in text else value
    )
