"""The advice on a cancellation that does not leave a call names what was seen: swallowed, grouped, replaced, delayed."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent

import anyio
import pytest

from amplifier.conformance import Report, check_module
from amplifier.conformance.report.cancellation_advice import cancellation_hint
from amplifier.conformance.target.locate import find_target
from tests.conformance.modules import SOUND_TOOL, write_module

IMPORTS = "import asyncio, contextlib\nimport anyio\nfrom contextlib import suppress\n"

SWALLOWED = {
    "except BaseException": (
        "try:\n    await anyio.sleep(0.01)\nexcept BaseException:\n    pass",
        "`except BaseException:` at tool_echo.py:{line} catches the cancellation. Catch Exception instead.",
        3,
    ),
    "bare except": (
        "try:\n    await anyio.sleep(0.01)\nexcept:\n    pass",
        "`except:` at tool_echo.py:{line} catches the cancellation. Catch Exception instead.",
        3,
    ),
    "named cancellation": (
        "try:\n    await anyio.sleep(0.01)\nexcept anyio.get_cancelled_exc_class():\n    x = 1",
        "`except anyio.get_cancelled_exc_class():` at tool_echo.py:{line} catches the cancellation. End the block with a bare",
        3,
    ),
    "outer except": (
        "try:\n    try:\n        await anyio.sleep(0.01)\n    except ValueError:\n        pass\nexcept (OSError, BaseException):\n    pass",
        "`except (OSError, BaseException):` at tool_echo.py:{line} catches the cancellation. Catch Exception instead.",
        6,
    ),
    "return in finally": (
        "try:\n    await anyio.sleep(0.01)\nfinally:\n    return ToolResult(success=True, output='x')",
        "The `return` in a finally block at tool_echo.py:{line} discards the cancellation.",
        4,
    ),
    "suppress": (
        "with suppress(BaseException):\n    await anyio.sleep(0.01)",
        "`suppress(BaseException)` at tool_echo.py:{line} suppresses the cancellation.",
        1,
    ),
    "except star": (
        "try:\n    async with anyio.create_task_group():\n        await anyio.sleep(0.01)\nexcept* BaseException:\n    pass",
        "`except* BaseException:` at tool_echo.py:{line} handles the cancellation as part of a group and ends it.",
        4,
    ),
}


FAILING_TASK = """async def late():
    try:
        await anyio.sleep(0.02)
    except anyio.get_cancelled_exc_class():
        raise OSError("late")
