"""Looks a city up with a time limit.

Planted: asyncio.wait_for does not work on trio; whatever it raises is reported as a slow service.
"""

import asyncio

import anyio.lowlevel

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

CITIES = {"paris": 2.1, "oslo": 0.7}


async def ask_service(city):
    await anyio.lowlevel.checkpoint()
    return CITIES.get(city.lower())


class Population:
    name = "population"
    description = "Returns the population of a city in millions."

    def get_schema(self):
        return {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}

    async def execute(self, input):
        city = input.get("city")
        if not isinstance(city, str):
            return ToolResult(success=False, error={"message": "city has to be a string"})
        try:
            return ToolResult(output={"millions": await asyncio.wait_for(ask_service(city), 5)})
        except Exception:
            return ToolResult(success=False, error={"message": "the service did not answer in time"})


async def mount(coordinator, config):
    await coordinator.mount("tools", Population())
