"""A book of three pages whose schema allows many more: that a page is not there is no matter of shape."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

PAGES = ["one", "two", "three"]


class Book:
    name = "read_page"
    description = "Reads a page of the book."

    def get_schema(self):
        page = {"type": "integer", "minimum": 1, "maximum": 1000, "description": "from 1"}
        return {"type": "object", "properties": {"page": page}, "required": ["page"]}

    async def execute(self, input):
        page = input.get("page")
        if type(page) is not int:
            return ToolResult(success=False, error={"message": "page must be a whole number"})
        if not 1 <= page <= len(PAGES):
            return ToolResult(success=False, error={"message": f"there is no page {page}"})
        return ToolResult(output=PAGES[page - 1])


async def mount(coordinator, config):
    await coordinator.mount("tools", Book())
