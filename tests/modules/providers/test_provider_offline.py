"""provider-offline: no model, but real tools and real numbers; deterministic, bounded, and honest about all of it."""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from amplifier import AmplifierSession, ModuleLoader
from amplifier.contracts import Provider
from amplifier.errors import PlanError
from amplifier.models import (
    ChatRequest,
    ChatResponse,
    HookResult,
    Message,
    ResponseFormatJson,
    TextBlock,
    ToolCallBlock,
    ToolResultBlock,
    ToolSpec,
    to_dict,
)
from amplifier.modules import (
    context_simple,
    loop_basic,
    loop_streaming,
    provider_offline,
    tool_filesystem,
    tool_search,
    tool_todo,
)
from amplifier.modules.provider_offline import _leftovers
from amplifier.modules.provider_offline._intents import (
    CountFiles,
    CountLines,
    FetchPage,
    Files,
    FindFile,
    FindText,
    Help,
    ListFiles,
    ReadFiles,
    ReplaceText,
    RunCommand,
    Summarise,
    Todo,
    Unknown,
    WriteFile,
)
from amplifier.modules.provider_offline._understanding import understand
from amplifier.testing import MODES, MockTool, cancel_everywhere
from tests.modules.providers.test_provider_mock import EVERY_BLOCK, Booth, check_chunks, check_response

PYTHON = Files(kind="Python", pattern="*.py")
HERE = Files()
TOOLS = ("read_file", "write_file", "edit_file", "list_directory", "glob", "grep", "bash", "todo", "web_fetch")
SPECS = [ToolSpec(name=name, parameters={"type": "object"}) for name in TOOLS]

LISTED = ["glob", "list_directory", "list_directory", "list_directory"]

REPOSITORY = (
    "Summarise this repository: count the Python files, find where L5 is mentioned, read the README and write a short "
    "report"
)


def named(*paths: str) -> Files:
    return Files(paths=paths)


def parts(text: str, sign: str = "|") -> list[str]:
    return text.split(sign)


