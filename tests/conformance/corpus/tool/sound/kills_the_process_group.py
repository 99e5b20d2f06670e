"""Runs a small pipeline in a shell of its own process group, all of which it kills when it is cancelled."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Pipeline:
    name = "pipeline"
    description = "Passes a text through a slow program."
    input_schema = {
        "type": "object",
        "properties": {"text": {"type": "string", "maxLength": 200}},
        "required": ["text"],
    }

    async def execute(self, input):
        text = input.get("text")
        if not isinstance(text, str) or len(text) > 200:
            return ToolResult(success=False, error={"message": "text has to be a string of up to 200 characters"})
        program = f"{shlex.quote(sys.executable)} -I -S -c 'import time; time.sleep(0.3)'"
        shell = subprocess.Popen(
            ["/bin/sh", "-c", f"{program}; exit 0"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            while shell.poll() is None:
                await anyio.sleep(0.02)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
            shell.wait()
        return ToolResult(output=text.upper())


async def mount(coordinator, config):
    await coordinator.mount("tools", Pipeline())
