"""The scripted turn with LangGraph: its ready-made ReAct agent, and a graph of two plain nodes."""

from __future__ import annotations

import operator
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent

from benchmarks.payloads import exchanged_texts


class Scripted(BaseChatModel):
    """Wants the tool first, then answers."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        if len(messages) == 1:
            answer = AIMessage("", tool_calls=[{"name": "look", "args": {"n": 0}, "id": "c0"}])
        else:
            answer = AIMessage("Done.")
        return ChatResult(generations=[ChatGeneration(message=answer)])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **options: Any,
    ) -> ChatResult:
        return self._generate(messages)  # the inherited one would go through a thread


@tool
async def look(n: int) -> str:
    """Looks."""
    return "seen"


async def react() -> Callable[[], Awaitable[Any]]:
    """The ReAct agent that comes with LangGraph."""
    return _asking(create_react_agent(Scripted(), [look]))


async def langchain() -> Callable[[], Awaitable[Any]]:
    """The agent that LangChain builds on LangGraph, the former one's successor."""
    return _asking(create_agent(Scripted(), [look]))


def _asking(agent: Any) -> Callable[[], Awaitable[Any]]:
    async def work() -> None:
        result = await agent.ainvoke({"messages": [{"role": "user", "content": "go"}]})
        assert result["messages"][-1].content == "Done."

    return work


async def prepare_long(size: int) -> Callable[[], Awaitable[Any]]:
    """One model call after so many messages, with the ReAct agent."""
    agent = create_react_agent(Scripted(), [look])
    history = [
        {"role": "user" if at % 2 == 0 else "assistant", "content": text}
        for at, text in enumerate(exchanged_texts(size))
    ]

    async def work() -> None:
        result = await agent.ainvoke({"messages": [*history, {"role": "user", "content": "go"}]})
        assert result["messages"][-1].content == "Done."

    return work


class State(TypedDict):
    """What the nodes of the plain graph share."""

    messages: Annotated[list[dict[str, Any]], operator.add]


async def raw() -> Callable[[], Awaitable[Any]]:
    """A graph of two nodes on plain dicts: the least that LangGraph does."""

    async def model(state: State) -> dict[str, Any]:
        if len(state["messages"]) == 1:
            call = {"name": "look", "args": {"n": 0}, "id": "c0"}
            return {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}
        return {"messages": [{"role": "assistant", "content": "Done."}]}

    async def tools(state: State) -> dict[str, Any]:
        calls = state["messages"][-1]["tool_calls"]
        return {
            "messages": [
                {"role": "tool", "content": "seen", "tool_call_id": call["id"]} for call in calls
            ]
        }

    def route(state: State) -> str:
        return "tools" if state["messages"][-1].get("tool_calls") else END

    graph = StateGraph(State)
    graph.add_node("model", model)
    graph.add_node("tools", tools)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", route, ["tools", END])
    graph.add_edge("tools", "model")
    compiled = graph.compile()

    async def work() -> None:
        result = await compiled.ainvoke({"messages": [{"role": "user", "content": "go"}]})
        assert result["messages"][-1]["content"] == "Done."

    return work
