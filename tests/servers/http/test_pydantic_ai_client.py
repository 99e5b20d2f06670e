"""`amplifier serve` as a process on both backends, with pydantic-ai, which uses the Responses API by default."""

from __future__ import annotations

import pytest

from tests._support.openai_clients import found_by

PATIENCE = 180.0

SCRIPT = """
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

class Colour(BaseModel):
    name: str
    red: int

def weather(town: str) -> str:
    return f"rain in {town}"

provider = OpenAIProvider(base_url=url, api_key=key)
colour = 'call final_result {"name": "rust", "red": 183}'
for kind in (OpenAIChatModel, OpenAIResponsesModel):
    model = kind("amplifier", provider=provider)
    told = found[kind.__name__] = {}
    plain = Agent(model, instructions="be brief")
    first = plain.run_sync("history")
    told["history"] = plain.run_sync("history", message_history=first.all_messages()).output
    told["tool"] = Agent(model, tools=[weather]).run_sync('call weather {"town": "Oslo"}').output
    told["by_tool"] = Agent(model, output_type=Colour).run_sync(colour).output.model_dump()
    told["native"] = Agent(model, output_type=NativeOutput(Colour)).run_sync(colour).output.model_dump()
    told["tokens"] = first.usage.input_tokens if not callable(first.usage) else first.usage().input_tokens
"""


@pytest.mark.slow
def test_pydantic_ai_gets_what_it_asks_for(server):
    found = found_by("pydantic-ai", SCRIPT, server.address, server.token, PATIENCE)
    for kind in ("OpenAIChatModel", "OpenAIResponsesModel"):
        assert found[kind] == {
            "history": "2 prompts so far ",
            "tool": "done: rain in Oslo ",
            "by_tool": {"name": "rust", "red": 183},
            "native": {"name": "rust", "red": 183},
            "tokens": 10,
        }
