"""Books orders of several lines; a line takes no key but those of its schema."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Orders:
    name = "book_order"
    description = "Book an order of several lines."
    input_schema = {
        "type": "object",
        "properties": {
            "customer": {"type": "string"},
            "lines": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "article": {"type": "string"},
                        "quantity": {"type": "integer", "minimum": 1},
                        "gift": {"type": "boolean"},
                    },
                    "required": ["article", "quantity"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["customer", "lines"],
    }

    async def execute(self, input):
        customer, lines = input.get("customer"), input.get("lines")
        if not isinstance(customer, str) or not isinstance(lines, list) or not lines:
            return _refused("an order has a customer and lines")
        total = 0
        for line in lines:
            if not isinstance(line, dict) or not isinstance(line.get("article"), str):
                return _refused("a line has an article")
            unknown = sorted(line.keys() - {"article", "quantity", "gift"})
            if unknown:
                return _refused(f"a line has no {unknown[0]!r}")
            if not isinstance(line.get("gift", False), bool):
                return _refused("gift is true or false")
            count = line.get("quantity")
            if type(count) is not int or count < 1:
                return _refused("a line has a quantity from 1 up")
            total += count
        return ToolResult(success=True, output={"customer": customer, "pieces": total})


def _refused(message):
    return ToolResult(success=False, error={"message": message})


async def mount(coordinator, config):
    tool = Orders()
    coordinator.mount("tools", tool, name=tool.name)

    async def cleanup():
        pass

    return cleanup
