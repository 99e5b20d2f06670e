"""Draws shapes; its schema uses $defs, $ref, oneOf, const and anyOf."""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "size": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000},
        "circle": {
            "type": "object",
            "properties": {"kind": {"const": "circle"}, "radius": {"$ref": "#/$defs/size"}},
            "required": ["kind", "radius"],
        },
        "square": {
            "type": "object",
            "properties": {"kind": {"const": "square"}, "side": {"$ref": "#/$defs/size"}},
            "required": ["kind", "side"],
        },
    },
    "properties": {
        "shape": {"oneOf": [{"$ref": "#/$defs/circle"}, {"$ref": "#/$defs/square"}]},
        "label": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    },
    "required": ["shape"],
}
SIDES = {"circle": "radius", "square": "side"}


def problem(input):
    shape, label = input.get("shape"), input.get("label")
    if not isinstance(shape, dict) or shape.get("kind") not in ("circle", "square"):
        return "shape is a circle or a square"
    size = shape.get(SIDES[shape["kind"]])
    if isinstance(size, bool) or not isinstance(size, (int, float)) or not 0 < size <= 1000:
        return f"a {shape['kind']} has a {SIDES[shape['kind']]} above 0, at most 1000"
    if label is not None and not isinstance(label, str):
        return "label is a text or null"
    return None


class Area:
    name = "area_of_shape"
    description = "Returns the area of a circle or a square, with its label."

    def get_schema(self):
        return SCHEMA

    async def execute(self, input):
        wrong = problem(input)
        if wrong:
            return ToolResult(success=False, error={"message": wrong, "type": "ValueError"})
        shape = input["shape"]
        area = 3.14159 * shape["radius"] ** 2 if shape["kind"] == "circle" else shape["side"] ** 2
        return ToolResult(output={"area": area, "label": input.get("label")})


async def mount(coordinator, config):
    await coordinator.mount("tools", Area())
