"""What a function as a tool costs over a class with the same work: ``python -m benchmarks.functions``, microseconds of processor time a call."""

from __future__ import annotations

import time
from typing import Any

import anyio

from amplifier import ToolResult
from amplifier.functions import FunctionTool

ROUNDS, CALLS = 9, 3000
GIVEN = {"city": "Oslo", "days": 2}


class Weather:
    """Checks its input by hand."""

    name, description = "weather", "The forecast for a city."

    async def execute(self, input: dict[str, Any]) -> ToolResult:  # noqa: A002 — the contract's name
        city, days = input.get("city"), input.get("days", 3)
        if not isinstance(city, str) or not isinstance(days, int):
            return ToolResult(
                success=False, error={"message": "expected a city, and days as an integer"}
            )
        return ToolResult(output=[city] * days)


async def weather(city: str, days: int = 3) -> list[str]:
    """The forecast for a city."""
    return [city] * days


async def cost(tool: Any) -> float:
    """Of the best round."""
    best = float("inf")
    for _ in range(ROUNDS):
        begun = time.process_time()
        for _ in range(CALLS):
            await tool.execute(dict(GIVEN))
        best = min(best, (time.process_time() - begun) / CALLS)
    return best * 1e6


async def main() -> None:
    """Print both, and the difference."""
    of_class, of_function = await cost(Weather()), await cost(FunctionTool(weather))
    print(
        f"class {of_class:.1f} µs, function {of_function:.1f} µs, difference {of_function - of_class:.1f} µs"
    )


if __name__ == "__main__":
    for backend in ("asyncio", "trio"):
        anyio.run(main, backend=backend)
