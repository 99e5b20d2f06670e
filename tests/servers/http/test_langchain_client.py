"""`amplifier serve` as a process on both backends, with LangChain's client of the OpenAI API."""

from __future__ import annotations

import pytest

from tests._support.openai_clients import found_by

PATIENCE = 180.0

SCRIPT = """
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

class Colour(BaseModel):
    name: str
    red: int

@tool
def weather(town: str) -> str:
    "The weather of a town."
    return f"rain in {town}"

given = dict(model="amplifier", base_url=url, api_key=key, max_retries=0)
chat = ChatOpenAI(**given, temperature=0.5, max_tokens=7)
found["settings"] = json.loads(chat.invoke("settings").content)
found["stream"] = "".join(piece.content for piece in chat.stream("say one two"))
found["typed"] = chat.with_structured_output(Colour).invoke('call final_result {"name": "rust", "red": 183}').model_dump()
by_tool = chat.with_structured_output(Colour, method="function_calling")
found["by_tool"] = by_tool.invoke('call Colour {"name": "rust", "red": 183}').model_dump()
for name, model in (("chat", chat), ("responses", ChatOpenAI(**given, use_responses_api=True))):
    bound = model.bind_tools([weather])
    messages = [HumanMessage('call weather {"town": "Oslo"}')]
    messages.append(bound.invoke(messages))
    call = messages[-1].tool_calls[0]
    messages.append(ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]))
    found[name] = bound.invoke(messages).text
found["reason"] = chat.invoke("end length cut").response_metadata["finish_reason"]
image = {"type": "image", "url": "https://example.org/a.png"}
found["image"] = chat.invoke([HumanMessage([{"type": "text", "text": "what is it?"}, image])]).content
"""


@pytest.mark.slow
def test_langchain_gets_what_it_asks_for(server):
    found = found_by("langchain", SCRIPT, server.address, server.token, PATIENCE)
    assert (found["settings"]["temperature"], found["settings"]["max_output_tokens"]) == (0.5, 7)
    assert found["stream"] == "one two "
    assert found["typed"] == found["by_tool"] == {"name": "rust", "red": 183}
    assert found["chat"] == found["responses"] == "done: rain in Oslo "
    assert (found["reason"], found["image"]) == ("length", "text image ")
