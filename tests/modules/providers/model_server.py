"""llama.cpp's server with the small model, from the wheel of ``xllamacpp``: ``python -m tests.modules.providers.model_server``.

It is a process of its own, as with the users of ``provider-openai-compatible``. It writes its address as one line and runs
until its standard input ends.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from tests._support import small_model
from tests._support.tree import ROOT

CONTEXT = 2048
"""Tokens of one conversation."""
SLOTS = 2
"""Requests that are answered at the same time."""
TEMPLATE = """
{%- if tools and messages[-1].role != "tool" %}<|im_start|>system
Call a tool for every question. The tools:
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}A call is a JSON object between tags:
<tool_call>
{"name": "the name", "arguments": {}}
</tool_call><|im_end|>
{% for city in ["Rome", "Madrid", "Berlin"] %}<|im_start|>user
Weather in {{ city }}?<|im_end|>
<|im_start|>assistant
<tool_call>
{"name": "weather", "arguments": {"city": "{{ city }}"}}
</tool_call><|im_end|>
{% endfor %}{% endif %}
{%- for message in messages %}
{%- if message.role == "tool" %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% else %}<|im_start|>{{ message.role }}
{{ message.content or "" }}
{%- for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}
"""
"""A chat template with tools, which the one of the model does not have. Examples make it call one."""


class ModelServer:
    """A running server.

    Attributes:
        url: The base URL of its Chat Completions API.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self.url = f"{address}/v1"

    def is_idle(self) -> bool:
        """Whether it generates nothing."""
        slots = httpx2.get(f"{self._address}/slots", timeout=60, trust_env=False).json()
        return not any(slot["is_processing"] for slot in slots)


@contextmanager
def running_model_server() -> Iterator[ModelServer]:
    """Start a server, and end it with the block."""
    assert small_model.is_there(), (
        "the small model is missing; bring it with: python -m tests._support.small_model"
    )
    command = [sys.executable, "-m", "tests.modules.providers.model_server"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            address = process.stdout.readline().strip()
            assert address, "the model server ended before it served"
            yield ModelServer(address)
        finally:
            process.stdin.close()
            process.wait()


def main() -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    # The library's own output must not mix with the address.
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    server = _serve()
    print(server.listening_address, file=answers, flush=True)
    sys.stdin.read()
    # At once, also in the middle of a response.
    os._exit(0)


def _serve() -> Any:
    # Imported by the process of the server alone. It has no types.
    xllamacpp: Any = importlib.import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(small_model.MODEL)
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = CONTEXT * SLOTS
    params.n_parallel = SLOTS
    params.verbosity = 1
    params.ui = False
    params.warmup = False
    params.chat_template = TEMPLATE
    # Several threads wait for each other in a loop, which a busy machine pays for dearly.
    params.cpuparams.n_threads = 1
    params.cpuparams_batch.n_threads = 1
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
