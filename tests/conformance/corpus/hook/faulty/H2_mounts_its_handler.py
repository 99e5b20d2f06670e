"""Planted: the handler is mounted like a tool instead of being registered."""

from amplifier import HookResult

__amplifier_module_type__ = "hook"


async def handle(event, data):
    return HookResult(action="continue")


async def mount(coordinator, config):
    await coordinator.mount("tools", handle, name="my-hook")

    async def cleanup():
        await coordinator.unmount("tools", "my-hook")

    return cleanup
