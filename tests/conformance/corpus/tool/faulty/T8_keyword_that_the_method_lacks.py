"""Greets a person.

Planted: the schema names "style"; the method that gets the input as keywords has no such parameter.
"""

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Greet:
    name = "greet"
    description = "Greets a person in a language."
    input_schema = {
        "type": "object",
        "properties": {
            "person": {"type": "string"},
            "language": {"enum": ["en", "de"]},
            "style": {"enum": ["formal", "short"]},
        },
        "required": ["person"],
    }

    def greet(self, person, language="en"):
        if not isinstance(person, str):
            raise TypeError("person has to be a string")
        return {"en": "Hello", "de": "Hallo"}[language] + f" {person}"

    async def execute(self, input):
        try:
            return ToolResult(output=self.greet(**input))
        except (TypeError, KeyError) as error:
            return ToolResult(success=False, error={"message": str(error), "type": type(error).__name__})


async def mount(coordinator, config):
    return Greet()
