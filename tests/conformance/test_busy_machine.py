"""The same module gets the same report on an idle and on a busy machine, whether its calls are quick or slow."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from amplifier.conformance import check_module
from amplifier.models import to_dict
from tests.conformance.modules import SOUND_TOOL, write_module

SLOW_TOOL = SOUND_TOOL.replace(
    'text = input.get("text")', 'text = input.get("text")\n            import anyio; await anyio.sleep(7)'
)
FAULTY_SLOW_TOOL = SLOW_TOOL.replace("output=text", "output={text}")
SLOW_HOOK = """
    import logging

    import anyio

    from amplifier import HookResult

    __amplifier_module_type__ = "hook"

    logger = logging.getLogger(__name__)


    async def handle(event, data):
        await anyio.sleep(3)
        return HookResult(action="continue")


    async def mount(coordinator, config):
        undo = [
            coordinator.hooks.register(event, handle, priority=50, name="slow")
            for event in config.get("events", ["tool:pre", "tool:post"])
        ]
        logger.info("registered")

        def cleanup():
            for each in undo:
                each()

        return cleanup
"""


@contextmanager
def busy_machine() -> Iterator[None]:
    """Two processes that use all the CPU they get."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def examined(file: Path, module_type: str, only: list[str]) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        report = to_dict(await check_module(file, module_type=module_type, only=only))
        assert report.pop("seconds") > 0
        return report

    return anyio.run(run)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("source", "module_type", "only"),
    [
        pytest.param(FAULTY_SLOW_TOOL, "tool", ["T5", "T9", "A9"], id="a slow tool with a fault"),
        pytest.param(SLOW_TOOL, "tool", [], id="a slow tool", marks=pytest.mark.long),
        pytest.param(SLOW_HOOK, "hook", [], id="a slow hook", marks=pytest.mark.long),
        pytest.param(SOUND_TOOL, "tool", [], id="an ordinary tool", marks=pytest.mark.long),
    ],
)
def test_the_report_does_not_depend_on_what_else_the_machine_does(tmp_path, source, module_type, only):
    file = write_module(tmp_path, source, f"{module_type}_examined.py")
    alone = examined(file, module_type, only)
    with busy_machine():
        beside = examined(file, module_type, only)
    assert beside == alone
    assert alone["verdict"] == ("violations" if source is FAULTY_SLOW_TOOL else "conforms"), alone["notes"]
