"""Derives a key from a phrase.

Planted: the derivation takes some seconds of a second and runs on the event loop.
"""

import hashlib
import time

from amplifier import ToolResult

__amplifier_module_type__ = "tool"


class Derive:
    name = "derive_key"
    description = "Derives a key from a phrase."
    input_schema = {"type": "object", "properties": {"phrase": {"type": "string"}}, "required": ["phrase"]}

    async def execute(self, input):
        phrase = input.get("phrase")
        if not isinstance(phrase, str):
            return ToolResult(success=False, error={"message": "phrase has to be a string"})
        key = phrase.encode("utf-8", "surrogatepass")
        end = time.process_time() + 0.3
        rounds = 0
        while time.process_time() < end or rounds < 3:
            hashlib.pbkdf2_hmac("sha256", key, b"salt", 20_000)
            rounds += 1
        return ToolResult(output=hashlib.pbkdf2_hmac("sha256", key, b"salt", 1000).hex())


async def mount(coordinator, config):
    await coordinator.mount("tools", Derive())
