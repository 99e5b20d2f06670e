"""Starts a program for each call and ends it whatever happens."""

import sys

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Python:
    name = "python_version"
    description = "Asks an interpreter for its version."

    def get_schema(self):
        return {"type": "object", "properties": {"full": {"type": "boolean", "default": False}}}

    async def execute(self, input):
        flag = "-VV" if input.get("full") else "-V"
        try:
            done = await anyio.run_process([sys.executable, flag], check=False)
        except OSError as error:
            return ToolResult(success=False, error={"message": str(error)})
        return ToolResult(output=done.stdout.decode(errors="replace").strip())


async def mount(coordinator, config):
    await coordinator.mount("tools", Python())