# ── understanding ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("prompt", "intents"),
    [
        ("list files", [ListFiles(files=HERE)]),
        ("What files are here?", [ListFiles(files=HERE)]),
        ("ls src/lib", [ListFiles(files=Files(directory="src/lib"))]),
        ("Please show me the files in src", [ListFiles(files=Files(directory="src"))]),
        ("list all files", [ListFiles(files=HERE, is_deep=True)]),
        ("find all Python files", [ListFiles(files=PYTHON, is_deep=True)]),
        ("list the .cfg files", [ListFiles(files=Files(kind=".cfg", pattern="*.cfg"))]),
        ("list *.toml", [ListFiles(files=Files(kind="*.toml", pattern="*.toml"))]),
        ("read README.md", [ReadFiles(files=named("README.md"))]),
        ("Could you open `a b.txt`?", [ReadFiles(files=named("a b.txt"))]),
        ("read a.txt and b.txt", [ReadFiles(files=named("a.txt", "b.txt"))]),
        ("look at docs/x.md", [ReadFiles(files=named("docs/x.md"))]),
        ("show the first 10 lines of a.py", [ReadFiles(files=named("a.py"), most=10)]),
        ("show lines 10 to 20 of a.py", [ReadFiles(files=named("a.py"), first=10, most=11)]),
        ("read the longest Python file", [ReadFiles(files=Files(kind="Python", pattern="*.py", pick="longest"))]),
        ("grep L5", [FindText(text="L5", files=HERE)]),
        ('find "cancel scope" in the docs folder', [FindText(text="cancel scope", files=Files(directory="docs"))]),
        ("search for TODO in the Python files", [FindText(text="TODO", files=PYTHON)]),
        ("where is Session defined?", [FindText(text="Session", files=HERE)]),
        ("which files mention trio?", [FindText(text="trio", files=HERE)]),
        ("find the file conftest.py", [FindFile(name="conftest.py")]),
        ("find files named x.toml in sub/dir", [FindFile(name="x.toml", directory="sub/dir")]),
        ("find *.toml", [FindFile(name="*.toml")]),
        ("read .env", [ReadFiles(files=named(".env"))]),
        ("read link", [ReadFiles(files=named("link"))]),
        ("read a.md in src", [ReadFiles(files=named("src/a.md"))]),
        ("list docs", [ListFiles(files=Files(directory="docs"))]),
        ("show the last 2 lines of a.py", [ReadFiles(files=named("a.py"), most=2, is_end=True)]),
        ("how many files contain timeout?", [FindText(text="timeout", files=HERE, only_count=True)]),
        ("how many lines in a.md contain `x y`?", [FindText(text="x y", files=named("a.md"), only_count=True)]),
        ("how many times does 'X' occur in a.md", [FindText(text="X", files=named("a.md"), only_count=True)]),
        (
            "how many mentions of x are there in src?",
            [FindText(text="x", files=Files(directory="src"), only_count=True)],
        ),
        ("count the uses of a b in src", [FindText(text="a b", files=Files(directory="src"), only_count=True)]),
        ("list all Python files containing x", [FindText(text="x", files=PYTHON)]),
        ("how many directories are in src", [CountFiles(files=Files(directory="src"), are_directories=True)]),
        ("find the longest file", [CountLines(files=Files(pick="longest"))]),
        ("read a.md carefully", [ReadFiles(files=named("a.md")), Unknown(words="carefully")]),
        (
            "how many Python files are in src/a?",
            [CountFiles(files=Files(kind="Python", pattern="*.py", directory="src/a"))],
        ),
        ("count the files", [CountFiles(files=HERE)]),
        ("count the lines of a.md", [CountLines(files=named("a.md"))]),
        ("how many words are in a.md?", [CountLines(files=named("a.md"), unit="words")]),
        ("count the lines of the Python files", [CountLines(files=PYTHON)]),
        ('how often does "x" occur in a.md?', [FindText(text="x", files=named("a.md"), only_count=True)]),
        ("summarise this directory", [Summarise(files=HERE)]),
        ("Summarize the largest file.", [Summarise(files=Files(pick="longest"))]),
        ("describe a.md", [Summarise(files=named("a.md"))]),
        ("tell me about this project", [Summarise(files=HERE)]),
        ('write "hello world" to notes.txt', [WriteFile(path="notes.txt", text="hello world\n")]),
        ("write hello to notes.txt", [WriteFile(path="notes.txt", text="hello\n")]),
        ("create a file named x.txt with the text hi", [WriteFile(path="x.txt", text="hi\n")]),
        ("write to a.py:\n```python\nread b.py\n```", [WriteFile(path="a.py", text="read b.py\n")]),
        ("write a short report", [WriteFile(path="", text=None)]),
        ('replace "a" with "b" in x.txt', [ReplaceText(path="x.txt", old="a", new="b")]),
        ("run `echo a and b`", [RunCommand(command="echo a and b")]),
        ("run the command ls -la", [RunCommand(command="ls -la")]),
        ("run the tests", [RunCommand(command="")]),
        ("fetch https://example.org/x.", [FetchPage(url="https://example.org/x")]),
        ('add "buy milk" to the todo list', [Todo(text="buy milk")]),
        ("show my todo list", [Todo()]),
        ("help", [Help()]),
        ("What can you do?", [Help()]),
        ("Write a poem about spring", [Unknown(words="Write a poem about spring")]),
        ("explain quantum physics", [Unknown(words="explain quantum physics")]),
        ("", []),
    ],
)
def test_a_request_is_understood(prompt, intents):
    assert understand(prompt) == (intents, 0)


@pytest.mark.parametrize(
    ("prompt", "kinds"),
    [
        ("list the Python files and count the lines in the longest one", [ListFiles, CountLines]),
        (REPOSITORY, [Summarise, CountFiles, FindText, ReadFiles, WriteFile]),
        ("1. list the files 2. read setup.py", [ListFiles, ReadFiles]),
        ("- list the files\n- read setup.py\n", [ListFiles, ReadFiles]),
        ("How many test files are there, and which one is the longest?", [CountFiles, CountLines]),
        ("write 'list a and read b' to c.txt, then read it", [WriteFile, ReadFiles]),
        ("sing a song and list the files", [ListFiles]),
    ],
)  # fmt: skip
def test_several_requests_are_understood_one_by_one(prompt, kinds):
    intents, _ = understand(prompt)
    assert [type(intent) for intent in intents if not isinstance(intent, Unknown)] == kinds


def test_words_that_point_back_mean_what_was_spoken_of():
    first, second = understand("read a.txt and count its words")[0]
    assert (first, second) == (ReadFiles(files=named("a.txt")), CountLines(files=named("a.txt"), unit="words"))
    _, longest = understand("list the Python files in src/x and read the longest one")[0]
    assert longest == ReadFiles(files=Files(kind="Python", pattern="*.py", directory="src/x", pick="longest"))
    _, again = understand("write hi to b.txt. Now read it.")[0]
    assert again == ReadFiles(files=named("b.txt"))


def test_more_requests_than_it_looks_at_are_counted():
    intents, left_out = understand("list files. " * 15)
    assert (len(intents), left_out) == (12, 3)


# ── what is not understood is not passed over ────────────────────────────────────────────────────

