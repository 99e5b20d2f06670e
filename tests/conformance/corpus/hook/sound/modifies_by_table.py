"""Rewrites values of the payload by a table of event and key; a structured mount."""

import copy
import logging
from contextlib import AsyncExitStack, asynccontextmanager

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)

REWRITES = {
    ("prompt:submit", "prompt"): str.strip,
    ("tool:post", "result"): lambda text: text.replace("\t", "    "),
    ("tool:post", "tool_result"): lambda text: text.replace("\t", "    "),
}


async def rewrite(event, data):
    new = None
    for (name, key), change in REWRITES.items():
        value = data.get(key)
        if name != event or not isinstance(value, str) or change(value) == value:
            continue
        new = copy.deepcopy(data) if new is None else new
        new[key] = change(value)
    return HookResult() if new is None else HookResult(action="modify", data=new)


@asynccontextmanager
async def mount(coordinator, config):
    async with AsyncExitStack() as stack:
        for event in config.get("events", ["prompt:submit", "tool:post"]):
            stack.callback(coordinator.hooks.register(event, rewrite, priority=30, name="rewrite"))
            logger.info("rewrite registered for %s", event)
        yield
