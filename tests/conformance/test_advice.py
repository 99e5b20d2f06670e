"""What a finding tells an author: where to look, how to fix a cancellation that does not leave the call, what to install."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import anyio
import pytest

from amplifier.conformance import Report, check_module
from amplifier.conformance.checks.registry import all_clauses
from amplifier.conformance.target.advice import cancellation_hint, missing_package_hint, source_location
from amplifier.conformance.target.locate import find_target
from tests.conformance.modules import SOUND_TOOL, write_module, write_project


def check(target: Path | str, *only: str, backend: str = "asyncio") -> Report:
    async def run() -> Report:
        return await check_module(target, only=only, backends=[backend])

    return anyio.run(run)


# ── where to look ──


@pytest.mark.parametrize(
    ("clause", "line"),
    [
        ("T7", "def get_schema"),  # named by the clause
        ("T8", "def get_schema"),  # the likeliest of those that the clause names
        ("T5", "async def execute"),  # the clause names none: where a tool does its work
        ("A13", "async def execute"),  # none of those that the clause names is there
        ("T4", "async def mount"),  # about mounting
    ],
)
def test_a_finding_points_to_the_function_that_keeps_the_promise(tmp_path, clause, line):
    file = write_module(tmp_path, SOUND_TOOL)
    number = next(n for n, text in enumerate(file.read_text().splitlines(), 1) if line in text)
    found = source_location(find_target(file), "tool", all_clauses()[clause], None)
    assert found == f"tool_echo.py:{number}"


def test_a_finding_of_a_cancelled_call_points_to_the_await(tmp_path):
    target = find_target(write_module(tmp_path, SOUND_TOOL))
    found = source_location(target, "tool", all_clauses()["A9"], "some/where/tool_echo.py:12 execute")
    assert found == "tool_echo.py:12"


def test_a_file_that_cannot_be_parsed_has_no_location(tmp_path):
    target = find_target(write_module(tmp_path, "def ("), "tool")
    assert source_location(target, "tool", all_clauses()["T5"], None) is None


@pytest.mark.parametrize(
    "registration",
    ["register(event, Guard().on_tool)", "register(event, handler=on_tool, name='x')", "register(event, on_tool)"],
)
def test_a_finding_of_a_hook_points_to_the_handler_that_is_registered(tmp_path, registration):
    source = f"async def mount(coordinator, config):\n    coordinator.hooks.{registration}\n\n\nasync def on_tool(event, data): ...\n"
    target = find_target(write_module(tmp_path, source, "hooks_guard.py"))
    assert source_location(target, "hook", all_clauses()["H7"], None) == "hooks_guard.py:5"
    assert source_location(target, "hook", all_clauses()["H9"], None) == "hooks_guard.py:1"


def test_a_location_in_a_package_is_relative_to_its_folder(tmp_path):
    root = write_project(tmp_path, "from .parts.work import mount")
    work = root / "tool_echo" / "parts" / "work.py"
    work.parent.mkdir()
    work.with_name("__init__.py").touch()
    work.write_text("async def execute(): ...\n\n\nasync def mount(coordinator, config): ...\n")
    target = find_target(root, "tool")
    clauses = all_clauses()
    assert source_location(target, "tool", clauses["T4"], None) == "parts/work.py:4"
    assert source_location(target, "tool", clauses["T5"], None) == "parts/work.py:1"
    assert source_location(target, "tool", clauses["A9"], "parts/work.py:3 execute") == "parts/work.py:3"
    assert source_location(target, "tool", clauses["A9"], "httpx/_client.py:3 send") == "parts/work.py:1"
    assert target.path_of("parts/work.py:4") == work
    assert target.path_of("pyproject.toml") == root / "pyproject.toml"
    assert target.path_of("nowhere.py:4") is None


def test_a_module_on_a_search_path_is_found_by_its_id(tmp_path, monkeypatch):
    package = tmp_path / "amplifier-module-tool-zz" / "amplifier_module_tool_zz"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("async def mount(coordinator, config): ...\n")
    monkeypatch.setenv("AMPLIFIER_MODULES", str(tmp_path))
    found = find_target("tool-zz")
    assert (found.module_id, found.import_name, found.search_path) == ("tool-zz", package.name, package.parent)


# ── a cancellation that does not leave the call ──

SLEEP = "await anyio.sleep(0.01)"
CATCHES = "catches the cancellation. Catch Exception instead."
STAR = f"try:\n    async with anyio.create_task_group():\n        {SLEEP}\nexcept* BaseException:\n    pass"
SHIELD = "with anyio.CancelScope(shield=True):"


def write_tool(folder: Path, body: str) -> tuple[Path, int]:
    """A tool whose execute begins with the lines, and the number of the line before them."""
    head = "async def execute(self, input):\n"
    source = SOUND_TOOL.replace(head, head + indent(body, " " * 12) + "\n", 1)
    imports = "import asyncio, contextlib\nimport anyio\nfrom contextlib import suppress\n"
    file = write_module(folder, imports + source.replace("\n    ", "\n"))
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if "async def execute" in line)
    return file, number


def await_line(file: Path) -> str:
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if "await anyio.sleep" in line)
    return f"{file.parent.name}/{file.name}:{number} Echo.execute"


@pytest.mark.parametrize(
    ("clause", "body", "shown", "line", "what"),
    [
        ("A7", f"try:\n    {SLEEP}\nexcept BaseException:\n    pass", "except BaseException:", 3, CATCHES),
        ("A7", f"try:\n    {SLEEP}\nexcept:\n    pass", "except:", 3, CATCHES),
        (
            "A7",
            f"try:\n    {SLEEP}\nexcept anyio.get_cancelled_exc_class():\n    x = 1",
            "except anyio.get_cancelled_exc_class():",
            3,
            "catches the cancellation. End the block with a bare `raise`.",
        ),
        (
            "A7",
            f"try:\n    try:\n        {SLEEP}\n    except ValueError:\n        pass\nexcept (OSError, BaseException):\n    pass",
            "except (OSError, BaseException):",
            6,
            CATCHES,
        ),
        ("A7", f"try:\n    {SLEEP}\nfinally:\n    return 1", "return 1", 4, "in a finally block discards"),
        ("A7", f"with suppress(BaseException):\n    {SLEEP}", "suppress(BaseException)", 1, "suppresses the"),
        ("A7", STAR, "except* BaseException:", 4, "takes the cancellation for part of a group."),
        ("A8", f"{SHIELD}\n    {SLEEP}", "anyio.CancelScope(shield=True)", 1, "keeps the cancellation out"),
        (
            "A8",
            f"try:\n    {SLEEP}\nfinally:\n    {SHIELD}\n        await close()",
            "anyio.CancelScope(shield=True)",
            4,
            "keeps the cancellation out",
        ),
        (
            "A8",
            f"try:\n    {SLEEP}\nexcept OSError:\n    {SHIELD}\n        await close()",
            "anyio.CancelScope(shield=True)",
            4,
            "keeps the cancellation out",
        ),
    ],
)
def test_the_code_that_holds_a_cancellation_up_is_named(tmp_path, clause, body, shown, line, what):
    file, before = write_tool(tmp_path, body)
    hint = cancellation_hint(find_target(file), clause, await_line(file), None)
    assert str(hint).startswith(f"`{shown}` at tool_echo.py:{before + line} {what}")


@pytest.mark.parametrize(
    ("clause", "body"),
    [
        ("A7", f"try:\n    {SLEEP}\nexcept Exception:\n    pass"),
        ("A7", f"try:\n    {SLEEP}\nexcept BaseException:\n    raise"),
        ("A7", f"try:\n    {SLEEP}\nexcept ExecutionCancelled:\n    pass"),
        ("A7", f"try:\n    {SLEEP}\nfinally:\n    def inner():\n        return 1"),
        ("A7", f"try:\n    pass\nexcept BaseException:\n    {SLEEP}"),
        ("A8", SLEEP),
    ],
)
def test_code_that_passes_cancellation_on_is_not_blamed(tmp_path, clause, body):
    file, _ = write_tool(tmp_path, body)
    assert cancellation_hint(find_target(file), clause, await_line(file), None) is None


def test_an_await_in_a_library_leads_to_the_handlers_of_the_module(tmp_path):
    file, before = write_tool(tmp_path, f"try:\n    {SLEEP}\nexcept:\n    pass")
    hint = cancellation_hint(find_target(file), "A7", "httpx/_client.py:12 send", None)
    assert f"`except:` at tool_echo.py:{before + 3}" in str(hint)


REPLACES = f"try:\n    {SLEEP}\nexcept BaseException as error:\n    raise RuntimeError('stopped') from error"
FAILING_TASK = """async def late():
    try:
        await anyio.sleep(0.02)
    except anyio.get_cancelled_exc_class():
        raise OSError("late")