AFTER = parts(
    "not in src|except in src|except src|excluding tests|without tests|other than a.py|outside src|but not in src|"
    "that do not contain x|containing no text|containing more than 3 lines|larger than 1000 bytes|smaller than 1 MB|"
    "with more than 10 lines|modified today|changed since Monday|in src and in sub2|in src and sub2|in src or lib|"
    "per directory|in each directory|and directories|by size|whose name starts with a|that are empty|sorted by size|"
    "(not in src)|, excluding src|on average|and functions|named a.py or b.py|newer than a.py"
)
BEFORE = parts(
    "empty|first 3|last 2|first|last|3|hidden|executable|non-empty|newest|largest 3|unused|duplicate|long|short|"
    "one line|small|binary|non-|blank|different|top-level"
)
QUESTIONS = parts(
    "count the {}files{}|how many {}files are there{}|how many {}Python files are there{}|count all {}lines{}|"
    "tell me how many {}lines the Python files have{}|count the {}words in a.md{}|list all {}files{}|"
    "find all {}files{}|how many {}directories are there{}|list all {}Python files{}|"
    "how often does 'x' occur in {}files{}"
)
words = st.text("abcdefghijklmnopqrstuvwxyzäß", min_size=5, max_size=9)


@given(question=st.sampled_from(QUESTIONS), before=st.sampled_from(["", *BEFORE]), after=st.sampled_from(["", *AFTER]))
@settings(max_examples=300)
def test_a_qualifier_is_never_dropped(question, before, after):
    plain = understand(question.format("", ""))[0]
    assert not any(isinstance(intent, Unknown) for intent in plain)
    asked = question.format(f"{before} " if before else "", f" {after}" if after else "")
    understood = understand(asked)[0]
    if before or after:
        assert any(isinstance(intent, Unknown) and intent.words for intent in understood), understood
        assert question.startswith(("list", "find")) or all(isinstance(intent, Unknown) for intent in understood)


@given(question=st.sampled_from(QUESTIONS), word=words, is_before=st.booleans())
def test_a_word_it_does_not_know_is_named(question, word, is_before):
    assume(
        word not in _leftovers.FINDING | _leftovers.COUNTING | _leftovers._SAYS_NOTHING | {"todos"}
    )  # a word it knows
    asked = question.format(f"{word} ", "") if is_before else question.format("", f" {word}")
    assert any(word in intent.words for intent in understand(asked)[0] if isinstance(intent, Unknown))


@pytest.mark.parametrize(
    ("prompt", "part"),
    [
        ("count the files not in src", "'not in src'"),
        ("how many functions are in src/a.py", "'functions'"),
        ("how many bytes is setup.cfg", "'bytes'"),
        ("how big is setup.cfg", "'big'"),
        ("how many files are in README.md", "'README.md'"),
        ("show the last ten lines of README.md", "'last ten lines'"),
        ("read README.md without comments", "'without comments'"),
        ("find Deadline in all files except tests", "'except tests'"),
        ("find Deadline in README.md and setup.cfg", "'README.md and setup.cfg'"),
        ("find files larger than 10 bytes", "'larger than 10 bytes'"),
    ],
)
async def test_a_question_that_is_not_understood_whole_is_not_answered(tree, prompt, part):
    agent = Agent(tree)
    answer = await agent.ask(prompt)
    assert f"I did not understand {part} in '{prompt}'; without it this is another question" in answer
    assert agent.calls == []
    both = await Agent(tree).ask(f"{prompt}. Read setup.cfg")
    assert f"I did not understand {part} in" in both
    assert "[x]" in both


# ── with real tools ──────────────────────────────────────────────────────────────────────────────

