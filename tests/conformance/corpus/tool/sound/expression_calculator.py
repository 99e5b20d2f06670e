"""A small calculator: most texts are no expression, and it says so."""

import ast
import operator

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def value_of(node):
    if isinstance(node, ast.Expression):
        return value_of(node.body)
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return OPERATORS[type(node.op)](value_of(node.left), value_of(node.right))
    raise ValueError(f"expected a number or an operation, got {type(node).__name__}")


class Calculator:
    name = "calculator"
    description = "Computes an expression such as 2 * (3 + 4)."

    def get_schema(self):
        return {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}

    async def execute(self, input):
        try:
            result = value_of(ast.parse(str(input.get("expression", "")), mode="eval"))
            if result != result or result in (float("inf"), float("-inf")):
                raise ValueError("the result is not a number")
        except Exception as error:
            return ToolResult(success=False, error={"message": str(error), "type": type(error).__name__})
        return ToolResult(output=result)


async def mount(coordinator, config):
    calculator = Calculator()
    await coordinator.mount("tools", calculator)
    return calculator
