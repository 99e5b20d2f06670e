"""A tool in the shape of the published tool-bash, as text: it ends a command on its own timeout, and never otherwise."""

from __future__ import annotations

TOOL = """
import asyncio
import os
import signal

from amplifier_core import ModuleCoordinator, ToolResult

__amplifier_module_type__ = "tool"


async def mount(coordinator: ModuleCoordinator, config=None):
    tool = BashTool(coordinator, config or {})
    await coordinator.mount("tools", tool, name=tool.name)


class BashTool:
    name = "bash"
    description = "Execute bash commands."
    input_schema = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}

    def __init__(self, coordinator, config):
        self.coordinator = coordinator
        self.timeout = config.get("timeout", 30)
        self.start_new_session = config.get("start_new_session", True)
        self.pids = []
        self.background = []

    async def execute(self, input):
        if input.get("run_in_background"):
            process = await asyncio.create_subprocess_exec(
                "/bin/sh", "-c", input["command"], stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL, start_new_session=True,
            )
            self.pids.append(process.pid)
            self.background.append(process)
            return ToolResult(success=True, output={"pid": process.pid})
        process = await asyncio.create_subprocess_exec(
            "/bin/sh", "-c", input["command"], stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, start_new_session=self.start_new_session,
        )
        self.pids.append(process.pid)
        told = self.coordinator.get_capability("test.started")
        if told is not None:
            told(process.pid)
        try:
            stdout, stderr = await asyncio.wait_for(process.communicate(), timeout=self.timeout)
        except asyncio.TimeoutError:
            os.killpg(os.getpgid(process.pid), signal.SIGKILL)
            await process.communicate()
            return ToolResult(success=False, error={"message": f"Command timed out after {self.timeout} seconds"})
        return ToolResult(success=process.returncode == 0, output={"stdout": stdout.decode(), "returncode": process.returncode})
"""