TREE = {
    "README.md": "# Demo\n\nA tree to look at.\n\n## Parts\n\nmore words\n",
    "setup.cfg": "[x]\n",
    "src/a.py": "import os\n\n\ndef find():\n    return 1\n\n\nclass Deadline:\n    pass\n",
    "src/deep/b.py": "x = 1\n" * 40,
    "tests/test_a.py": "def test_it():\n    pass\n",
    ".cache/big.py": "deadline\n" * 500,
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


class Shell:
    """The least of tool-bash: the name, the input and the output."""

    @staticmethod
    def answer(given: dict[str, Any]) -> Any:
        return {"stdout": f"ran {given['command']}\n", "stderr": "", "exit_code": 0}


class Agent:
    """A session on a folder with the built-in tools, and what they were called with."""

    def __init__(self, root: Path, *, tools: Any = ("tool-filesystem", "tool-search", "tool-todo", "tool-bash"),
                 loop: Any = loop_streaming, deny: str = "", config: dict[str, Any] | None = None) -> None:  # fmt: skip
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.requests = 0
        self.deny = deny
        paths = {"allowed_paths": [str(root)]}
        configs = {"tool-filesystem": paths, "tool-search": {**paths, "ripgrep": False}}
        plan = {
            "session": {"orchestrator": "loop-x", "context": "context-simple", "strict": True},
            "providers": [{"module": "provider-offline", "config": config or {}}],
            "tools": [{"module": tool, "config": configs.get(tool, {})} for tool in tools],
            "hooks": [{"module": "hooks-x"}],
        }
        modules = {
            "loop-x": loop,
            "context-simple": context_simple,
            "provider-offline": provider_offline,
            "tool-filesystem": tool_filesystem,
            "tool-search": tool_search,
            "tool-todo": tool_todo,
            "tool-bash": self._mount_bash,
            "hooks-x": self._mount_hooks,
        }
        self.session = AmplifierSession(plan, loader=ModuleLoader(modules=modules))

    async def _mount_bash(self, coordinator: Any, config: Any) -> None:
        await coordinator.mount("tools", MockTool("bash", respond=Shell.answer))

    async def _mount_hooks(self, coordinator: Any, config: Any) -> None:
        def before(event: str, data: dict[str, Any]) -> HookResult | None:
            self.calls.append((data["tool_name"], data["tool_input"]))
            if data["tool_name"] == self.deny:
                return HookResult(action="deny", reason="not on a Sunday")
            return None

        def count(event: str, data: dict[str, Any]) -> None:
            self.requests += 1

        coordinator.hooks.register("tool:pre", before, name="before")
        coordinator.hooks.register("llm:request", count, name="count")

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    async def ask(self, prompt: str) -> str:
        async with self.session as session:
            return await session.execute(prompt)


@pytest.mark.parametrize(
    ("prompt", "said", "tools"),
    [
        ("list the files", ["2 directories and 2 files", "- src/", "setup.cfg (4 bytes)", "Hidden, and left out of counts and searches: .cache/."], ["list_directory"]),
        ("list the Python files", ["3 Python files", "src/deep/b.py"], LISTED),
        ("list the Python files in .cache", ["1 Python file in .cache", ".cache/big.py"], ["glob", "list_directory"]),
        ("read README.md", ["README.md has 7 lines", "A tree to look at."], ["read_file"]),
        ("read the README", ["README.md has 7 lines"], ["glob", "read_file"]),
        ("read b.py", ["src/deep/b.py has 40 lines"], ["read_file", "glob", "read_file"]),
        ("show lines 4 to 5 of src/a.py", ["has 9 lines; here are lines 4 to 5", "def find():"], ["read_file"]),
        ("find where Deadline is defined", ["stands in 1 line of 1 file", "src/a.py:8: `class Deadline:`"], ["grep"]),
        ("find unobtainium", ["stands nowhere; 5 files searched"], ["grep"]),
        ("find files named b.py", ["1 file of that name", "src/deep/b.py"], ["glob"]),
        ("how many Python files are there?", ["There are 3 Python files", "src (2)"], LISTED),
        ("count the lines in the longest Python file", ["is src/deep/b.py with 40 lines"], ["glob", "grep"]),
        ("count the lines of the Python files", ["51 lines in 3 Python files"], ["glob", "grep"]),
        ("count the words in README.md", ["README.md has 11 words"], ["read_file"]),
        ("how often does 'x = 1' occur?", ["stands in 40 lines of 1 file"], ["grep"]),
        ("summarise README.md", ["7 lines", "2 headings", "- Parts", "Demo — A tree to look at."], ["read_file"]),
        ("summarise the longest file", ["src/deep/b.py has 40 lines"], ["glob", "grep", "read_file"]),
        ("summarise src/a.py", ["2 definitions", "class Deadline"], ["read_file"]),
        (
            "summarise this directory",
            ["5 files in 4 directories", "59 lines of text", "| Python (.py) | 3 | 51 |", "src/deep/b.py: 40 lines", "Demo — A tree"],
            [*LISTED, "list_directory", "grep", "read_file"],
        ),
        ('write "hi" to new/n.txt', ["Made new/n.txt with 3 bytes"], ["write_file"]),
        ("run `make all`", ["ran make all", "It ended well."], ["bash"]),
        ("run the tests", ["I need the command itself"], []),
        ('add "buy milk" to the todo list', ["buy milk (pending)"], ["todo", "todo"]),
        ("read ../outside.txt", ["Could not read ../outside.txt"], ["read_file"]),
        ("read nothing.txt", ["Could not read nothing.txt"], ["read_file", "glob"]),
        ("fetch https://example.org", ["this needs the tool `web_fetch` of tool-web, not offered here"], []),
        ("what is the meaning of life?", ["I found nothing I know", "list the files", "no language model"], []),
    ],
)  # fmt: skip
async def test_it_drives_the_real_tools_and_answers_with_real_numbers(tree, prompt, said, tools):
    agent = Agent(tree)
    answer = await agent.ask(prompt)
    assert [words for words in said if words not in answer] == [], answer
    assert agent.names == tools
    assert answer.count("no language model") == 1
    assert "ANTHROPIC_API_KEY" in answer


async def test_a_combined_request_is_several_calls_at_once_and_one_answer(tree):
    agent = Agent(tree)
    answer = await agent.ask(
        "Summarise this repository: count the Python files, find where Deadline is mentioned, read the README and "
        "write a short report to out/report.md"
    )
    assert agent.names[-1] == "write_file"
    assert sorted(set(agent.names)) == ["glob", "grep", "list_directory", "read_file", "write_file"]
    assert agent.requests < len(agent.calls)  # several of them at the same time
    report = (tree / "out" / "report.md").read_text()
    assert "There are 3 Python files" in report
    assert "src/a.py:8" in report
    assert "README.md has 7 lines" in report
    assert "There are 3 Python files" in answer
    assert f"Made out/report.md with {len(report.encode()):,} bytes" in answer


async def test_what_changes_something_is_done_in_order_and_seen_by_what_follows(tree):
    agent = Agent(tree)
    answer = await agent.ask('read setup.cfg, then write "new" to setup.cfg, then read setup.cfg')
    assert agent.names == ["read_file", "write_file", "read_file"]
    assert answer.index("[x]") < answer.index("Wrote setup.cfg") < answer.index("\nnew\n")
    edited = await Agent(tree).ask('replace "new" with "old" in setup.cfg and read it')
    assert "Changed setup.cfg in 1 place." in edited
    assert "\nold\n" in edited


@pytest.fixture
def odd_tree(tmp_path: Path) -> Path:
    """Hidden things at every depth, links, a pipe, a binary and an empty file."""
    texts = {"a.py": "x\n", ".env": "A=1\nB=2\n", "src/b.py": "x\nyy x\n", "src/empty.py": "", "src/.inner/c.py": "x\n",
             "src/.d.py": "x\n", ".cache/e.py": "x\n", "one.dat": "\0", "sub/deep/f.txt": "z\n" * 90}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "src" / "pipe.py")
    (tmp_path / "folder").symlink_to("src")
    (tmp_path / "link").symlink_to("src/b.py")
    return tmp_path


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("count the files", ["There are 5 files", "Hidden files and directories are left out."]),
        ("count the Python files", ["There are 3 Python files"]),
        ("count the Python files in src", ["There are 2 Python files in src"]),
        ("list all Python files", ["3 Python files:"]),
        ("count the .dat files", ["There is 1 .dat file in"]),
        ("count the files in src/.inner", ["There is 1 file in src/.inner"]),
        ("how many directories are there", ["There are 3 directories"]),
        ("count the lines in src", ["2 lines in 2 files in src", "src/empty.py: 0 lines"]),
        ("count the lines", ["93 lines in 4 files", "Note: 1 binary file was left out."]),
        ("which file is the shortest?", ["is src/empty.py with 0 lines"]),
        ("how many files contain x", ["“x” stands in 3 lines of 2 files. Hidden files"]),
        ("find x", ["“x” stands in 3 lines of 2 files:"]),
        ("summarise this directory", ["5 files in 3 directories", "93 lines of text", "| Python (.py) | 3 | 3 |"]),
        (
            "list the files",
            ["2 directories, 2 files and 2 others (links or pipes)", "searches: .cache/, .env (8 bytes)."],
        ),
        ("find files named .env", ["1 file of that name"]),
        ("count the lines in .env", [".env has 2 lines."]),
        ("read .env", [".env has 2 lines:"]),
        ("read link", ["link has 2 lines:"]),
        ("show the last 2 lines of sub/deep/f.txt", ["has 90 lines; here are lines 89 to 90:"]),
        ("show the last line of a.py", ["a.py has 1 line:"]),
    ],
)
async def test_every_count_follows_one_rule(odd_tree, prompt, said):
    answer = await Agent(odd_tree).ask(prompt)
    assert [words for words in said if words not in answer] == [], answer


