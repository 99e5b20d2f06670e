"""Our own modules keep their contracts, by our own kit."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from amplifier.conformance import Report, check_module

CONFIGS: dict[str, dict[str, Any]] = {
    "context-persistent": {"path": "{directory}/sessions"},
    "hooks-logging": {"path": "{directory}/events.jsonl"},
}
MODULES = (
    "context-persistent",
    "context-simple",
    "hooks-approval",
    "hooks-logging",
    "hooks-redaction",
    "loop-basic",
    "loop-events",
    "loop-streaming",
    "provider-mock",
    "provider-offline",
    "tool-bash",
    "tool-filesystem",
    "tool-search",
    "tool-todo",
    "tool-web",
)
"""Those that work as they are; the other providers need a service, tool-task needs agents in the plan."""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("module_id", MODULES)
def test_a_built_in_module_conforms(module_id):
    async def run() -> Report:
        return await check_module(module_id, config=CONFIGS.get(module_id))

    report = anyio.run(run)
    assert report.ok, str(report)
