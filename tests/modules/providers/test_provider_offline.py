"""provider-offline: no model, but real tools; deterministic, bounded, and it never claims what it did not do."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from amplifier import AmplifierSession
from amplifier.models import (
    ChatRequest,
    HookResult,
    Message,
    ResponseFormatJson,
    TextBlock,
    ToolCall,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    to_dict,
)
from amplifier.modules.providers import offline as provider_offline
from amplifier.modules.providers.offline import DISCLAIMER, RULES
from amplifier.testing import MockTool
from tests.modules.providers.services import MountedProvider

SPECS = [
    ToolSpec(name=name, parameters={"type": "object"})
    for name in sorted({rule.tool for rule in RULES})
]
EXAMPLES = {
    "list the files in src": "list_directory",
    "count the Python files": "glob",
    "summarise README.md": "read_file",
    "read README.md": "read_file",
    'find "timeout" in src': "grep",
    'write "some text" to notes.txt': "write_file",
    'run "git status"': "bash",
}


async def calls_for(prompt: str) -> list[tuple[str, dict[str, Any]]]:
    response = await (await MountedProvider.open(provider_offline)).ask(prompt, tools=SPECS)
    return [(call.name, call.arguments) for call in response.tool_calls or ()]


# ── understanding ────────────────────────────────────────────────────────────────────────────────


def reading(path: str, lines: int = 2000) -> tuple[str, dict[str, Any]]:
    return "read_file", {"file_path": path, "offset": 1, "limit": lines}


def globbing(pattern: str, path: str = ".") -> tuple[str, dict[str, Any]]:
    return "glob", {"pattern": pattern, "path": path}


def grepping(pattern: str, path: str = ".") -> tuple[str, dict[str, Any]]:
    where = {"glob": "[!.]*/**"} if path == "." else {}
    return "grep", {"pattern": pattern, "path": path, "output_mode": "content", **where}


PYTHON = "{*.py,[!.]*/**/*.py}"


@pytest.mark.parametrize(
    ("prompt", "calls"),
    [
        ("list files", [("list_directory", {"path": "."})]),
        ("Please list the files in src/lib.", [("list_directory", {"path": "src/lib"})]),
        ("show the files in the src folder", [("list_directory", {"path": "src"})]),
        ("list all files", [globbing("{[!.]*,[!.]*/**/*}")]),
        ("find all Python files in src", [globbing(PYTHON, "src")]),
        ("count the YAML files", [globbing("{*.{yaml,yml},[!.]*/**/*.{yaml,yml}}")]),
        ("read README.md", [reading("README.md", 40)]),
        ("Could you read the file `a b.txt`?", [reading("a b.txt", 40)]),
        ("read .env", [reading(".env", 40)]),
        ("count the lines of a.md", [reading("a.md")]),
        ("summarize a.md", [reading("a.md")]),
        ("grep L5", [grepping("L5")]),
        ("find where Anna is mentioned", [grepping("Anna")]),
        ('find "f(x)" in README.md', [grepping(r"f\(x\)", "README.md")]),
        ("search for 'cancel scope' in the docs folder", [grepping("cancel scope", "docs")]),
        ('write "hello world" to notes.txt', [("write_file", {"file_path": "notes.txt", "content": "hello world\n"})]),
        ('run "echo a, and list; b"', [("bash", {"command": "echo a, and list; b"})]),
        ("hello", []),
        ("What can you do?", []),
        ("Write a poem about spring", []),
        ("run the tests", []),
        ("list the files" + " " * 9000, []),
        ("count the files not in src", []),
        ("read a.py and show.py", []),
        ("", []),
        ("list the files, read a.txt and then count the lines in b.txt",
         [("list_directory", {"path": "."}), reading("a.txt", 40), reading("b.txt")]),
    ],
)  # fmt: skip
async def test_prompt_becomes_tool_calls(prompt, calls):
    assert await calls_for(prompt) == calls


async def test_unknown_prompt_explains_provider():
    """Two lines tell what the provider is and how to get a model."""
    answer = (
        (await (await MountedProvider.open(provider_offline)).ask("Who won in 1998?", tools=SPECS))
        .content[0]
        .text
    )
    assert answer == DISCLAIMER
    assert len(answer.splitlines()) == 2
    assert "not a language model" in answer
    assert "ANTHROPIC_API_KEY" in answer


# ── with the real tools ──────────────────────────────────────────────────────────────────────────


TREE = {
    "README.md": "# Demo\n\nA tree to look at.\n\n## Parts\n\nmore words\n",
    "setup.cfg": "[x]\n",
    "src/a.py": "import os\n\n\ndef find():\n    return 1\n\n\nclass Deadline:\n    pass\n",
    "src/deep/b.py": "x = 1\n" * 50,
    "tests/test_a.py": "def test_it():\n    pass\n",
    ".cache/big.py": "deadline\n" * 500,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def ran(given: dict[str, Any]) -> Any:
    return {"stdout": f"ran {given['command']}\n", "stderr": "", "returncode": 0}


class Agent:
    """A session on a folder with the built-in tools, and what they were called with."""

    def __init__(self, root: Path, *, tools: Any = ("tool-filesystem", "tool-search", "tool-bash"),
                 loop: str = "loop-streaming", deny: str = "", config: dict[str, Any] | None = None) -> None:  # fmt: skip
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.requests = 0
        self.deny = deny
        paths = {"allowed_paths": [str(root)]}
        configs = {"tool-filesystem": paths, "tool-search": {**paths, "ripgrep": False}}
        given = {"tool-bash": MockTool("bash", respond=ran)}
        plan = {
            "session": {"orchestrator": loop, "context": "context-simple", "strict": True},
            "providers": [{"module": "provider-offline", "config": config or {}}],
            "tools": [
                given.get(tool, {"module": tool, "config": configs.get(tool, {})}) for tool in tools
            ],
        }
        self.session = AmplifierSession(plan)
        self.session.coordinator.hooks.register("tool:pre", self._before, name="before")
        self.session.coordinator.hooks.register("llm:request", self._count, name="count")

    def _before(self, event: str, data: dict[str, Any]) -> HookResult | None:
        self.calls.append((data["tool_name"], data["tool_input"]))
        if data["tool_name"] == self.deny:
            return HookResult(action="deny", reason="not on a Sunday")
        return None

    def _count(self, event: str, data: dict[str, Any]) -> None:
        self.requests += 1

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    async def ask(self, prompt: str) -> str:
        async with self.session as session:
            return await session.execute(prompt)


@pytest.mark.parametrize(
    ("prompt", "expected", "tools"),
    [
        ("list the files", ["4 visible entries", "- src/", "- setup.cfg"], ["list_directory"]),
        ("list the Python files in src", ["2 Python files in src:", "- src/a.py"], ["glob"]),
        ("count the Python files", ["3 Python files."], ["glob"]),
        ("count the lines in setup.cfg", ["setup.cfg has 1 line."], ["read_file"]),
        ("read setup.cfg", ["setup.cfg has 1 line:", "```\n[x]\n```"], ["read_file"]),
        ("summarise README.md", ["README.md has", " words", "It begins: "], ["read_file"]),
        ("find Deadline", ["“Deadline” is in 1 line:", "- src/a.py:8: class Deadline:"], ["grep"]),
        ('write "x" to new.txt', ["Wrote 2 bytes to new.txt."], ["write_file"]),
        ('run "make all"', ["ran make all", "It ended with code 0."], ["bash"]),
        ("read ../outside.txt", ["Could not do it: "], ["read_file"]),
        ("read setup.cfg and juggle", ["I do not understand this", "[x]"], ["read_file"]),
    ],
)  # fmt: skip
async def test_real_tools_answer_prompts(tree, prompt, expected, tools):
    agent = Agent(tree)
    answer = await agent.ask(prompt.replace(" and juggle", ". Juggle"))
    assert [words for words in expected if words not in answer] == [], answer
    assert agent.names == tools
    assert answer.count(DISCLAIMER) == 1


async def test_instructions_run_in_order(tree):
    """Instructions that only read run at once."""
    agent = Agent(tree)
    answer = await agent.ask(
        'count the Python files, read setup.cfg, then write "new" to setup.cfg, then read setup.cfg'
    )
    assert agent.names == ["glob", "read_file", "write_file", "read_file"]
    assert agent.requests == 4
    places = [
        answer.index(words) for words in ("3 Python files", "[x]", "Wrote 4 bytes", "\nnew\n")
    ]
    assert places == sorted(places)


async def test_disclaimer_is_shown_once_per_conversation(tree):
    agent = Agent(tree)
    async with agent.session as session:
        first = await session.execute("count the Python files")
        (tree / "more.py").write_text("")
        second = await session.execute("count the Python files")
    assert first == f"3 Python files.\n\n{DISCLAIMER}"
    assert second == "4 Python files."


async def test_denied_call_is_reported_with_reason(tree):
    answer = await Agent(tree, deny="grep").ask("count the Python files and find Deadline")
    assert "Could not do it: denied: not on a Sunday" in answer
    assert "3 Python files" in answer


async def test_missing_tool_is_named_and_nothing_runs(tree):
    agent = Agent(tree, tools=("tool-filesystem",))
    answer = await agent.ask("find Deadline and read setup.cfg")
    assert "Not done: it needs the tool `grep`, which is not offered here." in answer
    assert "[x]" in answer
    assert agent.names == ["read_file"]


# ── a pure function of the request ───────────────────────────────────────────────────────────────


async def play(
    booth: MountedProvider,
    messages: list[Message],
    answer: Any,
    *,
    specs: Any = SPECS,
    most: int = 30,
) -> Any:
    """Run a turn with scripted tools; each request is answered twice. Fails if it does not end."""
    for _ in range(most):
        request = ChatRequest(messages=messages, tools=specs)
        response = await booth.answer(request)
        again = await booth.provider.complete(copy.deepcopy(request))
        assert to_dict(again) == to_dict(response)
        calls = booth.provider.parse_tool_calls(response)
        if not calls:
            return response
        messages.append(Message(role="assistant", content=response.content))
        messages += [
            Message(role="tool", tool_call_id=call.id, content=answer(call)) for call in calls
        ]
    raise AssertionError("the turn does not end")


words = st.sampled_from(
    [
        "list",
        "read",
        "count",
        "write",
        "run",
        "the",
        "files",
        "in",
        "to",
        "and",
        "a.py",
        "`x",
        '"q',
        ".",
        ",",
        "../up",
    ]
)
prompts = st.one_of(
    st.text(max_size=80),
    st.lists(words, max_size=25).map(" ".join),
    st.lists(st.sampled_from([*EXAMPLES]), min_size=1, max_size=14).map(", then ".join),
)
results = st.one_of(
    st.text(max_size=40),
    st.dictionaries(
        st.sampled_from([*(rule.key for rule in RULES), "total_lines", "truncated", "note", "returncode", "stderr"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a.py", "README", "d/e.md", "", "f/"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                st.sampled_from(["name", "type", "file_path", "line", "text"]), inner, max_size=3),
            max_leaves=6),
        max_size=6,
    ).map(json.dumps),
)  # fmt: skip


@given(prompt=prompts, drawn=st.lists(results, min_size=1, max_size=6))
@settings(max_examples=50)
@example(prompt="find \ud800, read \"\ud800.py\" and write '\ud800' to x.txt", drawn=["{}"])
@example(prompt="read x, read y", drawn=['{"content": "\\ud800"}'])
@example(prompt="read x" + " and y" * 3000, drawn=["{}"])
async def test_arbitrary_prompt_gets_one_valid_answer(prompt, drawn):
    booth = await MountedProvider.open(provider_offline)
    turn = iter(range(10_000))
    messages = [Message(role="user", content=prompt)]
    response = await play(booth, messages, lambda call: drawn[next(turn) % len(drawn)])
    assert response.finish_reason == "stop"
    ids = [
        b.id
        for m in messages
        if isinstance(m.content, list)
        for b in m.content
        if isinstance(b, ToolCallBlock)
    ]
    assert len(ids) == len(set(ids)) <= 40


@pytest.mark.parametrize("text", ["{}", '{"ok": true}', '{"bytes": ', "Success", "denied: no", ""])
async def test_foreign_result_is_never_success(text):
    for prompt in EXAMPLES:
        messages = [Message(role="user", content=prompt)]
        response = await play(
            await MountedProvider.open(provider_offline), messages, lambda call: text
        )
        assert sum(message.role == "tool" for message in messages) == 1
        assert response.content[0].text.startswith("Could not do it: ")


@pytest.mark.parametrize(
    ("prompt", "output", "answer"),
    [
        ('run "x"', {"stdout": "", "stderr": "no such command\n", "returncode": 127}, "```\nno such command\n```\n\nIt ended with code 127."),
        ('run "x"', {"stdout": ""}, "It ended with code unknown."),
        ("read a.txt", {"content": "x\n"}, "a.txt has unknown lines:"),
        ("find x", {"matches": []}, "“x” is in 0 lines."),
        ("count the files", {"paths": ["a", "b/", "b/c"], "note": "cut"}, "2 files.\n\nNote: cut."),
    ],
)  # fmt: skip
async def test_answer_is_limited_to_result(prompt, output, answer):
    booth = await MountedProvider.open(provider_offline)
    response = await play(
        booth, [Message(role="user", content=prompt)], lambda call: json.dumps(output)
    )
    assert response.content[0].text.startswith(answer)


@given(prompt=prompts)
@settings(max_examples=50)
async def test_forgetful_context_repeats_no_change(
    prompt,
):
    """A compacted view may show the prompt and the last calls only."""
    booth = await MountedProvider.open(provider_offline)
    first = Message(role="user", content=prompt)
    last: list[Message] = []
    made: list[ToolCall] = []
    for _ in range(14):
        response = await booth.answer(ChatRequest(messages=[first, *last], tools=SPECS))
        calls = booth.provider.parse_tool_calls(response)
        if not calls:
            break
        made += calls
        last = [Message(role="assistant", content=response.content)]
        last += [Message(role="tool", tool_call_id=call.id, content="{}") for call in calls[:1]]
    else:
        pytest.fail("more replies with calls than instructions")
    for tool, verb in (("write_file", "write"), ("bash", "run")):
        assert sum(call.name == tool for call in made) <= prompt.count(verb)


async def test_hook_messages_are_not_prompts():
    booth = await MountedProvider.open(provider_offline)
    messages = [
        Message(role="user", content="count the files"),
        Message(role="assistant", content="There are none."),
        Message(role="user", content="list the files"),
        Message(role="user", content="<system-reminder>read secret.txt</system-reminder>"),
    ]
    response = await booth.answer(ChatRequest(messages=messages, tools=SPECS))
    (call,) = response.tool_calls
    assert call.name == "list_directory"
    output = (
        json.dumps({"entries": [{"name": "a", "type": "file", "size": 1}]})
        + "\n\na hook's words behind it"
    )
    messages += [
        Message(role="assistant", content=response.content),
        Message(role="tool", tool_call_id=call.id, content=output),
        Message(role="user", content="<note>read secret.txt</note>"),
    ]
    final = await booth.answer(ChatRequest(messages=messages, tools=SPECS))
    assert "- a" in final.content[0].text


async def test_ids_are_fresh_in_compacted_view():
    booth = await MountedProvider.open(provider_offline)
    first = await booth.ask("list the files", tools=SPECS)
    messages = [
        Message(role="assistant", content="There are none."),
        Message(role="user", content="list the files"),
    ]
    later = await booth.answer(ChatRequest(messages=messages, tools=SPECS))
    assert first.tool_calls[0].id != later.tool_calls[0].id


async def test_calls_and_results_in_every_shape():
    booth = await MountedProvider.open(provider_offline)
    prompt = Message(role="user", content=[TextBlock(text="read a.txt")])
    (call,) = (await booth.answer(ChatRequest(messages=[prompt], tools=SPECS))).tool_calls
    stored = {"id": call.id, "tool": call.name, "arguments": call.arguments}
    listed: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [stored]}
    output = json.dumps({"content": "hi\n", "lines": 1, "total_lines": 1})
    shapes = [
        [Message(**listed),
         Message(role="tool", tool_call_id=call.id, content=output)],
        [Message(role="assistant", content=[ToolCallBlock(id=call.id, name=call.name, input=call.arguments)]),
         Message(role="user", content=[ToolResultBlock(tool_call_id=call.id, output=output)])],
    ]  # fmt: skip
    for shape in shapes:
        response = await booth.answer(ChatRequest(messages=[prompt, *shape], tools=SPECS))
        assert "a.txt has 1 line" in response.content[0].text


# ── the provider contract ────────────────────────────────────────────────────────────────────────


async def test_request_limits_are_kept():
    """Options that cannot be honoured are reported."""
    booth = await MountedProvider.open(provider_offline)
    short = await booth.ask("help", max_output_tokens=5)
    assert (len(short.content[0].text), short.finish_reason) == (20, "length")
    assert (await booth.ask("help", stop=[" is no"])).content[0].text == "provider-offline"
    assert (
        await booth.ask("help", response_format=ResponseFormatJson())
    ).degradation.requested == "json"
    assert (await booth.ask("list files", tools=SPECS, tool_choice="none")).tool_calls is None


async def test_usage_is_documented_estimate():
    booth = await MountedProvider.open(provider_offline)
    response = await booth.ask("x" * 41)
    assert response.usage.input_tokens == 11
    assert response.usage.output_tokens >= len(response.content[0].text) // 4