async def test_what_could_not_be_checked_is_told(tmp_path):
    for number in range(13):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "e.py").write_text("")
    assert "There are 13 files in the working directory" in (answer := await Agent(tmp_path).ask("count the files"))
    assert "Links among them, if any, are counted as files." in answer
    (tmp_path / "a.py").write_text("x\n")
    assert "Files without a line may not be among" in await Agent(tmp_path).ask("count the lines of the Python files")


async def test_many_files_are_counted_in_parts_and_none_is_missed(tmp_path):
    for folder in ("a", "b/c", "b/d", "."):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for number in range(110):
            (tmp_path / folder / f"{number}.py").write_text("x\n" * (number % 7 + 1))
    total = 4 * sum(number % 7 + 1 for number in range(110))
    (tmp_path / "b/d/longest.py").write_text("x\n" * 9)
    agent = Agent(tmp_path)
    answer = await agent.ask("count the lines of the Python files and read the longest one")
    assert f"{total + 9:,} lines in 441 Python files" in answer
    assert "b/d/longest.py has 9 lines" in answer


@pytest.mark.parametrize("loop", [loop_basic, loop_streaming])
async def test_a_conversation_goes_on_from_turn_to_turn(tree, loop):
    agent = Agent(tree, loop=loop)
    async with agent.session as session:
        first = await session.execute("count the Python files")
        (tree / "more.py").write_text("")
        second = await session.execute("count the Python files")
        third = await session.execute("read setup.cfg")
    assert "There are 3 Python files" in first
    assert "There are 4 Python files" in second
    assert "[x]" in third


