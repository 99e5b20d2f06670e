"""Planted: the answer is a plain dict."""

__amplifier_module_type__ = "tool"


class Add:
    name = "add"
    description = "Adds two numbers."

    def get_schema(self):
        number = {"type": "number"}
        return {"type": "object", "properties": {"a": number, "b": number}, "required": ["a", "b"]}

    async def execute(self, input):
        try:
            return {"success": True, "output": float(input["a"]) + float(input["b"])}
        except Exception as error:
            return {"success": False, "error": {"message": str(error)}}


async def mount(coordinator, config):
    await coordinator.mount("tools", Add())
