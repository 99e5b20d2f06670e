"""`amplifier serve` as a process on both backends, with Python programs that use the OpenAI API; each asks both in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests._support.openai_clients import found_by
from tests.cli._scripted_agent import write_plan
from tests.servers.http._server import Server, running

pytestmark = pytest.mark.slow

LANGCHAIN = """
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

LITELLM = """
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

PYDANTIC_AI = """
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


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Server]]:
    """One on each backend."""
    with ExitStack() as stack:
        started = []
        for backend in ("asyncio", "trio"):
            folder = tmp_path_factory.mktemp(backend)
            (folder / "work").mkdir()
            serving = running(backend, write_plan(folder), folder / "home", folder / "work")
            started.append(stack.enter_context(serving))
        yield started


def found_on_each(client: str, script: str, servers: list[Server]) -> Any:
    """What a program found, which has to be the same on both backends."""
    on_asyncio, on_trio = found_by(
        client, script, [(server.address, server.token) for server in servers]
    )
    assert on_asyncio == on_trio
    return on_asyncio


def test_langchain_works(servers):
    found = found_on_each("langchain", LANGCHAIN, servers)
    assert (found["settings"]["temperature"], found["settings"]["max_output_tokens"]) == (0.5, 7)
    assert found["stream"] == "one two "
    assert found["typed"] == found["by_tool"] == {"name": "rust", "red": 183}
    assert found["chat"] == found["responses"] == "done: rain in Oslo "
    assert (found["reason"], found["image"]) == ("length", "text image ")


def test_litellm_works(servers):
    found = found_on_each("litellm", LITELLM, servers)
    assert (found["settings"]["temperature"], found["settings"]["max_output_tokens"]) == (0.5, 7)
    assert found["typed"] == {"name": "rust", "red": 183}
    assert (found["stream"], found["reason"]) == ("one two ", "tool_calls")
    assert (found["tool"], found["responses"]) == ("done: rain ", "hello ")
    assert "seed: expected null" in found["refused"]
    assert "the quota is used up" in found["limited"]


def test_pydantic_ai_works(servers):
    """Which uses the Responses API by default."""
    found = found_on_each("pydantic-ai", PYDANTIC_AI, servers)
    for kind in ("OpenAIChatModel", "OpenAIResponsesModel"):
        assert found[kind] == {
            "history": "2 prompts so far ",
            "tool": "done: rain in Oslo ",
            "by_tool": {"name": "rust", "red": 183},
            "native": {"name": "rust", "red": 183},
            "tokens": 10,
        }