async def test_a_denied_call_is_told_as_it_is(tree):
    answer = await Agent(tree, deny="grep").ask("count the Python files and find Deadline")
    assert "Could not search for “Deadline”:" in answer
    assert "not on a Sunday" in answer
    assert "There are 3 Python files" in answer


async def test_what_is_not_offered_is_named_and_nothing_else_is_called(tree):
    agent = Agent(tree, tools=("tool-filesystem",))
    answer = await agent.ask("find Deadline, read setup.cfg and summarise this directory")
    assert "this needs the tool `grep` of tool-search, not offered here" in answer
    assert "[x]" in answer
    assert "5 files in 4 directories" in answer
    assert "grep" not in agent.names
    bare = await Agent(tree, tools=()).ask("list the files")
    assert "this needs the tool `list_directory` of tool-filesystem" in bare


# ── a pure function of the request ───────────────────────────────────────────────────────────────


async def play(booth: Booth, messages: list[Message], answer: Any, *, specs: Any = SPECS, most: int = 30) -> Any:
    """Run a turn with scripted tools; fails if it does not end."""
    for _ in range(most):
        request = ChatRequest(messages=messages, tools=specs)
        response = await booth.answer(request)
        again = await booth.provider.complete(copy.deepcopy(request))
        assert to_dict(again) == to_dict(response)
        calls = booth.provider.parse_tool_calls(response)
        if not calls:
            return response
        messages.append(Message(role="assistant", content=response.content))
        messages += [Message(role="tool", tool_call_id=call.id, content=answer(call)) for call in calls]
    raise AssertionError("the turn does not end")


vocabulary = st.sampled_from(
    [
        "\n",
        *parts(
            "list read find count summarise write run replace fetch add show search the files Python lines words in of to "
            "and then longest one it README a.py src/b.md `x y` \"quoted text\" 'q' report . , : ; ? where how many is "
            "mentioned todo https://x.org with first last 10 3 this directory *.md ../up /etc/passwd all not except "
            "containing .env",
            " ",
        ),
    ]
)
prompts = st.one_of(st.text(max_size=80), st.lists(vocabulary, max_size=25).map(" ".join))
results = st.one_of(
    st.text(max_size=40),
    st.dictionaries(
        st.sampled_from(["paths", "counts", "count", "content", "lines", "total_lines", "entries", "matches", "truncated",
                         "note", "todos", "stdout", "exit_code", "bytes", "file_path"]),
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["a.py", "README", "d/e.md", "", "f/"]),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                st.sampled_from(["name", "type", "size", "file_path", "count", "line", "text"]), inner, max_size=3),
            max_leaves=6),
        max_size=6,
    ).map(json.dumps),
)  # fmt: skip


@given(prompt=prompts, drawn=st.lists(results, min_size=1, max_size=6))
@settings(max_examples=150)
@example(prompt="find \ud800, read \"\ud800.py\" and write '\ud800' to x.txt", drawn=["{}"])
@example(prompt="read x" + " and y" * 3000, drawn=["{}"])
async def test_any_words_and_any_results_end_in_one_valid_answer(prompt, drawn):
    booth = await Booth.open(provider_offline)
    turn = iter(range(10_000))
    messages = [Message(role="user", content=prompt)]
    response = await play(booth, messages, lambda call: drawn[next(turn) % len(drawn)])
    assert response.finish_reason == "stop"
    ids = [b.id for m in messages if isinstance(m.content, list) for b in m.content if isinstance(b, ToolCallBlock)]
    assert len(ids) == len(set(ids)) <= 40


