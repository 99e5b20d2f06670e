"""Counts primes in a worker thread that asks between steps whether its call was cancelled."""

import anyio.from_thread
import anyio.to_thread

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


def count_primes(limit):
    found = []
    for number in range(2, limit + 1):
        if number % 50 == 0:
            anyio.from_thread.check_cancelled()
        if all(number % prime for prime in found if prime * prime <= number):
            found.append(number)
    return len(found)


class Primes:
    name = "count_primes"
    description = "Counts the primes up to a limit of at most 2000."
    input_schema = {
        "type": "object",
        "properties": {"limit": {"type": "integer", "minimum": 0, "maximum": 2000}},
        "required": ["limit"],
    }

    async def execute(self, input):
        limit = input.get("limit")
        if isinstance(limit, float) and limit.is_integer():
            limit = int(limit)
        if not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= 2000:
            return ToolResult(success=False, error={"message": "limit is a whole number from 0 to 2000"})
        return ToolResult(output=await anyio.to_thread.run_sync(count_primes, limit))


async def mount(coordinator, config):
    await coordinator.mount("tools", Primes())
