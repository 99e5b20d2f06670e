"""Searches a table with filters; a filter may be negated, and has no other keys than its schema names."""

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
            if not isinstance(each, dict) or not {"field", "value"} <= set(each) <= {"field", "value", "negate"}:
                return ToolResult(
                    success=False, error={"message": "a filter has a field, a value and perhaps negate, nothing else"}
                )
            if each["field"] not in ("name", "age") or not isinstance(each["value"], str):
                return ToolResult(success=False, error={"message": "field is name or age, value is a text"})
            negate = each.get("negate", False)
            if not isinstance(negate, bool):
                return ToolResult(success=False, error={"message": "negate is true or false"})
            rows = [row for row in rows if (row[each["field"]] == each["value"]) is not negate]
        return ToolResult(output=[dict(row) for row in rows])


async def mount(coordinator, config):
    await coordinator.mount("tools", Search())