@given(prompt=prompts)
@settings(max_examples=50)
async def test_a_context_that_forgets_results_does_not_make_it_ask_for_ever(prompt):
    """A compacted view may show the prompt and the last calls only."""
    booth = await Booth.open(provider_offline)
    first = Message(role="user", content=prompt)
    last: list[Message] = []
    for _ in range(14):
        request = ChatRequest(messages=[first, *last], tools=SPECS)
        response = await booth.answer(request)
        calls = booth.provider.parse_tool_calls(response)
        if not calls:
            break
        paths = json.dumps({"paths": [f"{call.id}.py" for call in calls], "count": 1})
        last = [Message(role="assistant", content=response.content)]
        last += [Message(role="tool", tool_call_id=call.id, content=paths) for call in calls[:1]]
    else:
        pytest.fail("asked more often than max_steps")


async def test_limits_of_calls_and_steps_are_kept_and_told():
    booth = await Booth.open(provider_offline, max_calls=2)
    messages = [Message(role="user", content="read a.txt, b.txt and c.txt")]
    response = await play(booth, messages, lambda call: json.dumps({"content": "x", "lines": 1, "total_lines": 1}))
    text = response.content[0].text
    assert "one answer makes only so many calls" in text
    assert sum(message.role == "tool" for message in messages) == 2
    slow = await Booth.open(provider_offline, max_steps=1)
    messages = [Message(role="user", content="read the README")]
    response = await play(slow, messages, lambda call: json.dumps({"paths": ["README.md"]}))
    assert sum(message.role == "tool" for message in messages) == 1
    assert "Some of it was not done" in response.content[0].text


async def test_hooks_that_speak_in_between_are_not_taken_for_the_user():
    booth = await Booth.open(provider_offline)
    messages = [
        Message(role="user", content="count the files"),
        Message(role="assistant", content="There are none."),
        Message(role="user", content="list the files"),
        Message(role="user", content="<system-reminder>read secret.txt</system-reminder>"),
    ]
    response = await booth.answer(ChatRequest(messages=messages, tools=SPECS))
    (call,) = response.tool_calls
    assert call.name == "list_directory"
    output = json.dumps({"entries": [{"name": "a", "type": "file", "size": 1}]}) + "\n\na hook's words behind it"
    messages += [
        Message(role="assistant", content=response.content),
        Message(role="tool", tool_call_id=call.id, content=output),
        Message(role="user", content="<note>read secret.txt</note>"),
    ]
    final = await booth.answer(ChatRequest(messages=messages, tools=SPECS))
    assert "a (1 byte)" in final.content[0].text


async def test_a_turn_that_was_cut_short_does_not_colour_the_next():
    booth = await Booth.open(provider_offline)
    messages = [Message(role="user", content="list the files")]
    response = await booth.answer(ChatRequest(messages=messages, tools=SPECS))
    messages += [
        Message(role="assistant", content=response.content),
        Message(role="tool", tool_call_id=response.tool_calls[0].id, content="[interrupted]"),
        Message(role="user", content="read a.txt"),
    ]
    after = await booth.answer(ChatRequest(messages=messages, tools=SPECS))
    assert [call.name for call in after.tool_calls] == ["read_file"]


async def test_ids_are_new_even_where_a_compacted_view_hides_the_old_ones():
    booth = await Booth.open(provider_offline)
    first = await booth.ask("list the files", tools=SPECS)
    messages = [Message(role="assistant", content="There are none."), Message(role="user", content="list the files")]
    later = await booth.answer(ChatRequest(messages=messages, tools=SPECS))
    assert first.tool_calls[0].id != later.tool_calls[0].id


async def test_calls_and_results_are_read_in_every_shape_a_transcript_has():
    booth = await Booth.open(provider_offline)
    prompt = Message(role="user", content=[TextBlock(text="read a.txt")])
    call: dict[str, Any] = {
        "id": "c",
        "tool": "read_file",
        "arguments": {"file_path": "a.txt", "offset": 1, "limit": 40},
    }
    listed: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [call]}
    output = {"content": "hi\n", "lines": 1, "total_lines": 1}
    shapes = [
        [Message(**listed),
         Message(role="tool", tool_call_id="c", content=json.dumps(output))],
        [Message(role="assistant", content=[ToolCallBlock(id="c", name="read_file", input=call["arguments"])]),
         Message(role="user", content=[ToolResultBlock(tool_call_id="c", output=json.dumps(output))])],
    ]  # fmt: skip
    for shape in shapes:
        response = await booth.answer(ChatRequest(messages=[prompt, *shape], tools=SPECS))
        assert "a.txt has 1 line" in response.content[0].text


