"""Two tools of one module that read and write files in threads, whole or not at all."""

import os
import tempfile
from pathlib import Path

import anyio.to_thread

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


def failed(error):
    return ToolResult(success=False, error={"message": str(error), "type": type(error).__name__})


class Reader:
    name = "read_document"
    description = "Reads a file."

    def get_schema(self):
        return {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}

    async def execute(self, input):
        try:
            text = await anyio.to_thread.run_sync(
                lambda: Path(input["path"]).read_text(encoding="utf-8", errors="replace")
            )
        except Exception as error:
            return failed(error)
        return ToolResult(output=text)


class Writer:
    name = "write_document"
    description = "Writes a file."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {"path": {"type": "string"}, "text": {"type": "string"}},
            "required": ["path", "text"],
        }

    def _write(self, path, text):
        target = Path(path)
        with tempfile.NamedTemporaryFile(
            "w", dir=target.parent, delete=False, encoding="utf-8", errors="replace"
        ) as file:
            file.write(text)
        try:
            os.replace(file.name, target)
        except BaseException:
            os.unlink(file.name)
            raise
        return len(text)

    async def execute(self, input):
        path, text = input.get("path"), input.get("text")
        if not isinstance(path, str) or not isinstance(text, str):
            return failed(TypeError("path and text must be strings"))
        try:
            return ToolResult(output={"written": await anyio.to_thread.run_sync(self._write, path, text)})
        except Exception as error:
            return failed(error)


async def mount(coordinator, config):
    for tool in (Reader(), Writer()):
        await coordinator.mount("tools", tool, name=tool.name)
