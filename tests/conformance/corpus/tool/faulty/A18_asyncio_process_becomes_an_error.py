"""Asks the Python interpreter for its version.

Planted: asyncio.create_subprocess_exec needs an asyncio loop; on trio the tool always returns an error.
"""

import asyncio
import sys

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Version:
    name = "python_version"
    description = "Returns the version of Python."
    input_schema = {"type": "object", "properties": {}}

    async def execute(self, input):
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", "-c", "print('3')", stdout=asyncio.subprocess.PIPE
            )
            out, _ = await process.communicate()
            return ToolResult(output=out.decode().strip())
        except (OSError, RuntimeError, AttributeError) as error:
            return ToolResult(success=False, error={"message": f"could not run: {error}"})
        finally:
            if process is not None and process.returncode is None:
                process.kill()
                await asyncio.shield(process.wait())


async def mount(coordinator, config):
    await coordinator.mount("tools", Version())