async def test_arguments_have_the_names_that_the_offered_tool_gives_them():
    booth = await Booth.open(provider_offline)
    other = ToolSpec(name="read_file", parameters={"type": "object", "properties": {"path": {"type": "string"}}})
    request = ChatRequest(messages=[Message(role="user", content="read a.txt")], tools=[other])
    response = await booth.answer(request)
    assert response.tool_calls[0].arguments == {"path": "a.txt"}


# ── the provider contract ────────────────────────────────────────────────────────────────────────


async def test_it_is_mounted_as_offline_and_describes_itself():
    booth = await Booth.open(provider_offline)
    assert isinstance(booth.provider, Provider)
    assert list(booth.coordinator.get("providers")) == ["offline"]
    info = booth.provider.get_info()
    assert "no language model" in info.display_name
    assert (await booth.provider.list_models())[0].id == info.defaults["model"] == "offline-rules"


@pytest.mark.parametrize("role", ["system", "developer", "user", "assistant", "function", "tool"])
async def test_every_role_and_block_is_accepted(role):
    booth = await Booth.open(provider_offline)
    response = await booth.answer(ChatRequest(messages=[Message(role=role, content=EVERY_BLOCK, tool_call_id="c1")]))
    assert response.usage.cost_usd == 0
    assert isinstance(await booth.answer(ChatRequest(messages=[])), ChatResponse)


async def test_a_stream_tells_the_same_answer_in_words():
    booth = await Booth.open(provider_offline)
    for prompt in ("help", "read a.txt and b.txt"):
        request = ChatRequest(messages=[Message(role="user", content=prompt)], tools=SPECS)
        chunks = await booth.chunks(request)
        response = check_chunks(chunks)
        check_response(booth.provider, response)
        assert response == await booth.provider.complete(request)
        assert len([chunk for chunk in chunks if chunk.kind == "block_delta"]) > 3


async def test_what_a_request_limits_is_limited_and_what_it_cannot_do_is_told():
    booth = await Booth.open(provider_offline)
    short = await booth.ask("help", max_output_tokens=5)
    assert (len(short.content[0].text), short.finish_reason) == (20, "length")
    assert (await booth.ask("help", stop=["provider"])).content[0].text == "I am "
    assert (await booth.ask("help", response_format=ResponseFormatJson())).degradation.requested == "json"
    assert (await booth.ask("list files", tools=SPECS, tool_choice="none")).tool_calls is None
    assert (await booth.ask("help", tools=SPECS, tool_choice="required")).degradation.requested == "tool_choice"


async def test_usage_is_the_documented_estimate():
    booth = await Booth.open(provider_offline)
    response = await booth.ask("x" * 41)
    assert response.usage.input_tokens == 11
    assert response.usage.output_tokens >= len(response.content[0].text) // 4


async def test_concurrent_requests_do_not_mix():
    booth = await Booth.open(provider_offline)
    answers: dict[str, Any] = {}

    async def ask(name: str) -> None:
        answers[name] = await booth.ask(f"read {name}", tools=SPECS)

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, f"f{number}.txt")
    assert all(answers[name].tool_calls[0].arguments["file_path"] == name for name in answers)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"max_call": 1}, r"\$\.max_call: unknown key; did you mean 'max_calls'"),
        ({"max_steps": 0}, r"\$\.max_steps: expected a whole number of at least 1"),
        ({"stream_delay_ms": -1}, r"\$\.stream_delay_ms: expected a number of milliseconds"),
        ({"debug": "yes"}, r"\$\.debug: expected true or false"),
    ],
)
async def test_a_wrong_config_is_refused_in_words(config, problem):
    with pytest.raises(PlanError, match=problem):
        await Booth.open(provider_offline, **config)


@pytest.mark.parametrize("mode", MODES)
def test_a_turn_cancelled_anywhere_leaves_nothing_and_no_file_torn(tmp_path, mode):
    def make() -> Any:
        for name in ("a.txt", "out.txt"):
            (tmp_path / name).write_text("old\n")

        async def scenario() -> None:
            await Agent(tmp_path).ask("read a.txt, count the files and write the results to out.txt")

        def check() -> list[str]:
            text = (tmp_path / "out.txt").read_text()
            left = sorted(path.name for path in tmp_path.iterdir())
            problems = [] if left == ["a.txt", "out.txt"] else [f"left: {left}"]
            return problems if text == "old\n" or text.endswith(".\n") else [*problems, f"torn: {text[-50:]!r}"]

        return scenario, check

    report = cancel_everywhere(make, modes=[mode], clock="real", max_points=60, second_after=(1, 3))
    report.raise_if_broken()
    assert report.points[mode] >= 10