async with anyio.create_task_group() as group:
    group.start_soon(late)"""


def write_tool(folder: Path, body: str) -> tuple[Path, int]:
    """A tool whose execute begins with the lines, and the number of the line before them."""
    head = "async def execute(self, input):\n"
    source = SOUND_TOOL.replace(head, head + indent(body, " " * 12) + "\n", 1)
    file = write_module(folder, IMPORTS + source.replace("\n    ", "\n"))
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if "async def execute" in line)
    return file, number


def await_line(file: Path) -> str:
    number = next(n for n, line in enumerate(file.read_text().splitlines(), 1) if "await anyio.sleep" in line)
    return f"{file.parent.name}/{file.name}:{number} Echo.execute"


@pytest.mark.parametrize("name", SWALLOWED)
def test_what_swallows_a_cancellation_is_named(tmp_path, name):
    body, advice, line = SWALLOWED[name]
    file, before = write_tool(tmp_path, body)
    hint = cancellation_hint(find_target(file), "A7", await_line(file), None)
    assert hint is not None
    assert hint.startswith(advice.format(line=before + line))


@pytest.mark.parametrize(
    "body",
    [
        "try:\n    await anyio.sleep(0.01)\nexcept Exception:\n    pass",
        "try:\n    await anyio.sleep(0.01)\nexcept BaseException:\n    raise",
        "try:\n    await anyio.sleep(0.01)\nexcept ExecutionCancelled:\n    pass",
        "try:\n    await anyio.sleep(0.01)\nfinally:\n    def inner():\n        return 1",
        "try:\n    pass\nexcept BaseException:\n    await anyio.sleep(0.01)",
    ],
)
def test_code_that_passes_cancellation_on_is_not_blamed(tmp_path, body):
    file, _ = write_tool(tmp_path, body)
    assert cancellation_hint(find_target(file), "A7", await_line(file), None) is None


def test_an_await_in_a_library_leads_to_the_handlers_of_the_module(tmp_path):
    file, before = write_tool(tmp_path, SWALLOWED["bare except"][0])
    hint = cancellation_hint(find_target(file), "A7", "httpx/_client.py:12 send", None)
    assert hint is not None
    assert f"`except:` at tool_echo.py:{before + 3}" in hint


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("with anyio.CancelScope(shield=True):\n    await anyio.sleep(0.01)", 1),
        (
            "try:\n    await anyio.sleep(1)\nfinally:\n    with anyio.CancelScope(shield=True):\n        await close()",
            4,
        ),
        (
            "try:\n    await anyio.sleep(1)\nexcept OSError:\n    with anyio.CancelScope(shield=True):\n        await close()",
            4,
        ),
    ],
)
def test_a_shield_is_named_where_the_call_goes_on(tmp_path, body, line):
    file, before = write_tool(tmp_path, body)
    hint = cancellation_hint(find_target(file), "A8", await_line(file), None)
    assert hint is not None
    assert hint.startswith(
        f"`anyio.CancelScope(shield=True)` at tool_echo.py:{before + line} keeps the cancellation out"
    )
    assert "anyio.move_on_after" in hint
    unshielded, _ = write_tool(tmp_path, "await anyio.sleep(0.01)")
    assert cancellation_hint(find_target(unshielded), "A8", await_line(unshielded), None) is None


def test_errors_are_told_apart_from_groups(tmp_path):
    file, _ = write_tool(tmp_path, "await anyio.sleep(0.01)")
    target, spot = find_target(file), await_line(file)
    assert "raised replaces the cancellation" in str(cancellation_hint(target, "A7", spot, ValueError("x")))
    group = ExceptionGroup("x", [ValueError("x")])
    assert "comes out as a group in place of the cancellation" in str(cancellation_hint(target, "A7", spot, group))


# ── as a report shows it ──


def check(file: Path, clause: str, backend: str) -> Report:
    async def run() -> Report:
        return await check_module(file, only=[clause], backends=[backend])

    return anyio.run(run)


def test_a_cancellation_that_except_star_raises_again_is_found_on_asyncio(tmp_path):
    # trio takes the group apart and ends the cancellation as usual.
    body = SWALLOWED["except star"][0].replace("    pass", "    raise")
    file, before = write_tool(tmp_path, body)
    (found,) = check(file, "A7", "asyncio").violations
    assert found.what.startswith(
        "execute of the tool 'echo' was cancelled by Task.cancel() and raised BaseExceptionGroup"
    )
    assert found.hint.startswith(
        f"`except* BaseException:` at tool_echo.py:{before + 4} turns the cancellation into a group"
    )


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("body", "advice"),
    [
        (SWALLOWED["except star"][0], "`except* BaseException:` at tool_echo.py:"),
        (
            "try:\n    await anyio.sleep(0.01)\nexcept BaseException as error:\n    raise RuntimeError('stopped') from error",
            "The RuntimeError raised at tool_echo.py:",
        ),
        (
            FAILING_TASK,
            "An error that a task raises while its task group is cancelled comes out as a group",
        ),
    ],
    ids=["except star", "replaced", "group"],
)
def test_a_report_gives_the_fitting_advice(tmp_path, backend, body, advice):
    file, _ = write_tool(tmp_path, body)
    found = [each for each in check(file, "A7", backend).violations if each.clause == "A7"]
    assert found, body
    assert found[0].hint.startswith(advice)
