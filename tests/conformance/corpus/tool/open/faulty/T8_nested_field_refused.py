"""Searches a table with filters.

Planted: the schema of a filter names "negate"; execute reads "field" and "value" and refuses the rest.
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

ROWS = [{"name": "ada", "age": "36"}, {"name": "alan", "age": "41"}]
FILTER = {
    "type": "object",
    "properties": {"field": {"enum": ["name", "age"]}, "value": {"type": "string"}, "negate": {"type": "boolean"}},
    "required": ["field", "value"],
    "additionalProperties": False,
}


class Search:
    name = "search_rows"
    description = "Returns the rows that match all filters."
    input_schema = {
        "type": "object",
        "properties": {"filters": {"type": "array", "items": FILTER}},
        "required": ["filters"],
    }

    async def execute(self, input):
        filters = input.get("filters")
        if not isinstance(filters, list):
            return ToolResult(success=False, error={"message": "filters has to be a list"})
        rows = ROWS
        for each in filters:
            if not isinstance(each, dict) or set(each) != {"field", "value"}:
                return ToolResult(success=False, error={"message": "a filter has a field and a value, nothing else"})
            if each["field"] not in ("name", "age") or not isinstance(each["value"], str):
                return ToolResult(success=False, error={"message": "field is name or age, value is a text"})
            rows = [row for row in rows if row[each["field"]] == each["value"]]
        return ToolResult(output=[dict(row) for row in rows])


async def mount(coordinator, config):
    await coordinator.mount("tools", Search())
