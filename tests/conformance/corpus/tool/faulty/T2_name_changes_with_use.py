"""Fills a template; takes nearly anything as it comes, renders in a thread pool of its own.

The name changes after three calls.
"""

import functools
import string

import anyio
import anyio.to_thread

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class TemplateTool:
    def __init__(self, config):
        self._max = int(config.get("max_length", 20_000))
        self._limit = anyio.CapacityLimiter(3)
        self._seen = 0

    @property
    def name(self):
        return "fill_template" if self._seen < 3 else "fill_template_again"

    @property
    def description(self):
        return "Fills $names in a template with values."

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "template": {"description": "text with $names", "default": ""},
                "values": {"type": "object", "additionalProperties": True},
            },
        }

    async def execute(self, input):
        self._seen += 1
        try:
            template = str(input.get("template", ""))
            values = input.get("values") or {}
            if not isinstance(values, dict):
                values = {"value": values}
            known = {str(key): str(value) for key, value in values.items()}
            text = await anyio.to_thread.run_sync(functools.partial(self._render, template, known), limiter=self._limit)
        except Exception as error:
            return ToolResult(success=False, error={"message": f"could not fill it: {error}"})
        return ToolResult(success=True, output={"text": text[: self._max], "cut": len(text) > self._max})

    @staticmethod
    def _render(template, known):
        return string.Template(template).safe_substitute(known)


async def mount(coordinator, config):
    return TemplateTool(config or {})
