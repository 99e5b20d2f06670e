"""A tool without a schema that accepts any object and returns its keys; a schema is only recommended."""

from types import SimpleNamespace

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


async def keys_of(input):
    return ToolResult(output=sorted(input))


async def mount(coordinator, config):
    tool = SimpleNamespace(name="keys_of", description="Returns the keys of the object it is given.", execute=keys_of)
    await coordinator.mount("tools", tool)
