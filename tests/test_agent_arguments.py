"""What `agent`, `run` and `on` are given wrongly is answered with one sentence: what was found, what was expected, what to write."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from amplifier import ModuleLoadError, PlanError, agent, on, run_sync
from amplifier.errors import MisspellingWarning
from amplifier.testing import MockProvider, MockTool


async def weather(city: str) -> str:
    """Tells the weather."""
    return city


def no_question() -> bool:
    return True


@pytest.mark.parametrize(
    ("argument", "given", "message"),
    [
        ("approve", True, "approve: expected 'ask', 'deny' or a function of the question, got True"),
        ("approve", "Ask", "approve: expected 'ask', 'deny' or a function of the question, got 'Ask'; did you mean 'ask'?"),
        ("approve", 5, "approve: expected 'ask', 'deny' or a function of the question, got 5"),
        ("approve", no_question, "approve: expected 'ask', 'deny' or a function of the question, got a function"),
        ("tools", weather, "tools: expected a list of functions, tools, agents and ids of modules, such as [weather], got a function"),
        ("tools", MockTool("x"), "such as [weather], got a MockTool"),
        ("tools", "tool-todo", "such as [weather], got 'tool-todo'"),
        ("tools", 5, "such as [weather], got 5"),
        ("tools", {"module": "tool-todo"}, "such as [weather], got a dict"),
        ("hooks", weather, "hooks: expected a list of functions marked with @on and ids of modules, such as [watch], got a function"),
        ("mcp", "server --quick", "mcp: expected a list of commands, URLs and entries as in tool-mcp, such as ['uvx server'], got 'server --quick'"),
        ("mcp", {"own": {"command": "x"}}, "such as ['uvx server'], got a dict"),
        ("mcp", 5, "such as ['uvx server'], got 5"),
        ("mcp", [""], "mcp[0]: expected a command, a URL or an entry as in tool-mcp, got ''"),
        ("mcp", ["x", None], "mcp[1]: expected a command, a URL or an entry as in tool-mcp, got None"),
        ("mcp", ["server 'quick"], "mcp[0]: expected a command, a URL or an entry as in tool-mcp, got"),
        ("instructions", 5, "instructions: expected text, the path of a file, or a list of both, got 5"),
        ("instructions", b"", "instructions: expected text, the path of a file, or a list of both, got a bytes"),
        ("instructions", ["a", None], "instructions[1]: expected text or the path of a file, got None"),
        ("instructions", Path("nowhere.md"), "instructions: nowhere.md cannot be read: "),
        ("instructions", ["a", Path("nowhere.md")], "instructions[1]: nowhere.md cannot be read: "),
        ("instructions", __file__, f"instructions: got the text {__file__!r}, which is the name of a file; write Path({__file__!r}) to read the file"),
        ("budget", 5, "budget: expected limits by name, such as {'cost': 0.5}, got 5"),
        ("budget", "0.5", "budget: expected limits by name, such as {'cost': 0.5}, got '0.5'"),
        ("budget", {"tokns": 5}, "budget.tokns: unknown key; did you mean 'tokens'?"),
        ("budget", {"tokens": "many"}, "budget.tokens: expected a whole number, 0 or more, or null for no limit, got 'many'"),
        ("memory", 5, "memory: expected the name of a folder, got 5"),
        ("memory", "", "memory: expected the name of a folder, got ''"),
        ("memory", b"talks", "memory: expected the name of a folder, got a bytes"),
        ("plan", 5, "plan: expected sections of a plan by name, got 5"),
        ("plan", {"sesion": {}}, "did you mean 'session'?"),
        ("name", 5, "name: expected a non-empty text, got 5"),
        ("description", " ", "description: expected a non-empty text, got ' '"),
        ("session_id", 5, "invalid session id: expected 1 to 200 of: letters, digits, '.', '_', ':', '-', not beginning with '.', got 5"),
        ("tols", [weather], "tols: unknown argument; did you mean 'tools'?"),
        ("skills", ["be-brief.md"], "skills: unknown argument; known are model, tools, hooks, mcp, instructions, approve, "),
    ],
)  # fmt: skip
def test_wrong_argument_is_one_sentence(argument: str, given: Any, message: str):
    with pytest.raises(PlanError) as caught:
        agent("offline", **{argument: given})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


EXAMPLES = "such as 'anthropic:claude-sonnet-4-5', 'openai:gpt-5', 'openai-compatible:MODEL@URL' or"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, f"model: is missing; expected 'provider:model', {EXAMPLES}"),
        (5, f"model: expected 'provider:model', {EXAMPLES} 'offline', a provider or the entry of one, got 5"),
        ([], "a provider or the entry of one, got a list"),
        ("", f"model: expected 'provider:model', {EXAMPLES}"),
        (":x", "got ':x'"),
        ("anthropic", "model: expected a model after 'anthropic', as in 'anthropic:MODEL', got 'anthropic'"),
        ("anthropic:", "model: expected a model after 'anthropic', as in 'anthropic:MODEL', got 'anthropic:'"),
        ("anthropic: ", "model: expected a model after 'anthropic', as in 'anthropic:MODEL', got 'anthropic: '"),
        ("antropic:claude-x", "got 'antropic:claude-x'; did you mean 'anthropic:claude-x'?"),
        ("Anthropic:claude-x", "got 'Anthropic:claude-x'; did you mean 'anthropic:claude-x'?"),
        ("anthropic/claude-x", "got 'anthropic/claude-x'; did you mean 'anthropic:claude-x'?"),
        ("claude-x", "got 'claude-x'; did you mean 'anthropic:claude-x'?"),
        ("gpt-5", "got 'gpt-5'; did you mean 'openai:gpt-5'?"),
        ("ofline", "got 'ofline'; did you mean 'offline'?"),
        ("offline:x", "model: expected 'offline' alone, got 'offline:x'"),
        ("local", "got 'local'; provider-local was removed: serve the model with Ollama or llama.cpp's server and use"),
        ("local:some.gguf", "model: expected 'openai-compatible:MODEL@URL', got 'local:some.gguf'; provider-local was removed"),
        ("models/Some.GGUF", "model: expected 'openai-compatible:MODEL@URL', got 'models/Some.GGUF'; provider-local was"),
        ("openai-compatible:x", "model: expected 'openai-compatible:MODEL@URL', got 'openai-compatible:x'"),
        ("openai-compatible", "model: expected 'openai-compatible:MODEL@URL', got 'openai-compatible'"),
    ],
)  # fmt: skip
def test_wrong_model_is_one_sentence(model: Any, message: str):
    with pytest.raises(PlanError) as caught:
        agent(model)
    assert message in str(caught.value)


def test_wrong_arguments_are_reported_together():
    with pytest.raises(PlanError) as caught:
        agent("antropic:x", tools=weather, memory=5)  # type: ignore[arg-type]
    assert [path for path, _ in caught.value.problems] == ["model", "tools", "memory"]


def test_wrong_plan_list_is_plan_problem():
    with pytest.raises(PlanError, match=r"\$\.hooks: expected a list of modules, got 5"):
        agent("offline", approve="deny", plan={"hooks": 5})


def test_none_equals_missing_argument():
    names = (
        "tools",
        "hooks",
        "mcp",
        "instructions",
        "approve",
        "budget",
        "memory",
        "session_id",
        "plan",
        "name",
    )
    nothing: dict[str, Any] = dict.fromkeys((*names, "description"))
    assert agent("offline", **nothing).config == agent("offline").config


def test_space_around_model_words_is_ignored():
    assert agent(" anthropic: claude-x ").config == agent("anthropic:claude-x").config


def test_run_takes_arguments_of_agent():
    with pytest.raises(PlanError, match=r"tols: unknown argument; did you mean 'tools'\?"):
        run_sync("Hi!", "offline", tols=[weather])  # type: ignore[call-overload]


# ── on() ──


@pytest.mark.parametrize(
    ("events", "options", "message"),
    [
        ((), {}, r"expected names of events, as in @on\('tool:pre'\), got \(\)"),
        ((weather,), {}, r"expected names of events, as in @on\('tool:pre'\), got"),
        (("",), {}, r"expected names of events, as in @on\('tool:pre'\), got"),
        (("tool:pre",), {"priority": "x"}, r"priority: expected a whole number, got 'x'"),
        (("tool:pre",), {"priority": True}, r"priority: expected a whole number, got True"),
        (("tool:pre",), {"fields": 5}, r"fields: expected a list of names, such as \('tool_name',\), got 5"),
        (("tool:pre",), {"fields": "tool_name"}, r"fields: expected a list of names, .*, got 'tool_name'"),
        (("tool:pre",), {"gate": "yes"}, r"gate: expected true or false, got 'yes'"),
        (("tool:pre",), {"gat": True}, r"gat: unknown argument; did you mean 'gate'\?"),
    ],
)  # fmt: skip
def test_wrong_hook_options_are_one_sentence(events, options, message):
    with pytest.raises(TypeError, match=message):
        on(*events, **options)


def test_misspelt_hook_event_warns_at_its_line():
    with pytest.warns(
        MisspellingWarning, match=r"'tol:pre', which is not an event .*; did you mean 'tool:pre'\?"
    ) as caught:
        on("tol:pre")
    assert caught[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        on("own:event", "tool:pre", "*")


async def one(event): ...
async def three(event, data, more): ...
def pieces(event, data):
    yield event


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (
            one,
            r"\$\.hooks\[0\] is not a hook: .*, got the function one\(event\); a hook takes \(event, data\)",
        ),
        (three, r"got the function three\(event, data, more\); a hook takes \(event, data\)"),
        (
            pieces,
            r"got the function pieces\(event, data\), which yields; a hook returns a HookResult or None",
        ),
    ],
)
async def test_unusable_handler_fails_at_opening(handler, message):
    with pytest.raises(ModuleLoadError, match=message):
        async with agent(MockProvider(["x"]), hooks=[on("tool:pre")(handler)]):
            pass


class NoTool:
    """An object of the application that is not a tool."""


@pytest.mark.parametrize("thing", [NoTool(), 3, None], ids=["object", "number", "None"])
def test_non_tool_error_gives_remedy(thing):
    expected = r"tools\[0\]: expected a function, an object with name, description and execute\(input\), an agent"
    with pytest.raises(PlanError, match=expected):
        agent("offline", tools=[thing])
    with pytest.raises(
        PlanError, match=r"hooks\[0\]: expected a function marked with @on, as in @on\('tool:pre'\)"
    ):
        agent("offline", hooks=[thing])


async def test_function_without_hints_is_warned_about(caplog):
    def look(place, days: int = 3):
        """Look somewhere."""
        return place

    async with agent("offline", tools=[look]):
        pass
    assert "tool 'look': place has no type hint" in caplog.text
    assert "write one, as in place: str" in caplog.text
