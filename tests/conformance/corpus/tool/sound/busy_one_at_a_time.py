"""Refuses a second call while the first one runs, and says so; a cancelled call frees it."""

import logging

import anyio

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

logger = logging.getLogger(__name__)


class Export:
    name = "export_report"
    description = "Exports a report; one at a time."

    def __init__(self):
        self._busy = False

    def get_schema(self):
        kind = {"anyOf": [{"const": "pdf"}, {"const": "html"}]}
        return {"type": "object", "properties": {"kind": kind, "title": {"type": "string"}}, "required": ["kind"]}

    async def execute(self, input):
        if input.get("kind") not in ("pdf", "html"):
            logger.info("refused %r", str(input.get("kind"))[:40])
            return ToolResult(success=False, error={"message": f"unknown kind {str(input.get('kind'))[:80]}"})
        if self._busy:
            return ToolResult(success=False, error={"message": "another export is running"})
        self._busy = True
        try:
            await anyio.sleep(0.005)
            return ToolResult(output=f"{str(input.get('title', 'untitled'))}.{input['kind']}")
        finally:
            self._busy = False


async def mount(coordinator, config):
    logger.debug("mounting")
    await coordinator.mount("tools", Export())
