"""A calculator that evaluates an expression without eval.

Fault: nothing limits the size of a power; `9**9**9` computes for hours on the event loop, and no deadline can stop it.
"""

from __future__ import annotations

import ast
import math
import operator
from typing import Any

from amplifier import ToolResult

__amplifier_module_type__ = "tool"

BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
UNARY = {ast.USub: operator.neg, ast.UAdd: operator.pos}


def evaluate(node: ast.AST) -> int | float:
    match node:
        case ast.Expression():
            return evaluate(node.body)
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return node.value  # type: ignore[return-value]
        case ast.BinOp() if type(node.op) in BINARY:
            result = BINARY[type(node.op)](evaluate(node.left), evaluate(node.right))
            if isinstance(result, complex):
                raise ValueError("the result is not a real number")
            return result
        case ast.UnaryOp() if type(node.op) in UNARY:
            return UNARY[type(node.op)](evaluate(node.operand))
    raise ValueError(f"not allowed: {type(node).__name__}")


class Calculator:
    name = "calculator"
    description = "Evaluates an arithmetic expression with + - * / // % ** and parentheses."

    def get_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"expression": {"type": "string", "examples": ["2 * (3 + 4)", "2 ** 10"]}},
            "required": ["expression"],
        }

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        expression = input.get("expression")
        if not isinstance(expression, str) or len(expression) > 200:
            return ToolResult(success=False, error={"message": "expression: expected a string of up to 200 characters"})
        try:
            value = evaluate(ast.parse(expression.strip(), mode="eval"))
            if isinstance(value, float) and not math.isfinite(value):
                raise OverflowError("the result is too large")
            return ToolResult(success=True, output={"value": value, "text": f"{value}"})
        except (ValueError, SyntaxError, ArithmeticError, RecursionError, MemoryError) as error:
            return ToolResult(success=False, error={"message": f"cannot evaluate it: {error}"})


async def mount(coordinator: Any, config: dict[str, Any] | None = None) -> None:
    await coordinator.mount("tools", Calculator())
