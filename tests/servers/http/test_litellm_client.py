"""`amplifier serve` as a process on both backends, with litellm."""

from __future__ import annotations

import pytest

from tests._support.openai_clients import found_by

PATIENCE = 180.0

SCRIPT = """
import litellm
from pydantic import BaseModel

class Colour(BaseModel):
    name: str
    red: int

given = dict(model="openai/amplifier", api_base=url, api_key=key, num_retries=0)

def ask(text, **more):
    return litellm.completion(messages=[{"role": "user", "content": text}], **given, **more)

found["settings"] = json.loads(ask("settings", temperature=0.5, max_tokens=7).choices[0].message.content)
typed = ask('call final_result {"name": "rust", "red": 183}', response_format=Colour)
found["typed"] = json.loads(typed.choices[0].message.content)
found["stream"] = "".join(piece.choices[0].delta.content or "" for piece in ask("say one two", stream=True))
town = {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]}
tools = [{"type": "function", "function": {"name": "weather", "parameters": town}}]
called = ask('call weather {"town": "Oslo"}', tools=tools).choices[0]
found["reason"] = called.finish_reason
messages = [{"role": "user", "content": 'call weather {"town": "Oslo"}'}, called.message.model_dump()]
messages.append({"role": "tool", "tool_call_id": called.message.tool_calls[0].id, "content": "rain"})
found["tool"] = litellm.completion(messages=messages, tools=tools, **given).choices[0].message.content
found["responses"] = litellm.responses(input="say hello", **given).output[0].content[0].text
try:
    ask("say hello", seed=7)
except litellm.BadRequestError as error:
    found["refused"] = str(error)
try:
    ask("fail")
except litellm.RateLimitError as error:
    found["limited"] = str(error)
"""


@pytest.mark.slow
def test_litellm_gets_what_it_asks_for(server):
    found = found_by("litellm", SCRIPT, server.address, server.token, PATIENCE)
    assert (found["settings"]["temperature"], found["settings"]["max_output_tokens"]) == (0.5, 7)
    assert found["typed"] == {"name": "rust", "red": 183}
    assert (found["stream"], found["reason"]) == ("one two ", "tool_calls")
    assert (found["tool"], found["responses"]) == ("done: rain ", "hello ")
    assert "seed: expected null" in found["refused"]
    assert "the quota is used up" in found["limited"]
