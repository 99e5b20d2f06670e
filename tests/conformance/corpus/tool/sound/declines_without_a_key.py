"""Mounts nothing when it was not given what it needs: that is how a module declines."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"
__amplifier_conformance__ = {"api_key": "for-checking"}


class Weather:
    name = "weather"
    description = "Tells the weather."

    def __init__(self, key):
        self._key = key

    def get_schema(self):
        return {
            "type": "object",
            "properties": {
                "place": {"$ref": "#/$defs/place"},
                "days": {"type": "integer", "minimum": 1, "maximum": 7, "default": 1},
            },
            "required": ["place"],
            "$defs": {"place": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}},
        }

    async def execute(self, input):
        place = input.get("place")
        if not isinstance(place, dict) or not isinstance(place.get("city"), str):
            return ToolResult(success=False, error={"message": "place needs a city"})
        return ToolResult(output={"city": place["city"], "weather": "fair"})


async def mount(coordinator, config):
    if not config.get("api_key"):
        return None
    await coordinator.mount("tools", Weather(config["api_key"]))