async with anyio.create_task_group() as group:
    group.start_soon(late)"""


@pytest.mark.parametrize(
    ("body", "backend", "advice"),
    [
        # trio takes the group apart and ends the cancellation as usual.
        (STAR.replace("    pass", "    raise"), "asyncio", "`except* BaseException:` at tool_echo.py:"),
        pytest.param(STAR, "trio", "`except* BaseException:` at tool_echo.py:", marks=pytest.mark.slow),
        pytest.param(REPLACES, "asyncio", "The RuntimeError raised at tool_echo.py:", marks=pytest.mark.slow),
        pytest.param(REPLACES, "trio", "The RuntimeError raised at tool_echo.py:", marks=pytest.mark.slow),
        pytest.param(FAILING_TASK, "asyncio", "An error that a task raises while", marks=pytest.mark.slow),
        pytest.param(FAILING_TASK, "trio", "An error that a task raises while", marks=pytest.mark.slow),
    ],
    ids=["raised again", "except star", "replaced", "replaced on trio", "group", "group on trio"],
)
def test_a_report_gives_the_fitting_advice(tmp_path, backend, body, advice):
    file, _ = write_tool(tmp_path, body)
    found = [each for each in check(file, "A7", backend=backend).violations if each.clause == "A7"]
    assert found, body
    assert found[0].hint.startswith(advice)


# ── a package that is missing ──


def declare(root: Path, text: str) -> None:
    file = root / "pyproject.toml"
    file.write_text(file.read_text().replace('version = "1"\n', f'version = "1"\n{text}\n'), encoding="utf-8")


@pytest.mark.parametrize(
    ("declared", "hint"),
    [
        (
            "dependencies = ['anyio', \"No_Such.YAML>=6 ; python_version >= '3'\"]",
            "Install what pyproject.toml declares and is not installed: pip install 'No_Such.YAML>=6'",
        ),
        (
            "dependencies = ['NoSuchOne']\n[project.optional-dependencies]\nfancy = ['no-such-two']",
            "Install what pyproject.toml declares and is not installed: pip install NoSuchOne no-such-two",
        ),
        ("dependencies = ['anyio']", "Install the distribution that provides 'no_such', which may be called"),
        ("dependencies = [7, '']", "Install the distribution that provides 'no_such', which may be called"),
        ("optional-dependencies = []", "Install the distribution that provides 'no_such', which may be called"),
    ],
)
def test_only_what_the_module_declares_is_named(tmp_path, declared, hint):
    root = write_project(tmp_path, SOUND_TOOL)
    declare(root, declared)
    for target in (root, root / "tool_echo" / "__init__.py"):
        assert str(missing_package_hint(find_target(target), "No module named 'no_such.part'")).startswith(hint)


@pytest.mark.parametrize("text", ["[broken", "project = 7"])
def test_a_malformed_project_declares_nothing(tmp_path, text):
    root = write_project(tmp_path, SOUND_TOOL)
    (root / "pyproject.toml").write_text(text, encoding="utf-8")
    assert "which may be called differently" in str(missing_package_hint(find_target(root), "No module named 'thing'"))


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("No module named 'tool_echo.helpers'", "The module's own package has no 'tool_echo.helpers'; check the"),
        ("RuntimeError: no", "None"),
        ("No module named 'amplifier_core'", "None"),
    ],
)
def test_what_no_installation_provides_gets_other_advice(tmp_path, text, hint):
    assert str(missing_package_hint(find_target(write_project(tmp_path, SOUND_TOOL)), text)).startswith(hint)


def test_an_installed_module_uses_the_metadata_of_its_distribution(tmp_path, monkeypatch):
    package = tmp_path / "tool_elsewhere"
    package.mkdir()
    (package / "__init__.py").write_text("import no_such_thing\n", encoding="utf-8")
    info = tmp_path / "tool_elsewhere-1.dist-info"
    info.mkdir()
    info.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: tool-elsewhere\nVersion: 1\nRequires-Dist: No-Such-Thing>=3; extra == 'web'\n"
    )
    info.joinpath("top_level.txt").write_text("tool_elsewhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = check("tool_elsewhere", "A1", "T1").violations
    assert found.hint == (
        "Install what the distribution 'tool-elsewhere' declares and is not installed: pip install 'No-Such-Thing>=3'"
    )


def test_a_missing_import_is_located_and_advised_on_also_inside_mount(tmp_path):
    source = SOUND_TOOL.replace('coordinator.mount("tools", Echo())', "import no_such_thing")
    root = write_project(tmp_path, source)
    declare(root, "dependencies = ['no-such-thing']")
    report = check(root, "A1", "T1")
    assert report.verdict == "unchecked"
    assert any("pip install no-such-thing; not examined" in note for note in report.notes), report.notes
    file = write_module(tmp_path, "import no_such_thing\n" + SOUND_TOOL.replace("\n    ", "\n"))
    (found,) = check(file, "A1", "T1").violations
    assert found.what == "it cannot be imported: ModuleNotFoundError: No module named 'no_such_thing'"
    assert found.location == "tool_echo.py:1"
    assert "pip install" not in found.hint


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("raise RuntimeError('no')\n", "Let importing the module succeed and end at once; leave work that may fail"),
        ("x = 1\n", all_clauses()["A1"].hint),
    ],
)
def test_other_failures_of_an_import_get_the_advice_of_their_kind(tmp_path, source, hint):
    found = next(
        each for each in check(write_module(tmp_path, source), "A1", "T1").violations if each.check == "import"
    )
    assert found.hint.startswith(hint)
