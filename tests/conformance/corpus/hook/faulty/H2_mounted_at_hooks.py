"""Logs prompts.

Planted: mount puts the handler at the mount point "hooks" instead of registering it.
"""

import logging

from amplifier import HookResult

__amplifier_module_type__ = "hook"

logger = logging.getLogger(__name__)


class PromptLog:
    name = "prompt-log"
    events = ("prompt:submit", "prompt:complete")

    async def __call__(self, event, data):
        logger.info("%s", event)
        return HookResult(action="continue")


async def mount(coordinator, config):
    await coordinator.mount("hooks", PromptLog(), name="prompt-log")
