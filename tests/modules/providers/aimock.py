"""A mock of the services' APIs that other people wrote: our providers and their idea of the wire must agree.

The npm package ``@copilotkit/aimock`` as a process on a free port of this machine; `tests._support.node_parts` installs it.
"""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tests._support import node_parts

_LISTENING = re.compile(r"listening on (http://\S+)")
_PATIENCE = 10.0


@attrs.frozen
class Aimock:
    """A running mock. What one test sets it to do stays with that test's id, sent as the header ``X-Test-Id``."""

    url: str

    def set_chaos(self, test_id: str, **rates: float) -> None:
        """Let things go wrong for one test: ``rateLimitRate``, ``disconnectRate``, ``malformedRate``, ``dropRate``."""
        self._call("POST", "/__aimock/chaos", rates, test_id)

    def requests(self, test_id: str) -> list[dict[str, Any]]:
        """The bodies of the requests of one test, as the mock understood them."""
        journal = self._call("GET", f"/__aimock/journal?testId={test_id}", None, test_id)
        return [entry["body"] for entry in journal]

    def _call(self, method: str, path: str, body: Any, test_id: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "X-Test-Id": test_id}
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=_PATIENCE) as response:
            text = response.read()
        return json.loads(text) if text else None


@contextmanager
def running_aimock(fixtures: Path) -> Iterator[Aimock]:
    """Start the mock over a file of fixtures and end it."""
    program = node_parts.program("@copilotkit/aimock", "dist/cli.js")
    command = [
        node_parts.node(),
        program,
        "-p",
        "0",
        "-h",
        "127.0.0.1",
        "-f",
        str(fixtures),
        "--strict",
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            lines: list[str] = []
            for line in process.stdout:
                lines.append(line)
                if found := _LISTENING.search(line):
                    yield Aimock(found[1])
                    break
            else:
                raise RuntimeError(f"aimock did not start:\n{''.join(lines)}")
        finally:
            process.kill()
