"""A tool that is a callable object: execute is its __call__; mount returns the instance."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Slug:
    name = "make_slug"
    description = "Turns a title into lower-case words joined by hyphens."
    input_schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}

    async def __call__(self, input):
        match input:
            case {"title": str(title)}:
                return ToolResult(output="-".join(title.lower().split()))
            case _:
                return ToolResult(success=False, error={"message": "title has to be a string"})

    execute = __call__


async def mount(coordinator, config):
    return Slug()
